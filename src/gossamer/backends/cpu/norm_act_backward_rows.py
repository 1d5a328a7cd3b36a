"""Native kernel of ops/norm_act_backward_rows.py."""

from __future__ import annotations

from torch import Tensor

from ... import memory
from ...native import library, num_threads
from ...ops._library import OPS, implement
from ._arguments import F32, MASK64, at, contiguous, enough, noise, row_sums_scratch
from ._int8_rows import empty_rows
from ._norm import column_gradient


def _norm_act_backward_rows(
    dout: Tensor, x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, var: Tensor,
    over: int, eps: float, act: int, slope: float, p: float, seed: int, factors: list[Tensor | None],
    seeds: list[int], stochastic: bool, heads: int, origin: Tensor | None,
) -> tuple[list[Tensor], Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    if x.numel() == 0:
        plain = (dout, x, weight, bias, mean, var, over, eps, act, slope, p, seed)
        return OPS["norm_act_backward_rows"].reference(*plain, factors, seeds, stochastic, heads, origin)
    dout, x, origin, *factors = contiguous(dout, x, origin, *factors)
    columns, by_x, constant, dweight, dbias = column_gradient(
        dout, x, weight, bias, mean, var, over, eps, act, slope, p, seed
    )
    rows = [empty_rows(*x.shape) for _ in factors]
    to = [
        (at(codes), at(scale), at(factor), *noise(own if stochastic else None))
        for (codes, scale), factor, own in zip(rows, factors, seeds, strict=True)
    ]
    to += [(0, 0, 0, False, 0)] * (2 - len(to))
    sums, scratch = x.new_empty(x.size(1)), row_sums_scratch(*x.shape)
    given = (at(dout), at(x), *(at(t) for t in columns[:3]), at(by_x), at(constant), act, slope, p, seed & MASK64)
    dots = memory.empty([x.size(0), heads], F32) if heads else None
    with_x = (at(origin), at(dots), heads)
    ends = (at(scratch), at(sums), *x.shape, num_threads())
    enough(library.affine_backward_rows(*given, *to[0], *to[1], *with_x, *ends))
    flat = [tensor for pair in rows for tensor in pair]
    return flat, sums, dweight, dbias, x.new_empty(0) if dots is None else dots


implement(OPS["norm_act_backward_rows"], "cpu", _norm_act_backward_rows)
