"""An epilogue that saves few bits, as `save_epilogue` and `save_epilogue_rows` run it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ... import memory
from ...native import library, num_threads
from ...ops.norm_act import Epilogue, Over
from ...ops.save_epilogue import Packed, Packing, sizes
from ._arguments import F32, at, contiguous, enough, noise
from ._norm import column_affine, own_statistics, pointwise
from ._saved_epilogue import native_epilogue, span

LARGEST_GROUP = 2**22
"""Elements of the rows that fill whole blocks together; beyond it scratch would be as large as what it saves."""


def _group(columns: int, block: int, bits: int) -> int:
    """The least number of rows that fill whole blocks and whole bytes of bits."""
    bytes_full = 8 // math.gcd(8, columns)
    return math.lcm(block // math.gcd(block, columns), bytes_full) if bits else bytes_full


class Saving(NamedTuple):
    """A prepared epilogue: its statistics, the tensors that it saves, and the calls that run it.

    `run(start, end, out)` computes the result of some rows and what is saved of them;
    `multiply(outs, products, biases)` does so for all rows, and writes products of the result instead of the result.
    """

    mean: Tensor
    var: Tensor
    packed: Packed
    run: Callable[[int, int, Tensor], None]
    multiply: Callable[[list[Tensor], list[Tensor], list[Tensor | None]], None]
    group: int


def saving(x: Tensor, e: Epilogue, packing: Packing) -> Saving | None:
    """None where the rows that fill whole blocks are too many: the reference then computes all."""
    rows, columns = x.shape
    packing = packing._replace(block=span(x.numel(), packing.block), levels=contiguous(packing.levels)[0])
    group = _group(columns, packing.block, packing.bits) if x.numel() else 1
    if x.numel() == 0 or group * columns > LARGEST_GROUP:
        return None
    x, (weight, bias) = x.contiguous(), contiguous(e.weight, e.bias)
    code_bytes, blocks, mark_bytes = sizes(x.numel(), e.act, packing)
    meta = torch.bfloat16 if packing.bf16_meta else F32
    codes, marks = memory.empty([code_bytes], torch.uint8), memory.empty([mark_bytes], torch.uint8)
    zero, spread = (memory.empty([blocks], meta) for _ in range(2))
    packed = Packed(codes, zero, spread, marks)
    saved = packed.saved(x.shape, e, packing)
    mean, var = own_statistics(x, e.over)
    columns_of = column_affine(x, e.using(mean, var))
    by_row = (at(mean), at(var)) if e.over == Over.ROWS else (0, 0)

    def call(start: int, end: int, out: Tensor | None, *products: list[int]) -> None:
        settings = (
            *pointwise(e),
            native_epilogue(saved),
            *noise(packing.noise),
        )  # holds what is saved while it is read
        given = (*(at(t) for t in columns_of), at(weight), at(bias), e.eps, *by_row)
        place = x.data_ptr() + start * columns * 4
        ends = (start, end - start, columns)
        enough(library.save_epilogue(place, *given, *ends, *settings, at(out), *products, group, num_threads()))

    def run(start: int, end: int, out: Tensor) -> None:
        call(start, end, out, [], [], [], [])

    def multiply(outs: list[Tensor], products: list[Tensor], biases: list[Tensor | None]) -> None:
        operands = contiguous(*products), contiguous(*biases), outs
        call(0, rows, None, *([at(t) for t in tensors] for tensors in operands), [out.size(1) for out in outs])

    return Saving(mean, var, packed, run, multiply, group)
