"""How an op is made known to PyTorch, once for all of them.

An op is a schema, a check of its arguments, a reference in plain PyTorch that defines it on every device, a shape rule
(`fake`) and a gradient. `backends` add faster implementations for a device. `gossamer doctor` and the tests read `OPS`
and `IMPLEMENTED`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

NAMESPACE = "gossamer"
_library = torch.library.Library(NAMESPACE, "DEF")


@dataclass(frozen=True)
class Op:
    """One registered op. Calling it goes through PyTorch's dispatcher."""

    name: str
    check: Callable[..., None]
    reference: Callable[..., Any]
    overload: Callable[..., Any]

    def __call__(self, *args: Any, **named: Any) -> Any:
        return self.overload(*args, **named)

    def followed(self, *args: Any) -> Any:
        """For use inside a backward: the op, or its reference if that backward is to be differentiated itself."""
        return self.reference(*args) if torch.is_grad_enabled() else self(*args)


OPS: dict[str, Op] = {}
IMPLEMENTED: dict[str, set[str]] = {}
"""Names of the ops that have a kernel of their own, by device."""


def define(
    schema: str,
    *,
    check: Callable[..., None],
    reference: Callable[..., Any],
    fake: Callable[..., Any],
    backward: Callable[..., Any] | None = None,
    setup_context: Callable[..., None] | None = None,
) -> Op:
    """Register an op; without `backward`, asking for its gradient is an error that says so."""
    name = schema.split("(")[0]
    _library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    _library.impl(name, _checked(check, reference), "CompositeExplicitAutograd")
    torch.library.register_fake(f"{NAMESPACE}::{name}", fake, lib=_library)
    if "!" not in schema:  # an op that writes into its arguments is for use inside a backward
        torch.library.register_autograd(
            f"{NAMESPACE}::{name}", backward or _no_gradient(name), setup_context=setup_context, lib=_library
        )
    op = Op(name, check, reference, getattr(getattr(torch.ops, NAMESPACE), name).default)
    OPS[name] = op
    return op


def implement(op: Op, device: str, function: Callable[..., Any]) -> None:
    """Let `function` compute `op` on a type of device ("cpu", "cuda"); it is called with checked arguments."""
    _library.impl(op.name, _checked(op.check, function), device.upper())
    IMPLEMENTED.setdefault(device, set()).add(op.name)


def _checked(check: Callable[..., None], function: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        check(*args)
        return function(*args)

    return run


def _no_gradient(name: str) -> Callable[..., Any]:
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        raise RuntimeError(f"`{name}` has no gradient: detach its input (rounding), or differentiate only once")

    return backward
