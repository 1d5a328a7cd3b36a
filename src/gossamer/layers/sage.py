"""GraphSAGE: Hamilton, Ying, Leskovec, Inductive Representation Learning on Large Graphs, NeurIPS 2017; and GraphConv:
Morris et al., Weisfeiler and Leman Go Neural, AAAI 2019, which is the same with sums and edge weights.

    X' = aggregate(X) W_n^T + X W_r^T + b           aggregate: mean, sum or maximum over the neighbours

Of equal maxima the first edge's gets the gradient, as in PyG with a CSR adjacency; with `edge_index` PyG shares it out.
Mean and sum are linear, so the neighbours' product may come first or last (order.py). Multiplied first, X alone is kept
for backward. The root's product is added while the sum of a row is still in registers.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn import functional
from torch_geometric import nn as pyg

from ..activations.linear import of_neighbours, products
from ..activations.neighbours import neighbour_sum
from ..activations.plan import Plan
from ..activations.plan import of as plan_of
from ..compute.conv import Adjacency, convolve
from ..compute.plan import Int8, is_steady, worth
from ..compute.plan import of as int8_of
from .adjacency import Weighted, graph_of
from .border import REDUCE, Reduce, by_pyg, keep_templates, sizes_of
from .chain import Pending
from .dense import apply_linear, entry_of, is_fixed, is_plain, linear, sums_data
from .order import aggregate_first


def fixed_adjacency(weighted: Weighted, reduce: Reduce, diagonal: Tensor | None = None) -> Adjacency:
    """Sum or mean of neighbours, as int8 products take it."""
    graph, value, _ = weighted
    return Adjacency(graph, value, None, graph.inverse_degree if reduce == "mean" else None, diagonal)


def neighbours_and_root(
    weighted: Weighted, reduce: Reduce, pair: tuple[Tensor, Tensor | None], own: Any, root: Any
) -> Tensor:
    """aggregate(x_src) through `own`, plus x_dst through `root`."""
    (graph, value, _), (x_src, x_dst) = weighted, pair
    plan = plan_of(own) if isinstance(own, nn.Module) else None
    how = int8_of(own)
    if how is not None and reduce != "max" and is_plain(own) and worth(x_src) and is_fixed(value):
        return _in_int8(weighted, reduce, pair, own, root, how, plan)
    if plan is not None and plan.worth(x_src) and reduce != "max" and is_plain(own):
        return _keeping_little(weighted, reduce, pair, own, root, plan)
    rooted = apply_linear(root, x_dst) if root is not None and x_dst is not None else None
    if reduce == "max" or not is_plain(own) or aggregate_first(x_src, x_src.size(1), own.weight.size(0)):
        return apply_linear(own, neighbour_sum(graph, x_src, value, reduce), rows=rooted)
    return neighbour_sum(graph, linear(x_src, own.weight, None, steady=is_steady(own)), value, reduce, own.bias, rooted)


def _in_int8(
    weighted: Weighted, reduce: Reduce, pair: tuple[Tensor, Tensor | None], own: Any, root: Any, how: Int8,
    plan: Plan | None,
) -> Tensor:  # fmt: skip
    x_src, x_dst = pair
    together = x_dst is x_src and root is not None and is_plain(root) and int8_of(root) is not None
    rows = apply_linear(root, x_dst) if root is not None and x_dst is not None and not together else None
    lins = [own, root] if together else [own]
    first = "aggregate" if aggregate_first(x_src, x_src.size(1), own.weight.size(0), plan) else "multiply"
    weights, biases = [lin.weight for lin in lins], [lin.bias for lin in lins]
    adjacency = fixed_adjacency(weighted, reduce)
    return convolve(x_src, adjacency, weights, biases, first, entry_of(how, plan, x_src), rows=rows)[0]


def _keeping_little(
    weighted: Weighted, reduce: Reduce, pair: tuple[Tensor, Tensor | None], own: Any, root: Any, plan: Plan
) -> Tensor:
    """The same, keeping one tensor of rows: dW_n = (A^T dout)^T X, dW_r = dout^T X; of data nothing."""
    (graph, value, _), (x_src, x_dst) = weighted, pair
    if plan.shared and x_src.requires_grad and x_dst is x_src and is_plain(root):
        h, own_rows = products(x_src, [own.weight, root.weight], [None, root.bias], plan)
        return neighbour_sum(graph, h, value, reduce, own.bias, own_rows, plan=plan)
    rooted = apply_linear(root, x_dst) if root is not None and x_dst is not None else None
    first = aggregate_first(x_src, x_src.size(1), own.weight.size(0), plan)
    if first and is_fixed(value) and sums_data(plan, x_src):
        return of_neighbours(graph, value, reduce, x_src, own.weight, own.bias, rooted)
    if first or not plan.shared:  # as published: the sum is kept beside the rows
        return apply_linear(own, neighbour_sum(graph, x_src, value, reduce, plan=plan), rows=rooted)
    h = linear(x_src, own.weight, None, plan=plan, steady=is_steady(own))
    return neighbour_sum(graph, h, value, reduce, own.bias, rooted, plan=plan)


def _int8_together(weighted: Weighted, own: Any, root: Any) -> Int8 | None:
    """How both products compute in int8 behind a chain; None if one of them does not, or edge weights are learned."""
    all_int8 = is_fixed(weighted.value) and (root is None or int8_of(root) is not None)
    return int8_of(own) if all_int8 else None


def _after_chain(conv: Any, weighted: Weighted, pending: Pending, own: Any, root: Any, how: Int8 | None) -> Tensor:
    graph, value, _ = weighted
    roots = [root] if root is not None else []
    weights = [own.weight, *(r.weight for r in roots)]
    if how is not None:
        adjacency, biases = fixed_adjacency(weighted, REDUCE[conv.aggr]), [own.bias, *(r.bias for r in roots)]
        return pending.in_int8(how, lambda x, *entry: convolve(x, adjacency, weights, biases, "multiply", *entry))[0]
    h, *rooted = pending.products(weights, [None, *(r.bias for r in roots)])
    own_rows = rooted[0] if rooted else None
    return neighbour_sum(graph, h, value, REDUCE[conv.aggr], own.bias, own_rows, plan=plan_of(conv))


class SAGEConv(pyg.SAGEConv):
    _set_jittable_templates = keep_templates

    def forward(self, x: Any, edge_index: Any, size: Any = None) -> Tensor:
        x_src, x_dst = (x, x) if isinstance(x, Tensor) else x
        if by_pyg(self, x_src, edge_index):
            return super().forward(x, edge_index, size)
        if self.project:
            x_src = functional.relu(self.lin(x_src))
        graph = graph_of(edge_index, sizes_of(x_src, x_dst, edge_index, size))
        root: Any = self.lin_r if self.root_weight else None
        out = neighbours_and_root(graph, REDUCE[self.aggr], (x_src, x_dst), self.lin_l, root)
        return functional.normalize(out, p=2.0, dim=-1) if self.normalize else out

    def after_chain(self, pending: Pending, edge_index: Any) -> Tensor:
        """forward(pending.run(), ...), with the products made while the chain's result is in the cache."""
        root: Any = self.lin_r if self.root_weight else None
        plain = is_plain(self.lin_l) and (root is None or is_plain(root)) and REDUCE[self.aggr] != "max"
        if by_pyg(self, pending.x, edge_index) or not plain or self.project:
            return self(pending.run(), edge_index)
        weighted = graph_of(edge_index, sizes_of(pending.x, pending.x, edge_index))
        how = _int8_together(weighted, self.lin_l, root)
        if how is None and not pending.multiplies:
            return self(pending.run(), edge_index)
        out = _after_chain(self, weighted, pending, self.lin_l, root, how)
        return functional.normalize(out, p=2.0, dim=-1) if self.normalize else out


