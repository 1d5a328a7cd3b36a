"""Cut a graph into parts: the definition of what a part holds.

    parts = cut(graph, assignment, x, y, train_mask, val_mask, test_mask)       assignment[v]: the part of node v
    Cutter(graph, assignment, nodes).part(p)                                    one at a time

Takes a pass over the edges for the halos of all parts, and one for each part's own edges.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..features import FeatureStore
from ..features.source import Source, source_of
from ..graph import Graph
from ..ops.csr import count_loops, row_of_edge
from ..ops.gather_rows import gather_rows
from .part import Degrees, Part, Side

ROWS_AT_A_TIME = 2**20
"""Where temporary tensors have an entry per edge of the whole graph."""
MASKS = ("train_mask", "val_mask", "test_mask")


def cut(
    graph: Graph,
    assignment: Tensor,
    x: Any = None,
    y: Tensor | None = None,
    train_mask: Tensor | None = None,
    val_mask: Tensor | None = None,
    test_mask: Tensor | None = None,
    num_parts: int | None = None,
) -> list[Part]:
    """The parts 0 .. num_parts - 1 of a graph, in memory.

    x: features in any form that `gs.compress` takes, or a FeatureStore. `num_parts`: by default the largest number in
    `assignment` + 1.
    """
    nodes = NodeData.of(graph, x, y, train_mask, val_mask, test_mask)
    cutter = Cutter(graph, assignment, nodes, num_parts)
    return [cutter.part(p) for p in range(cutter.num_parts)]


class NodeData(NamedTuple):
    """What a graph's nodes have, checked against it."""

    x: Source | FeatureStore | None = None
    y: Tensor | None = None
    train_mask: Tensor | None = None
    val_mask: Tensor | None = None
    test_mask: Tensor | None = None
    num_classes: int | None = None
    task: str | None = None

    @classmethod
    def of(
        cls,
        graph: Graph,
        x: Any = None,
        y: Tensor | None = None,
        train_mask: Tensor | None = None,
        val_mask: Tensor | None = None,
        test_mask: Tensor | None = None,
        num_classes: int | None = None,
        task: str | None = None,
    ) -> NodeData:
        _check_graph(graph)
        count = graph.num_nodes
        train, val, test = (
            _check_mask(name, mask, count) for name, mask in zip(MASKS, (train_mask, val_mask, test_mask), strict=True)
        )
        y = _check_rows("y", y, count)
        classes = _num_classes(y) if num_classes is None else num_classes
        return cls(_check_features(x, count), y, train, val, test, classes, task)

    @property
    def masks(self) -> dict[str, Tensor | None]:
        return {name: getattr(self, name) for name in MASKS}


class _Halo(NamedTuple):
    ids: Tensor
    part: Tensor
    """Whose each is."""


