"""Random well-formed calls of the ops on int8 rows, for the fuzzer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from gossamer.ops import OPS
from gossamer.ops.activation import ACTIVATIONS
from gossamer.ops.norm_act import Over

from .calls import COLUMNS, COUNTS, SEEDS, Draw, diagonals, floats, integers, kept, maybe, structure, weights
from .calls_layers import SLOPES, save_epilogue, saved_codes


def codes(draw: Draw, rows: int, columns: int) -> Tensor:
    return integers(draw, -127, 128, (rows, columns), torch.int8)


def whole_sum(draw: Draw) -> list[Any]:
    """Up to rows."""
    rowptr, col, num_src = structure(draw)
    columns, num_dst = draw(COLUMNS), rowptr.numel() - 1
    scales = [maybe(draw, floats(draw, count)) for count in (num_src, num_dst)]
    diagonal = diagonals(draw, num_src, num_dst)
    ends = [maybe(draw, floats(draw, columns)), diagonal, maybe(draw, floats(draw, num_dst, columns))]
    value = weights(draw, col.numel(), columns)
    return [rowptr, col, value, *scales, codes(draw, num_src, columns), floats(draw, num_src), *ends]


def spmm_int8(draw: Draw) -> list[Any]:
    args = whole_sum(draw)
    return [*args, *kept(draw, len(args[5]))]


def int8_linear(draw: Draw) -> list[Any]:
    rows, columns, outputs = draw(COUNTS), draw(COLUMNS), draw(COLUMNS)
    x, w = ([codes(draw, n, columns), floats(draw, n)] for n in (rows, outputs))
    return [*x, *w, maybe(draw, floats(draw, outputs)), maybe(draw, floats(draw, rows, outputs))]


def int8_linear_two(draw: Draw) -> list[Any]:
    *one, _ = int8_linear(draw)
    columns, (rows, outputs) = draw(COLUMNS), (one[0].size(0), one[2].size(0))
    x, w = ([codes(draw, n, columns), floats(draw, n)] for n in (rows, outputs))
    return [*one, *x, *w, maybe(draw, floats(draw, outputs))]


def int8_linear_plus(draw: Draw) -> list[Any]:
    *product, _, _ = int8_linear(draw)
    rank = draw(st.integers(0, 9))
    return [*product, floats(draw, product[0].size(0), rank), floats(draw, rank, product[2].size(0))]


def rounding(draw: Draw, columns: int) -> list[Any]:
    """factor and seed."""
    return [maybe(draw, floats(draw, columns)), draw(st.none() | SEEDS)]


def int8_linear_rows(draw: Draw) -> list[Any]:
    *args, _ = int8_linear(draw)
    return [*args, *rounding(draw, args[2].size(0))]


def spmm_rows(draw: Draw) -> list[Any]:
    args = whole_sum(draw)
    return [*args, *rounding(draw, args[5].size(1)), *kept(draw, len(args[5]))]


def quantize_times(draw: Draw) -> list[Any]:
    x = floats(draw, draw(COUNTS), draw(COLUMNS))
    return [x, *rounding(draw, x.size(1))]


def save_epilogue_rows(draw: Draw) -> list[Any]:
    """Without norm or exponentials: a rounding away from the reference's, a row may have other codes."""
    *args, _, _ = save_epilogue(draw)
    args[1:6] = [None] * 4 + [int(Over.NOTHING)]
    args[7] %= ACTIVATIONS.index("elu")
    return [*args, draw(st.none() | SEEDS)]


def epilogue_rows(draw: Draw) -> list[Any]:
    args = save_epilogue_rows(draw)
    return [*args[:11], args[-1]]


def norm_act_backward_rows(draw: Draw) -> list[Any]:
    """Without norm, or with one that divides by 1: a rounding away from the reference's, a row may have other codes."""
    dout, x = (floats(draw, *shape) for shape in [(draw(COUNTS), draw(COLUMNS))] * 2)
    act, p = draw(st.integers(0, ACTIVATIONS.index("elu") - 1)), draw(st.just(0.0) | st.floats(0, 1))
    over = draw(st.sampled_from([Over.NOTHING, Over.FIXED]))
    used = [x.new_empty(0)] * 2 if over == Over.NOTHING else [x.new_full((x.size(1),), v) for v in (0.0, 0.75)]
    settings = [int(over), 0.25, act, draw(st.sampled_from([0.2, 1.0, 0.0])), p, draw(SEEDS)]
    factors = [maybe(draw, floats(draw, x.size(1))) for _ in range(draw(st.integers(1, 2)))]
    rounding = [factors, [draw(SEEDS) for _ in factors], draw(st.booleans())]
    heads = draw(st.sampled_from([h for h in (0, 1, 2, 3) if h == 0 or x.size(1) % h == 0]))
    return [dout, x, None, None, *used, *settings, *rounding, heads, maybe(draw, floats(draw, x.size(1)))]


