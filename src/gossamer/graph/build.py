"""Build the parts of a Graph from edge lists, torch and SciPy matrices, and other graphs.

Each function returns the arguments of Graph: rowptr, col, num_src, value, perm.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor

from ..ops import _checks
from ..ops.csr import MAX_NODES, coo_to_csr, count_loops, row_of_edge, split_loops

Parts = tuple[Tensor, Tensor, int, Tensor | None, Tensor | None]
MERGES = ("keep", "sum", "mean", "max")


@torch.inference_mode(False)  # a graph built during evaluation must be usable in training too
def from_edge_index(
    edge_index: Tensor, num_nodes: int | tuple[int, int] | None, weight: Tensor | None, duplicates: str
) -> Parts:
    edge_index = edge_index.as_tensor() if hasattr(edge_index, "as_tensor") else edge_index  # PyG's EdgeIndex
    if not isinstance(edge_index, Tensor):
        raise TypeError(f"`edge_index` must be a tensor of shape [2, nnz] (got {type(edge_index).__name__})")
    _checks.dtype_of("edge_index", edge_index, (torch.int64, torch.int32))
    _checks.shape_of("edge_index", edge_index, (2, None), "[2, nnz]")
    if duplicates not in MERGES:
        raise ValueError(f"`duplicates` must be one of {MERGES} (got {duplicates!r})")
    if weight is not None:
        _check_weight(weight, edge_index.size(1))
    num_src, num_dst = node_counts(edge_index, num_nodes)
    src, dst = edge_index[0], edge_index[1]
    try:
        if duplicates != "keep":
            return _merged(src, dst, num_src, num_dst, weight, duplicates)
        rowptr, col, perm = coo_to_csr(dst, src, num_dst, num_src)
    except IndexError:
        _check_ids("edge_index[0]", src, num_src)
        _check_ids("edge_index[1]", dst, num_dst)
        raise
    _checks.passed(rowptr, col, num_src, perm)
    return rowptr, col, num_src, None if weight is None else weight[perm], perm


def _check_ids(name: str, ids: Tensor, count: int) -> None:
    at = _checks.first_outside(ids, count)
    if at >= 0:
        raise IndexError(
            f"`{name}` must hold ids of the {count} nodes, 0 to {count - 1} (got {int(ids[at])} at position {at}); "
            "correct it, or pass the right `num_nodes`"
        )


def _check_weight(weight: Tensor, nnz: int) -> None:
    if not weight.is_floating_point():
        raise TypeError(f"`weight` must be floating point (got {weight.dtype}); convert it with `.float()`")
    _checks.shape_of("weight", weight, (nnz,), f"[{nnz}], one number per edge")
    check_fixed("weight", weight)


def check_fixed(name: str, weights: Tensor) -> None:
    if weights.requires_grad:
        raise ValueError(
            f"`{name}` must not require grad: a Graph holds fixed weights. Detach it; for weights that require grad "
            "build the graph without them and pass ops.spmm(graph, x, value=graph.sort_edges(weight))"
        )


def node_counts(edge_index: Tensor, num_nodes: int | tuple[int, int] | None) -> tuple[int, int]:
    """(num_src, num_dst) as given, or inferred from the largest id."""
    if num_nodes is None:
        largest = int(edge_index.max()) + 1 if edge_index.numel() else 0
        num_nodes = max(largest, 0)
    pair = num_nodes if isinstance(num_nodes, (tuple, list)) else (num_nodes, num_nodes)
    try:
        num_src, num_dst = (operator.index(count) for count in pair)
    except (TypeError, ValueError):
        raise TypeError(f"`num_nodes` must be an int or (num_src, num_dst) (got {num_nodes!r})") from None
    check_count("num_nodes", num_src)
    check_count("num_nodes", num_dst)
    return num_src, num_dst


def check_count(name: str, count: int) -> None:
    if not 0 <= count <= MAX_NODES:
        raise ValueError(
            f"`{name}` must lie between 0 and {MAX_NODES}, because node ids are stored as int32 (got {count}); "
            "split the graph into smaller ones"
        )


def _merged(src: Tensor, dst: Tensor, num_src: int, num_dst: int, weight: Tensor | None, how: str) -> Parts:
    """Sorted by source, then stably by destination, equal edges are neighbours."""
    _, _, by_src = coo_to_csr(src, dst, num_src, num_dst)
    rowptr, col, by_dst = coo_to_csr(dst[by_src], src[by_src], num_dst, num_src)
    row = row_of_edge(rowptr)
    first = torch.ones(col.numel(), dtype=torch.bool, device=col.device)
    first[1:] = (col[1:] != col[:-1]) | (row[1:] != row[:-1])
    merged_rowptr = torch.zeros_like(rowptr)
    merged_rowptr[1:] = first.cumsum(0)[rowptr[1:] - 1].where(rowptr[1:] > 0, 0) if col.numel() else 0
    value = None
    if weight is None and how == "sum":
        weight = torch.ones(col.numel(), device=col.device)  # an edge given twice counts twice
    if weight is not None:
        group = first.cumsum(0) - 1
        sorted_weight = weight[by_src][by_dst]
        reduce = {"sum": "sum", "mean": "mean", "max": "amax"}[how]
        value = sorted_weight.new_zeros(int(first.sum()))
        value = value.scatter_reduce(0, group, sorted_weight, reduce, include_self=False)
    return merged_rowptr, col[first], num_src, value, None


@torch.inference_mode(False)
def from_torch_sparse(matrix: Tensor) -> Parts:
    if not isinstance(matrix, Tensor) or matrix.layout not in (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc):
        got = getattr(matrix, "layout", type(matrix).__name__)
        raise TypeError(f"`matrix` must be a torch.sparse COO, CSR or CSC tensor (got {got}); use `.to_sparse_csr()`")
    if matrix.dim() != 2 or matrix.dense_dim():
        raise ValueError(f"`matrix` must have two dimensions, both sparse (got the shape {tuple(matrix.shape)})")
    check_fixed("matrix", matrix)
    num_dst, num_src = matrix.shape
    if matrix.layout == torch.sparse_csr:  # copied, so that changing the matrix later does not change the graph
        rowptr, col, values = matrix.crow_indices().clone(), matrix.col_indices().clone(), matrix.values().clone()
        return _from_csr(rowptr, col, values, num_src)
    if matrix.layout == torch.sparse_csc:
        dst, values = matrix.row_indices().long(), matrix.values()
        src = row_of_edge(matrix.ccol_indices().long())
    else:
        (dst, src), values = matrix._indices(), matrix._values()
    rowptr, col, perm = coo_to_csr(dst.contiguous(), src.contiguous(), num_dst, num_src)
    _checks.passed(rowptr, col, num_src, perm)
    return rowptr, col, num_src, _values(values)[perm], perm


@torch.inference_mode(False)
def from_scipy(matrix: Any) -> Parts:
    if not hasattr(matrix, "tocsr"):
        raise TypeError(f"`matrix` must be a SciPy sparse matrix (got {type(matrix).__name__})")
    if len(matrix.shape) != 2:
        raise ValueError(f"`matrix` must have two dimensions (got the shape {matrix.shape})")
    csr = matrix.tocsr(copy=True)  # copied, so that changing the matrix later does not change the graph
    rowptr, col, values = (torch.from_numpy(part) for part in (csr.indptr, csr.indices, csr.data))
    parts = _from_csr(rowptr, col, values, csr.shape[1])
    return parts if matrix.format == "csr" else (*parts[:4], None)  # other formats list their entries otherwise


def _from_csr(rowptr: Tensor, col: Tensor, values: Tensor, num_src: int) -> Parts:
    if num_src > MAX_NODES:
        raise ValueError(f"`matrix` must have at most {MAX_NODES} columns (got {num_src}); split the graph")
    _checks.ids_within("col", col, num_src, "source nodes")
    return rowptr.long(), col.to(torch.int32), num_src, _values(values), torch.arange(col.numel(), device=col.device)


def _values(values: Tensor) -> Tensor:
    if values.is_complex():
        raise TypeError(f"`matrix` must hold real numbers (got {values.dtype}); take `.real` or `abs`")
    return values.to(torch.float32)


@torch.inference_mode(False)
def with_self_loops(rowptr: Tensor, col: Tensor, value: Tensor | None, fill: float) -> Parts:
    """Each row without its loops, then one loop."""
    n = rowptr.numel() - 1
    row, node = row_of_edge(rowptr), torch.arange(n, device=col.device)
    keep = row != col
    kept_rows = row[keep]
    new_rowptr = torch.zeros_like(rowptr)
    new_rowptr[1:] = (torch.bincount(kept_rows, minlength=n) + 1).cumsum(0)
    at = torch.arange(kept_rows.numel(), device=col.device) + kept_rows  # one loop stands before each earlier row's end
    loop_at = new_rowptr[1:] - 1
    new_col = torch.empty(kept_rows.numel() + n, dtype=torch.int32, device=col.device)
    new_col[at], new_col[loop_at] = col[keep], node.to(torch.int32)
    if value is None:
        return new_rowptr, new_col, n, None, None
    loop_value = torch.full((n,), fill, dtype=value.dtype, device=col.device)
    loop_row = row[~keep]
    last = torch.ones_like(loop_row, dtype=torch.bool)  # of a node's loops: writing all would be a race
    last[:-1] = loop_row[1:] != loop_row[:-1]
    loop_value[loop_row[last]] = value[~keep][last]
    new_value = torch.empty(new_col.numel(), dtype=value.dtype, device=col.device)
    new_value[at], new_value[loop_at] = value[keep], loop_value
    return new_rowptr, new_col, n, new_value, None


@torch.inference_mode(False)
def split_self_loops(rowptr: Tensor, col: Tensor, value: Tensor | None) -> tuple[Parts, Tensor]:
    """The edges that are no loops, and the sum of the weights of each node's loops, float32 [nodes].

    The same tensors where there is no loop.
    """
    n, loops = rowptr.numel() - 1, count_loops(rowptr, col)
    if not bool(loops.any()):
        return (rowptr, col, n, value, None), torch.zeros(n, device=col.device)
    kept_rowptr, kept_col, kept_value, diagonal = split_loops(rowptr, col, value)
    _checks.passed(kept_rowptr, kept_col, n)
    return (kept_rowptr, kept_col, n, None if value is None else kept_value, None), diagonal


def filter_edges(rowptr: Tensor, col: Tensor, num_src: int, value: Tensor | None, keep: Tensor) -> Parts:
    new_rowptr = torch.zeros_like(rowptr)
    new_rowptr[1:] = torch.bincount(row_of_edge(rowptr)[keep], minlength=rowptr.numel() - 1).cumsum(0)
    return new_rowptr, col[keep], num_src, None if value is None else value[keep], None


@torch.inference_mode(False)
def node_factors(rowptr: Tensor) -> Tensor:
    """deg_i^-1/2 with deg the number of incoming edges; a node without any gets 0, as in PyG."""
    factor = rowptr.diff().to(torch.float32).pow(-0.5)
    return factor.masked_fill(factor == torch.inf, 0.0)


@torch.inference_mode(False)
def symmetric_weights(rowptr: Tensor, col: Tensor, value: Tensor | None) -> Tensor:
    """deg_i^-1/2 value deg_j^-1/2 with deg the weighted in-degree; a node without weight gets 0, as in PyG."""
    row = row_of_edge(rowptr)
    weight = torch.ones(col.numel(), device=col.device) if value is None else value
    degree = torch.zeros(rowptr.numel() - 1, device=col.device).index_add(0, row, weight)
    factor = degree.pow(-0.5)
    factor = factor.masked_fill(factor == torch.inf, 0.0)
    return factor[col.long()] * weight * factor[row]
