"""The refusal to enter a block of compressed activations in compiled code.

A module of its own because `torch.compiler.disable` imports torch._dynamo, which takes as long as torch itself. It is
imported only where torch._dynamo is loaded already: before that, nothing is compiled.
"""

from __future__ import annotations

import sys

import torch


@torch.compiler.disable
def refuse_when_compiled() -> None:
    """Raise if called from a compiled function, which would trace the block itself. Found by walking the stack."""
    frame = sys._getframe(2)  # past the wrapper that keeps dynamo out of this function
    while frame is not None:
        if frame.f_code.co_filename == torch._dynamo.eval_frame.__file__:
            if frame.f_code.co_name == "compile_wrapper":
                raise RuntimeError(
                    "`compressed_activations` must not be entered in a function that torch.compile compiles: compile "
                    "the model that runs in the block instead, or mark the function with torch.compiler.disable"
                )
            return  # kept out by torch.compiler.disable
        frame = frame.f_back  # type: ignore[assignment]
