"""What every op asks of its arguments. Messages name the argument, what was expected, what came, and the remedy."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..native import library, num_threads
from ..state import facts


def dtype_of(name: str, tensor: Tensor, allowed: Sequence[torch.dtype]) -> None:
    if tensor.dtype not in allowed:
        names = " or ".join(str(d).removeprefix("torch.") for d in allowed)
        raise TypeError(f"`{name}` must be {names} (got {tensor.dtype}); convert it with `.to(...)`")


def shape_of(name: str, tensor: Tensor, expected: tuple[int | None, ...], meaning: str) -> None:
    """`None` in `expected` stands for any extent."""
    shape = tensor.shape
    if shape == expected:  # the usual case, in one comparison
        return
    fits = len(shape) == len(expected) and all(e is None or e == s for e, s in zip(expected, shape, strict=True))
    if not fits:
        raise ValueError(f"`{name}` must have the shape {meaning} (got {tuple(tensor.shape)})")


def at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise ValueError(f"`{name}` must be at least {least} (got {value})")


def first_outside(ids: Tensor, limit: int) -> int:
    """Position of the first id outside [0, limit), or -1."""
    if library and ids.device.type == "cpu" and ids.dtype in (torch.int32, torch.int64):
        ids = ids.contiguous()
        return int(library.check_ids(ids.data_ptr(), ids.element_size(), ids.numel(), limit, num_threads()))
    bad = ((ids < 0) | (ids >= limit)).nonzero()
    return int(bad[0]) if len(bad) else -1


def ids_within(name: str, ids: Tensor, limit: int, of_what: str) -> None:
    at = first_outside(ids, limit)
    if at >= 0:
        raise IndexError(
            f"`{name}` must hold ids from 0 to {limit - 1}, one of {limit} {of_what} "
            f"(got {int(ids.reshape(-1)[at])} at position {at})"
        )


def permutation(name: str, perm: Tensor, count: int) -> None:
    """Each of 0 .. count - 1 once, so that writing there reaches every place. Checked once per tensor, as `csr` is."""
    dtype_of(name, perm, (torch.int64,))
    shape_of(name, perm, (count,), f"[{count}], one position per edge")
    if _is_known(perm, "perm", count):
        return
    ids_within(name, perm, count, "edges")
    found = torch.zeros(count, dtype=torch.bool, device=perm.device)
    found[perm] = True
    if not bool(found.all()):
        raise ValueError(f"`{name}` must hold each position once (got none at {int(found.int().argmin())})")
    _has_passed(perm, "perm", count)


def csr(rowptr: Tensor, col: Tensor, num_src: int, prefix: str = "") -> None:
    """A CSR structure that kernels may trust. Checked once per version of a tensor (state/facts.py).

    `prefix` is what the names of both begin with.
    """
    dtype_of(f"{prefix}col", col, (torch.int32,))
    shape_of(f"{prefix}col", col, (None,), "[nnz]")
    at_least("num_src", num_src, 0)
    rowptr_of(rowptr, col.numel(), f"{prefix}rowptr")
    if not _is_known(col, "col", num_src):
        ids_within(f"{prefix}col", col, num_src, "source rows")
        _has_passed(col, "col", num_src)


def rowptr_of(rowptr: Tensor, nnz: int, name: str = "rowptr") -> None:
    """Row pointers that ascend from 0 to nnz."""
    dtype_of(name, rowptr, (torch.int64,))
    if rowptr.dim() != 1 or rowptr.numel() == 0:
        raise ValueError(f"`{name}` must have the shape [num_dst + 1] (got {tuple(rowptr.shape)})")
    if _is_known(rowptr, "rowptr", nnz):
        return
    values = rowptr.contiguous()
    if library and values.device.type == "cpu":
        at = int(library.check_rowptr(values.data_ptr(), values.numel() - 1, nnz))
    else:
        down = (values[1:] < values[:-1]).nonzero()  # a difference could overflow
        ends = 0 if int(values[0]) else (values.numel() - 1 if int(values[-1]) != nnz else -1)
        at = int(down[0]) + 1 if len(down) and ends != 0 else ends
    if at >= 0:
        raise ValueError(
            f"`{name}` must ascend from 0 to the number of edges, {nnz} (got {int(values[at])} at position {at}); "
            "build it with Graph.from_edge_index"
        )
    _has_passed(rowptr, "rowptr", nnz)


def passed(rowptr: Tensor, col: Tensor, num_src: int, perm: Tensor | None = None) -> None:
    """Say of a structure that our own kernels made that it is valid, so that it is not scanned again."""
    _has_passed(rowptr, "rowptr", col.numel())
    _has_passed(col, "col", num_src)
    if perm is not None:
        _has_passed(perm, "perm", col.numel())


def _is_known(tensor: Tensor, *fact: object) -> bool:
    """Whether this version of the tensor has passed the check before."""
    return not torch.compiler.is_compiling() and facts.recall(tensor, fact) is not None


def _has_passed(tensor: Tensor, *fact: object) -> None:
    if not torch.compiler.is_compiling():
        facts.note(tensor, fact, True)
