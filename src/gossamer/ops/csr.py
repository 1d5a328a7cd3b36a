"""Sparse structure: from an edge list to CSR, and from CSR to its transpose, by stable counting sort.

    coo_to_csr:     rowptr[i] .. rowptr[i+1] are the edges with dst = i, in their given order; col = their src;
                    perm[k] = position in the edge list of the k-th CSR edge
    transpose_csr:  the same for (src, dst) exchanged; perm[k] = CSR position of the k-th transposed edge
    count_loops:    how many edges of row i have the source i
    split_loops:    the edges that are no loops, and for each row the sum of its loops' values (1 without values)

Rows are destinations, columns sources: A X sums over incoming edges, as PyG's source-to-target flow does.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from . import _checks
from ._library import define
from ._structure import structure
from .gather_rows import gather_rows

MAX_NODES = 2**31 - 1  # ids are int32


@structure
class Sparse(NamedTuple):
    """diag(dst_scale) V diag(src_scale), V the matrix of `value` (ones, if None) on the edges."""

    rowptr: Tensor
    col: Tensor
    value: Tensor | None = None
    src_scale: Tensor | None = None
    dst_scale: Tensor | None = None

    @property
    def num_dst(self) -> int:
        return self.rowptr.size(0) - 1

    def transposed(self, num_src: int) -> Sparse:
        """The transposed matrix, computed anew."""
        rowptr, col, perm = transpose_csr(self.rowptr, self.col, num_src)
        value = None if self.value is None else gather_rows(self.value, perm)
        return Sparse(rowptr, col, value, self.dst_scale, self.src_scale)


def row_of_edge(rowptr: Tensor) -> Tensor:
    """Destination of each CSR edge, int64 [nnz]."""
    return torch.repeat_interleave(torch.arange(rowptr.numel() - 1, device=rowptr.device), rowptr.diff())


def _check_coo(dst: Tensor, src: Tensor, num_dst: int, num_src: int) -> None:
    for name, ids in (("dst", dst), ("src", src)):
        _checks.dtype_of(name, ids, (torch.int64, torch.int32))
        _checks.shape_of(name, ids, (None,), "[nnz]")
    if dst.shape != src.shape or dst.dtype != src.dtype:
        raise ValueError(
            f"`dst` and `src` must agree in length and dtype (got {dst.shape} {dst.dtype}, {src.shape} {src.dtype})"
        )
    for name, count in (("num_dst", num_dst), ("num_src", num_src)):
        if not 0 <= count <= MAX_NODES:
            raise ValueError(
                f"`{name}` must lie between 0 and {MAX_NODES}, because node ids are stored as int32 (got {count}); "
                "split the graph into smaller ones"
            )


def _coo_reference(dst: Tensor, src: Tensor, num_dst: int, num_src: int) -> tuple[Tensor, Tensor, Tensor]:
    _checks.ids_within("src", src, num_src, "source nodes")
    _checks.ids_within("dst", dst, num_dst, "destination nodes")
    perm = torch.argsort(dst, stable=True)
    rowptr = torch.zeros(num_dst + 1, dtype=torch.int64, device=dst.device)
    rowptr[1:] = torch.bincount(dst, minlength=num_dst).cumsum(0)
    return rowptr, src[perm].to(torch.int32), perm


def _coo_fake(dst: Tensor, src: Tensor, num_dst: int, num_src: int) -> tuple[Tensor, Tensor, Tensor]:
    rowptr = dst.new_empty(num_dst + 1, dtype=torch.int64)
    return rowptr, torch.empty_like(src, dtype=torch.int32), torch.empty_like(src, dtype=torch.int64)


coo_to_csr = define(
    "coo_to_csr(Tensor dst, Tensor src, SymInt num_dst, SymInt num_src) -> (Tensor, Tensor, Tensor)",
    check=_check_coo,
    reference=_coo_reference,
    fake=_coo_fake,
)


def _check_transpose(rowptr: Tensor, col: Tensor, num_src: int) -> None:
    _checks.csr(rowptr, col, num_src)


def _transpose_reference(rowptr: Tensor, col: Tensor, num_src: int) -> tuple[Tensor, Tensor, Tensor]:
    return _coo_reference(col.to(torch.int64), row_of_edge(rowptr), num_src, rowptr.numel() - 1)


def _transpose_fake(rowptr: Tensor, col: Tensor, num_src: int) -> tuple[Tensor, Tensor, Tensor]:
    return rowptr.new_empty(num_src + 1), torch.empty_like(col), torch.empty_like(col, dtype=torch.int64)


transpose_csr = define(
    "transpose_csr(Tensor rowptr, Tensor col, SymInt num_src) -> (Tensor, Tensor, Tensor)",
    check=_check_transpose,
    reference=_transpose_reference,
    fake=_transpose_fake,
)


def _check_loops(rowptr: Tensor, col: Tensor) -> None:
    _checks.rowptr_of(rowptr, col.numel())
    _checks.csr(rowptr, col, rowptr.numel() - 1)


def _count_reference(rowptr: Tensor, col: Tensor) -> Tensor:
    row = row_of_edge(rowptr)
    return torch.bincount(row[col == row], minlength=rowptr.numel() - 1)


count_loops = define(
    "count_loops(Tensor rowptr, Tensor col) -> Tensor",
    check=_check_loops,
    reference=_count_reference,
    fake=lambda rowptr, col: rowptr.new_empty(rowptr.numel() - 1),
)


def _check_split(rowptr: Tensor, col: Tensor, value: Tensor | None) -> None:
    _check_loops(rowptr, col)
    if value is not None:
        _checks.dtype_of("value", value, (torch.float32,))
        _checks.shape_of("value", value, (col.numel(),), f"[{col.numel()}], one number per edge")


def without(rowptr: Tensor, loops: Tensor) -> Tensor:
    """Row pointers of as many edges less in each row."""
    kept = rowptr.clone()
    kept[1:] -= loops.cumsum(0)
    return kept


def _split_reference(rowptr: Tensor, col: Tensor, value: Tensor | None) -> tuple[Tensor, ...]:
    row = row_of_edge(rowptr)
    loop = col == row
    own = torch.ones(col.numel(), dtype=torch.float32, device=col.device) if value is None else value
    diagonal = own.new_zeros(rowptr.numel() - 1).index_add(0, row[loop], own[loop])
    kept_value = col.new_empty(0, dtype=torch.float32) if value is None else value[~loop]
    return without(rowptr, _count_reference(rowptr, col)), col[~loop], kept_value, diagonal


def _split_fake(rowptr: Tensor, col: Tensor, value: Tensor | None) -> tuple[Tensor, ...]:
    left = torch.library.get_ctx().new_dynamic_size()
    numbers = col.new_empty(0 if value is None else left, dtype=torch.float32)
    diagonal = rowptr.new_empty(rowptr.numel() - 1, dtype=torch.float32)
    return torch.empty_like(rowptr), col.new_empty(left), numbers, diagonal


split_loops = define(
    "split_loops(Tensor rowptr, Tensor col, Tensor? value) -> (Tensor, Tensor, Tensor, Tensor)",
    check=_check_split,
    reference=_split_reference,
    fake=_split_fake,
)
