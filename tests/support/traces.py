"""What ran: the backward nodes behind a result, and the ops of ours that were called."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


def nodes_of(out: Tensor) -> set[str]:
    """The names of the backward nodes behind `out`."""
    seen, found = set(), [out.grad_fn]
    while found:
        node = found.pop()
        if node is not None and node not in seen:
            seen.add(node)
            found += [following for following, _ in node.next_functions]
    return {type(node).__name__ for node in seen}


class Calls(TorchDispatchMode):
    """Names of the ops of ours that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "gossamer":
            self.names.append(func._schema.name.removeprefix("gossamer::"))
        return func(*args, **(kwargs or {}))
