"""The bipartite graphs of a sampled mini-batch, one per layer, the outermost first.

The nodes of a batch are numbered by the hop that found them: first the seeds, then their new neighbours, and so on. A
node's edges are drawn once, so all layers share one CSR, and layer k uses a prefix of it:

    blocks[k]     sums from the first sizes[k] nodes into the first sizes[k + 1]          sizes[-1]: the seeds

Destinations are the first sources, so a layer takes their own rows from the same x; what it returns is the input of the
next. A layer that is given all blocks finds its own by the number of rows of x, hence sizes must fall strictly: where a
hop finds no new node, its sampler adds a placeholder, a copy of the first seed without edges.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import final

from torch import Tensor

from ..ops import _checks
from .graph import Block, Graph


@final
class Blocks:
    """A sequence of Graphs. `rowptr` and `col` are the CSR of the outermost layer, `value` its weights or None.

    `origin`: the graph that they were sampled from and the ids of their nodes in it, if known. It is no
    `collections.abc.Sequence`: PyG's `data.to(device)` makes a list of every one that it meets.
    """

    __slots__ = ("_graphs", "_sampled", "col", "origin", "rowptr", "sizes", "value")

    def __init__(
        self,
        rowptr: Tensor,
        col: Tensor,
        sizes: Sequence[int],
        value: Tensor | None = None,
        sampled: bool = False,
        origin: tuple[Graph, Tensor] | None = None,
    ) -> None:
        self.origin = origin
        self.rowptr, self.col, self.value, self.sizes = rowptr, col, value, tuple(int(size) for size in sizes)
        if len(self.sizes) < 2 or any(a <= b for a, b in zip(self.sizes, self.sizes[1:], strict=False)):
            raise ValueError(
                "`sizes` must fall from the sources of the outermost layer to the seeds, one number more than there "
                f"are layers (got {self.sizes})"
            )
        self._sampled = sampled  # by our sampler, which needs no check
        if sampled:
            _checks.passed(rowptr, col, self.sizes[0])
        _checks.csr(rowptr, col, self.sizes[0])
        if rowptr.numel() != self.sizes[1] + 1:
            raise ValueError(
                f"`rowptr` must have {self.sizes[1] + 1} entries, one more than the outermost layer has destinations "
                f"(got {rowptr.numel()})"
            )
        self._graphs: list[Graph | None] = [None] * (len(self.sizes) - 1)

    def __len__(self) -> int:
        return len(self._graphs)

    def __getitem__(self, k: int) -> Graph:
        k = range(len(self))[k]
        graph = self._graphs[k]
        if graph is None:
            num_src, num_dst = self.sizes[k : k + 2]
            rowptr = self.rowptr[: num_dst + 1]
            col = self.col[: int(rowptr[-1])]
            if self._sampled:
                _checks.passed(rowptr, col, num_src)
            value = None if self.value is None else self.value[: col.numel()]
            graph = self._graphs[k] = Graph(rowptr, col, num_src, value, block=Block())
        return graph

    def __iter__(self) -> Iterator[Graph]:
        return (self[k] for k in range(len(self)))

    def of_rows(self, num_rows: int) -> Graph:
        """The block whose sources have so many rows."""
        if num_rows not in self.sizes[:-1]:
            raise ValueError(
                f"`x` must have as many rows as one of these blocks has sources, {self.sizes[:-1]} (got {num_rows}); "
                "pass the features of the batch that the blocks belong to, and one layer per hop"
            )
        return self[self.sizes.index(num_rows)]

    def __repr__(self) -> str:
        return f"Blocks({' -> '.join(map(str, self.sizes))} nodes, {self.col.numel()} edges)"