class Cutter:
    """`cut`, a part at a time."""

    def __init__(self, graph: Graph, assignment: Tensor, nodes: NodeData, num_parts: int | None = None) -> None:
        self.graph, self.data = graph, nodes
        self.num_parts = check_assignment(assignment, graph.num_nodes, num_parts)
        self.part_of = assignment.to("cpu", torch.int32)
        self.nodes = torch.argsort(self.part_of, stable=True)  # a part's nodes, ascending
        sizes = torch.bincount(self.part_of, minlength=self.num_parts)
        self.first = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
        self.row_of = torch.empty(graph.num_nodes, dtype=torch.int64)
        """Of each node its row in its part."""
        self.row_of[self.nodes] = torch.arange(graph.num_nodes) - self.first[:-1].repeat_interleave(sizes)
        self.totals = {f"num_{name.removesuffix('_mask')}": _count(mask) for name, mask in nodes.masks.items()}
        self.symmetric = is_symmetric(graph)
        self.degrees = degrees_of(graph)
        self._local = torch.empty(graph.num_nodes, dtype=torch.int32)
        self._halos = self._all_halos(graph)
        self._t_halos = self._halos if self.symmetric else self._all_halos(graph.t())

    def part(self, p: int) -> Part:
        ids = self.nodes_of(p)
        side = self._side(self.graph, p, ids, self._halos)
        t_side = side if self.symmetric else self._side(self.graph.t(), p, ids, self._t_halos)
        both = torch.cat([ids, side.halo_ids])
        fields: dict[str, Any] = side._asdict() | {f"t_{name}": field for name, field in t_side._asdict().items()}
        fields |= {name: None if each is None else each[both] for name, each in self.degrees._asdict().items()}
        fields |= self.totals | {name: None if mask is None else mask[ids] for name, mask in self.data.masks.items()}
        return Part(
            part=p,
            num_parts=self.num_parts,
            num_nodes=self.graph.num_nodes,
            num_edges=self.graph.num_edges,
            node_ids=ids,
            symmetric=self.symmetric,
            x=_rows(self.data.x, ids),
            y=None if self.data.y is None else self.data.y[ids],
            num_classes=self.data.num_classes,
            task=self.data.task,
            **fields,
        )

    def cut_edges(self) -> int:
        """Edges whose ends are in different parts."""
        graph, cut = self.graph, 0
        for first in range(0, graph.num_nodes, ROWS_AT_A_TIME):
            rowptr = graph.rowptr[first : first + ROWS_AT_A_TIME + 1]
            col = graph.col[int(rowptr[0]) : int(rowptr[-1])].long()
            cut += int((self.part_of[row_of_edge(rowptr - rowptr[0]) + first] != self.part_of[col]).sum())
        return cut

    def nodes_of(self, p: int) -> Tensor:
        return self.nodes[int(self.first[p]) : int(self.first[p + 1])].clone()

    def _all_halos(self, graph: Graph) -> list[_Halo]:
        found, is_source = [], torch.zeros(graph.num_nodes, dtype=torch.bool)
        for p in range(self.num_parts):
            _, col, _ = rows_of_csr(graph, self.nodes_of(p))
            is_source[col.long()] = True
            is_source[self.nodes_of(p)] = False
            ids = is_source.nonzero().view(-1)
            is_source[ids] = False
            found.append(_Halo(ids, self.part_of[ids]))
        return found

    def _side(self, graph: Graph, p: int, ids: Tensor, halos: list[_Halo]) -> Side:
        rowptr, col, value = rows_of_csr(graph, ids)
        halo = halos[p]
        both = torch.cat([ids, halo.ids])
        self._local[both] = torch.arange(both.numel(), dtype=torch.int32)
        send = [self.row_of[each.ids[each.part == p]] for each in halos]
        counts = torch.tensor([0, *map(len, send)])
        return Side(rowptr, self._local[col.long()], value, halo.ids, halo.part, counts.cumsum(0), torch.cat(send))


