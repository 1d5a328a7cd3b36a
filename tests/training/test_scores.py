"""Losses and scores: each against its definition, with unknown entries, ties and one class alone."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from sklearn.metrics import f1_score
from torch import Tensor
from torch.nn import functional as F

from gossamer.training.scores import (
    NoScore,
    accuracy,
    binary_cross_entropy,
    mae,
    mean_roc_auc,
    micro_f1,
    roc_auc,
    two_class_columns,
)


def many(seed: int, unknown: float | None = None, shape: tuple[int, int] = (83, 5)) -> tuple[Tensor, Tensor]:
    """Logits and multi-label targets; with `unknown`, a third of the entries has that value."""
    generator = torch.Generator().manual_seed(seed)
    out, y = torch.randn(shape, generator=generator), torch.randint(2, shape, generator=generator).float()
    if unknown is not None:
        y[torch.rand(shape, generator=generator) < 1 / 3] = unknown
    return out, y


def by_pairs(score: Tensor, y: Tensor) -> float:
    """The AUC by its definition: over all pairs of a positive and a negative, ties counting half."""
    positive, negative = score[y == 1][:, None], score[y == 0][None]
    return float(((positive > negative).double() + (positive == negative).double() / 2).mean())


@pytest.mark.parametrize("levels", [2, 5, 10**6])
@pytest.mark.parametrize("seed", range(4))
def test_auc_equals_its_definition_also_with_ties(levels: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    score = torch.randint(levels, (83,), generator=generator).float()
    y = torch.randint(2, (83,), generator=generator)
    assert roc_auc(score, y) == pytest.approx(by_pairs(score, y), abs=1e-12)  # both sums are exact halves
    logits = torch.stack([-score, score], 1) / 2
    assert roc_auc(logits, y) == pytest.approx(by_pairs(score, y), abs=1e-12)


def test_auc_of_perfect_reversed_and_constant_scores() -> None:
    y = torch.tensor([0, 0, 1, 1, 1])
    assert roc_auc(y.float(), y) == 1.0
    assert roc_auc(-y.float(), y) == 0.0
    assert roc_auc(torch.zeros(5), y) == 0.5


@pytest.mark.parametrize("score", [accuracy, roc_auc, mae, micro_f1, mean_roc_auc])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_outputs_that_are_no_numbers_have_no_score(score: Callable[[Tensor, Tensor], float], value: float) -> None:
    matrix = score in (micro_f1, mean_roc_auc)
    out, y = many(0) if matrix else (many(0)[0][:, : 1 if score is mae else 2], many(0)[1][:, 0])
    assert math.isfinite(score(out, y))
    out[7, 0] = value
    with pytest.raises(NoScore, match=r"outputs must be finite to be scored \(got NaN or infinity in 1 of 83 rows, \["):
        score(out, y)


def test_a_class_that_is_ruled_out_may_have_minus_infinity() -> None:
    out, y = torch.tensor([[1.0, -math.inf, 2.0], [3.0, -math.inf, 2.0]]), torch.tensor([2, 2])
    assert accuracy(out, y) == 0.5


def test_auc_of_one_class_is_refused() -> None:
    with pytest.raises(ValueError, match=r"both classes.*got 3 of class 1 and 0 others.*choose a split"):
        roc_auc(torch.rand(3), torch.ones(3))


def test_accuracy() -> None:
    assert accuracy(torch.tensor([[1.0, 0], [0, 1], [2, 1], [0, 1]]), torch.tensor([0, 1, 1, 1])) == 0.75


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.int8, torch.bool])
def test_multilabel_targets_of_any_type(dtype: torch.dtype) -> None:
    out, y = many(0)
    expected = F.binary_cross_entropy_with_logits(out, y)
    assert torch.equal(binary_cross_entropy(out, y.to(dtype)), expected)
    assert micro_f1(out, y.to(dtype)) == pytest.approx(f1_score(y, out > 0, average="micro"), abs=1e-12)
    assert mean_roc_auc(out, y.to(dtype)) == pytest.approx(
        sum(by_pairs(out[:, c], y[:, c]) for c in range(5)) / 5, abs=1e-12
    )


@pytest.mark.parametrize("unknown", [-1, math.nan])
@pytest.mark.parametrize("seed", range(3))
def test_unknown_entries_count_neither_in_the_loss_nor_in_the_scores(unknown: float, seed: int) -> None:
    out, y = many(seed, unknown)
    known = (y == 0) | (y == 1)
    assert 0.5 < float(known.float().mean()) < 0.8
    expected = F.binary_cross_entropy_with_logits(out[known], y[known])
    torch.testing.assert_close(binary_cross_entropy(out, y), expected)  # the same sum in another order
    assert micro_f1(out, y) == pytest.approx(f1_score(y[known], out[known] > 0), abs=1e-12)
    columns = [by_pairs(out[known[:, c], c], y[known[:, c], c]) for c in range(5)]
    assert mean_roc_auc(out, y) == pytest.approx(sum(columns) / 5, abs=1e-12)
    changed = torch.where(known, out, out + 100)
    assert micro_f1(changed, y) == micro_f1(out, y) and mean_roc_auc(changed, y) == mean_roc_auc(out, y)


@pytest.mark.parametrize("unknown", [-1, math.nan])
def test_unknown_entries_get_no_gradient(unknown: float) -> None:
    out, y = many(1, unknown)
    binary_cross_entropy(out.requires_grad_(), y).backward()
    assert out.grad is not None and torch.equal(out.grad != 0, y >= 0)


def test_micro_f1_of_perfect_and_constant_outputs() -> None:
    _, y = many(0)
    share = float(y.mean())
    assert micro_f1(2 * y - 1, y) == 1.0
    assert micro_f1(torch.ones_like(y), y) == pytest.approx(2 * share / (1 + share))
    assert micro_f1(-torch.ones_like(y), y) == micro_f1(torch.zeros_like(y), y) == 0.0
    assert micro_f1(torch.zeros(3, 2), torch.zeros(3, 2)) == 0.0, "no positive, none predicted"


def test_a_single_column_of_labels_takes_flat_outputs() -> None:
    out, y = many(0, shape=(20, 1))
    assert torch.equal(binary_cross_entropy(out.flatten(), y), binary_cross_entropy(out, y))
    assert micro_f1(out.flatten(), y) == micro_f1(out, y)
    assert mean_roc_auc(out.flatten(), y) == mean_roc_auc(out, y) == roc_auc(out, y.flatten())


def test_mean_auc_leaves_out_columns_with_one_class() -> None:
    y = torch.tensor([[0, 1, 0, -1], [1, 1, 0, 1], [1, 1, 0, 1]])
    assert two_class_columns(y).tolist() == [0]
    assert mean_roc_auc(torch.tensor([[0.0] * 4, [1.0] * 4, [2.0] * 4]), y) == 1.0


def test_mean_auc_without_a_column_of_both_classes_is_refused() -> None:
    message = r"both classes in at least one column .*got 2 columns, none with a 0 and a 1\); choose a split"
    with pytest.raises(ValueError, match=message):
        mean_roc_auc(torch.rand(3, 2), torch.tensor([[0, 1], [0, 1], [0, -1]]))
