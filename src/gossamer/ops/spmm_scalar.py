"""Neighbour sums of compressed features (BiFeat), straight from their codes.

    out_i = dst_scale_i * sum over edges e = (j -> i) of value_e * src_scale_j * x_j + diagonal_i * x_i
    x_jc  = table[code_jc, c]                                                                (ops/gather_codes.py)

The same products, summed in the same order, as by `gather_scalar` and then `spmm`: the same bits. But rows of x are
decoded in registers, edge by edge, and are never in memory: an edge reads 1/32 (1 bit) to 1/4 (8 bits) of the bytes of
a float32 row. There is one weight per edge, and nothing here has a gradient.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import _checks
from ._library import define
from ._sum_checks import plus_own_rows
from .csr import Sparse
from .gather_codes import check_scalar_table, gather_scalar
from .spmm import weighted_sum


def _check(a: Sparse, codes: Tensor, table: Tensor, diagonal: Tensor | None, columns: int, bits: int) -> None:
    check_scalar_table(codes, table, columns, bits)
    num_src, nnz = codes.size(0), a.col.numel()
    _checks.csr(a.rowptr, a.col, num_src)
    factors = (("value", a.value, nnz), ("src_scale", a.src_scale, num_src), ("dst_scale", a.dst_scale, a.num_dst))
    for name, factor, count in factors:
        if factor is not None:
            _checks.dtype_of(name, factor, (torch.float32, torch.float64))
            _checks.shape_of(
                name, factor, (count,), f"[{count}], one number per {'edge' if name == 'value' else 'node'}"
            )
    if diagonal is not None:
        own = min(num_src, a.num_dst)
        _checks.dtype_of("diagonal", diagonal, (torch.float32,))
        _checks.shape_of("diagonal", diagonal, (own,), f"[{own}], one number per node that is source and destination")


def _reference(a: Sparse, codes: Tensor, table: Tensor, diagonal: Tensor | None, columns: int, bits: int) -> Tensor:
    ids = torch.arange(codes.size(0), device=codes.device)
    x = gather_scalar.reference(codes, table, ids, columns, bits)
    return plus_own_rows(weighted_sum(a, x), x, diagonal)


def _fake(a: Sparse, codes: Tensor, table: Tensor, diagonal: Any, columns: int, bits: int) -> Tensor:
    return table.new_empty(a.num_dst, columns)


spmm_scalar = define(
    "spmm_scalar(Sparse, Tensor codes, Tensor table, Tensor? diagonal, int columns, int bits) -> Tensor",
    check=_check,
    reference=_reference,
    fake=_fake,
)
