"""Losses and scores of outputs against labels.

Multi-label targets are matrices [rows, labels] of 0 and 1; -1 or NaN is an unknown entry. Unknown entries are masked
out of the loss and of both scores: with z the logit of an entry and K the set of known ones,

    loss = mean over K of  log(1 + e^z) - y z
    F1   = 2 TP / (2 TP + FP + FN),  TP, FP, FN counted over all of K together (micro), z > 0 being a predicted 1

The area under the ROC curve is the chance that a positive scores above a negative, ties counting half: with ranks from
1 upwards, equal scores sharing their mean rank,

    AUC = (sum of the positives' ranks - P (P + 1) / 2) / (P N)

For multi-label targets it is the mean over the columns whose known entries hold both classes.
"""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F


class NoScore(ValueError):
    """Outputs that are no numbers: the largest of a row of NaN would be the first, as if class 0 were meant."""


def check_outputs(out: Tensor) -> None:
    """NaN and infinity are no scores; -infinity is one, of a class that is ruled out."""
    bad = out.isnan() | (out == torch.inf)
    if bool(bad.any()):
        rows = bad.reshape(len(out), -1).any(1)
        first = int(rows.nonzero()[0])
        raise NoScore(
            f"outputs must be finite to be scored (got NaN or infinity in {int(rows.sum())} of {len(out)} "
            f"rows, {out[first].reshape(-1)[:8].tolist()} in the first of them)"
        )


def _of_numbers(score: Callable[[Tensor, Tensor], float]) -> Callable[[Tensor, Tensor], float]:
    @functools.wraps(score)
    def checked(out: Tensor, y: Tensor) -> float:
        check_outputs(out)
        return score(out, y)

    return checked


@_of_numbers
def accuracy(out: Tensor, y: Tensor) -> float:
    """The share of rows whose largest output is at the label."""
    return float((out.argmax(1) == y).double().mean())


@_of_numbers
def roc_auc(out: Tensor, y: Tensor) -> float:
    """The area under the ROC curve; `out` holds two logits per row, or one score."""
    score = out[:, 1] - out[:, 0] if out.dim() == 2 and out.size(1) == 2 else out.flatten()
    check_outputs(score)  # -infinity less itself is NaN
    positive = y == 1
    num_positive, num_negative = int(positive.sum()), int((~positive).sum())
    if not num_positive or not num_negative:
        raise ValueError(
            f"`y` must hold both classes for a ROC AUC (got {num_positive} of class 1 and {num_negative} others); "
            "choose a split with both classes in every part"
        )
    _, group, count = score.unique(return_inverse=True, return_counts=True)
    mean_rank = count.cumsum(0).double() - (count.double() - 1) / 2
    rank_sum = float(mean_rank[group][positive].sum())
    return (rank_sum - num_positive * (num_positive + 1) / 2) / (num_positive * num_negative)


def mean_absolute_error(out: Tensor, y: Tensor) -> Tensor:
    return F.l1_loss(out.flatten(), y.flatten())


@_of_numbers
def mae(out: Tensor, y: Tensor) -> float:
    return float(mean_absolute_error(out.double(), y.double()))


def known_entries(y: Tensor) -> Tensor:
    """Boolean, False where a multi-label target is -1 or NaN (which compares as False)."""
    return y >= 0


def binary_cross_entropy(out: Tensor, y: Tensor) -> Tensor:
    """The mean over the known entries of `y`, each an independent yes or no with the logit in `out`."""
    out, known = out.reshape(y.shape), known_entries(y)
    if bool(known.all()):
        return F.binary_cross_entropy_with_logits(out, y.to(out.dtype))
    target, weight = (y == 1).to(out.dtype), known.to(out.dtype)
    return F.binary_cross_entropy_with_logits(out, target, weight, reduction="sum") / known.sum()


@_of_numbers
def micro_f1(out: Tensor, y: Tensor) -> float:
    """F1 over all known entries together; 0 where there is neither a positive nor a predicted one."""
    predicted, positive = (out.reshape(y.shape) > 0) & known_entries(y), y == 1
    hits, total = int((predicted & positive).sum()), int(predicted.sum()) + int(positive.sum())
    return 2 * hits / total if total else 0.0


def mean_roc_auc(out: Tensor, y: Tensor) -> float:
    """The mean of `roc_auc` over the columns that have both classes, each over its known entries."""
    out, known = out.reshape(y.shape), known_entries(y)
    columns = two_class_columns(y).tolist()
    return statistics.fmean(roc_auc(out[known[:, c], c], y[known[:, c], c]) for c in columns)


def two_class_columns(y: Tensor) -> Tensor:
    """Numbers of the columns with a 0 and a 1; raises if there is none, since no ROC AUC exists then."""
    both = (y == 0).any(0) & (y == 1).any(0)
    if not bool(both.any()):
        raise ValueError(
            f"`y` must hold both classes in at least one column for a mean ROC AUC (got {y.size(1)} columns, none with "
            "a 0 and a 1); choose a split with both classes in every part"
        )
    return torch.nonzero(both).flatten()
