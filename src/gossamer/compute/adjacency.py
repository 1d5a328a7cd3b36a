"""Neighbour sums of int8 rows, by a graph and by its transpose."""

from __future__ import annotations

import weakref
from typing import Any, NamedTuple

from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from .. import ops
from ..graph import Graph
from ..ops import _checks
from .rows import Rows

_sums: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


class Adjacency(NamedTuple):
    """A fixed sparse matrix: weights of edges, factors of sources and destinations, and a diagonal."""

    graph: Graph
    value: Tensor | None = None
    src_scale: Tensor | None = None
    dst_scale: Tensor | None = None
    diagonal: Tensor | None = None

    def _weights(self) -> Tensor | None:
        return self.graph.value if self.value is None else self.value

    def arguments(self, x: Rows) -> tuple[Any, ...]:
        graph = self.graph
        return graph.rowptr, graph.col, self._weights(), x.scale, self.dst_scale, x.codes, self.src_scale

    def transposed(self, x: Rows) -> tuple[Any, ...]:
        t = self.graph.t()
        value = t.value if self.value is None else ops.gather_rows(self.value, self.graph.t_perm)
        return t.rowptr, t.col, value, x.scale, self.src_scale, x.codes, self.dst_scale

    def sum(self, x: Rows, bias: Tensor | None, rows: Tensor | None) -> Tensor:
        return ops.OPS["spmm_int8"](*self.arguments(x), bias, self.diagonal, rows)

    def sum_rows(self, x: Rows, noise: int | None) -> Rows:
        return Rows(*ops.spmm_rows(*self.arguments(x), None, self.diagonal, None, None, noise))

    def sum_of_data(self, x: Rows) -> Rows:
        """sum_rows to nearest, remembered while these rows and this matrix live and are not changed."""
        constant, diagonal = None, self.diagonal
        if diagonal is not None and diagonal.numel() and diagonal.stride(0) == 0:  # expanded anew for each product
            constant, diagonal = float(diagonal[0]), None
        parts = (self.graph, self._weights(), self.src_scale, self.dst_scale, diagonal)
        versions = [None if part is None else _checks.version_of(part) or () for part in parts[1:]]
        refs, state, rows = _sums.get(x.codes, ((), None, None))
        if state == (constant, versions) and all(a() is b for a, b in zip(refs, parts, strict=True)):
            return rows
        rows = self.sum_rows(x, None)
        refs = tuple((lambda: None) if part is None else weakref.ref(part) for part in parts)
        _sums[x.codes] = (refs, (constant, versions), rows)
        return rows

    def back(self, g: Rows) -> Tensor:
        return ops.OPS["spmm_int8"](*self.transposed(g), None, self.diagonal, None)

    def back_rows(self, g: Rows, factor: Tensor, noise: int | None) -> Rows:
        return Rows(*ops.spmm_rows(*self.transposed(g), None, self.diagonal, None, factor, noise))