def int8_grad(draw: Draw) -> list[Any]:
    rows, outputs = draw(st.sampled_from([0, 1, 5, 513])), draw(COLUMNS)
    g = draw(st.sampled_from([(floats(draw, rows, outputs), None), (codes(draw, rows, outputs), floats(draw, rows))]))
    return [*g, codes(draw, rows, draw(COLUMNS)), floats(draw, rows), draw(SEEDS)]


def int8_grad_exact(draw: Draw) -> list[Any]:
    rows = draw(COUNTS)
    return [floats(draw, rows, draw(COLUMNS)), codes(draw, rows, draw(COLUMNS)), floats(draw, rows)]


def sddmm_int8(draw: Draw) -> list[Any]:
    rowptr, col, num_src = structure(draw)
    columns, num_dst = draw(COLUMNS), rowptr.numel() - 1
    heads = draw(st.sampled_from([h for h in (1, 2, 3) if columns % h == 0]))
    sides = ([codes(draw, n, columns), floats(draw, n)] for n in (num_dst, num_src))
    return [rowptr, col, *(t for side in sides for t in side), heads]


def small_rows(draw: Draw, rows: int, columns: int) -> list[Tensor]:
    """Codes and scales of rows with numbers of size 1."""
    return [codes(draw, rows, columns), floats(draw, rows) / 127]


def int8_linear_heads(draw: Draw) -> list[Any]:
    rows, columns, outputs = draw(COUNTS), draw(COLUMNS), draw(COLUMNS)
    heads = draw(st.sampled_from([h for h in (1, 2, 3) if outputs % h == 0]))
    sides = [t for n in (rows, outputs) for t in small_rows(draw, n, columns)]
    return [*sides, floats(draw, draw(st.integers(0, 3)), outputs), heads, draw(st.none() | SEEDS)]


def gat_forward(draw: Draw) -> list[Any]:
    """Up to h_scale."""
    rowptr, col, num_src = structure(draw)
    columns, num_dst = draw(COLUMNS), rowptr.numel() - 1
    heads = draw(st.sampled_from([h for h in (1, 2, 3) if columns % h == 0]))
    a_src, *others = (floats(draw, n, heads) for n in (num_src, num_dst, col.numel()))
    terms = [a_src, *(maybe(draw, term) for term in others), draw(SLOPES)]
    drop = draw(st.sampled_from([0.0, 0.0, 1.0]) | st.floats(0, 0.9))  # near 1 the few that are kept are huge
    return [rowptr, col, *terms, drop, draw(SEEDS), *small_rows(draw, num_src, columns)]


def gat_sum_int8(draw: Draw) -> list[Any]:
    args = gat_forward(draw)
    return [*args, maybe(draw, floats(draw, args[8].size(1)))]


def gat_dots_int8(draw: Draw) -> list[Any]:
    args = gat_forward(draw)
    return [*args, *small_rows(draw, args[0].numel() - 1, args[8].size(1))]


def gat_backward_int8(draw: Draw) -> list[Any]:
    """Weights below 1, whatever the slope: a step of their 16 bits is then too small to be seen.

    Where rows are asked for, all of one size, which 16 bits hold, with noise: a rounding away from the reference's, a
    row may have other codes.
    """
    rowptr, col, *terms, slope, drop, seed, h, h_scale = gat_forward(draw)
    num_dst, (num_src, heads), rows = rowptr.numel() - 1, terms[0].shape, draw(st.booleans())
    terms = [None if term is None else term * (0.0 if rows else 0.25) for term in terms]
    log_sums, dots = floats(draw, num_dst, heads).abs() + 2, floats(draw, num_dst, heads)
    g, g_scale = small_rows(draw, num_dst, h.size(1))
    drop = drop if drop in (0.0, 1.0) else 0.5
    if rows:
        log_sums, g_scale = torch.zeros_like(log_sums), g_scale.sign() / 2
    transposed = OPS["transpose_csr"].reference(rowptr, col, num_src)
    given = [*transposed, *terms, slope, drop, seed, log_sums, dots, g, g_scale, h, h_scale]
    return [*given, rows, maybe(draw, floats(draw, h.size(1))), draw(SEEDS)]


CALLS: dict[str, Callable[[Draw], list[Any]]] = {
    "spmm_int8": spmm_int8,
    "int8_linear": int8_linear,
    "int8_linear_two": int8_linear_two,
    "int8_linear_plus": int8_linear_plus,
    "int8_linear_rows": int8_linear_rows,
    "spmm_rows": spmm_rows,
    "quantize_times": quantize_times,
    "epilogue_rows": epilogue_rows,
    "save_epilogue_rows": save_epilogue_rows,
    "saved_codes": saved_codes,
    "norm_act_backward_rows": norm_act_backward_rows,
    "int8_grad": int8_grad,
    "int8_grad_exact": int8_grad_exact,
    "sddmm_int8": sddmm_int8,
    "int8_linear_heads": int8_linear_heads,
    "gat_sum_int8": gat_sum_int8,
    "gat_dots_int8": gat_dots_int8,
    "gat_backward_int8": gat_backward_int8,
}
