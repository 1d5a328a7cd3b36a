"""An epilogue that saves few bits, as `chain_keep` and `chain_keep_rows` run it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ... import memory
from ...native import library, num_threads
from ...ops.chain_keep import kept_of, sizes
from ...ops.norm_act import Over
from ._arguments import F32, MASK64, at, contiguous, enough, noise
from ._kept_chain import native_chain, span
from ._norm import column_affine, moments

LARGEST_GROUP = 2**22
"""Elements of the rows that fill whole blocks together; beyond it scratch would be as large as what it saves."""


def _group(columns: int, block: int, bits: int) -> int:
    """The least number of rows that fill whole blocks and whole bytes of bits."""
    bytes_full = 8 // math.gcd(8, columns)
    return math.lcm(block // math.gcd(block, columns), bytes_full) if bits else bytes_full


class Keeping(NamedTuple):
    """A prepared epilogue: its statistics, the tensors that it saves, and the calls that run it.

    `run(start, end, out)` computes the result of some rows and what is saved of them;
    `multiply(outs, products, biases)` does so for all rows, and writes products of the result instead of the result.
    """

    mean: Tensor
    var: Tensor
    kept: tuple[Tensor, ...]
    run: Callable[[int, int, Tensor], None]
    multiply: Callable[[list[Tensor], list[Tensor], list[Tensor | None]], None]
    group: int


def keeping(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor | None, var: Tensor | None,
    over: int, eps: float, act: int, slope: float, p: float, seed: int, bits: int, block: int, bf16_meta: bool,
    levels: Tensor | None, seed_of_noise: int | None, slope_bits: int,
) -> Keeping | None:  # fmt: skip
    """None if a group of rows that fills whole blocks is too large: then the reference runs."""
    rows, columns = x.shape
    block = span(x.numel(), block)
    group = _group(columns, block, bits) if x.numel() else 1
    if x.numel() == 0 or group * columns > LARGEST_GROUP:
        return None
    x, (weight, bias, levels) = x.contiguous(), contiguous(weight, bias, levels)
    code_bytes, blocks, mark_bytes = sizes(x.numel(), act, bits, block, slope_bits)
    meta = torch.bfloat16 if bf16_meta else F32
    codes, marks = memory.empty([code_bytes], torch.uint8), memory.empty([mark_bytes], torch.uint8)
    zero, spread = (memory.empty([blocks], meta) for _ in range(2))
    k = kept_of((codes, zero, spread, marks), x.shape, (bits, block, levels), act, slope, p, seed, slope_bits)
    if over == Over.ROWS:
        own_mean, own_var = x.new_empty(rows), x.new_empty(rows)
    else:
        own_mean, own_var = moments(x, over) if over in (Over.COLUMNS, Over.ALL) else (x.new_empty(0), x.new_empty(0))
    used = (own_mean, own_var) if mean is None or var is None else (mean, var)
    columns_of = column_affine(x, weight, bias, *used, over, eps) if over != Over.ROWS else (None,) * 4
    by_row = (at(own_mean), at(own_var)) if over == Over.ROWS else (0, 0)

    def call(start: int, end: int, out: Tensor | None, *products: list[int]) -> None:
        settings = (act, slope, p, seed & MASK64, native_chain(k), *noise(seed_of_noise))  # holds k while it is read
        given = (*(at(t) for t in columns_of), at(weight), at(bias), eps, *by_row)
        place = x.data_ptr() + start * columns * 4
        ends = (start, end - start, columns)
        enough(library.chain_keep(place, *given, *ends, *settings, at(out), *products, group, num_threads()))

    def run(start: int, end: int, out: Tensor) -> None:
        call(start, end, out, [], [], [], [])

    def multiply(outs: list[Tensor], products: list[Tensor], biases: list[Tensor | None]) -> None:
        operands = contiguous(*products), contiguous(*biases), outs
        call(0, rows, None, *([at(t) for t in tensors] for tensors in operands), [out.size(1) for out in outs])

    return Keeping(own_mean, own_var, (codes, zero, spread, marks), run, multiply, group)
