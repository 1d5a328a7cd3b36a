"""When a fused op is worth its call, and when torch's own is used: one place for every layer.

An op of ours costs a few dozen microseconds more per call than one of torch's; it wins where it saves memory passes,
page faults or torch's serial random numbers. Under autocast and torch.compile, on other dtypes and devices, torch's own
functions are used.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .. import native

LEAST_PASS = 2**17
"""Elements from which saving a memory pass pays."""
LEAST_DROPOUT = 2**13
"""Elements from which a mask of ours pays: torch draws its mask serially."""


def dense(x: Tensor, least: int | None = None, any_shape: bool = False) -> bool:
    """Whether a fused op on the rows of x is worth its call: it can be, and x has `least` elements (LEAST_PASS)."""
    return (
        x.dtype == torch.float32
        and (any_shape or x.dim() == 2)
        and x.numel() >= (LEAST_PASS if least is None else least)
        and x.layout == torch.strided
        and x.device.type == "cpu"
        and native.library is not None
        and not torch.compiler.is_compiling()
        and not torch.is_autocast_enabled("cpu")
        and not transformed()
    )


def transformed() -> bool:
    """Whether `torch.func` (vmap, grad, ...) is at work, which registered ops cannot follow."""
    return torch._C._are_functorch_transforms_active()


def plainly(module: object, *kinds: type[nn.Module]) -> bool:
    """Whether a module is of exactly one of these classes, or of our class for it: a subclass may compute otherwise."""
    kind = type(module)
    return (kind.__base__ if kind.__module__.startswith(f"{__package__}.") else kind) in kinds


HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def hooked(*modules: object) -> bool:
    """Whether someone listens to these modules' calls, or has replaced one's forward: fusing would pass that by."""
    if any(getattr(nn.modules.module, f"_global{name}") for name in HOOKS):
        return True
    listening = (m for m in modules if isinstance(m, nn.Module))
    return any("forward" in m.__dict__ or any(getattr(m, name) for name in HOOKS) for m in listening)


def draw_seed() -> int:
    """A seed from torch's default generator: `torch.manual_seed` and saved generator states govern our masks too."""
    return int(torch.randint(2**63 - 1, ()))
