"""Native kernels of ops/requantize.py."""

from __future__ import annotations

import torch
from torch import Tensor

from ...native import library, num_threads
from ...ops._library import implement
from ...ops.encode_codes import EncodedRows
from ...ops.requantize import Requantize, quantize_affine, requantize
from ._arguments import at, contiguous
from ._requantize import Result


def _quantize_affine(x: Tensor, mult: Tensor, to: Requantize) -> EncodedRows:
    x, mult = contiguous(x, mult)
    result, columns = Result(x.size(0), mult.numel(), to), mult.numel()
    bad = torch.full((), x.size(0))
    library.quantize_affine(at(x), x.size(1), at(mult), *result.arguments, at(bad), x.size(0), columns, num_threads())
    return EncodedRows(result.out, bad if int(bad) < x.size(0) else torch.tensor(-1))


def _requantize(x: Tensor, x_bits: int, x_zero: int, mult: Tensor, to: Requantize) -> Tensor:
    x, mult = contiguous(x, mult)
    result, columns = Result(x.size(0), mult.numel(), to), mult.numel()
    library.requantize(
        at(x), x_bits, x.size(1), x_zero, at(mult), *result.arguments, x.size(0), columns, num_threads()
    )  # fmt: skip
    return result.out


implement(quantize_affine, "cpu", _quantize_affine)
implement(requantize, "cpu", _requantize)
