"""One part of a graph: its own nodes, the edges into them, and which rows of other parts stand at their other ends.

    rows 0 .. n-1        own nodes, ascending by their id in the whole graph
    rows n .. n+h-1      the halo: remote sources of edges into own nodes, ascending by id

`rowptr`, `col`, `value` are the CSR of the edges into own nodes, [n, n + h]; the edges of a row stand in the same order
as in the whole graph, so a row's sum has the same bits. `send_row` lists the rows of mine that part q has in its halo,
in the order of q's halo: what q receives from me fills its halo rows with `halo_part` = me, in order.

Backward multiplies by A^T. Its side has the same form with every edge reversed: rows are own nodes as sources,
`t_halo_*` are remote destinations, and a row's edges ascend by destination, as in `Graph.t()`. Where A^T = A, with the
same order of edges, both sides are the same tensors, and `symmetric` says so.

Degrees are those of the whole graph, for own and halo rows. Self-loops are ordinary edges here.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import NamedTuple, final

import torch
from torch import Tensor

from ..features import FeatureStore


class Side(NamedTuple):
    """Edges of own nodes in one direction, and the rows that travel for it."""

    rowptr: Tensor
    """int64 [n + 1]"""
    col: Tensor
    """int32 [m]: below n an own row, else n + k for row k of the halo."""
    value: Tensor | None
    """float32 [m]"""
    halo_ids: Tensor
    """int64 [h]: ids in the whole graph, ascending."""
    halo_part: Tensor
    """int32 [h]: whose own row that is."""
    send_ptr: Tensor
    """int64 [num_parts + 1]: send_row[send_ptr[q] : send_ptr[q + 1]] goes to part q."""
    send_row: Tensor
    """int64: own rows."""


class Degrees(NamedTuple):
    """Of each row, own and halo, in the whole graph."""

    in_degree: Tensor
    """int32: edges into the node, loops included; what a mean divides by."""
    out_degree: Tensor
    """int32: edges out of the node, loops included."""
    loops: Tensor
    """int32: how many of them are loops."""
    in_weight: Tensor | None = None
    """float32: the sum of the weights of all edges into it; None without weights."""
    in_weight_plain: Tensor | None = None
    """The same without loops."""
    loop_weight: Tensor | None = None
    """The weight of its last loop, 0 where it has none."""


@final
@dataclass(frozen=True, eq=False, repr=False)
class Part:
    part: int
    num_parts: int
    num_nodes: int
    """Of the whole graph, as `num_edges`."""
    num_edges: int
    node_ids: Tensor
    """int64 [n]: ids of own nodes in the whole graph, ascending."""
    rowptr: Tensor
    col: Tensor
    value: Tensor | None
    halo_ids: Tensor
    halo_part: Tensor
    send_ptr: Tensor
    send_row: Tensor
    symmetric: bool
    t_rowptr: Tensor
    t_col: Tensor
    t_value: Tensor | None
    t_halo_ids: Tensor
    t_halo_part: Tensor
    t_send_ptr: Tensor
    t_send_row: Tensor
    in_degree: Tensor
    """The degrees are of own rows, then of the halo's: [n + h]. See `Degrees`."""
    out_degree: Tensor
    loops: Tensor
    in_weight: Tensor | None = None
    in_weight_plain: Tensor | None = None
    loop_weight: Tensor | None = None
    x: Tensor | FeatureStore | None = None
    """Features of own nodes, float32 [n, f] or codes."""
    y: Tensor | None = None
    train_mask: Tensor | None = None
    val_mask: Tensor | None = None
    test_mask: Tensor | None = None
    num_train: int | None = None
    """Nodes of the whole graph in the mask; what a mean over all parts divides by."""
    num_val: int | None = None
    num_test: int | None = None
    num_classes: int | None = None
    """Of integer labels the largest + 1, or what was told; of labels in columns their number."""
    task: str | None = None
    """What the labels are, as in a data set's `task`, if it was told."""
    fingerprint: str | None = None
    """Of the folder that it was read from: the same for all parts of one partition."""

    @property
    def num_own(self) -> int:
        return self.node_ids.numel()

    @property
    def num_halo(self) -> int:
        return self.halo_ids.numel()

    @property
    def edges(self) -> Side:
        """Edges into own nodes."""
        return Side(
            self.rowptr, self.col, self.value, self.halo_ids, self.halo_part, self.send_ptr, self.send_row
        )  # fmt: skip

    @property
    def t_edges(self) -> Side:
        """Edges out of own nodes, reversed."""
        return Side(
            self.t_rowptr, self.t_col, self.t_value, self.t_halo_ids, self.t_halo_part, self.t_send_ptr, self.t_send_row
        )  # fmt: skip

    @property
    def degrees(self) -> Degrees:
        return Degrees(*(getattr(self, name) for name in Degrees._fields))

    def gcn_degree(self, improved: bool = False, add_self_loops: bool = True) -> Tensor:
        """The weighted in-degree that GCN normalises by, of own and halo rows, as PyG's `gcn_norm` has it.

        With `add_self_loops` a node's last loop counts, or a new one of weight 1 (2 if `improved` and weighted).
        """
        if not add_self_loops:
            return self.in_degree.float() if self.in_weight is None else self.in_weight
        if self.in_weight_plain is None or self.loop_weight is None:
            return (self.in_degree - self.loops + 1).float()
        return self.in_weight_plain + torch.where(self.loops > 0, self.loop_weight, 2.0 if improved else 1.0)

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors; what both sides share counts once."""
        fields = [getattr(self, field.name) for field in dataclasses.fields(self)]
        tensors = {id(each): each.nbytes for each in fields if isinstance(each, (Tensor, FeatureStore))}
        return sum(tensors.values())

    def __repr__(self) -> str:
        return (
            f"Part({self.part} of {self.num_parts}: {self.num_own} of {self.num_nodes} nodes, {self.num_halo} in the "
            f"halo, {self.col.numel()} edges)"
        )
