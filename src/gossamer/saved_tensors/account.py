"""The account of a block of compressed activations."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from torch import Tensor


@dataclass
class Account:
    """What was saved for backward in a block, from its beginning on."""

    tensors: int = 0
    """Tensors that are saved in few bits."""
    shared: int = 0
    """How often one of them was saved again, at no cost."""
    bytes_before: int = 0
    bytes_kept: int = 0
    left: Counter[str] = field(default_factory=Counter)
    """Tensors that are saved as they are, by reason."""
    exact: Counter[str] = field(default_factory=Counter)
    """Bytes saved as they are because a function needs them exactly, by function."""
    other_hooks: bool = False
    """Whether calls were left alone because of other saved-tensor hooks."""

    def add(self, before: Tensor, bytes_kept: int) -> None:
        self.tensors += 1
        self.bytes_before += before.numel() * before.element_size()
        self.bytes_kept += bytes_kept

    def __str__(self) -> str:
        ratio = f" ({self.bytes_before / self.bytes_kept:.1f} times less)" if self.bytes_kept else ""
        lines = [f"{self.tensors} tensors of {self.bytes_before:,} bytes are saved in {self.bytes_kept:,}{ratio}"]
        if self.shared:
            lines.append(f"{self.shared} more share the memory of these")
        if self.left:
            reasons = ", ".join(f"{count} {reason}" for reason, count in self.left.most_common())
            lines.append(f"{self.left.total()} are saved as they are: {reasons}")
        if self.exact:
            functions = ", ".join(f"{name} {count:,}" for name, count in self.exact.most_common())
            lines.append(f"{self.exact.total():,} bytes of these because exact values are needed: {functions}")
        if self.other_hooks:
            lines.append(
                "other saved-tensor hooks were active (checkpointing, save_on_cpu, gs.measure.kept) and took precedence"
            )
        return "\n".join(lines)
