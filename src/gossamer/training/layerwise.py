"""Inference over a whole graph in bounded memory: layer by layer, and a part of the nodes at a time.

    for each layer k and rows [i, j):     h_k[i:j] = layer_k(h_k-1[nodes], block)

`block` is the graph of all edges into nodes i .. j-1; its sources, `nodes`, are these nodes first and then all others
that an edge comes from. No neighbour is left out, so the result is that of model(x, graph) in evaluation mode. In
memory are the rows and edges of one part, and the results of two layers, or in place of these a part of their files.

A model of one's own says what its layers are:

    class Net(torch.nn.Module):
        def inference_layers(self):                 # each: (rows of the block's sources, block) -> of destinations
            return [lambda x, block: self.conv1(x, block).relu(), lambda x, block: self.conv2(x, block)]

A model that is not lightened is lightened in float32 while this runs: a convolution that normalises by degrees takes
those of the whole graph from the block.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor, nn

from ..atomic import replacing
from ..graph import Graph
from ..graph.graph import Block
from ..ops.gather_rows import gather_rows
from ..pyg import NothingToLighten, lighten_, restore_
from ..quiet_pyg import importing_pyg
from ..state import model_state_of, state_of

Layer = Callable[[Tensor, Graph], Tensor]
"""From the rows of a block's sources to those of its destinations."""


def infer_layerwise(
    model: nn.Module,
    graph: Graph,
    x: Any,
    *,
    batch_size: int = 65536,
    out: str | os.PathLike[str] | np.ndarray | None = None,
    progress: bool = True,
) -> Tensor:
    """model(x, graph) in evaluation mode, for graphs whose layers do not fit in memory at once.

    model: one of PyG's ready models, plain or lightened, or one that defines `inference_layers` (see above).
    x: the nodes' features: a tensor, an array or memory map, or anything with `gather(ids)` or `[ids]`.
    batch_size: how many nodes are computed at a time. out: where the result goes, a path, to which a `.npy` file is
    written, or an array or memory map. Where that is a file, the results of inner layers are kept in files of the same
    folder, not in memory; they have no names and are gone afterwards. The model's training mode is left as it was.

    Returns the result, of `out` as a tensor on the same memory or file.
    """
    _check(model, graph, x, batch_size)
    with contextlib.ExitStack() as stack:
        stack.enter_context(_evaluated(model))
        layers, combine = _layers_of(model)
        _refuse_what_needs_more_than_a_part(model)
        store = stack.enter_context(_store(graph.num_dst, out))
        bar = stack.enter_context(_Bar(len(layers) + (combine is not None), graph.num_dst, progress))
        stack.enter_context(torch.no_grad())
        parts, rows = _Parts(graph, batch_size), _rows_of(x)
        kept: list[Tensor] = []
        for k, layer in enumerate(layers):
            result = _Result(store.last if combine is None and k == len(layers) - 1 else store.inner)
            for part in parts:
                made = layer(rows(part.nodes), part.block)
                result.write(part.first, _checked(made, part.block, k))
                bar.advance(k, part.block.num_dst)
            kept = [] if combine is None else [*kept, result.whole]
            rows = _rows_of(result.whole)
        if combine is not None:
            result = _Result(store.last)
            for first in range(0, max(graph.num_dst, 1), batch_size):
                result.write(first, combine([hidden[first : first + batch_size] for hidden in kept]))
                bar.advance(len(layers), min(batch_size, graph.num_dst - first))
        del rows, kept
        found = result.whole
    return store.final(found)


def _check(model: Any, graph: Any, x: Any, batch_size: Any) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"`model` must be a torch.nn.Module (got {type(model).__name__})")
    if not isinstance(graph, Graph):
        raise TypeError(
            f"`graph` must be a gs.Graph (got {type(graph).__name__}); build it with "
            "gs.Graph.from_edge_index(edge_index, num_nodes) or gs.Graph.from_data(data)"
        )
    if graph.num_src != graph.num_dst:
        raise ValueError(
            f"`graph` must have as many sources as destinations, as the rows of one layer are the input of the next "
            f"(got {graph})"
        )
    if not isinstance(batch_size, int) or isinstance(batch_size, bool) or batch_size < 1:
        raise ValueError(f"`batch_size` must be a whole number of rows, at least 1 (got {batch_size!r})")
    if not hasattr(x, "__getitem__") and not hasattr(x, "gather"):
        raise TypeError(f"`x` must be a tensor, an array, or have `gather(ids)` or `[ids]` (got {type(x).__name__})")
    rows = x.shape[0] if hasattr(x, "shape") else len(x)
    if rows != graph.num_src:
        raise ValueError(f"`x` must have one row for each of the graph's {graph.num_src} nodes (got {rows} rows)")


