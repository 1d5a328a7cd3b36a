"""Random well-formed calls of the ops that layers are made of: attention, normalisation, products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from gossamer.ops import OPS
from gossamer.ops.activation import ACTIVATIONS
from gossamer.ops.norm_act import Epilogue, Over, statistics
from gossamer.ops.norm_act_backward_rows import COLUMNWISE
from gossamer.ops.save_epilogue import Packing
from gossamer.ops.saved_epilogue import SavedEpilogue

from .calls import COLUMNS, COUNTS, SEEDS, Draw, floats, levels, maybe, structure

SLOPES = st.sampled_from([0.2, 1.0, 0.0])
WIDE = st.sampled_from([torch.float32, torch.float32, torch.float64])


def widened(dtype: torch.dtype, *tensors: Tensor | None) -> list[Tensor | None]:
    return [None if tensor is None else tensor.to(dtype) for tensor in tensors]


def edge_sums(draw: Draw) -> list[Any]:
    rowptr, col, _ = structure(draw)
    rng = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    perm = maybe(draw, torch.randperm(col.numel(), generator=rng))
    return [rowptr, perm, floats(draw, col.numel(), draw(st.integers(0, 4))).to(draw(WIDE))]


def gat_terms(draw: Draw) -> list[Any]:
    rowptr, col, num_src = structure(draw)
    heads = draw(st.integers(0, 4))
    a_dst, a_edge = (maybe(draw, floats(draw, count, heads)) for count in (rowptr.numel() - 1, col.numel()))
    return [rowptr, col, *widened(draw(WIDE), floats(draw, num_src, heads), a_dst, a_edge), draw(SLOPES)]


def gat_attention_backward(draw: Draw) -> list[Any]:
    terms = gat_terms(draw)
    p = OPS["gat_attention"].reference(*terms, None, None)
    return [*terms, p, floats(draw, *p.shape).to(p.dtype)]


def gatv2_logits(draw: Draw) -> list[Any]:
    rowptr, col, num_src = structure(draw)
    heads, width = draw(st.integers(1, 3)), draw(COLUMNS)
    rows = (floats(draw, count, heads * width) for count in (num_src, rowptr.numel() - 1))
    return [rowptr, col, *widened(draw(WIDE), *rows, floats(draw, heads, width)), draw(SLOPES), None, None, None]


def gatv2_backward(draw: Draw) -> list[Any]:
    rowptr, col, x_src, x_dst, att, slope, *_ = gatv2_logits(draw)
    transposed = OPS["transpose_csr"].reference(rowptr, col, x_src.size(0))
    dlogits = floats(draw, col.numel(), att.size(0)).to(x_src.dtype)
    return [rowptr, col, x_src, x_dst, att, slope, *transposed, dlogits]


def head_mean_spmm(draw: Draw) -> list[Any]:
    rowptr, col, num_src = structure(draw)
    heads, width = draw(st.integers(1, 3)), draw(COLUMNS)
    terms = floats(draw, col.numel(), heads), floats(draw, num_src, heads * width), maybe(draw, floats(draw, width))
    return [rowptr, col, *widened(draw(WIDE), *terms), None, None, None]


def head_mean_backward(draw: Draw) -> list[Any]:
    rowptr, col, value, x, *_ = head_mean_spmm(draw)
    transposed = OPS["transpose_csr"].reference(rowptr, col, x.size(0))
    dout = floats(draw, rowptr.numel() - 1, x.size(1) // value.size(1)).to(x.dtype)
    return [*transposed, value, maybe(draw, x), dout, draw(st.booleans())]


def linear(draw: Draw) -> list[Any]:
    rows, columns, outputs = draw(COUNTS), draw(COLUMNS), draw(COLUMNS)
    x, weight = floats(draw, rows, columns), floats(draw, outputs, columns)
    return widened(draw(WIDE), x, weight, maybe(draw, floats(draw, outputs)), maybe(draw, floats(draw, rows, outputs)))


def weight_grad(draw: Draw) -> list[Any]:
    rows, columns, outputs = draw(COUNTS | st.just(300)), draw(COLUMNS), draw(COLUMNS)
    return widened(draw(WIDE), floats(draw, rows, outputs), floats(draw, rows, columns))


def column_sums(draw: Draw) -> list[Any]:
    x = floats(draw, draw(st.integers(0, 600)), draw(COLUMNS))
    return [x.to(draw(st.sampled_from([torch.float32, torch.float64, torch.bfloat16])))]


def norm_act(draw: Draw) -> list[Any]:
    over = draw(st.sampled_from(Over))
    rows, columns = draw(st.integers(0, 6) | st.sampled_from([255, 257])), draw(COLUMNS)
    if over in (Over.COLUMNS, Over.ALL):
        rows, columns = max(rows, 2), max(columns, 1)  # one row would be divided by `eps` alone
    affine = [None, None] if over == Over.NOTHING else [maybe(draw, floats(draw, columns)) for _ in range(2)]
    fixed = [floats(draw, columns), floats(draw, columns).abs() + 0.1] if over == Over.FIXED else [None, None]
    x = widened(draw(WIDE), floats(draw, rows, columns), *affine, *fixed)
    act, p = draw(st.integers(0, len(ACTIVATIONS) - 1)), draw(st.just(0.0) | st.floats(0, 1))
    return [*x, int(over), draw(st.sampled_from([1e-3, 0.1])), act, draw(SLOPES), p, draw(SEEDS)]


def norm_act_backward(draw: Draw) -> list[Any]:
    x, weight, bias, mean, var, over, *rest = norm_act(draw)
    used = statistics(x, over) if mean is None else (mean, var)
    return [floats(draw, *x.shape).to(x.dtype), x, weight, bias, *used, over, *rest]


def epilogue_products_backward(draw: Draw) -> list[Any]:
    """Not with a p near 1: the few that are kept are huge, and their sum is near the reference's on that scale."""
    x, weight, bias, mean, var, over, *rest, p, seed = norm_act(draw)
    columnwise = over in COLUMNWISE
    over = over if columnwise else int(Over.NOTHING)
    x, weight, bias, mean, var = widened(torch.float32, x, *([weight, bias, mean, var] if columnwise else [None] * 4))
    used = statistics(x, over) if mean is None else (mean, var)
    gs = [floats(draw, x.size(0), draw(COUNTS)) for _ in range(draw(st.integers(0, 2)))]
    weights = [floats(draw, g.size(1), x.size(1)) for g in gs]
    return [gs, weights, x, weight, bias, *used, over, *rest, p if p == 1 else min(p, 0.9), seed]


