"""Dropout whose mask is a function of (seed, element): recomputed in backward, or saved as one bit per element.

    keep_k = word(seed, k) >= round(p 2^32)        out_k = keep_k x_k / (1 - p)        dx_k = keep_k dout_k / (1 - p)

`dropout` saves nothing: its backward is itself. `relu_dropout` is dropout(relu(x)) in one pass and saves one combined
bit per element, set where x > 0 and the element is kept; its backward is exact. NaN passes relu, so that a divergence
stays visible. torch draws its CPU mask serially, which costs more than a memory pass by an order of magnitude.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import _checks, random
from ._library import define


def check_probability(p: float, name: str = "p") -> None:
    if not 0.0 <= p <= 1.0:
        raise ValueError(f"`{name}` must be a probability between 0 and 1 (got {p})")


def _check(x: Tensor, p: float, seed: int) -> None:
    _checks.dtype_of("x", x, (torch.float32, torch.float64))
    check_probability(p)


def kept(x: Tensor, p: float, seed: int) -> Tensor:
    """The elements that dropout keeps, bool in the shape of x."""
    index = torch.arange(x.numel(), device=x.device).view(x.shape)
    return random.words(seed, index) >= int(p * 2**32 + 0.5)


def survivor_scale(p: float) -> float:
    return 1.0 / (1.0 - p) if int(p * 2**32 + 0.5) < 2**32 else 0.0


def _reference(x: Tensor, p: float, seed: int) -> Tensor:
    return torch.where(kept(x, p, seed), x * survivor_scale(p), 0.0)


def _fake(x: Tensor, p: float, seed: int) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _setup_context(ctx: Any, inputs: tuple[Tensor, float, int], output: Tensor) -> None:
    _, ctx.p, ctx.seed = inputs


def _backward(ctx: Any, dout: Tensor) -> tuple[Tensor, None, None]:
    return dropout_op(dout.contiguous(), ctx.p, ctx.seed), None, None


dropout_op = define(
    "dropout(Tensor x, float p, int seed) -> Tensor",
    check=_check,
    reference=_reference,
    fake=_fake,
    backward=_backward,
    setup_context=_setup_context,
)


def dropout(x: Tensor, p: float, seed: int) -> Tensor:
    """x with each element zeroed with probability p, the others divided by 1 - p."""
    return dropout_op(x.contiguous(), p, seed)


def pack_bits(mask: Tensor) -> Tensor:
    """bool -> one bit per element in row-major order, lowest bit first, uint8 [ceil(n / 8)]."""
    flat = torch.nn.functional.pad(mask.reshape(-1).to(torch.uint8), (0, -mask.numel() % 8)).view(-1, 8)
    return (flat << torch.arange(8, device=mask.device, dtype=torch.uint8)).sum(1, dtype=torch.uint8)


def unpack_bits(bits: Tensor, numel: int) -> Tensor:
    apart = (bits.unsqueeze(1) >> torch.arange(8, device=bits.device, dtype=torch.uint8)) & 1
    return apart.reshape(-1)[:numel].bool()


def _relu_reference(x: Tensor, p: float, seed: int) -> tuple[Tensor, Tensor]:
    mask = kept(x, p, seed) & ((x > 0) | x.isnan())
    return torch.where(mask, x * survivor_scale(p), 0.0), pack_bits(mask)


def _relu_fake(x: Tensor, p: float, seed: int) -> tuple[Tensor, Tensor]:
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    return out, x.new_empty((x.numel() + 7) // 8, dtype=torch.uint8)


def _relu_setup(ctx: Any, inputs: tuple[Tensor, float, int], output: tuple[Tensor, Tensor]) -> None:
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(output[1])
    ctx.p = inputs[1]


def _relu_backward(ctx: Any, dout: Tensor, _: Tensor | None) -> tuple[Tensor, None, None]:
    (mask,) = ctx.saved_tensors
    return masked_scale(dout.contiguous(), mask, ctx.p), None, None


relu_dropout_op = define(
    "relu_dropout(Tensor x, float p, int seed) -> (Tensor, Tensor)",
    check=_check,
    reference=_relu_reference,
    fake=_relu_fake,
    backward=_relu_backward,
    setup_context=_relu_setup,
)


def relu_dropout(x: Tensor, p: float, seed: int) -> Tensor:
    """dropout(relu(x)) in one pass."""
    return relu_dropout_op(x.contiguous(), p, seed)[0]


def dropout_saving_mask(x: Tensor, p: float, seed: int) -> tuple[Tensor, Tensor]:
    """`dropout`, and its mask as bits for `masked_scale`: for when regenerating costs more than keeping n / 8 bytes."""
    return dropout_mask(x.contiguous(), p, seed)


def _mask_reference(x: Tensor, p: float, seed: int) -> tuple[Tensor, Tensor]:
    mask = kept(x, p, seed)
    return torch.where(mask, x * survivor_scale(p), 0.0), pack_bits(mask)


dropout_mask = define(
    "dropout_mask(Tensor x, float p, int seed) -> (Tensor, Tensor)",
    check=_check,
    reference=_mask_reference,
    fake=_relu_fake,
    backward=_relu_backward,
    setup_context=_relu_setup,
)


def _check_masked(x: Tensor, mask: Tensor, p: float) -> None:
    _checks.dtype_of("x", x, (torch.float32, torch.float64))
    _checks.dtype_of("mask", mask, (torch.uint8,))
    _checks.shape_of("mask", mask, ((x.numel() + 7) // 8,), f"[{(x.numel() + 7) // 8}], one bit per element of x")
    check_probability(p)


def _masked_reference(x: Tensor, mask: Tensor, p: float) -> Tensor:
    return torch.where(unpack_bits(mask, x.numel()).view(x.shape), x * survivor_scale(p), 0.0)


def _masked_fake(x: Tensor, mask: Tensor, p: float) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _masked_setup(ctx: Any, inputs: tuple[Tensor, Tensor, float], output: Tensor) -> None:
    ctx.save_for_backward(inputs[1])
    ctx.p = inputs[2]


def _masked_backward(ctx: Any, dout: Tensor) -> tuple[Tensor, None, None]:
    (mask,) = ctx.saved_tensors
    return masked_scale(dout.contiguous(), mask, ctx.p), None, None


masked_scale = define(
    "masked_scale(Tensor x, Tensor mask, float p) -> Tensor",
    check=_check_masked,
    reference=_masked_reference,
    fake=_masked_fake,
    backward=_masked_backward,
    setup_context=_masked_setup,
)
