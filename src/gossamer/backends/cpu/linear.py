"""Native kernels of ops/linear.py."""

from __future__ import annotations

import torch
from torch import Tensor

from ... import memory
from ...native import library, num_threads
from ...ops._library import implement
from ...ops.linear import column_sums, linear_op
from ._arguments import F32, at, row_sums_scratch


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None, rows: Tensor | None) -> Tensor:
    if x.dtype != F32:
        return linear_op.reference(x, weight, bias, rows)
    out = memory.empty([x.size(0), weight.size(0)], F32)
    if rows is None:
        return torch.mm(x, weight.t(), out=out) if bias is None else torch.addmm(bias, x, weight.t(), out=out)
    if bias is None:
        out.copy_(rows)
    else:
        torch.add(rows, bias, out=out)
    return out.addmm_(x, weight.t())


def _column_sums(x: Tensor) -> Tensor:
    if x.dtype != F32:
        return column_sums.reference(x)
    x, sums, scratch = x.contiguous(), x.new_empty(x.size(1)), row_sums_scratch(*x.shape)
    library.column_sums(at(x), at(scratch), at(sums), *x.shape, num_threads())
    return sums


implement(linear_op, "cpu", _linear)
implement(column_sums, "cpu", _column_sums)
