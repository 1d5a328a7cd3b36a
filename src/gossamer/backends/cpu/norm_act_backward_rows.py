"""Native kernel of ops/norm_act_backward_rows.py."""

from __future__ import annotations

from torch import Tensor

from ... import memory
from ...native import library, num_threads
from ...ops._library import implement
from ...ops.norm_act import Epilogue
from ...ops.norm_act_backward_rows import READERS, GradientRows, norm_act_backward_rows
from ._arguments import F32, at, contiguous, enough, noise, row_sums_scratch
from ._int8_rows import empty_rows
from ._norm import column_gradient, pointwise


def _norm_act_backward_rows(
    dout: Tensor, x: Tensor, e: Epilogue, factors: list[Tensor | None], seeds: list[int], stochastic: bool,
    heads: int, origin: Tensor | None,
) -> GradientRows:  # fmt: skip
    if x.numel() == 0:
        return norm_act_backward_rows.reference(dout, x, e, factors, seeds, stochastic, heads, origin)
    dout, x, origin, *factors = contiguous(dout, x, origin, *factors)
    found = column_gradient(dout, x, e)
    rows = [empty_rows(*x.shape) for _ in factors]
    to = [
        (at(codes), at(scale), at(factor), *noise(own if stochastic else None))
        for (codes, scale), factor, own in zip(rows, factors, seeds, strict=True)
    ]
    to += [(0, 0, 0, False, 0)] * (READERS - len(to))
    sums, scratch = x.new_empty(x.size(1)), row_sums_scratch(*x.shape)
    scale, shift, mean, _ = found.columns
    by_column = (at(scale), at(shift), at(mean), at(found.by_x), at(found.constant))
    given = (at(dout), at(x), *by_column, *pointwise(e))
    dots = memory.empty([x.size(0), heads], F32) if heads else None
    with_x = (at(origin), at(dots), heads)
    ends = (at(scratch), at(sums), *x.shape, num_threads())
    enough(library.affine_backward_rows(*given, *to[0], *to[1], *with_x, *ends))
    flat = [tensor for pair in rows for tensor in pair]
    return GradientRows(flat, sums, found.dweight, found.dbias, x.new_empty(0) if dots is None else dots)


implement(norm_act_backward_rows, "cpu", _norm_act_backward_rows)