def _checked(made: Any, block: Graph, k: int) -> Tensor:
    if not isinstance(made, Tensor) or made.dim() != 2 or made.size(0) != block.num_dst:
        got = tuple(made.shape) if isinstance(made, Tensor) else type(made).__name__
        raise ValueError(
            f"layer {k} of `model` must return one row for each of the block's {block.num_dst} destinations "
            f"(got {got}); lightened convolutions do: conv(x, block)"
        )
    return made


# The model --------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _evaluated(model: nn.Module) -> Iterator[None]:
    """In evaluation mode and lightened; afterwards every module is as it was."""
    modes = [(module, module.training) for module in model.modules()]
    lightened = False
    if model_state_of(model) is None:
        with contextlib.suppress(NothingToLighten):
            lighten_(model)
            lightened = True
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
        if lightened:
            restore_(model)


def _layers_of(model: Any) -> tuple[Sequence[Layer], Callable[[list[Tensor]], Tensor] | None]:
    """The model's layers, and what follows all of them: jumping knowledge."""
    if hasattr(model, "inference_layers"):
        layers = list(model.inference_layers())
        if not layers or not all(callable(layer) for layer in layers):
            raise TypeError(f"`inference_layers` must return functions (x, block) -> rows, at least one (got {layers})")
        return layers, None
    with importing_pyg():
        from torch_geometric.nn.models.basic_gnn import BasicGNN

        from ..layers.models import Stacked
    if inspect.unwrap(type(model).forward) not in (BasicGNN.forward, Stacked.forward):
        raise TypeError(
            "`model` must be one of PyG's ready models (GCN, GraphSAGE, GIN, GAT, ...), or say what its layers are "
            f"(got {type(model).__name__}). Add to its class, with its own layers:\n\n"
            "    def inference_layers(self):\n"
            "        return [\n"
            "            lambda x, block: self.conv1(x, block).relu(),  # x: rows of the block's sources\n"
            "            lambda x, block: self.conv2(x, block),  # returns rows of its destinations\n"
            "        ]\n"
        )
    layers = [functools.partial(_ready_layer, model, k) for k in range(model.num_layers)]
    return layers, (lambda hidden: model.lin(model.jk(hidden))) if hasattr(model, "jk") else None


def _ready_layer(model: Any, k: int, x: Tensor, block: Graph) -> Tensor:
    """Convolution, norm and activation of PyG's ready models."""
    x, is_last = _convolved(model, model.convs[k], x, block), k == model.num_layers - 1
    if is_last and model.jk_mode is None:
        return x
    if model.act is not None and model.act_first:
        x = model.act(x)
    x = model.norms[k](x)
    if model.act is not None and not model.act_first:
        x = model.act(x)
    return model.lin(x) if is_last and model.jk_mode == "last" else x


def _convolved(model: Any, conv: Any, x: Tensor, block: Graph) -> Tensor:
    if state_of(conv) is not None:
        return conv(x, block)
    weight = {"edge_weight": block.value} if model.supports_edge_weight else {}
    return conv(x, block.edge_index, **weight)[: block.num_dst]  # without kernels of ours: sources as nodes


def _refuse_what_needs_more_than_a_part(model: nn.Module) -> None:
    with importing_pyg():
        from torch_geometric import nn as pyg
    by_degree = (
        pyg.GCNConv, pyg.GCN2Conv, pyg.ChebConv, pyg.ARMAConv, pyg.SGConv, pyg.SSGConv, pyg.TAGConv, pyg.APPNP,
        pyg.LGConv, pyg.FAConv, pyg.MixHopConv,
    )  # fmt: skip
    for name, module in model.named_modules():
        if isinstance(module, pyg.MessagePassing) and state_of(module) is None:
            backwards = module.flow != "source_to_target"
            if backwards or (isinstance(module, by_degree) and getattr(module, "normalize", True)):
                why = "sums along reversed edges" if backwards else "needs degrees or hops beyond its part of the graph"
                raise ValueError(f"`model` must be computable from parts of a graph: {_named(name, module)} {why}")
        over_nodes = _statistics_over_nodes(module)
        if over_nodes:
            raise ValueError(
                "`model` must be computable from parts of a graph: the statistics of "
                f"{_named(name, module)} are taken over all nodes at once; {over_nodes}"
            )


