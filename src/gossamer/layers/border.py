"""What convolutions ask at their border: whose forward runs, on how many nodes, by which aggregation."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from ..graph import Graph
from . import rules
from .adjacency import Sizes, is_sparse

Reduce = Literal["sum", "mean", "max"]
REDUCE: dict[str, Reduce] = {"mean": "mean", "add": "sum", "sum": "sum", "max": "max"}
"""PyG's names of aggregations, and ours."""

_MESSAGE_HOOKS = (
    "_propagate_forward_pre_hooks", "_propagate_forward_hooks", "_message_forward_pre_hooks",
    "_message_forward_hooks", "_aggregate_forward_pre_hooks", "_aggregate_forward_hooks",
    "_message_and_aggregate_forward_pre_hooks", "_message_and_aggregate_forward_hooks",
    "_edge_update_forward_pre_hooks", "_edge_update_forward_hooks",
)  # fmt: skip


def overheard(conv: Any) -> bool:
    """Whether someone listens to its messages or their sums, which no kernel of ours makes by these modules."""
    parts = ((conv, _MESSAGE_HOOKS), (conv.aggr_module, rules.HOOKS))
    return any(getattr(module, name, None) for module, names in parts for name in names)


def by_pyg(conv: Any, x: Any, edge_index: Any) -> bool:
    """Whether PyG's own forward must run: for explainers and listeners, for other kinds of x, inside torch.func.

    A Graph is ours in any case, as PyG cannot take it.
    """
    if isinstance(edge_index, Graph):
        return False
    if hasattr(edge_index, "to_torch_sparse_csr_tensor"):  # torch_sparse's SparseTensor
        return True
    if is_sparse(edge_index) and edge_index.requires_grad:  # learned entries
        return True
    if not isinstance(x, Tensor) or x.device.type != "cpu" or x.dim() != 2 or x.layout != torch.strided:
        return True
    return bool(conv.explain) or overheard(conv) or rules.transformed() or not _has_kernels(conv, x)


def _has_kernels(conv: Any, x: Tensor) -> bool:
    """float32, and under autocast bfloat16 for sums; float64 would meet a Graph's float32 weights."""
    cast = torch.is_autocast_enabled(x.device.type)
    if cast and (REDUCE[conv.aggr] == "max" or torch.get_autocast_dtype(x.device.type) != torch.bfloat16):
        return False
    return x.dtype == torch.float32 or (cast and x.dtype == torch.bfloat16)


def keep_templates(self: Any, raise_on_error: bool = False) -> None:
    """In place of `_set_jittable_templates`, which PyG calls on a copied module.

    It would take the template of the original class for the plain `propagate` that explainers need.
    """


def sizes_of(x_src: Tensor, x_dst: Tensor | None, edge_index: Any, size: Any = None) -> Sizes:
    """(num_src, num_dst), as PyG finds them: from the rows, from `size`, from a matrix, else as many as sources."""
    told = (None, None) if size is None else tuple(size)
    rows = (x_src.size(0), told[1] if x_dst is None else x_dst.size(0))
    if any(a is not None and b is not None and a != b for a, b in zip(told, rows, strict=True)):
        raise ValueError(f"`size` must be the numbers of rows of `x`, {rows} (got {told}); correct it or leave it out")
    if rows[1] is not None:
        return rows[0], rows[1]
    if isinstance(edge_index, Graph):
        return rows[0], edge_index.num_dst
    return rows[0], edge_index.size(0) if is_sparse(edge_index) else rows[0]
