"""Outlier columns of the input: few columns of numbers much larger than the rest (a price, a year, a node id).

    x W^T = x' W'^T + x_o W_o^T        x', W': zero in the outlier columns        x_o, W_o: those columns alone

Codes share one scale per row, or one range per block, so one outlier column is enough for all others to round to zero.
Int8 products take x'; x_o is multiplied in float32, which costs little, as it has few columns. In real arithmetic
nothing changes, and no weight is scaled. With m_i the median magnitude in row i, zeros left out,

    column j is an outlier    if the root mean square over i of x_ij / m_i exceeds `LARGE`

which is measured on a sample of rows: a column that has large numbers in few rows harms few rows. Columns of similar
scale, and counts of words, have no outlier, and then nothing is done. Nor is it where half of the columns exceed
`LARGE`: then large numbers are anywhere in a row.

Only input that needs no gradient is examined. The layer behind it has the outlier as part of all its columns alike,
which rounding harms no more than others.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..state import facts
from .rules import among

LARGE = 16.0
"""Times the median magnitude of a row. Of columns that are just below, int8 loses less than a thousandth of the energy
of normal ones beside them."""
SAMPLE = 2**14
"""Elements that are looked at; of wide rows more, as there are at least `ROWS`."""
ROWS = 64


class Split(NamedTuple):
    """x' and x_o, and the numbers of the outlier columns."""

    ordinary: Tensor
    outliers: Tensor
    columns: Tensor

    def ordinary_of(self, weight: Tensor) -> Tensor:
        """W'."""
        return weight.index_fill(1, self.columns, 0.0)

    def outliers_of(self, weight: Tensor) -> Tensor:
        """W_o."""
        return weight.index_select(1, self.columns)


def split_of(x: Tensor) -> Split | None:
    """x without its outlier columns, and those; None if it has none."""
    return facts.remember(x, "split", lambda: _split(x)) if has_outliers(x) else None


def has_outliers(x: Tensor) -> bool:
    """Whether x is input that needs no gradient and has outlier columns.

    All ranks must send rows of hidden layers in the same form. In evaluation, where those need no gradient either, only
    what was found in training counts: that was in features, which do not travel.
    """
    if among.ranks and not torch.is_grad_enabled():
        return facts.recall(x, "outlier columns") is not None
    return not x.requires_grad and outlier_columns(x) is not None


def outlier_columns(x: Tensor) -> Tensor | None:
    """The numbers of the outlier columns; None if there are none."""
    return facts.remember(x, "outlier columns", lambda: _find(x))


def _split(x: Tensor) -> Split:
    columns = outlier_columns(x)
    assert columns is not None
    x = x.detach().float()
    return Split(x.index_fill(1, columns, 0.0), x.index_select(1, columns), columns)


def _find(x: Tensor) -> Tensor | None:
    rows, columns = x.shape
    if rows == 0 or columns == 0:
        return None
    count = max(ROWS, SAMPLE // columns)
    size = x.detach()[:: -(-rows // count)].abs().double().cpu().numpy()  # [sampled rows, columns]
    nonzero = (size > 0).sum(1)
    ordered = np.sort(size, axis=1)  # zeros first
    median = ordered[np.arange(len(size)), np.minimum(columns - nonzero // 2 - 1, columns - 1)]
    with np.errstate(all="ignore"):  # NaN and infinity show themselves elsewhere
        energy = np.square(size / np.where(median > 0, median, 1.0)[:, None]).mean(0)
        found = np.flatnonzero(np.isfinite(energy) & (energy > LARGE**2))
    return torch.from_numpy(found).to(x.device) if 0 < 2 * len(found) < columns else None