def _named(name: str, module: nn.Module) -> str:
    return f"{type(module).__name__.removeprefix('Pyg')} `{name}`"


def _statistics_over_nodes(module: nn.Module) -> str | None:
    """The remedy for a norm that mixes rows in evaluation mode, None for any other module."""
    with importing_pyg():
        from torch_geometric import nn as pyg
    if isinstance(module, pyg.LayerNorm):
        return "use mode='node'" if module.mode == "graph" else None
    if isinstance(module, (nn.modules.batchnorm._BatchNorm, nn.modules.instancenorm._InstanceNorm)):
        return "use track_running_stats=True" if module.running_mean is None else None
    mixing = (pyg.GraphNorm, pyg.PairNorm, pyg.GraphSizeNorm, pyg.MeanSubtractionNorm)
    return "use batch_norm, or call model(x, graph)" if isinstance(module, mixing) else None


# The graph and its rows -------------------------------------------------------------------------------------------


class _Part(NamedTuple):
    """Rows from `first` on, the block that computes them, and its sources' ids; None: all nodes."""

    first: int
    block: Graph
    nodes: Tensor | None


class _Parts:
    """The parts of a graph: blocks of so many rows each, with all edges into them. A graph of one part is its block."""

    def __init__(self, graph: Graph, rows: int) -> None:
        self.graph, self.rows = graph, rows
        self._number = torch.empty(graph.num_src, dtype=torch.int32)  # of a node among a part's sources
        self._found = torch.zeros(graph.num_src, dtype=torch.bool)

    def __iter__(self) -> Iterator[_Part]:
        if self.graph.num_dst <= self.rows:
            yield _Part(0, self.graph, None)
            return
        for first in range(0, self.graph.num_dst, self.rows):
            yield self._part(first, min(first + self.rows, self.graph.num_dst))

    def _part(self, first: int, last: int) -> _Part:
        graph, found, number = self.graph, self._found, self._number
        rowptr = graph.rowptr[first : last + 1]
        begin, end = int(rowptr[0]), int(rowptr[-1])
        col = graph.col[begin:end].long()
        found[col] = True
        found[first:last] = False
        others = found.nonzero().flatten()
        found[others] = False
        nodes = torch.cat([torch.arange(first, last), others])
        number[nodes] = torch.arange(len(nodes), dtype=torch.int32)
        value = None if graph.value is None else graph.value[begin:end]
        block = Block(graph, nodes)
        return _Part(first, Graph(rowptr - begin, number[col], len(nodes), value, block=block), nodes)


def _rows_of(x: Any) -> Callable[[Tensor | None], Tensor]:
    """A function that gathers rows by their ids; None: all rows."""
    if isinstance(x, np.ndarray):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it may be read-only: nothing is written here
            x = torch.from_numpy(x)
    if isinstance(x, Tensor):
        return lambda ids: _floats(x if ids is None else gather_rows(x, ids) if x.is_contiguous() else x[ids])
    gather, count = (x.gather if hasattr(x, "gather") else x.__getitem__), len(x)
    return lambda ids: _floats(torch.as_tensor(gather(torch.arange(count) if ids is None else ids)))


def _floats(rows: Tensor) -> Tensor:
    """Features that were stored in fewer bits, as models take them."""
    return rows if rows.dtype in (torch.float32, torch.float64) else rows.float()


# Results ----------------------------------------------------------------------------------------------------------


class _Store:
    """Where results are kept: in memory, or those of inner layers in files of a folder.

    These files have no names, and are gone with their tensors.
    """

    def __init__(self, rows: int, folder: Path | None = None) -> None:
        self.rows, self._folder = rows, folder

    def inner(self, columns: int, dtype: torch.dtype) -> Tensor:
        """An empty result of so many columns, of a layer that another one reads."""
        if self._folder is None or self.rows * columns == 0:  # which cannot be mapped
            return torch.empty(self.rows, columns, dtype=dtype)
        with tempfile.TemporaryFile(dir=self._folder) as file:
            _reserve(file, self.rows * columns * dtype.itemsize)
            return torch.from_numpy(np.memmap(file, _numpy(dtype), "r+", shape=(self.rows, columns)))

    def last(self, columns: int, dtype: torch.dtype) -> Tensor:
        """The same of the last."""
        return torch.empty(self.rows, columns, dtype=dtype)

    def final(self, last: Tensor) -> Tensor:
        """The last result, when all is written."""
        return last


