"""Columns of much larger numbers than the rest of their rows (a price, a year, a node id), apart from the others.

    x W^T = x' W'^T + x_w W_w^T          x', W': zero in the wild columns          x_w, W_w: those columns alone

Codes share one scale per row, or one range per block: one wild column is enough for all others to round to zero. So
int8 products take x', and the few columns x_w, [rows, wild], are multiplied in float32. In real arithmetic nothing
changes, and no weight is scaled. With m_i the median magnitude in row i, zeros left out,

    column j is wild    if the root mean square over i of x_ij / m_i exceeds `WILD`, zeros left out

which is measured on a sample of rows: a column of which the sample shows nothing large harms few rows. Among columns of
one scale, counts and words too, none is wild, and then nothing is done. Nor where half of them are: large numbers that
may stand anywhere in a row are no matter of columns.

Only input that needs no gradient is asked. Behind it, wild columns have become part of all columns alike, and float32
has the same difficulty with them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..state import facts

WILD = 16.0
"""Times a row's median magnitude that a column must have to be wild. Where it has just not, rounding takes half a per
cent of the energy of the others."""
SAMPLE = 2**14
"""Elements that are looked at, or 64 rows if those are more."""


class Split(NamedTuple):
    """x' and x_w, and the numbers of the wild columns."""

    tame: Tensor
    wild: Tensor
    columns: Tensor

    def rest(self, weight: Tensor) -> Tensor:
        """W'."""
        return weight.index_fill(1, self.columns, 0.0)

    def part(self, weight: Tensor) -> Tensor:
        """W_w."""
        return weight.index_select(1, self.columns)


def split_of(x: Tensor) -> Split | None:
    """x without its wild columns, and those; None if it has none, or if it needs a gradient."""
    return facts.remember(x, "split", lambda: _split(x)) if is_wild(x) else None


def is_wild(x: Tensor) -> bool:
    """Whether x, input that needs no gradient, has wild columns."""
    return not x.requires_grad and wild_columns(x) is not None


def wild_columns(x: Tensor) -> Tensor | None:
    """The numbers of the wild columns; None if there are none."""
    return facts.remember(x, "wild columns", lambda: _find(x))


def _split(x: Tensor) -> Split:
    columns = wild_columns(x)
    assert columns is not None
    x = x.detach().float()
    return Split(x.index_fill(1, columns, 0.0), x.index_select(1, columns), columns)


def _find(x: Tensor) -> Tensor | None:
    rows, columns = x.shape
    if rows == 0 or columns == 0:
        return None
    count = max(64, SAMPLE // columns)
    size = x.detach()[:: -(-rows // count)].abs().double().cpu().numpy()  # [sampled rows, columns]
    found = (size > 0).sum(1)
    order = np.sort(size, axis=1)  # zeros first
    middle = order[np.arange(len(size)), np.minimum(columns - found // 2 - 1, columns - 1)]
    with np.errstate(all="ignore"):  # what is not finite shows itself elsewhere
        energy = np.square(size / np.where(middle > 0, middle, 1.0)[:, None]).sum(0)
        energy /= (size > 0).sum(0)
        wild = np.flatnonzero(np.isfinite(energy) & (energy > WILD**2))
    few = 0 < 2 * len(wild) < columns
    return torch.from_numpy(wild).to(x.device) if few else None
