"""What GAT and GATv2 share: the graph with its loops, logits of nodes, and what becomes of the heads."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch_geometric.utils import add_self_loops, remove_self_loops

from .. import ops
from ..activations import plan as plans
from ..activations.linear import known_product
from ..activations.stash import is_free
from ..compute.conv import Projected, project
from ..compute.conv import products as int8_products
from ..compute.entry import Entry
from ..compute.plan import LEAST, Int8, worth
from ..compute.plan import of as int8_of
from ..graph import Graph
from ..ops.int8_linear import MAX_COLUMNS
from . import rules
from .adjacency import Sizes, checked, from_edges, graph_of, is_sparse, listed_edges, remember
from .border import by_pyg
from .chain import Pending
from .dense import apply_linear, is_plain, linear

Drop = tuple[float, int] | None


@torch.compiler.disable
def looped_graph(edge_index: Any, sizes: Sizes) -> Graph:
    """The graph with one loop for each node that is both source and destination."""
    if isinstance(edge_index, Graph):
        checked(edge_index, sizes)
        return edge_index._cached("looped", lambda: _looped(listed_edges(edge_index), sizes))
    return remember(edge_index, None, ("looped", sizes), lambda: _looped(edge_index, sizes))


def _looped(edge_index: Tensor, sizes: Sizes) -> Graph:
    plain = edge_index.as_tensor() if hasattr(edge_index, "as_tensor") else edge_index
    edges, _ = add_self_loops(remove_self_loops(plain)[0], num_nodes=min(sizes))
    return from_edges(edges, sizes, None)


def attention_graph(
    module: Any, edge_index: Any, sizes: Sizes, edge_attr: Tensor | None
) -> tuple[Graph, Tensor | None]:
    """The graph, with loops if the layer wants them, and the features of its edges, loops included, in CSR order."""
    if not module.add_self_loops:
        graph = graph_of(edge_index, sizes).graph
    else:
        graph = looped_graph(edge_index, sizes)
        if edge_attr is not None:
            edges = listed_edges(edge_index) if isinstance(edge_index, Graph) else edge_index
            plain = remove_self_loops(edges, edge_attr)
            edge_attr = add_self_loops(*plain, fill_value=module.fill_value, num_nodes=min(sizes))[1]
    return graph, None if edge_attr is None else graph.sort_edges(edge_attr)


def head_dots(h: Tensor, *atts: Tensor, steady: bool = False) -> tuple[Tensor, ...]:
    """<h_n, att> per head and att: [nodes, heads * width] with [1, heads, width] to [nodes, heads] each.

    All as one narrow product with rows that hold each head's att at its own columns: h is read once, and backward has
    one gradient to add to it.
    """
    return _dots(h, atts, steady).split(atts[0].size(1), dim=1)


def _dots(h: Tensor, atts: tuple[Tensor, ...], steady: bool) -> Tensor:
    spread = torch.cat([torch.block_diag(*att[0]) for att in atts])  # [heads * len(atts), heads * width]
    return linear(h, spread, None, steady=steady)


def weight_of_terms(weight: Tensor, *atts: Tensor) -> Tensor:
    """v with head_dots(x W^T, *atts) = x v^T: [heads * len(atts), columns of x]."""
    by_head = weight.view(atts[0].size(1), -1, weight.size(1))  # [heads, width, columns]
    return torch.cat([(att.transpose(0, 1) @ by_head).flatten(0, 1) for att in atts])


def averages(module: Any) -> bool:
    """Whether float sums of this layer's rows average the heads as they go."""
    return not module.concat and module.heads > 1


def weighted_rows(module: Any, graph: Graph, h: Tensor, p: Tensor, drop: Drop) -> tuple[Tensor, Tensor]:
    """The weighted sum of rows, averaged over the heads if it can be, and the weights after attention dropout."""
    p = p if drop is None else ops.dropout(p, *drop)
    if averages(module):
        return ops.head_mean_spmm(graph, h, p, bias=early_bias(module, averaged=True)), p
    return ops.spmm(graph, h, value=p, bias=early_bias(module)), p


def dropout_of(module: Any) -> Drop:
    """Probability and a new seed of the attention's dropout; drawn before any noise, so that recipes share masks."""
    return (module.dropout, rules.draw_seed()) if module.training and module.dropout > 0 else None


def early_bias(module: Any, averaged: bool = False) -> Tensor | None:
    """The bias, if it can be added together with the neighbours: where the sum is as wide as the result."""
    return module.bias if (module.concat or averaged) and module.res is None else None


def finish(module: Any, out: Tensor, x: Tensor | None, residual: Tensor | None = None) -> Tensor:
    """What becomes of the heads; bias and residual, of x unless it is there, as far as they have not been added."""
    averaged = averages(module) and out.size(1) == module.out_channels
    if not module.concat and not averaged:
        out = out.view(-1, module.heads, module.out_channels).mean(dim=1)
    if residual is not None:
        out = out + residual
    elif module.res is not None and x is not None:
        out = apply_linear(module.res, x, rows=out)
    added = module.bias is None or early_bias(module, averaged) is not None
    return out if added else out + module.bias