class GraphConv(pyg.GraphConv):
    _set_jittable_templates = keep_templates

    def forward(self, x: Any, edge_index: Any, edge_weight: Tensor | None = None, size: Any = None) -> Tensor:
        x_src, x_dst = (x, x) if isinstance(x, Tensor) else x
        if by_pyg(self, x_src, edge_index):
            return super().forward(x, edge_index, edge_weight, size)
        graph = graph_of(edge_index, sizes_of(x_src, x_dst, edge_index, size), edge_weight)
        return neighbours_and_root(graph, REDUCE[self.aggr], (x_src, x_dst), self.lin_rel, self.lin_root)

    def after_chain(self, pending: Pending, edge_index: Any, edge_weight: Tensor | None = None) -> Tensor:
        """forward(pending.run(), ...), with the products made while the chain's result is in the cache."""
        plain = is_plain(self.lin_rel) and is_plain(self.lin_root) and REDUCE[self.aggr] != "max"
        if by_pyg(self, pending.x, edge_index) or not plain:
            return self(pending.run(), edge_index, edge_weight)
        weighted = graph_of(edge_index, sizes_of(pending.x, pending.x, edge_index), edge_weight)
        how = _int8_together(weighted, self.lin_rel, self.lin_root)
        if how is None and not pending.multiplies:
            return self(pending.run(), edge_index, edge_weight)
        return _after_chain(self, weighted, pending, self.lin_rel, self.lin_root, how)
