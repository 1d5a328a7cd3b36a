"""Native kernels of ops/row_selection.py."""

from __future__ import annotations

import torch
from torch import Tensor

from ... import memory
from ...native import library, num_threads
from ...ops._library import implement
from ...ops.quantize_rows import QRows
from ...ops.row_selection import FilteredEdges, filter_edges, nonzero_rows, row_norms, row_norms_int8, top_rows
from ._arguments import F32, at, contiguous
from ._int8_rows import contiguous_rows


def _nonzero_rows(x: Tensor) -> Tensor:
    if x.dtype != F32:
        return nonzero_rows.reference(x)
    x = x.contiguous()
    keep = torch.empty(x.size(0), dtype=torch.bool)
    library.nonzero_rows(at(x), *x.shape, at(keep), num_threads())
    return keep


def _row_norms(x: Tensor) -> Tensor:
    if x.dtype != F32:
        return row_norms.reference(x)
    x = x.contiguous()
    out = torch.empty(x.size(0), dtype=F32)
    library.row_norms(at(x), at(out), *x.shape, num_threads())
    return out


def _row_norms_int8(x: QRows) -> Tensor:
    x = contiguous_rows(x)
    out = torch.empty(len(x.scale), dtype=F32)
    library.row_norms_int8(at(x.codes), at(x.scale), at(out), *x.codes.shape, num_threads())
    return out


def _top_rows(key: Tensor, cost: Tensor, budget: int) -> Tensor:
    key, cost = contiguous(key, cost)
    keep = torch.empty(len(key), dtype=torch.bool)
    library.top_rows(at(key), at(cost), len(key), budget, at(keep), num_threads())
    return keep


def _filter_edges(rowptr: Tensor, col: Tensor, value: Tensor | None, keep: Tensor) -> FilteredEdges:
    if value is not None and (value.dtype != F32 or value.dim() > 1):
        return filter_edges.reference(rowptr, col, value, keep)
    rowptr, col, value, keep = contiguous(rowptr, col, value, keep)
    given, words = (at(rowptr), at(col), rowptr.numel() - 1), col.numel() // 64 + 1
    kept, before = memory.empty([words], torch.int64), memory.empty([words + 1], torch.int64)
    kept_rowptr = memory.empty([rowptr.numel()], torch.int64)
    count = library.count_kept(*given, at(keep), at(kept), at(before), at(kept_rowptr), num_threads())
    kept_col = memory.empty([count], torch.int32)
    kept_value = memory.empty([0 if value is None else count], F32)
    written = (at(kept_col), at(kept_value), num_threads())
    library.filter_edges(*given, at(value), at(kept), at(before), *written)
    return FilteredEdges(kept_rowptr, kept_col, kept_value)


implement(nonzero_rows, "cpu", _nonzero_rows)
implement(row_norms, "cpu", _row_norms)
implement(row_norms_int8, "cpu", _row_norms_int8)
implement(top_rows, "cpu", _top_rows)
implement(filter_edges, "cpu", _filter_edges)
