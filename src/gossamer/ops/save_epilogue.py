"""norm, activation and dropout (ops/norm_act.py), the products that follow, and what backward will need in few bits.

    out = dropout(act(z)), z = weight x_hat + bias        outs = out W_k^T + b_k for each product, or out itself

`out` is made a few rows at a time when products follow: then it never exists as a whole. Beside the results come
the statistics and what is saved (ops/saved_epilogue.py): codes of x_hat (of out where there is no norm) and marks. The
results are those of norm_act and linear, bit for bit up to the products' own order of sums.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from . import _checks
from ._few_bits import check_bits, num_blocks, num_bytes
from ._library import define
from ._structure import structure
from .activation import derivative
from .dropout import pack_bits
from .norm_act import Epilogue, EpilogueResult, Over, affine, check_epilogue, fake_norm_act, norm_act, normalised_by
from .pack import check_layout, check_levels, pack_op
from .pack_fixed import pack_fixed_op
from .saved_epilogue import LEAKY, RELU, SavedEpilogue, is_smooth, marks_alone, slope_range


@structure
class Packing(NamedTuple):
    """How rows and derivatives are packed: `noise` is a seed or None to round to nearest; without bits, marks alone."""

    bits: int = 0
    block: int = 1
    bf16_meta: bool = True
    levels: Tensor | None = None
    noise: int | None = None
    slope_bits: int = 8


def saved_marks(marks: Tensor | None, shape: torch.Size, e: Epilogue) -> SavedEpilogue:
    """What backward needs of activation and dropout; those that pass relu's dropout are marked already."""
    if e.act == RELU:
        return marks_alone(shape, marks, e.act, merged=e.p, seed=e.seed)
    return marks_alone(shape, marks, e.act, e.slope, p=e.p, seed=e.seed)


class Packed(NamedTuple):
    """Codes with the metadata of their blocks, and marks; empty where there are none."""

    codes: Tensor
    zero: Tensor
    spread: Tensor
    marks: Tensor

    def saved(self, shape: torch.Size, e: Epilogue, packing: Packing) -> SavedEpilogue:
        """What backward needs of this epilogue on x of a shape."""
        marks = self.marks if self.marks.numel() or is_smooth(e.act) else None
        alone = saved_marks(marks, shape, e)._replace(slope_bits=packing.slope_bits)
        if not packing.bits:
            return alone
        codes = alone._replace(codes=self.codes, zero=self.zero, spread=self.spread)
        return codes._replace(levels=packing.levels, bits=packing.bits, block=packing.block)


@structure
class SavingResult(NamedTuple):
    """The result or its products, the statistics of x, and what is saved."""

    outs: list[Tensor]
    mean: Tensor
    var: Tensor
    codes: Tensor
    zero: Tensor
    spread: Tensor
    marks: Tensor

    @property
    def packed(self) -> Packed:
        return Packed(self.codes, self.zero, self.spread, self.marks)


def check_packing(x: Tensor, e: Epilogue, packing: Packing) -> None:
    check_epilogue(x, e)
    _checks.dtype_of("x", x, (torch.float32,))
    if packing.bits:
        check_layout(x.numel(), packing.bits, packing.block)
        check_levels(packing.levels, packing.bits, x.device)
    check_bits(packing.slope_bits, "slope_bits")


def _check(x: Tensor, e: Epilogue, packing: Packing, products: list[Tensor], biases: list[Tensor | None]) -> None:
    check_packing(x, e, packing)
    if len(products) != len(biases):
        raise ValueError(f"`biases` must hold one bias or None per product, {len(products)} (got {len(biases)})")
    for k, (product, shift) in enumerate(zip(products, biases, strict=True)):
        _checks.dtype_of(f"products[{k}]", product, (torch.float32,))
        shape = f"[out_features, {x.size(1)}], as many columns as x"
        _checks.shape_of(f"products[{k}]", product, (None, x.size(1)), shape)
        if shift is not None:
            _checks.dtype_of(f"biases[{k}]", shift, (torch.float32,))
            _checks.shape_of(f"biases[{k}]", shift, (product.size(0),), f"[{product.size(0)}], one per out_feature")


def pack_epilogue(x: Tensor, e: Epilogue, packing: Packing) -> tuple[EpilogueResult, Packed]:
    """The epilogue and what is saved of it, by the definition."""
    result = norm_act.reference(x, e)
    hat = normalised_by(x, e.using(result.mean, result.var))
    codes = _nothing(x, packing.bf16_meta)
    if packing.bits:
        rows = result.out if e.over == Over.NOTHING else hat
        codes = pack_op.reference(rows, packing.bits, packing.block, packing.noise, packing.bf16_meta, packing.levels)
    return result, Packed(*codes, _marks(affine(hat, e.weight, e.bias), result.out, e, packing))


def _reference(
    x: Tensor, e: Epilogue, packing: Packing, products: list[Tensor], biases: list[Tensor | None]
) -> SavingResult:
    (out, mean, var), packed = pack_epilogue(x, e, packing)
    pairs = zip(products, biases, strict=True)
    outs = [torch.nn.functional.linear(out, *pair) for pair in pairs] if products else [out]
    return SavingResult(outs, mean, var, *packed)


def _marks(z: Tensor, out: Tensor, e: Epilogue, packing: Packing) -> Tensor:
    if is_smooth(e.act):
        seed = None if packing.noise is None else ~packing.noise
        slopes, ends = derivative(z, e.act, e.slope), slope_range(e.act, e.slope)
        return pack_fixed_op.reference(slopes, packing.slope_bits, *ends, seed)
    if e.act in (RELU, LEAKY):
        return pack_bits((out > 0) | out.isnan() if e.act == RELU else z > 0)
    return z.new_empty(0, dtype=torch.uint8)


def _nothing(x: Tensor, bf16_meta: bool) -> tuple[Tensor, Tensor, Tensor]:
    meta = x.new_empty(0, dtype=torch.bfloat16 if bf16_meta else torch.float32)
    return x.new_empty(0, dtype=torch.uint8), meta, torch.empty_like(meta)


def sizes(numel: int, act: int, packing: Packing) -> tuple[int, int, int]:
    """Bytes of codes, number of blocks, bytes of marks."""
    smooth, (bits, block) = is_smooth(act), (packing.bits, packing.block)
    marks = -(-numel * packing.slope_bits // 8) if smooth else (numel + 7) // 8 if act in (RELU, LEAKY) else 0
    return (num_bytes(numel, block, bits), num_blocks(numel, block), marks) if bits else (0, 0, marks)


def fake_packed(x: Tensor, e: Epilogue, packing: Packing) -> Packed:
    code_bytes, blocks, mark_bytes = sizes(x.numel(), e.act, packing)
    zero, spread = (x.new_empty(blocks, dtype=torch.bfloat16 if packing.bf16_meta else torch.float32) for _ in range(2))
    codes, marks = (x.new_empty(count, dtype=torch.uint8) for count in (code_bytes, mark_bytes))
    return Packed(codes, zero, spread, marks)


def _fake(
    x: Tensor, e: Epilogue, packing: Packing, products: list[Tensor], biases: list[Tensor | None]
) -> SavingResult:
    _, mean, var = fake_norm_act(x, e)
    outs = [x.new_empty(x.size(0), w.size(0)) for w in products] or [torch.empty_like(x)]
    return SavingResult(outs, mean, var, *fake_packed(x, e, packing))


save_epilogue = define(
    "save_epilogue(Tensor x, Epilogue, Packing, Tensor[] products, Tensor?[] biases) -> SavingResult",
    check=_check,
    reference=_reference,
    fake=_fake,
)
