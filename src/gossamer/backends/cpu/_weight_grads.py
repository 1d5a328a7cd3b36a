"""Weight gradients of products of the same rows."""

from __future__ import annotations

from torch import Tensor

from ... import memory
from ...native import library
from ._arguments import F32, at


class WeightGrads:
    """Room for the weight gradients of products of the same rows, as native kernels take it."""

    def __init__(self, gs: list[Tensor], rows: int, columns: int) -> None:
        self._gs = [g.contiguous() for g in gs]
        self.outs = [g.size(1) for g in gs]
        slabs = library.grad_slabs(rows, max([1, *self.outs]), columns)
        self._partial = [memory.empty([slabs, outs, columns], F32) for outs in self.outs]
        self.dws = [memory.empty([outs, columns], F32) for outs in self.outs]

    @property
    def arguments(self) -> tuple[list[int], ...]:
        some = [k for k, outs in enumerate(self.outs) if outs]  # kernels get no empty tensors
        addresses = ([at(tensors[k]) for k in some] for tensors in (self._gs, self._partial, self.dws))
        return *addresses, [self.outs[k] for k in some]
