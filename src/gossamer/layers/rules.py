"""When a fused op is worth its call, and when torch's own is used: one place for every layer.

An op of ours costs a few dozen microseconds more per call than one of torch's; it wins where it saves memory passes,
page faults or torch's serial random numbers. Under autocast and torch.compile, on other dtypes and devices, torch's own
functions are used.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .. import kernels

LEAST_PASS = 2**17
"""Elements from which saving a memory pass pays."""
LEAST_DROPOUT = 2**13
"""Elements from which a mask of ours pays: torch draws its mask serially."""


def dense(x: Tensor, least: int = LEAST_PASS) -> bool:
    """Whether a fused op on the rows of x is worth its call."""
    return (
        x.dtype == torch.float32
        and x.dim() == 2
        and x.numel() >= least
        and x.device.type == "cpu"
        and kernels.native is not None
        and not torch.compiler.is_compiling()
        and not torch.is_autocast_enabled("cpu")
    )


def hooked(*modules: nn.Module | None) -> bool:
    """Whether someone listens to these modules' calls, which fusing would pass by."""
    own = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    everyone = nn.modules.module
    if everyone._global_forward_hooks or everyone._global_forward_pre_hooks:
        return True
    return any(getattr(module, name) for module in modules if module is not None for name in own)


def draw_seed() -> int:
    """A seed from torch's default generator: `torch.manual_seed` and saved generator states govern our masks too."""
    return int(torch.randint(2**63 - 1, ()))