def rows_of_csr(graph: Graph, ids: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """rowptr, col (ids of the whole graph) and values of some rows."""
    counts = gather_rows(graph.rowptr.diff(), ids)
    rowptr = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    at = torch.arange(int(rowptr[-1])) + (graph.rowptr[ids] - rowptr[:-1]).repeat_interleave(counts)
    return rowptr, gather_rows(graph.col, at), None if graph.value is None else gather_rows(graph.value, at)


def is_symmetric(graph: Graph) -> bool:
    """Whether A^T = A, with the same order of edges."""
    t = graph.t()
    same = torch.equal(t.rowptr, graph.rowptr) and torch.equal(t.col, graph.col)
    if not same or graph.value is None:
        return same
    assert t.value is not None
    return torch.equal(t.value, graph.value)


def degrees_of(graph: Graph) -> Degrees:
    """Of every node; sums of weights in the order of a row's edges."""
    counted = (graph.degree, graph.out_degree, count_loops(graph.rowptr, graph.col))
    in_degree, out_degree, loops = (each.to(torch.int32) for each in counted)
    if graph.value is None:
        return Degrees(in_degree, out_degree, loops)
    weights = torch.zeros(3, graph.num_nodes)
    for first in range(0, graph.num_nodes, ROWS_AT_A_TIME):
        rowptr = graph.rowptr[first : first + ROWS_AT_A_TIME + 1]
        at = slice(int(rowptr[0]), int(rowptr[-1]))
        col, value, row = graph.col[at], graph.value[at], row_of_edge(rowptr - rowptr[0])
        of_chunk = weights[:, first : first + ROWS_AT_A_TIME]
        is_loop = col == row + first
        of_chunk[0].index_add_(0, row, value)
        of_chunk[1].index_add_(0, row[~is_loop], value[~is_loop])
        loop_row, loop_value = row[is_loop], value[is_loop]
        last = torch.ones_like(loop_row, dtype=torch.bool)  # of a node's loops: writing all would be a race
        last[:-1] = loop_row[1:] != loop_row[:-1]
        of_chunk[2, loop_row[last]] = loop_value[last]
    return Degrees(in_degree, out_degree, loops, *weights)


def _rows(x: Source | FeatureStore | None, ids: Tensor) -> Tensor | FeatureStore | None:
    if isinstance(x, FeatureStore):
        return x.select(ids)
    return None if x is None else x.rows(ids.numpy())


def _count(mask: Tensor | None) -> int | None:
    return None if mask is None else int(mask.sum())


def _num_classes(y: Tensor | None) -> int | None:
    """Of integer labels, one per node; the columns of others."""
    if y is None or y.numel() == 0:
        return None
    if y.dim() > 1 and y.size(1) > 1:
        return y.size(1)
    return None if y.is_floating_point() else max(int(y.max()) + 1, 1)


# Checks ---------------------------------------------------------------------------------------------------------


def _check_graph(graph: Graph) -> None:
    if not isinstance(graph, Graph):
        raise TypeError(f"`graph` must be a gs.Graph (got {type(graph).__name__}); see Graph.from_edge_index")
    if graph.num_src != graph.num_dst:
        raise ValueError(
            f"`graph` must have as many sources as destinations to be cut into parts (got {graph.num_src} and "
            f"{graph.num_dst}); a bipartite graph is no graph of nodes"
        )


def check_assignment(assignment: Tensor, num_nodes: int, num_parts: int | None) -> int:
    """The number of parts."""
    if not isinstance(assignment, Tensor) or assignment.is_floating_point() or assignment.dtype == torch.bool:
        got = getattr(assignment, "dtype", type(assignment).__name__)
        raise TypeError(f"`assignment` must be an integer tensor, the part of each node (got {got})")
    if assignment.shape != (num_nodes,):
        raise ValueError(
            f"`assignment` must have the shape [{num_nodes}], one part for each node (got {tuple(assignment.shape)})"
        )
    if num_nodes == 0:
        raise ValueError("`graph` must have nodes to be cut into parts (got 0)")
    low, high = int(assignment.min()), int(assignment.max())
    count = high + 1 if num_parts is None else num_parts
    if low < 0 or high >= count:
        raise ValueError(f"`assignment` must hold numbers of parts, 0 to {count - 1} (got {low} to {high})")
    sizes = torch.bincount(assignment.cpu(), minlength=count)
    if bool((sizes == 0).any()):
        raise ValueError(
            f"every part must have a node (part {int((sizes == 0).int().argmax())} of {count} is empty); "
            "cut the graph into fewer parts"
        )
    return count


def _check_features(x: Any, num_nodes: int) -> Source | FeatureStore | None:
    if x is None:
        return None
    found = x if isinstance(x, FeatureStore) else source_of(x)
    rows = found.num_nodes if isinstance(found, FeatureStore) else found.num_rows
    if rows != num_nodes:
        raise ValueError(
            f"`x` must have one row for each of the {num_nodes} nodes (got {rows} rows); pass the features that belong "
            "to this graph"
        )
    return found


def _check_rows(name: str, rows: Tensor | None, num_nodes: int) -> Tensor | None:
    if rows is not None and (not isinstance(rows, Tensor) or rows.dim() == 0 or rows.size(0) != num_nodes):
        got = list(rows.shape) if isinstance(rows, Tensor) else type(rows).__name__
        raise ValueError(f"`{name}` must be a tensor with one row for each of the {num_nodes} nodes (got {got})")
    return rows


def _check_mask(name: str, mask: Tensor | None, num_nodes: int) -> Tensor | None:
    if mask is not None and (not isinstance(mask, Tensor) or mask.dtype != torch.bool or mask.shape != (num_nodes,)):
        got = f"{mask.dtype} {list(mask.shape)}" if isinstance(mask, Tensor) else type(mask).__name__
        raise ValueError(
            f"`{name}` must be a bool tensor of the shape [{num_nodes}], one truth value for each node (got {got}); "
            "choose one split"
        )
    return mask