def few_bits(module: Any, h: Tensor, shows_weights: bool | None) -> plans.Plan | None:
    """How to keep this call's activations; None: whole, as the weights are when they are returned."""
    plan = None if shows_weights else plans.of(module)
    return plan if plan is not None and plan.worth(h) else None


def in_int8(module: Any, h: Tensor, shows_weights: bool | None) -> Int8 | None:
    """How to round the rows that are summed; None: not, as where they are kept in fewer bits."""
    how = None if shows_weights or plans.of(module) is not None else int8_of(module)
    return how if how is not None and worth(h) else None


def _projects(module: Any, x: Tensor, shows_weights: bool | None = None) -> Int8 | None:
    """How GAT's one projection of x is made as int8 rows that only its attention reads; None: it is not."""
    lin = module.lin
    if lin is None or not is_plain(lin) or lin.bias is not None or module.res is not None:
        return None
    how, columns = int8_of(lin), lin.weight.size(0)
    whole = how is not None and how.watch is None and plans.of(lin) is None and lin.weight.dtype == torch.float32
    fits = whole and x.size(0) * columns >= LEAST and columns <= MAX_COLUMNS
    return how if fits and in_int8(module, x, shows_weights) is not None else None


def _project(module: Any, x: Tensor, entry: Entry, *norm: Any) -> tuple[Any, ...]:
    att = torch.cat([module.att_src, module.att_dst]).flatten(1)
    return project(x, module.lin.weight, att, module.heads, entry, *norm)


def projected(module: Any, x: Tensor, shows_weights: bool | None) -> Projected | None:
    """The rows of GAT's projection of x, where nobody needs them in float32."""
    how = _projects(module, x, shows_weights)
    return None if how is None else _project(module, x, Entry(how))[0]


def projected_chain(module: Any, pending: Pending, edge_index: Any) -> Projected | None:
    """The same of a chain's result; None, with the chain still to run, where that cannot be."""
    how = _projects(module, pending.x) if is_bare(pending.x) and not is_sparse(edge_index) else None
    if how is None or by_pyg(module, pending.x, edge_index):
        return None
    made: Any = pending.in_int8(how, lambda x, *entry: _project(module, x, *entry))[0]
    return made


def products_of_chain(module: Any, pending: Pending, edge_index: Any, lins: list[Any]) -> tuple[Tensor, ...] | None:
    """A chain's result through each of `lins`, in int8; None, with the chain still to run, where that cannot be."""
    how = int8_of(lins[0])
    known = how is not None and all(is_plain(lin) and int8_of(lin) is not None for lin in lins)
    plain = is_bare(pending.x) and worth(pending.x) and not is_sparse(edge_index)
    if how is None or not known or not plain or by_pyg(module, pending.x, edge_index):
        return None
    weights, biases = [lin.weight for lin in lins], [lin.bias for lin in lins]
    return pending.in_int8(how, lambda x, *entry: int8_products(x, weights, biases, *entry))


def own_terms(
    plan: plans.Plan, x: Tensor, lin: Any, atts: tuple[Tensor, ...], h: Tensor, steady: bool
) -> tuple[Tensor, ...] | None:
    """head_dots of h = lin(x), to the bit, with the gradients of x v^T, v = att W by head: h need not be kept for it.

    None if x is not kept anyway.
    """
    if not is_plain(lin) or lin.bias is not None or not is_free(x, plan):
        return None
    with torch.no_grad():
        value = _dots(h, atts, steady)
    return known_product(x, weight_of_terms(lin.weight, *atts), value, plan).split(atts[0].size(1), dim=1)


def float_products_of_chain(module: Any, pending: Pending, edge_index: Any) -> tuple[Tensor, ...] | None:
    """A chain's result x through GAT's projection, through v of `own_terms`, and through its residual.

    None, with the chain still to run, where that cannot be, or where the rows are to be rounded.
    """
    lins = [module.lin, *([] if module.res is None else [module.res])]
    if (
        not pending.multiplies
        or in_int8(module, pending.x, None) is not None
        or not all(map(is_plain, lins))
        or module.lin.bias is not None
    ):
        return None
    weight, x = module.lin.weight, pending.x
    small = x.size(0) * weight.size(0) < plans.LEAST
    if small or not is_bare(x) or is_sparse(edge_index) or by_pyg(module, x, edge_index):
        return None
    of_terms = weight_of_terms(weight, module.att_src, module.att_dst)
    residual = None if module.res is None else (module.res.weight, module.res.bias)
    pairs = [(weight, None), (of_terms, None), *([] if residual is None else [residual])]
    return pending.products([w for w, _ in pairs], [b for _, b in pairs])


def is_bare(x: Any) -> bool:
    """What the attention kernels take."""
    fits = isinstance(x, Tensor) and x.dim() == 2 and x.dtype == torch.float32
    return fits and not torch.is_autocast_enabled(x.device.type)


def as_edges(edge_index: Any) -> Any:
    """What PyG's own forward takes: a Graph as the list of its edges."""
    if not isinstance(edge_index, Graph):
        return edge_index
    return edge_index._cached("listed", lambda: listed_edges(edge_index))
