"""Native kernel of ops/saved_epilogue_backward.py."""

from __future__ import annotations

from torch import Tensor

from ...native import library, num_threads
from ...ops._library import implement
from ...ops.norm_act import Over, rstd_of
from ...ops.saved_epilogue import SavedEpilogue
from ...ops.saved_epilogue_backward import SavedEpilogueGradient, saved_epilogue_backward
from ._arguments import at, contiguous, enough, row_sums_scratch
from ._norm import correction
from ._saved_epilogue import contiguous_saved, native_epilogue


def _saved_epilogue_backward(
    dx: Tensor, dout: Tensor, k: SavedEpilogue, weight: Tensor | None, var: Tensor | None, over: int, eps: float
) -> SavedEpilogueGradient:
    k = contiguous_saved(k)
    dout, weight, var = contiguous(dout, weight, var)
    dweight, dbias = dout.new_zeros(k.columns), dout.new_zeros(k.columns)
    saved, ends = native_epilogue(k), (k.rows, k.columns, num_threads())
    scratch, sums = row_sums_scratch(k.rows, k.columns, pairs=2), dout.new_empty(0)
    if over == Over.ROWS and var is not None:
        rstd = rstd_of(var, over, eps).contiguous()
        given = (at(dout), saved, at(weight), at(rstd), at(scratch))
        enough(library.saved_epilogue_row_backward(*given, at(dx), at(dweight), at(dbias), *ends))
        return SavedEpilogueGradient(dweight, dbias, sums)
    scale = by_hat = constant = None
    if over != Over.NOTHING and var is not None:
        hats = dout.new_zeros(k.columns)
        enough(library.saved_epilogue_sums(at(dout), saved, at(scratch), at(dbias), at(dweight), at(hats), *ends))
        rstd = rstd_of(var, over, eps).expand(k.columns).contiguous()
        scale = rstd if weight is None else rstd * weight
        by_x, constant = correction(k.rows, weight, var, scale, rstd, over, eps, dweight, dbias)
        by_hat = None if by_x is None else by_x / rstd
        sums = scale * dbias
        if by_hat is not None and constant is not None:
            sums = by_hat * hats if over == Over.COLUMNS else sums + by_hat * hats + k.rows * constant
    extra = (at(scale), at(by_hat), at(constant))
    enough(library.saved_epilogue_backward(at(dout), saved, *extra, at(dx), *ends))
    return SavedEpilogueGradient(dweight, dbias, sums)


implement(saved_epilogue_backward, "cpu", _saved_epilogue_backward)
