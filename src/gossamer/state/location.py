"""Where in a model the program is: the module whose forward is running."""

from __future__ import annotations

import sys

from torch import nn


def layer_here() -> str:
    """The module whose forward is running, by its name in the outermost one; read off the stack."""
    running: list[nn.Module] = []
    frame = sys._getframe(1)
    while frame is not None:
        owner = frame.f_locals.get("self")
        if isinstance(owner, nn.Module) and (not running or running[-1] is not owner):
            running.append(owner)
        frame = frame.f_back  # type: ignore[assignment]
    if not running:
        return "outside of any module"
    layer, model = running[0], running[-1]
    name = next((name for name, module in model.named_modules() if module is layer), "")
    return f"in layer {name!r} ({type(layer).__name__})" if name else f"in a {type(layer).__name__}"
