"""The bytes that autograd saves for backward, tensor by tensor."""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ..aggregate.health import selection
from ..graph import Graph


@dataclass(frozen=True)
class KeptTensor:
    """One piece of memory that autograd holds; `bytes` is that of the whole storage, which a view keeps alive."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    bytes: int

    def __str__(self) -> str:
        return f"{self.bytes:>15,}  {str(self.dtype).removeprefix('torch.'):8}  {list(self.shape)}"


@dataclass
class Kept:
    """What autograd holds. The account is taken when the `with` block ends."""

    tensors: list[KeptTensor] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        return sum(tensor.bytes for tensor in self.tensors)

    def __str__(self) -> str:
        return "\n".join([f"{self.bytes:>15,}  bytes in {len(self.tensors)} tensors", *map(str, self.tensors)])


class _Saved:
    """Replaces a saved tensor in the autograd graph. It is freed with its node, so the live ones are what is saved."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


@contextlib.contextmanager
def kept(exclude: object = ()) -> Iterator[Kept]:
    """Account for the tensors saved for backward by what runs in the block and is still alive at its end.

    A storage counts once, however many ops and views share it. Not counted: parameters, the buffers of every living
    `Graph`, and whatever is in `exclude`: tensors, modules (with what they cache), PyG data, or lists of these. Call
    backward after the block; it frees what is to be counted. Tensors that a hook of `torch.autograd.graph` inside the
    block packs by itself are not seen.
    """
    saved: weakref.WeakSet[_Saved] = weakref.WeakSet()

    def pack(tensor: Tensor) -> _Saved:
        held = _Saved(tensor)
        saved.add(held)
        return held

    account = Kept()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda held: held.tensor):
        yield account
    tensors = [held.tensor for held in saved]
    ignored = {_address(part) for tensor in _tensors_in(exclude) for part in _parts(tensor)} | _graph_addresses()
    ignored |= {_address(tensor) for tensor in tensors if _is_parameter(tensor)}
    account.tensors = _account([part for tensor in tensors for part in _parts(tensor)], ignored)


def kept_bytes(function: Callable[[], Any], exclude: object = ()) -> int:
    """Bytes that autograd holds after function(), while its result is alive; see `kept`."""
    with kept(exclude) as account:
        result = function()
    del result  # it lived until the account was taken
    return account.bytes


def selection_bytes(model: nn.Module) -> int:
    """Bytes that the selections of gs.TopRows(...) hold beside the graph: masks, and matrices of the edges kept."""
    return selection(model).bytes


def _account(parts: list[Tensor], ignored: set[int]) -> list[KeptTensor]:
    """One entry per storage, in the shape of the largest tensor over it, largest first."""
    largest: dict[int, Tensor] = {}
    for part in parts:
        address = _address(part)
        if address not in ignored and (address not in largest or part.numel() > largest[address].numel()):
            largest[address] = part
    found = [KeptTensor(tuple(t.shape), t.dtype, t.untyped_storage().nbytes()) for t in largest.values()]
    return sorted((t for t in found if t.bytes), key=lambda t: (-t.bytes, t.shape))


def _parts(tensor: Tensor) -> tuple[Tensor, ...]:
    """The dense tensors that a tensor is made of: itself, or the indices and values of a sparse one."""
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return tensor.crow_indices(), tensor.col_indices(), tensor.values()
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return tensor.ccol_indices(), tensor.row_indices(), tensor.values()
    return (tensor._indices(), tensor._values()) if tensor.layout == torch.sparse_coo else (tensor,)


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _is_parameter(tensor: Tensor) -> bool:
    return isinstance(tensor, nn.Parameter) or isinstance(tensor._base, nn.Parameter)


def _graph_addresses() -> set[int]:
    """Where the living graphs have their buffers: they were there before forward and stay after backward."""
    graphs = [found for found in gc.get_objects() if type(found) is Graph]  # isinstance would load lazy objects
    stored = (graph for graph in graphs if not graph.is_traced)  # others have fake tensors
    return {_address(tensor) for graph in stored for tensor in _tensors_in(graph)}


def _tensors_in(holder: object) -> Iterator[Tensor]:
    """Every tensor in a tensor, module, graph, PyG data, mapping or list, at any depth."""
    if isinstance(holder, Tensor):
        yield holder
    elif isinstance(holder, Graph):
        own = (holder.rowptr, holder.col, holder.value, holder.perm)
        yield from (tensor for tensor in (*own, *_tensors_in(holder._cache)) if tensor is not None)
    elif isinstance(holder, nn.Module):
        for module in holder.modules():
            yield from _tensors_in({name: found for name, found in vars(module).items() if name != "_modules"})
    elif isinstance(holder, Mapping):
        yield from _tensors_in(list(holder.values()))
    elif isinstance(holder, list | tuple | set | frozenset):
        for item in holder:
            yield from _tensors_in(item)
    elif callable(to_dict := getattr(holder, "to_dict", None)):  # PyG's Data and Batch
        yield from _tensors_in(to_dict())
