"""Which rows of a gradient count, and the edges from them.

    nonzero_rows      keep_i = any x_ic != 0                                     NaN is not zero
    row_norms         ||x_i||_2
    row_norms_int8    ||scale_i codes_i||_2
    top_rows          rows in the order of falling keys, equal ones by ascending row, are kept while the sum of their
                      costs is at most `budget`. Keys that are not finite come first and are kept whatever they cost;
                      keys of zero, and rows that alone cost more than the budget, never are
    filter_edges      the edges whose source is kept, in their order: the matrix that `spmm(..., keep)` multiplies by

Selecting takes a pass over the keys, which go into bins by their highest bits, and a partition of the one bin that is
kept in part; nothing is sorted. Filtering reads each column index once, about 1 / width of the product it makes
shorter. None depends on the number of threads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from . import _checks
from ._library import define
from ._structure import structure
from .csr import Sparse, row_of_edge
from .int8_linear import MAX_COLUMNS
from .quantize_rows import QRows


def _check_rows(x: Tensor) -> None:
    _checks.dtype_of("x", x, (torch.float32, torch.float64, torch.bfloat16))
    _checks.shape_of("x", x, (None, None), "[rows, columns]")


nonzero_rows = define(
    "nonzero_rows(Tensor x) -> Tensor",
    check=_check_rows,
    reference=lambda x: (x != 0).any(1),
    fake=lambda x: x.new_empty(x.size(0), dtype=torch.bool),
)


LEAST_WORK = 2**20
"""Multiplications of a product below which looking for zero rows is not worth a call."""
LEAST_ZEROS = 1 / 8
"""The share of zero rows from which leaving them out pays."""
LOOKED_AT = 1024
"""Rows of a gradient, evenly spaced, that say whether it is worth looking at all of them."""


def rows_that_count(gradient: Tensor | QRows, work: int) -> Tensor | None:
    """The rows that are not zero; None where so few are zero, or `work` is so little, that all may as well be used."""
    rows = gradient.codes if isinstance(gradient, QRows) else gradient
    if rows.size(0) == 0 or work < LEAST_WORK:
        return None
    if isinstance(gradient, QRows):
        keep = gradient.scale != 0
        return keep if _share_of_zeros(keep) >= LEAST_ZEROS else None
    few = rows[:: max(1, rows.size(0) // LOOKED_AT)]
    return nonzero_rows(rows) if _share_of_zeros((few != 0).any(1)) >= LEAST_ZEROS else None


def _share_of_zeros(keep: Tensor) -> float:
    return 1 - float(keep.sum()) / keep.numel()


row_norms = define(
    "row_norms(Tensor x) -> Tensor",
    check=_check_rows,
    reference=lambda x: torch.linalg.vector_norm(x, dim=1, dtype=torch.float64).float(),
    fake=lambda x: x.new_empty(x.size(0), dtype=torch.float32),
)


def _check_norms(x: QRows) -> None:
    _checks.dtype_of("codes", x.codes, (torch.int8,))
    _checks.shape_of("codes", x.codes, (None, None), "[rows, columns]")
    _checks.dtype_of("scale", x.scale, (torch.float32,))
    count = x.codes.size(0)
    _checks.shape_of("scale", x.scale, (count,), f"[{count}], one number per row of `codes`")
    if x.codes.size(1) > MAX_COLUMNS:
        raise ValueError(
            f"`codes` must have at most {MAX_COLUMNS} columns, or int32 sums overflow (got {x.codes.size(1)}); split it"
        )


row_norms_int8 = define(
    "row_norms_int8(QRows) -> Tensor",
    check=_check_norms,
    reference=lambda x: x.codes.int().square().sum(1).float().sqrt() * x.scale,
    fake=lambda x: torch.empty_like(x.scale),
)


def _check_top(key: Tensor, cost: Tensor, budget: int) -> None:
    _checks.dtype_of("key", key, (torch.float32,))
    _checks.shape_of("key", key, (None,), "[rows]")
    _checks.dtype_of("cost", cost, (torch.int64,))
    _checks.shape_of("cost", cost, (key.numel(),), f"[{key.numel()}], one for each `key`")
    if budget < 0:
        raise ValueError(f"`budget` must be at least 0 (got {budget})")
    if cost.numel() == 0:
        return
    low, high = map(int, cost.aminmax())
    if low < 0:
        raise ValueError(f"`cost` must hold no negative number (got {low})")
    most = (2**63 - 1) // cost.numel()
    if high > most:
        raise ValueError(
            f"`cost` must hold numbers up to {most}, or int64 sums of {cost.numel()} rows overflow (got {high}); "
            "divide costs and budget"
        )


def _top_reference(key: Tensor, cost: Tensor, budget: int) -> Tensor:
    always = ~key.isfinite()
    left = budget - int(cost[always].sum())
    order = torch.argsort(key, descending=True, stable=True)
    order = order[(~always & (key > 0) & (cost <= budget))[order]]
    always[order[cost[order].cumsum(0) <= left]] = True
    return always


top_rows = define(
    "top_rows(Tensor key, Tensor cost, int budget) -> Tensor",
    check=_check_top,
    reference=_top_reference,
    fake=lambda key, cost, budget: torch.empty_like(key, dtype=torch.bool),
)


@structure
class FilteredEdges(NamedTuple):
    """`value` is empty where there was none."""

    rowptr: Tensor
    col: Tensor
    value: Tensor


def check_keep(keep: Tensor | None, num_src: int) -> None:
    """One truth value per source, or none."""
    if keep is not None:
        _checks.dtype_of("keep", keep, (torch.bool,))
        _checks.shape_of("keep", keep, (num_src,), f"[{num_src}], one truth value per source")


def only_kept(dvalue: Tensor, col: Tensor, keep: Tensor | None) -> Tensor:
    """Gradients of edge weights, zero for edges whose source is left out."""
    if keep is None:
        return dvalue
    stays = keep[col.long()].view(-1, *[1] * (dvalue.dim() - 1))
    return torch.where(stays, dvalue, 0.0)


def _check_filter(rowptr: Tensor, col: Tensor, value: Tensor | None, keep: Tensor) -> None:
    check_keep(keep, keep.numel())
    _checks.csr(rowptr, col, keep.numel())
    if value is not None:
        _checks.dtype_of("value", value, (torch.float32, torch.float64))
        shape = (col.numel(), None)[: max(value.dim(), 1)]
        _checks.shape_of("value", value, shape, f"[nnz] or [nnz, heads] with nnz = {col.numel()}")


def _filter_reference(rowptr: Tensor, col: Tensor, value: Tensor | None, keep: Tensor) -> FilteredEdges:
    stays = keep[col.long()]
    count = torch.bincount(row_of_edge(rowptr)[stays], minlength=rowptr.numel() - 1)
    kept_rowptr = torch.cat([count.new_zeros(1), count.cumsum(0)])
    return FilteredEdges(
        kept_rowptr, col[stays], col.new_empty(0, dtype=torch.float32) if value is None else value[stays]
    )


def _filter_fake(rowptr: Tensor, col: Tensor, value: Tensor | None, keep: Tensor) -> FilteredEdges:
    count = torch.library.get_ctx().new_dynamic_size()
    kept = col.new_empty(0, dtype=torch.float32) if value is None else value.new_empty(count, *value.shape[1:])
    return FilteredEdges(torch.empty_like(rowptr), col.new_empty(count), kept)


filter_edges = define(
    "filter_edges(Tensor rowptr, Tensor col, Tensor? value, Tensor keep) -> FilteredEdges",
    check=_check_filter,
    reference=_filter_reference,
    fake=_filter_fake,
)


def kept_matrix(a: Sparse, keep: Tensor | None, by: Callable[..., FilteredEdges] = filter_edges) -> Sparse:
    """The matrix with the edges from sources that are kept; autograd sees through `by=filter_edges.reference` alone."""
    if keep is None:
        return a
    found = by(a.rowptr, a.col, a.value, keep)
    _checks.passed(found.rowptr, found.col, keep.numel())
    return a._replace(rowptr=found.rowptr, col=found.col, value=None if a.value is None else found.value)
