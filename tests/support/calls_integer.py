"""Random well-formed calls of the integer engine's ops, and of fake quantisation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from gossamer.ops.fake_quantize import word_bytes
from gossamer.ops.requantize import code_bytes

from .calls import COLUMNS, COUNTS, Draw, floats, integers, masks, maybe, structure

EVEN = st.sampled_from([0, 2, 4, 16, 18, 34, 130])
BITS = st.sampled_from([8, 4])


def codes(draw: Draw, rows: int, columns: int, bits: int) -> Tensor:
    return integers(draw, 0, 256, (rows, code_bytes(columns, bits)), torch.uint8)


def result(draw: Draw, rows: int, columns: int) -> list[Any]:
    """The fields of Requantize."""
    added = [maybe(draw, floats(draw, *shape)) for shape in ((rows,), (columns,), (rows, columns))]
    bits = draw(st.sampled_from([8, 4, 32]))
    zero = draw(st.integers(0, 2 ** min(bits, 8) - 1))
    return [*added, draw(st.sampled_from([0.0, 0.2, 1.0])), zero, bits]


def factors(draw: Draw, columns: int) -> Tensor:
    return floats(draw, columns).abs() * 0.01


def quantize_affine(draw: Draw) -> list[Any]:
    rows, columns = draw(COUNTS), draw(EVEN)
    x = floats(draw, rows, max(0, columns - draw(st.sampled_from([0, 1, 3])))) * 9
    return [x, factors(draw, columns) * 100, *result(draw, rows, columns)]


def requantize(draw: Draw) -> list[Any]:
    rows, columns, bits = draw(COUNTS), draw(EVEN), draw(BITS)
    x = codes(draw, rows, columns, bits)
    return [x, bits, draw(st.integers(0, 2**bits - 1)), factors(draw, columns), *result(draw, rows, columns)]


def product(draw: Draw, rows: int, outs: int) -> list[Any]:
    columns, bits = draw(EVEN), draw(BITS)
    weight = integers(draw, -127, 128, (outs, columns), torch.int8)
    bias = maybe(draw, integers(draw, -(2**20), 2**20, (outs,), torch.int32))
    return [codes(draw, rows, columns, bits), bits, weight, bias, factors(draw, outs)]


def integer_linear(draw: Draw, products: int = 1) -> list[Any]:
    rows, outs = draw(COUNTS), draw(EVEN)
    given = [argument for _ in range(products) for argument in product(draw, rows, outs)]
    return [*given, *result(draw, rows, outs)]


def integer_sum(draw: Draw) -> list[Any]:
    rowptr, col, num_src = structure(draw)
    columns, bits, num_dst = draw(EVEN), draw(BITS), rowptr.numel() - 1
    weights = st.sampled_from([-3, 0, 1, 256])
    own = draw(weights) if num_dst <= num_src else 0
    x, zero = codes(draw, num_src, columns, bits), draw(st.integers(0, 2**bits - 1))
    return [rowptr, col, x, bits, zero, draw(weights), own, factors(draw, columns), *result(draw, num_dst, columns)]


def integer_weighted_sum(draw: Draw) -> list[Any]:
    rowptr, col, x, bits, zero, _, _, mult, *to = integer_sum(draw)
    num_dst = rowptr.numel() - 1
    own = integers(draw, 0, 256, (num_dst,), torch.uint8) if num_dst <= x.size(0) and draw(st.booleans()) else None
    return [rowptr, col, integers(draw, 0, 256, (col.numel(),), torch.uint8), own, x, bits, zero, mult, *to]


def integer_attention(draw: Draw) -> list[Any]:
    rowptr, col, num_src = structure(draw)
    heads, bits, num_dst = draw(st.sampled_from([1, 2, 3])), draw(BITS), rowptr.numel() - 1
    stored, mean = draw(st.sampled_from([2, 16, 32])), draw(st.booleans())
    width = draw(st.sampled_from([w for w in (2, 8, 16) if w <= stored]))
    columns = width if mean else heads * width
    terms = [floats(draw, num_src, heads) * 3, maybe(draw, floats(draw, num_dst, heads))]
    edge = maybe(draw, floats(draw, col.numel(), heads))
    x = codes(draw, num_src, heads * stored, bits)
    zero, mult = draw(st.integers(0, 2**bits - 1)), factors(draw, columns)
    return [rowptr, col, *terms, edge, 0.2, x, bits, zero, width, mean, mult, *result(draw, num_dst, columns)]


def fake_quantize(draw: Draw) -> list[Any]:
    rows, columns = draw(COUNTS), draw(COLUMNS)
    x = floats(draw, rows, columns).to(draw(st.sampled_from([torch.float32, torch.float64])))
    scale = floats(draw, draw(st.sampled_from([1, columns]))).abs() * 0.1 + 0.01
    scale = scale if scale.numel() else torch.tensor([0.1])
    zero, row, keep = torch.tensor([float(draw(st.integers(0, 15)))]), floats(draw, rows), masks(draw, rows)
    return [
        x,
        scale,
        zero,
        maybe(draw, row),
        maybe(draw, keep),
        draw(st.sampled_from([1, 15, 255])),
        draw(st.integers(0, 2)),
    ]


def fake_quantize_backward(draw: Draw) -> list[Any]:
    dout = floats(draw, draw(COUNTS), draw(COLUMNS))
    bits = integers(draw, 0, 256, (dout.size(0), word_bytes(dout.size(1))), torch.uint8)
    return [dout, maybe(draw, floats(draw, dout.size(0))), maybe(draw, bits)]


def histogram(draw: Draw) -> list[Any]:
    x = floats(draw, draw(COUNTS), draw(COLUMNS))
    low = draw(st.sampled_from([-2.0, 0.0, 0.5]))
    row, keep = maybe(draw, floats(draw, x.size(0))), maybe(draw, masks(draw, x.size(0)))
    return [x, row, keep, low, low + draw(st.sampled_from([0.1, 3.0])), draw(st.sampled_from([1, 10, 300]))]


CALLS: dict[str, Callable[[Draw], list[Any]]] = {
    "quantize_affine": quantize_affine,
    "requantize": requantize,
    "integer_linear": integer_linear,
    "integer_linear_two": lambda draw: integer_linear(draw, products=2),
    "integer_sum": integer_sum,
    "integer_weighted_sum": integer_weighted_sum,
    "integer_max": lambda draw: integer_sum(draw)[:5],
    "integer_attention": integer_attention,
    "fake_quantize": fake_quantize,
    "fake_quantize_backward": fake_quantize_backward,
    "histogram": histogram,
}
