"""How registers lie in memory: rows of codes are filled up to whole cache lines, so that none straddles another.

Further columns hold the zero point, and weights for them are zero: results do not change. What attention reads is
filled up head by head. Steps are laid out once, when an engine is made; what is checked here is not checked in a call.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from .program import FLOATS, BadProgram


@dataclass(frozen=True)
class Register:
    """`columns` that mean something, in `groups` of equal width that are filled up to `stored` columns in all."""

    columns: int
    stored: int
    bits: int
    zero: int
    groups: int = 1

    @classmethod
    def of(cls, columns: int, bits: int, zero: int, groups: int = 1) -> Register:
        if groups < 1 or columns < 1 or columns % groups:
            raise BadProgram(f"{columns} columns cannot be {groups} groups of equal width")
        if bits == FLOATS:
            return cls(columns, columns, bits, zero)
        return cls(columns, groups * _filled_width(columns // groups, bits, groups), bits, zero, groups)

    @property
    def is_codes(self) -> bool:
        return self.bits != FLOATS

    def fill(self, tensor: Tensor) -> Tensor:
        """A tensor whose last dimension is these columns, with zeros for those that are filled up."""
        width, stored = self.columns // self.groups, self.stored // self.groups
        apart = tensor.reshape(*tensor.shape[:-1], self.groups, width)
        return functional.pad(apart, (0, stored - width)).flatten(-2).contiguous()


def _filled_width(width: int, bits: int, groups: int) -> int:
    """Codes of whole lines of 64 bytes; of half or quarter lines where they fit these, or there are several groups."""
    per_byte = 8 // bits
    sizes = (16,) if groups > 1 else (16, 32)
    line = next((size for size in sizes if groups > 1 or width <= size * per_byte), 64) * per_byte
    return -(-width // line) * line


def vector(tensor: Tensor, register: Register, name: str) -> Tensor:
    """One number per column, or one for all, as a register's columns lie."""
    columns = register.columns
    if tensor.dtype != torch.float32 or tensor.dim() != 1 or tensor.numel() not in (1, columns):
        raise BadProgram(
            f"`{name}` must be float32 with one number or {columns} (got {tensor.dtype} of shape {tuple(tensor.shape)})"
        )
    if not bool(tensor.isfinite().all()):
        raise BadProgram(f"`{name}` must be finite")
    return register.fill(tensor.expand(columns))


def weights(tensor: Tensor, inputs: Register, outputs: Register, name: str) -> Tensor:
    """int8 [stored outputs, stored inputs], unpacked from four bits if need be."""
    if tensor.dtype == torch.uint8 and tensor.dim() == 2 and tensor.size(1) == -(-inputs.columns // 2):
        low, high = (tensor & 15).to(torch.int8), (tensor >> 4).to(torch.int8)
        tensor = torch.stack([low, high], -1).flatten(1)[:, : inputs.columns] - 8
    if tensor.dtype != torch.int8 or tuple(tensor.shape) != (outputs.columns, inputs.columns):
        raise BadProgram(
            f"`{name}` must be int8 of shape [{outputs.columns}, {inputs.columns}], or two codes to a byte (got "
            f"{tensor.dtype} of shape {tuple(tensor.shape)})"
        )
    return outputs.fill(inputs.fill(tensor).t()).t().contiguous()


def packed_weights(codes: Tensor) -> Tensor:
    """Weights of four bits, -7 .. 7, two to a byte: what `weights` unpacks."""
    even = functional.pad(codes.to(torch.int16) + 8, (0, codes.size(1) % 2))
    return (even[:, ::2] | even[:, 1::2] << 4).to(torch.uint8)


def zero_bias(weight: Tensor, zero: int) -> Tensor:
    """What takes the zero point of the inputs out of a sum, int32."""
    return (-zero * weight.long().sum(1)).to(torch.int32)
