"""What convolutions are called with: pairs of tensors, numbers of nodes, and the adjacency behind `edge_index`."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch_geometric import EdgeIndex

from ..aggregate import Adjacency
from ..aggregate.adjacency import Reduce
from ..aggregate.build import Sizes, in_csr_order, is_sparse, listed, neighbours
from ..engine.epilogue import input_of
from ..graph import Blocks, Graph
from ..state import state_of

REDUCE: dict[str, Reduce] = {"mean": "mean", "add": "sum", "sum": "sum", "max": "max"}
"""PyG's names of aggregations, and ours."""


def block_of(x: Any, edge_index: Any) -> Any:
    """The block of a mini-batch whose sources are the rows of x; anything but `Blocks` as it came."""
    return edge_index.of_rows(input_of(x).shape[0]) if isinstance(edge_index, Blocks) else edge_index


def pair_of(x: Any) -> tuple[Any, Any]:
    """Sources and destinations: one input for both, or PyG's pair."""
    if not isinstance(x, (tuple, list)):
        return x, x
    if len(x) != 2:
        raise TypeError(
            f"`x` must be a tensor, or a pair of sources and destinations (got a {type(x).__name__} of {len(x)}); "
            "convert lists of numbers with torch.tensor"
        )
    x_src, x_dst = x
    return x_src, x_dst


def under_policy(conv: Any, adjacency: Adjacency) -> Adjacency:
    """The adjacency with the policy of backward, and the messages, that the convolution was given."""
    state = state_of(conv)
    if state is None:
        return adjacency
    state.model.note_graph(adjacency.graph)
    return adjacency.under(state.policy).sending(state.messages)


def adjacency_of(
    conv: Any, x: tuple[Any, Any], edge_index: Any, size: Any = None, weight: Tensor | None = None
) -> Adjacency:
    """The sum, mean or maximum over the neighbours that the convolution asks for."""
    found = neighbours(edge_index, sizes_of(*x, edge_index, size), weight, REDUCE[conv.aggr])
    return under_policy(conv, found)


def sizes_of(x_src: Any, x_dst: Any, edge_index: Any, size: Any = None) -> Sizes:
    """(num_src, num_dst), as PyG finds them: from the rows, from `size`, from a matrix, else as many as sources.

    Rows of a block's sources are those of its destinations, too.
    """
    x_src, x_dst = input_of(x_src), input_of(x_dst)
    told = (None, None) if size is None else tuple(size)
    if isinstance(edge_index, EdgeIndex):
        told = edge_index.num_rows, edge_index.num_cols
    rows = (x_src.size(0), told[1] if x_dst is None else x_dst.size(0))
    if rows[0] == rows[1] and isinstance(edge_index, Graph) and edge_index.block is not None:
        rows = (rows[0], edge_index.num_dst)
    if any(a is not None and b is not None and a != b for a, b in zip(told, rows, strict=True)):
        name = "sparse_size" if isinstance(edge_index, EdgeIndex) else "size"
        raise ValueError(f"`{name}` must be the numbers of rows of `x`, {rows} (got {told}); correct or omit it")
    if rows[1] is not None:
        return rows[0], rows[1]
    if isinstance(edge_index, Graph):
        return rows[0], edge_index.num_dst
    return rows[0], edge_index.size(0) if is_sparse(edge_index) else rows[0]


def is_of_other_size(x_src: Any, x_dst: Any, edge_index: Any) -> bool:
    """Whether an EdgeIndex names other numbers of nodes than there are rows: PyG then has results of its own."""
    if not isinstance(edge_index, EdgeIndex):
        return False
    rows = input_of(x_src).size(0), input_of(x_src if x_dst is None else x_dst).size(0)
    return edge_index.num_rows not in (None, rows[0]) or edge_index.num_cols not in (None, rows[1])


def for_pyg(x: Any, edge_index: Any, edge_attr: Tensor | None = None) -> tuple[Any, Any, Tensor | None]:
    """What PyG's own forward takes: a Graph as the list of its edges, and of a block the rows of both ends."""
    if not isinstance(edge_index, Graph):
        return x, edge_index, edge_attr
    if edge_index.block is not None:
        x = (x, x[: edge_index.num_dst]) if isinstance(x, Tensor) else x
        edge_attr = None if edge_attr is None else in_csr_order(edge_index, edge_attr)
    return x, listed(edge_index), edge_attr


def bias_of(lin: Any) -> Tensor | None:
    """The bias of a linear layer; a user's module in its place may have none, and adds what it wants by itself."""
    return getattr(lin, "bias", None)


def keep_templates(self: Any, raise_on_error: bool = False) -> None:
    """In place of `_set_jittable_templates`, which PyG calls on a copied module.

    It would take the template of the original class for the plain `propagate` that explainers need.
    """
