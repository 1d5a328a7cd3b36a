"""Rows of features by node id, whatever holds them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..ops.gather_rows import gather_rows

Gather = Callable[[Tensor], Any]


def rows_of(name: str, x: Any, num_nodes: int, dtype: torch.dtype, decode: bool = True) -> Gather | None:
    """ids -> their rows in `dtype`. `x`: a tensor, an array or memmap, an object with `gather` or `[ids]`, or None.

    Without `decode` x is compressed features, and rows come as codes where layers can take them.
    """
    if not decode and not hasattr(x, "coded"):
        raise TypeError(
            f"`{name}` must be compressed features to be left as codes (got {type(x).__name__}); pass "
            f"`gs.compress({name}, ...)`, or decode=True"
        )
    if x is None:
        return None
    if isinstance(x, np.ndarray):
        x = _shared(x)
    if isinstance(x, Tensor) and x.requires_grad:
        raise ValueError(
            f"`{name}` must not require grad: rows are gathered ahead of the model (got a tensor that does); pass "
            "`x.detach()`, or None and gather `x[batch.n_id]` in the model"
        )
    count = len(x) if hasattr(x, "__len__") else None
    if count != num_nodes:
        raise ValueError(
            f"`{name}` must have one row for each of the graph's {num_nodes} nodes (got {count}); "
            "pass the features that belong to this graph"
        )
    if isinstance(x, Tensor):
        return lambda ids: gather_rows(x, ids).to(dtype)
    if not decode:
        return lambda ids: x.coded(ids, dtype=dtype)
    if hasattr(x, "gather"):
        return lambda ids: _checked(name, x.gather(ids, dtype=dtype), ids)
    return lambda ids: _checked(name, x[ids], ids).to(dtype)


def _shared(array: np.ndarray) -> Tensor:
    """A tensor over the same memory. It is only read, so that the array may be a file opened for reading."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.from_numpy(array)


def _checked(name: str, rows: Any, ids: Tensor) -> Tensor:
    if not isinstance(rows, Tensor) or rows.dim() == 0 or rows.size(0) != ids.numel():
        got = tuple(rows.shape) if hasattr(rows, "shape") else type(rows).__name__
        raise ValueError(f"`{name}[ids]` must be a tensor with one row per id, {ids.numel()} of them (got {got})")
    return rows
