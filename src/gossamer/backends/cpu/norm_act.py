"""Native kernels of ops/norm_act.py."""

from __future__ import annotations

from torch import Tensor

from ... import memory
from ...native import library, num_threads
from ...ops._library import implement
from ...ops.norm_act import Epilogue, EpilogueGradient, EpilogueResult, Over, norm_act, norm_act_backward
from ._arguments import F32, at, contiguous, row_sums_scratch
from ._norm import column_affine, column_gradient, own_statistics, pointwise


def _norm_act(x: Tensor, e: Epilogue) -> EpilogueResult:
    if x.dtype != F32:
        return norm_act.reference(x, e)
    x, out = x.contiguous(), memory.empty(x.shape, F32)
    mean, var = own_statistics(x, e.over)
    if e.over == Over.ROWS:
        weight, bias = contiguous(e.weight, e.bias)
        affine = (at(weight), at(bias), e.eps)
        library.layer_norm(at(x), *affine, *pointwise(e), at(out), at(mean), at(var), *x.shape, num_threads())
        return EpilogueResult(out, mean, var)
    scale, shift, *_ = column_affine(x, e.using(mean, var))
    library.affine_forward(at(x), at(scale), at(shift), *pointwise(e), at(out), *x.shape, num_threads())
    return EpilogueResult(out, mean, var)


def _norm_act_backward(dout: Tensor, x: Tensor, e: Epilogue) -> EpilogueGradient:
    if x.dtype != F32:
        return norm_act_backward.reference(dout, x, e)
    dout, x, dx = dout.contiguous(), x.contiguous(), memory.empty(x.shape, F32)
    ends = (*x.shape, num_threads())
    if e.over == Over.ROWS:
        dweight, dbias = x.new_zeros(x.size(1)), x.new_zeros(x.size(1))
        weight, bias, mean, var = contiguous(e.weight, e.bias, e.mean, e.var)
        given = (at(dout), at(x), at(weight), at(bias), e.eps, *pointwise(e), at(mean), at(var))
        scratch = row_sums_scratch(*x.shape)
        library.layer_norm_backward(*given, at(scratch), at(dx), at(dweight), at(dbias), *ends)
        return EpilogueGradient(dx, dweight, dbias)
    found = column_gradient(dout, x, e)
    scale, shift, mean, _ = found.columns
    by_column = (at(scale), at(shift), at(mean), at(found.by_x), at(found.constant))
    library.affine_backward(at(dout), at(x), *by_column, *pointwise(e), at(dx), *ends)
    return EpilogueGradient(dx, found.dweight, found.dbias)


implement(norm_act, "cpu", _norm_act)
implement(norm_act_backward, "cpu", _norm_act_backward)