def save_epilogue(draw: Draw, coded: bool | None = None) -> list[Any]:
    """Codes of normalised rows only if asked for: a rounding away from the reference's they may be other codes."""
    *tensors, over, eps, act, slope, p, seed = norm_act(draw)
    tensors = widened(torch.float32, *tensors)
    coded = over == Over.NOTHING and ACTIVATIONS[act] not in ("elu", "gelu") if coded is None else coded
    bits, slope_bits = (draw(st.sampled_from([1, 2, 4, 8])) for _ in range(2))
    bits = bits if coded else 0
    own_levels = levels(draw, bits) if bits else None
    block, noise = draw(st.integers(1, 400)), draw(st.none() | SEEDS)
    products = [floats(draw, draw(COUNTS), tensors[0].size(1)) for _ in range(draw(st.integers(0, 2)))]
    biases = [maybe(draw, floats(draw, product.size(0))) for product in products]
    codec = [bits, block, draw(st.booleans()), own_levels, noise, slope_bits]
    return [*tensors, over, eps, act, slope, p, seed, *codec, products, biases]


def saved_epilogue(draw: Draw) -> tuple[list[Any], SavedEpilogue, Tensor]:
    """The call that saved, what it saved, and the variance it used."""
    args = save_epilogue(draw, coded=True)
    x, epilogue, packing = args[0], Epilogue(*args[1:11]), Packing(*args[11:17])
    made = OPS["save_epilogue"].reference(*args)
    return args, made.packed.saved(x.shape, epilogue, packing), epilogue.using(made.mean, made.var).var


def saved_codes(draw: Draw) -> list[Any]:
    (_, weight, bias, *_), kept, _ = saved_epilogue(draw)
    return [*kept, weight, bias, draw(st.booleans())]


def saved_products(draw: Draw) -> list[Any]:
    args = saved_codes(draw)
    return [[floats(draw, args[5], draw(COUNTS)) for _ in range(draw(st.integers(0, 2)))], *args]


def saved_epilogue_backward(draw: Draw) -> list[Any]:
    (x, weight, _, _, _, over, eps, *_), kept, var = saved_epilogue(draw)
    return [torch.empty_like(x), floats(draw, *x.shape), *kept, weight, var, over, eps]


CALLS: dict[str, Callable[[Draw], list[Any]]] = {
    "edge_sums": edge_sums,
    "gat_attention": lambda draw: [*gat_terms(draw), None, None],
    "gat_attention_backward": gat_attention_backward,
    "gatv2_logits": gatv2_logits,
    "gatv2_backward": gatv2_backward,
    "head_mean_spmm": head_mean_spmm,
    "head_mean_backward": head_mean_backward,
    "linear": linear,
    "weight_grad": weight_grad,
    "column_sums": column_sums,
    "norm_act": norm_act,
    "norm_act_backward": norm_act_backward,
    "epilogue_products_backward": epilogue_products_backward,
    "save_epilogue": save_epilogue,
    "saved_products": saved_products,
    "saved_epilogue_backward": saved_epilogue_backward,
}
