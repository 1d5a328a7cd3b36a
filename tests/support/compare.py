"""How results are compared: to the bit where the op promises it, within rounding bounds where sums are reordered."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from gossamer import native

UNIT = 2.0**-24  # half the distance between 1 and the next float32: what one rounding may cost, relatively

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def tensors_of(result: Any) -> tuple[Tensor, ...]:
    """The tensors of a result, in order; also those in lists. An op that only writes into an argument has none."""
    if result is None:
        return ()
    return (result,) if isinstance(result, Tensor) else tuple(t for part in result for t in tensors_of(part))


def same(actual: Any, expected: Any) -> bool:
    """`torch.equal` for each pair, with NaN equal to NaN."""
    pairs = list(zip(tensors_of(actual), tensors_of(expected), strict=True))
    return all(a.dtype == b.dtype and torch.equal(_without_nan(a), _without_nan(b)) for a, b in pairs)


def _without_nan(x: Tensor) -> Tensor:
    return (
        torch.stack([x.isnan().to(x.dtype), x.nan_to_num(0.0, torch.inf, -torch.inf)]) if x.is_floating_point() else x
    )


def same_bits(actual: Any, expected: Any) -> bool:
    """Equal in every bit: also the sign of a zero and the payload of a NaN."""
    pairs = list(zip(tensors_of(actual), tensors_of(expected), strict=True))
    return all(torch.equal(a.view(_BITS[a.itemsize]), b.view(_BITS[b.itemsize])) for a, b in pairs)


def same_sums(actual: Any, expected: Any) -> bool:
    """`same_bits` of kernels; only near without them, since torch orders a sum by its strides and threads."""
    if native.library:
        return same_bits(actual, expected)
    pairs = zip(tensors_of(actual), tensors_of(expected), strict=True)
    return all(torch.allclose(a, b, rtol=1e-4, atol=1e-4) for a, b in pairs)


def using(isa: str) -> contextlib.AbstractContextManager[None]:
    """`native.using_isa`, and nothing where there are no kernels."""
    return native.using_isa(isa) if native.library else contextlib.nullcontext()


def on_baseline(run: Callable[[], Any]) -> Any:
    """The result of the plainest kernel on one thread: what all others must equal to the bit."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with using("baseline"):
            return run()
    finally:
        torch.set_num_threads(threads)


def with_gradients(
    function: Callable[..., Any], inputs: Sequence[Tensor], cotangent: Callable[[Tensor], Tensor] = torch.ones_like
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The (first) result of `function` on fresh leaves, and the gradient of <cotangent, result> for each of them."""
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    out = tensors_of(function(*leaves))[0]
    if not out.requires_grad:  # a reference whose result depends on no input, as without edges
        return out, tuple(torch.zeros_like(x) for x in inputs)
    grads = torch.autograd.grad(out, leaves, cotangent(out.detach()), allow_unused=True)
    return out.detach(), tuple(
        torch.zeros_like(x) if g is None else g.clone() for x, g in zip(leaves, grads, strict=True)
    )


def random_cotangent(out: Tensor) -> Tensor:
    rng = torch.Generator().manual_seed(out.numel())
    return torch.randn(out.shape, generator=rng, dtype=torch.float64).to(out.dtype)


def assert_sums_agree(
    actual: Callable[..., Any],
    reference: Callable[..., Any],
    inputs: Sequence[Tensor],
    terms: int,
    magnitude: Callable[..., Any] | None = None,
) -> None:
    """Forward and gradients of a function that is linear in each input, up to the rounding of its sums.

    A sum of n rounded terms t is off by at most (n + c) * UNIT * sum|t|, c for the factors of a term; two orders of
    summation differ by twice that. sum|t| is the function itself, and its gradients, at the inputs' absolute values;
    `magnitude` is that function where the reference holds other factors with a sign.
    """
    got, got_grads = with_gradients(actual, inputs, random_cotangent)
    want, want_grads = with_gradients(reference, inputs, random_cotangent)
    size, size_grads = with_gradients(
        magnitude or reference, [x.abs() for x in inputs], lambda out: random_cotangent(out).abs()
    )
    for a, b, sum_abs in zip((got, *got_grads), (want, *want_grads), (size, *size_grads), strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype
        off = (a.double() - b.double()).abs()
        assert not off.isnan().any()
        assert (off <= 2 * (terms + 8) * UNIT * sum_abs.double()).all(), f"off by {off.max()}"


def nsr(found: Tensor, truth: Tensor) -> float:
    """Noise energy over signal energy."""
    return float((found.detach().double() - truth.double()).square().sum() / truth.double().square().sum())


def cosine(a: Tensor, b: Tensor) -> float:
    return float(torch.cosine_similarity(a.detach().double().flatten(), b.detach().double().flatten(), dim=0))
