"""Plain PyG against our recipes, every run in a process of its own: `gs.compare` and its parts."""

from .loop import compare

__all__ = ["compare"]