class _ArrayStore(_Store):
    """The last result in an array of the user's; where that is a file, those of inner layers in files beside it."""

    def __init__(self, rows: int, out: np.ndarray) -> None:
        name = getattr(out, "filename", None)
        super().__init__(rows, None if name is None else Path(name).parent)
        if out.ndim != 2 or out.shape[0] != rows or not out.flags.writeable:
            raise ValueError(
                f"`out` must be an array of {rows} rows that can be written to (got the shape {out.shape}"
                f"{'' if out.flags.writeable else ', read-only'})"
            )
        self._out = out

    def last(self, columns: int, dtype: torch.dtype) -> Tensor:
        if self._out.shape[1] != columns or self._out.dtype != _numpy(dtype):
            raise ValueError(
                f"`out` must have {columns} columns of {_numpy(dtype)}, as the model's result (got the shape "
                f"{self._out.shape} of {self._out.dtype})"
            )
        return torch.from_numpy(self._out)


class _FileStore(_Store):
    """The last result in a file, written under a temporary name, those of inner layers in files beside it."""

    def __init__(self, rows: int, temporary: Path, path: Path) -> None:
        super().__init__(rows, path.parent)
        self._temporary, self._path = temporary, path

    def last(self, columns: int, dtype: torch.dtype) -> Tensor:
        shape = (self.rows, columns)
        with self._temporary.open("wb") as file:
            header = {"descr": np.lib.format.dtype_to_descr(_numpy(dtype)), "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(file, header)
            if self.rows * columns:
                _reserve(file, file.tell() + self.rows * columns * dtype.itemsize)
        return _mapped(self._temporary)

    def final(self, last: Tensor) -> Tensor:
        return _mapped(self._path)


def _mapped(path: Path) -> Tensor:
    with path.open("rb") as file:
        np.lib.format.read_magic(file)
        shape, _, _ = np.lib.format.read_array_header_1_0(file)
    return torch.from_numpy(np.load(path, mmap_mode=None if 0 in shape else "r+"))  # nothing cannot be mapped


def _reserve(file: Any, size: int) -> None:
    """Space on the disk: if there is too little that is an error now, not a crash when a page is written."""
    os.posix_fallocate(file.fileno(), 0, size)


@contextlib.contextmanager
def _store(rows: int, out: Any) -> Iterator[_Store]:
    if out is None:
        yield _Store(rows)
    elif isinstance(out, np.ndarray):
        yield _ArrayStore(rows, out)
    elif isinstance(out, (str, os.PathLike)):
        with replacing(out, "out") as temporary:
            yield _FileStore(rows, Path(temporary), Path(out))
    else:
        raise TypeError(f"`out` must be a path, an array or a memory map (got {type(out).__name__})")


def _numpy(dtype: torch.dtype) -> np.dtype[Any]:
    return torch.empty(0, dtype=dtype).numpy().dtype


class _Result:
    """The rows of one layer, allocated when the first part says how many columns there are."""

    def __init__(self, new: Callable[[int, torch.dtype], Tensor]) -> None:
        self._new = new
        self._whole: Tensor | None = None

    def write(self, first: int, rows: Tensor) -> None:
        whole = self._whole = self._new(rows.size(1), rows.dtype) if self._whole is None else self._whole
        whole[first : first + len(rows)] = rows

    @property
    def whole(self) -> Tensor:
        assert self._whole is not None
        return self._whole


class _Bar:
    """How many rows of all layers are done, on standard error."""

    def __init__(self, layers: int, rows: int, shown: bool) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
        self._progress = Progress(*columns, console=Console(stderr=True), disable=not shown)
        self._layers = layers
        self._task = self._progress.add_task(f"layer 1 of {layers}", total=layers * rows)

    def __enter__(self) -> _Bar:
        self._progress.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._progress.stop()

    def advance(self, layer: int, rows: int) -> None:
        self._progress.update(self._task, advance=rows, description=f"layer {layer + 1} of {self._layers}")
