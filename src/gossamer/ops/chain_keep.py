"""norm, activation and dropout (ops/norm_act.py), the products that follow, and what backward will need in few bits.

    out = dropout(act(z)), z = weight x_hat + bias        outs = out W_k^T + b_k for each product, or out itself

`out` is made a few rows at a time when products follow: then it never exists as a whole. Beside the results come
the statistics and what is kept (ops/kept_chain.py): codes of x_hat (of out where there is no norm) and marks. The
results are those of norm_act and linear, bit for bit up to the products' own order of sums.
"""

from __future__ import annotations

import torch
from torch import Tensor

from . import _checks
from ._few_bits import check_bits, num_blocks, num_bytes
from ._library import define
from .activation import derivative
from .dropout import pack_bits
from .kept_chain import LEAKY, RELU, Kept, is_smooth, slope_range
from .norm_act import Over, affine, check_norm_act, norm_act_op, normalised, rstd_of
from .pack import check_layout, check_levels, pack_op
from .pack_fixed import pack_fixed_op


def _check(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor | None, var: Tensor | None,
    over: int, eps: float, act: int, slope: float, p: float, seed: int, bits: int, block: int, bf16_meta: bool,
    levels: Tensor | None, noise: int | None, slope_bits: int, products: list[Tensor], biases: list[Tensor | None],
) -> None:  # fmt: skip
    check_norm_act(x, weight, bias, mean, var, over, eps, act, slope, p, seed)
    _checks.dtype_of("x", x, (torch.float32,))
    if bits:
        check_layout(x.numel(), bits, block)
        check_levels(levels, bits, x.device)
    check_bits(slope_bits, "slope_bits")
    if len(products) != len(biases):
        raise ValueError(f"`biases` must hold one bias or None per product, {len(products)} (got {len(biases)})")
    for k, (product, shift) in enumerate(zip(products, biases, strict=True)):
        _checks.dtype_of(f"products[{k}]", product, (torch.float32,))
        shape = f"[out_features, {x.size(1)}], as many columns as x"
        _checks.shape_of(f"products[{k}]", product, (None, x.size(1)), shape)
        if shift is not None:
            _checks.dtype_of(f"biases[{k}]", shift, (torch.float32,))
            _checks.shape_of(f"biases[{k}]", shift, (product.size(0),), f"[{product.size(0)}], one per out_feature")


def _reference(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor | None, var: Tensor | None,
    over: int, eps: float, act: int, slope: float, p: float, seed: int, bits: int, block: int, bf16_meta: bool,
    levels: Tensor | None, noise: int | None, slope_bits: int, products: list[Tensor], biases: list[Tensor | None],
) -> tuple[list[Tensor], Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    out, own_mean, own_var = norm_act_op.reference(x, weight, bias, mean, var, over, eps, act, slope, p, seed)
    used = (own_mean, own_var) if mean is None or var is None else (mean, var)
    hat = x if over == Over.NOTHING else normalised(x, used[0], rstd_of(used[1], over, eps), over)
    codes = _nothing(x, bf16_meta)
    if bits:
        codes = pack_op.reference(out if over == Over.NOTHING else hat, bits, block, noise, bf16_meta, levels)
    marks = _marks(affine(hat, weight, bias), out, act, slope, slope_bits, noise)
    pairs = zip(products, biases, strict=True)
    outs = [torch.nn.functional.linear(out, *pair) for pair in pairs] if products else [out]
    return outs, own_mean, own_var, *codes, marks


def _marks(z: Tensor, out: Tensor, act: int, slope: float, slope_bits: int, noise: int | None) -> Tensor:
    if is_smooth(act):
        seed = None if noise is None else ~noise
        return pack_fixed_op.reference(derivative(z, act, slope), slope_bits, *slope_range(act, slope), seed)
    if act in (RELU, LEAKY):
        return pack_bits((out > 0) | out.isnan() if act == RELU else z > 0)
    return z.new_empty(0, dtype=torch.uint8)


def _nothing(x: Tensor, bf16_meta: bool) -> tuple[Tensor, Tensor, Tensor]:
    meta = x.new_empty(0, dtype=torch.bfloat16 if bf16_meta else torch.float32)
    return x.new_empty(0, dtype=torch.uint8), meta, torch.empty_like(meta)


def sizes(numel: int, act: int, bits: int, block: int, slope_bits: int) -> tuple[int, int, int]:
    """Bytes of codes, number of blocks, bytes of marks."""
    marks = -(-numel * slope_bits // 8) if is_smooth(act) else (numel + 7) // 8 if act in (RELU, LEAKY) else 0
    return (num_bytes(numel, block, bits), num_blocks(numel, block), marks) if bits else (0, 0, marks)


def fake_chain_keep(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor | None, var: Tensor | None,
    over: int, eps: float, act: int, slope: float, p: float, seed: int, bits: int, block: int, bf16_meta: bool,
    levels: Tensor | None, noise: int | None, slope_bits: int, products: list[Tensor], biases: list[Tensor | None],
) -> tuple[list[Tensor], Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    code_bytes, blocks, mark_bytes = sizes(x.numel(), act, bits, block, slope_bits)
    stats = {Over.COLUMNS: x.size(1), Over.ROWS: x.size(0), Over.ALL: 1}.get(Over(over), 0)
    outs = [x.new_empty(x.size(0), w.size(0)) for w in products] or [torch.empty_like(x)]
    meta = [x.new_empty(blocks, dtype=torch.bfloat16 if bf16_meta else torch.float32) for _ in range(2)]
    counts = (x.new_empty(code_bytes, dtype=torch.uint8), x.new_empty(mark_bytes, dtype=torch.uint8))
    return outs, x.new_empty(stats), x.new_empty(stats), counts[0], meta[0], meta[1], counts[1]


chain_keep_op = define(
    "chain_keep(Tensor x, Tensor? weight, Tensor? bias, Tensor? mean, Tensor? var, int over, float eps, int act, "
    "float slope, float p, int seed, int bits, int block, bool bf16_meta, Tensor? levels, int? noise, int slope_bits, "
    "Tensor[] products, Tensor?[] biases) -> (Tensor[], Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    check=_check,
    reference=_reference,
    fake=fake_chain_keep,
)


def kept_of(
    found: tuple[Tensor, ...], shape: torch.Size, layout: tuple[int, int, Tensor | None], act: int, slope: float,
    p: float, seed: int, slope_bits: int,
) -> Kept:  # fmt: skip
    """What `chain_keep` keeps, from its last four results."""
    bits, block, levels = layout
    codes, zero, spread, marks = found
    merged = p if act == RELU else 0.0
    again = 0.0 if act == RELU else p
    marked = marks if marks.numel() or is_smooth(act) else None
    slope = slope if act != RELU else 0.0
    rows, columns = shape
    settings = (rows, columns, bits, block, act, slope, merged, again, seed, slope_bits)
    alone = Kept(None, None, None, None, marked, *settings)
    return alone._replace(codes=codes, zero=zero, spread=spread, levels=levels) if bits else alone
