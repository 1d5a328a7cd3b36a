"""Native kernels of ops/norm_act.py."""

from __future__ import annotations

from torch import Tensor

from ... import memory
from ...native import library, num_threads
from ...ops._library import OPS, implement
from ...ops.norm_act import Over
from ._arguments import F32, MASK64, at, contiguous, row_sums_scratch
from ._norm import column_affine, column_gradient, moments


def _norm_act(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor | None, var: Tensor | None,
    over: int, eps: float, act: int, slope: float, p: float, seed: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    if x.dtype != F32:
        return OPS["norm_act"].reference(x, weight, bias, mean, var, over, eps, act, slope, p, seed)
    x, out = x.contiguous(), memory.empty(x.shape, F32)
    tail = (act, slope, p, seed & MASK64)
    if over == Over.ROWS:
        own_mean, own_var = x.new_empty(x.size(0)), x.new_empty(x.size(0))
        weight, bias = contiguous(weight, bias)
        affine = (at(weight), at(bias), eps)
        own = (at(own_mean), at(own_var))
        library.layer_norm(at(x), *affine, *tail, at(out), *own, *x.shape, num_threads())
        return out, own_mean, own_var
    own_mean, own_var = moments(x, over) if over in (Over.COLUMNS, Over.ALL) else (x.new_empty(0), x.new_empty(0))
    used = (own_mean, own_var) if mean is None or var is None else (mean, var)
    scale, shift, _, _ = column_affine(x, weight, bias, *used, over, eps)
    library.affine_forward(at(x), at(scale), at(shift), *tail, at(out), *x.shape, num_threads())
    return out, own_mean, own_var


def _norm_act_backward(
    dout: Tensor, x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, var: Tensor,
    over: int, eps: float, act: int, slope: float, p: float, seed: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    if x.dtype != F32:
        return OPS["norm_act_backward"].reference(dout, x, weight, bias, mean, var, over, eps, act, slope, p, seed)
    dout, x, dx = dout.contiguous(), x.contiguous(), memory.empty(x.shape, F32)
    dweight, dbias = x.new_zeros(x.size(1)), x.new_zeros(x.size(1))
    tail = (act, slope, p, seed & MASK64)
    ends = (*x.shape, num_threads())
    if over == Over.ROWS:
        (weight, bias), mean, var = contiguous(weight, bias), mean.contiguous(), var.contiguous()
        given = (at(dout), at(x), at(weight), at(bias), eps, *tail, at(mean), at(var))
        scratch = row_sums_scratch(*x.shape)
        library.layer_norm_backward(*given, at(scratch), at(dx), at(dweight), at(dbias), *ends)
        return dx, dweight, dbias
    columns, by_x, constant, dweight, dbias = column_gradient(
        dout, x, weight, bias, mean, var, over, eps, act, slope, p, seed
    )
    extra = (at(by_x), at(constant))
    library.affine_backward(at(dout), at(x), *(at(t) for t in columns[:3]), *extra, *tail, at(dx), *ends)
    return dx, dweight, dbias


implement(OPS["norm_act"], "cpu", _norm_act)
implement(OPS["norm_act_backward"], "cpu", _norm_act_backward)
