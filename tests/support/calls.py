"""A random well-formed call of an op, as a list of arguments: what the fuzzer starts from. More: calls_*.py."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from gossamer.ops import OPS
from gossamer.ops.pack import num_blocks, num_bytes

Draw = Callable[[st.SearchStrategy[Any]], Any]
COLUMNS = st.sampled_from([0, 1, 3, 16, 18, 33])
COUNTS = st.integers(0, 6)
FANOUTS = st.sampled_from([-1, 1, 2, 3, 9])
SEEDS = st.integers(-(2**63), 2**63 - 1)
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def floats(draw: Draw, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(draw(st.integers(0, 99))))


def integers(draw: Draw, low: int, high: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    rng = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    return torch.randint(low, max(high, low + 1), shape, generator=rng).to(dtype)


def structure(draw: Draw) -> tuple[Tensor, Tensor, int]:
    num_src = draw(COUNTS)
    degrees = draw(st.lists(st.integers(0, 5 if num_src else 0), max_size=6))
    rowptr = torch.tensor([0, *degrees], dtype=torch.int64).cumsum(0)
    return rowptr, integers(draw, 0, num_src, (sum(degrees),), torch.int32), num_src


def maybe(draw: Draw, value: Tensor) -> Tensor | None:
    return value if draw(st.booleans()) else None


def weights(draw: Draw, nnz: int, columns: int) -> Tensor | None:
    heads = draw(st.sampled_from([h for h in (1, 2, 3) if columns % h == 0]))
    return draw(st.sampled_from([None, floats(draw, nnz), floats(draw, nnz, heads)]))


def diagonals(draw: Draw, num_src: int, num_dst: int) -> Tensor | None:
    own = min(num_src, num_dst)
    return draw(st.sampled_from([None, floats(draw, own), floats(draw, 1).expand(own)]))


def masks(draw: Draw, count: int) -> Tensor:
    return integers(draw, 0, 2, (count,), torch.bool)


def kept(draw: Draw, num_src: int) -> list[Tensor]:
    """The last argument of a sum: the sources that count, or nothing."""
    return [masks(draw, num_src)] if draw(st.booleans()) else []


def spmm(draw: Draw) -> list[Any]:
    rowptr, col, num_src = structure(draw)
    columns = draw(COLUMNS)
    scales = [maybe(draw, floats(draw, count)) for count in (num_src, rowptr.numel() - 1)]
    x = floats(draw, num_src, columns).to(draw(st.sampled_from([torch.float32, torch.float64, torch.bfloat16])))
    diagonal = diagonals(draw, num_src, rowptr.numel() - 1)
    if diagonal is not None and x.dtype == torch.float64:
        diagonal = diagonal.double()
    bias, rows = maybe(draw, floats(draw, columns)), maybe(draw, floats(draw, rowptr.numel() - 1, columns))
    value = weights(draw, col.numel(), columns)
    return [rowptr, col, value, *scales, x, bias, diagonal, rows, None, None, None, None, *kept(draw, num_src)]


def nonzero_rows(draw: Draw) -> list[Any]:
    rows = draw(COUNTS)
    x = floats(draw, rows, draw(COLUMNS)) * masks(draw, rows).unsqueeze(1)
    return [x.to(draw(st.sampled_from([torch.float32, torch.float64, torch.bfloat16])))]


def top_rows(draw: Draw) -> list[Any]:
    keys = st.sampled_from([0.0, 1e-45, 0.5, 1.0, 1.0 + 2**-20, 3e38, math.inf, math.nan])
    key = torch.tensor(draw(st.lists(keys, max_size=9)), dtype=torch.float32)
    return [key, integers(draw, 0, 9, (len(key),), torch.int64), draw(st.integers(0, 40))]


def filter_edges(draw: Draw) -> list[Any]:
    rowptr, col, num_src = structure(draw)
    return [rowptr, col, weights(draw, col.numel(), 6), masks(draw, num_src)]


def sample_edges(draw: Draw) -> list[Any]:
    rowptr, col, _ = structure(draw)
    num_dst = rowptr.numel() - 1
    rows = integers(draw, 0, num_dst, (draw(COUNTS) if num_dst else 0,), torch.int64)
    weight = maybe(draw, floats(draw, col.numel()).abs())
    return [rowptr, col, weight, rows, draw(FANOUTS), draw(st.booleans()), draw(SEEDS)]


def sample_neighbours(draw: Draw) -> list[Any]:
    nodes = draw(st.integers(1, 6))
    degrees = draw(st.lists(st.integers(0, 5), min_size=nodes, max_size=nodes))
    rowptr = torch.tensor([0, *degrees], dtype=torch.int64).cumsum(0)
    col = integers(draw, 0, nodes, (sum(degrees),), torch.int32)
    weight = maybe(draw, floats(draw, col.numel()).clamp(min=0))
    seeds = torch.tensor(draw(st.permutations(range(nodes)))[: draw(st.integers(1, nodes))])
    fanouts = draw(st.lists(FANOUTS, min_size=1, max_size=3))
    return [rowptr, col, weight, seeds, fanouts, draw(st.booleans()), draw(SEEDS), draw(st.booleans())]


def spmm_max(draw: Draw) -> list[Any]:
    rowptr, col, num_src = structure(draw)
    max_degree = draw(st.sampled_from([5, 6, 300, 40_000]))
    return [rowptr, col, maybe(draw, floats(draw, col.numel())), floats(draw, num_src, draw(COLUMNS)), max_degree]


def spmm_max_backward(draw: Draw) -> list[Any]:
    rowptr, col, value, x, max_degree = spmm_max(draw)
    out, winner = OPS["spmm_max"].reference(rowptr, col, value, x, max_degree)
    return [rowptr, col, value, winner, floats(draw, *out.shape), x.size(0)]


def sddmm(draw: Draw) -> list[Any]:
    rowptr, col, num_src = structure(draw)
    columns = draw(COLUMNS)
    heads = draw(st.sampled_from([h for h in (1, 2, 3) if columns % h == 0]))
    sides = floats(draw, rowptr.numel() - 1, columns), floats(draw, num_src, columns)
    return [rowptr, col, *sides, heads, None, None, None]


def edge_softmax(draw: Draw, inputs: int = 1) -> list[Any]:
    rowptr, col, _ = structure(draw)
    heads = draw(st.integers(0, 4))
    return [rowptr, *(floats(draw, col.numel(), heads) for _ in range(inputs))]


def coo_to_csr(draw: Draw) -> list[Any]:
    rowptr, col, num_src = structure(draw)
    dst = torch.repeat_interleave(torch.arange(rowptr.numel() - 1), rowptr.diff())
    dtype = draw(st.sampled_from([torch.int32, torch.int64]))
    return [dst.to(dtype), col.to(dtype), rowptr.numel() - 1, num_src]


def square(draw: Draw) -> list[Any]:
    """A structure with as many sources as destinations, every third of its edges a loop."""
    rowptr, col, _ = structure(draw)
    rows = rowptr.numel() - 1
    row = torch.repeat_interleave(torch.arange(rows), rowptr.diff())
    return [rowptr, torch.where(torch.arange(col.numel()) % 3 == 0, row, col % max(rows, 1)).to(torch.int32)]


def table(draw: Draw) -> tuple[int, int, Tensor]:
    rows, columns = draw(COUNTS), draw(COLUMNS)
    return rows, columns, integers(draw, 0, rows, (draw(COUNTS) if rows else 0,), torch.int64)


def gather_rows(draw: Draw) -> list[Any]:
    rows, columns, ids = table(draw)
    return [floats(draw, rows, columns).to(draw(st.sampled_from(DTYPES))), ids]


def gather_rows_int8(draw: Draw) -> list[Any]:
    rows, columns, ids = table(draw)
    return [integers(draw, -127, 128, (rows, columns), torch.int8), floats(draw, rows), ids]


def gather_packed_rows(draw: Draw) -> list[Any]:
    rows, columns, ids = table(draw)
    columns, bits = max(columns, 1), draw(st.sampled_from([1, 2, 4, 8]))
    codes = integers(draw, 0, 256, (rows, -(-columns * bits // 8)), torch.uint8)
    return [codes, floats(draw, rows), floats(draw, rows), ids, columns, bits]


def layout(draw: Draw) -> tuple[int, int, int]:
    return draw(st.integers(0, 300)), draw(st.sampled_from([1, 2, 4, 8])), draw(st.integers(1, 400))


def pack(draw: Draw) -> list[Any]:
    numel, bits, block = layout(draw)
    return [floats(draw, numel), bits, block, draw(st.none() | SEEDS), draw(st.booleans()), levels(draw, bits)]


def levels(draw: Draw, bits: int) -> Tensor | None:
    widths = floats(draw, 2**bits - 1).abs() + 0.1
    inner = widths.cumsum(0)[:-1] / widths.sum() * (2**bits - 1)
    return maybe(draw, torch.cat([torch.zeros(1), inner, torch.tensor([2.0**bits - 1])]))


def unpack(draw: Draw) -> list[Any]:
    numel, bits, block = layout(draw)
    codes = integers(draw, 0, 256, (num_bytes(numel, block, bits),), torch.uint8)
    meta = [floats(draw, num_blocks(numel, block)) for _ in range(2)]
    return [codes, *meta, numel, bits, block, levels(draw, bits)]


def pack_fixed(draw: Draw) -> list[Any]:
    numel, bits, _ = layout(draw)
    low = draw(st.sampled_from([-1.5, 0.0, 0.3]))
    return [floats(draw, numel), bits, low, low + draw(st.sampled_from([0.1, 1.0, 7.0])), draw(st.none() | SEEDS)]


def unpack_fixed(draw: Draw) -> list[Any]:
    x, bits, low, high, _ = pack_fixed(draw)
    return [integers(draw, 0, 256, (-(-x.numel() * bits // 8),), torch.uint8), x.numel(), bits, low, high]


def dropout(draw: Draw) -> list[Any]:
    x = floats(draw, draw(COUNTS), draw(COLUMNS)).to(draw(st.sampled_from([torch.float32, torch.float64])))
    return [x, draw(st.floats(0, 1)), draw(SEEDS)]


def masked_scale(draw: Draw) -> list[Any]:
    x, p, _ = dropout(draw)
    return [x, integers(draw, 0, 256, ((x.numel() + 7) // 8,), torch.uint8), p]


CALLS: dict[str, Callable[[Draw], list[Any]]] = {
    "coo_to_csr": coo_to_csr,
    "transpose_csr": lambda draw: list(structure(draw)),
    "count_loops": square,
    "split_loops": lambda draw: [*(given := square(draw)), maybe(draw, floats(draw, given[1].numel()))],
    "spmm": spmm,
    "nonzero_rows": nonzero_rows,
    "row_norms": nonzero_rows,
    "row_norms_int8": lambda draw: gather_rows_int8(draw)[:2],
    "top_rows": top_rows,
    "filter_edges": filter_edges,
    "sample_edges": sample_edges,
    "sample_neighbours": sample_neighbours,
    "spmm_max": spmm_max,
    "spmm_max_backward": spmm_max_backward,
    "sddmm": sddmm,
    "edge_softmax": edge_softmax,
    "edge_softmax_backward": lambda draw: edge_softmax(draw, inputs=2),
    "quantize_rows": lambda draw: [floats(draw, draw(COUNTS), draw(COLUMNS)), draw(st.none() | SEEDS)],
    "dequantize_rows": lambda draw: gather_rows_int8(draw)[:2],
    "pack": pack,
    "pack_fixed": pack_fixed,
    "unpack": unpack,
    "unpack_fixed": unpack_fixed,
    "gather_rows": gather_rows,
    "gather_rows_int8": gather_rows_int8,
    "gather_packed_rows": gather_packed_rows,
    "random_bits": lambda draw: [draw(SEEDS), draw(st.integers(0, 2**40)), draw(st.integers(0, 99)), torch.empty(0)],
    "dropout": dropout,
    "dropout_mask": dropout,
    "relu_dropout": dropout,
    "masked_scale": masked_scale,
}
