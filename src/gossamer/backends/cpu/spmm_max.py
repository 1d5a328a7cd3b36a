"""Native kernels of ops/spmm_max.py."""

from __future__ import annotations

from torch import Tensor

from ... import memory
from ...native import library, num_threads
from ...ops._library import implement
from ...ops.spmm_max import NOT_A_WINNER, spmm_max_backward, spmm_max_op, winner_dtype
from ._arguments import F32, as_float, at


def _spmm_max(rowptr: Tensor, col: Tensor, value: Tensor | None, x: Tensor, max_degree: int) -> tuple[Tensor, Tensor]:
    if x.dtype != F32:
        return spmm_max_op.reference(rowptr, col, value, x, max_degree)
    rowptr, col, value, x = rowptr.contiguous(), col.contiguous(), as_float(value), x.contiguous()
    shape = [rowptr.numel() - 1, x.size(1)]
    out, winner = memory.empty(shape, F32), memory.empty(shape, winner_dtype(max_degree))
    library.spmm_max(
        at(rowptr), at(col), shape[0], at(value), at(x), at(out), at(winner), winner.element_size(), shape[1],
        num_threads(),
    )  # fmt: skip
    return out, winner


def _spmm_max_backward(
    rowptr: Tensor, col: Tensor, value: Tensor | None, winner: Tensor, dout: Tensor, num_src: int
) -> Tensor:
    if dout.dtype != F32:
        return spmm_max_backward.reference(rowptr, col, value, winner, dout, num_src)
    rowptr, col, value = rowptr.contiguous(), col.contiguous(), as_float(value)
    winner, dout = winner.contiguous(), dout.contiguous()
    dx = memory.empty([num_src, dout.size(1)], F32).zero_()
    valid = library.spmm_max_backward(
        at(rowptr), at(col), dout.size(0), at(value), at(dout), at(winner), winner.element_size(), at(dx),
        dout.size(1), num_threads(),
    )  # fmt: skip
    if not valid:
        raise ValueError(NOT_A_WINNER)
    return dx


implement(spmm_max_op, "cpu", _spmm_max)
implement(spmm_max_backward, "cpu", _spmm_max_backward)
