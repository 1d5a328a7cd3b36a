"""Which path a call takes: every question about device, dtype, size, hooks, autocast, `torch.compile` and `torch.func`.

The rule for devices: kernels are for the CPU. Elsewhere, and for whatever else a question below says no to, PyG's own
forward runs for a convolution and torch's own function for the rest. A `Graph` is the exception, as PyG cannot take
one: the plain-PyTorch references of our ops serve it on every device.

An op of ours costs a few dozen microseconds more per call than one of torch's; it pays where it saves memory passes,
page faults or torch's serial random numbers. What is too small to gain runs as PyG runs it: `least` says from how many
elements on ours pay, measured on batches of small graphs (benchmarks/examples.py); `forced` lets a test choose. Each
yes is counted in `gains`: a model whose call had none is run as PyG's from then on (forward/as_pyg.py).
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric import nn as pyg
from torch_geometric.nn.dense.linear import is_uninitialized_parameter

from .. import native
from ..aggregate import Adjacency
from ..aggregate.build import is_sparse
from ..aggregate.traced import is_traced
from ..codecs import CodedRows
from ..graph import Graph
from ..ops.int8_linear import MAX_COLUMNS
from ..state import state_of


@dataclass
class Least:
    """Elements from which each path pays."""

    fused: float = 2**18
    """An epilogue as one op: it saves memory passes."""
    activation: float = 2**20
    """An activation or a float32 product alone: pooled pages save faults, and an activation saves a bit per element."""
    dropout: float = 2**13
    """A mask of ours: torch draws its mask serially."""
    saved: float = 2**19
    """A codec for what is saved."""
    int8: float = 2**20
    """Rows in int8."""
    messages: float = 2**20
    """A convolution of ours, counted in edges times columns: it needs no message, but a graph, built anew for every
    batch. PyG's attention makes several tensors of that size: ours pays from a quarter on; without a backward, any of
    ours from twice as many on."""


least = Least()


@dataclass
class Among:
    ranks: bool = False
    """Whether what this process chooses by its own rows must be what other ranks choose by theirs."""


among = Among()


@dataclass
class Gains:
    count: int = 0
    """How often a path of ours was chosen, since the process began."""


gains = Gains()


def _noted(gain: bool) -> bool:
    gains.count += gain
    return gain


def shared_by_ranks(rows: int, most: int) -> None:
    """Let ranks with unlike numbers of rows take the same paths, those of the rank that has most: what travels between
    them depends on it.
    """
    among.ranks = True
    for name, value in dataclasses.asdict(Least()).items():
        setattr(least, name, Fraction(value * rows, most) if rows < most else value)


@contextlib.contextmanager
def forced(**elements: float) -> Iterator[None]:
    """Other sizes in `least` for the length of a `with` block: `forced(fused=1, dropout=1)` takes our ops always."""
    before = dataclasses.asdict(least)
    for name, value in elements.items():
        if name not in before:
            raise ValueError(f"`forced` knows {', '.join(before)} (got {name!r})")
        setattr(least, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(least, name, value)


# Tensors ----------------------------------------------------------------------------------------------------------


def on_cpu(x: Tensor) -> bool:
    """The rule for devices."""
    return x.device.type == "cpu" and x.layout == torch.strided


def transformed() -> bool:
    """Whether `torch.func` (vmap, grad, ...) is at work, which registered ops cannot follow, or a tracer other than
    `torch.compile` and `torch.export` (make_fx, fake tensors), which would take what we remember of a graph for a
    constant.
    """
    if torch._C._are_functorch_transforms_active():
        return True
    if torch.compiler.is_compiling() or not torch._C._len_torch_dispatch_stack():
        return False
    key = torch._C._TorchDispatchModeKey
    return any(torch._C._get_dispatch_mode(mode) is not None for mode in (key.PROXY, key.FAKE, key.FUNCTIONAL))


def is_dense(x: Tensor, elements: float | None = None, any_shape: bool = False) -> bool:
    """Whether a fused op on the rows of x pays: it can run, and x has so many elements (`least.fused`)."""
    if torch.compiler.is_compiling():  # sizes would become part of the traced program
        return False
    return x.numel() >= (least.fused if elements is None else elements) and _noted(
        x.dtype == torch.float32
        and (any_shape or x.dim() == 2)
        and on_cpu(x)
        and native.library is not None
        and not torch.is_autocast_enabled("cpu")
        and not transformed()
    )


def saves_little(x: Tensor) -> bool:
    """Whether what is saved of x is to be compressed: there will be a backward, and x is not small."""
    if torch.compiler.is_compiling():
        return False
    return x.numel() >= least.saved and _noted(
        torch.is_grad_enabled()
        and x.is_floating_point()
        and on_cpu(x)
        and not torch.is_autocast_enabled(x.device.type)
        and not transformed()
    )


def saves_rows(x: Tensor) -> bool:
    """`saves_little` of an operand of a product."""
    return x.dim() == 2 and x.dtype in (torch.float32, torch.float64) and saves_little(x)


def fits_int8(x: Tensor) -> bool:
    """Whether rows of x can be quantised, and it pays."""
    if torch.compiler.is_compiling():
        return False
    return x.numel() >= least.int8 and _noted(
        x.dim() == 2
        and x.dtype in (torch.float32, torch.bfloat16)
        and on_cpu(x)
        and x.size(1) <= MAX_COLUMNS
        and not transformed()
    )


SPARSE = 10
"""A multiplication of a sparse product takes as long as so many of a dense one."""


def aggregates_first(x: Tensor | CodedRows, in_channels: int, out_channels: int, graph: Graph | None = None) -> bool:
    """(A X) W in place of A (X W): the sparse product is the expensive one.

    In training a sparse product of width w is paid once forward and, if a gradient flows through it, once backward:

        multiply first    out + out             backward always needs A^T dout
        aggregate first   in + (in if x needs a gradient)

    On a tie multiply first, which saves x alone and not A X for backward. In a block of a mini-batch with few
    destinations, the dense products, one forward and two or one backward, are the smaller the later they come.
    """
    forward_only, needs_x = not torch.is_grad_enabled(), x.requires_grad
    after = in_channels * (1 if forward_only else 1 + int(needs_x))
    before = out_channels * (1 if forward_only else 2)
    if graph is None or graph.is_traced or graph.num_dst >= graph.num_src or _is_of_part(graph):
        return after < before
    spared = (graph.num_src - graph.num_dst) * in_channels * out_channels * (1 if forward_only else 2 + int(needs_x))
    return SPARSE * graph.num_edges * (after - before) < spared


def _is_of_part(graph: Graph) -> bool:
    """Whether its nodes are those of a rank: all ranks must choose alike, and as one process does."""
    whole = None if graph.block is None else graph.block.whole
    return graph.halo is not None or (whole is not None and whole.halo is not None)


def sums_codes(x: CodedRows, out_channels: int, adjacency: Adjacency) -> bool:
    """Whether neighbours are summed straight from codes: first, with no gradient, in no other dtype, and if it pays.

    A row is decoded for each of its edges; with many entries of a table that costs more than reading it decoded.
    """
    table = x.codes.tensors[1]
    return (
        x.codec.bits <= (4 if table.size(1) == 1 else 2)
        and adjacency.is_fixed
        and x.dtype == torch.float32
        and not torch.compiler.is_compiling()
        and not torch.is_autocast_enabled(x.device.type)
        and not transformed()
        and aggregates_first(x, x.size(1), out_channels, adjacency.graph)
    )


# Modules ----------------------------------------------------------------------------------------------------------

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
GLOBAL_HOOKS = [getattr(nn.modules.module, f"_global{name}") for name in HOOKS]
MESSAGE_HOOKS = (
    "_propagate_forward_pre_hooks", "_propagate_forward_hooks", "_message_forward_pre_hooks",
    "_message_forward_hooks", "_aggregate_forward_pre_hooks", "_aggregate_forward_hooks",
    "_message_and_aggregate_forward_pre_hooks", "_message_and_aggregate_forward_hooks",
    "_edge_update_forward_pre_hooks", "_edge_update_forward_hooks",
)  # fmt: skip
LAYERS = f"{__package__.rpartition('.')[0]}.layers."


def is_a(module: object, *kinds: type[nn.Module]) -> bool:
    """Whether a module is of exactly one of these classes, or of our class for it: a subclass may compute otherwise."""
    kind = type(module)
    return (kind.__base__ if kind.__module__.startswith(LAYERS) else kind) in kinds


def is_hooked(*modules: object) -> bool:
    """Whether someone listens to these modules' calls, or has replaced one's forward: fusing would pass that by."""
    if any(GLOBAL_HOOKS):
        return True
    for module in modules:
        if isinstance(module, nn.Module):
            own = module.__dict__
            if own["_forward_hooks"] or own["_forward_pre_hooks"] or own["_backward_hooks"]:
                return True
            if own["_backward_pre_hooks"] or "forward" in own:
                return True
    return False


def is_plain(module: Any) -> bool:
    """Whether a module is only a weight and a bias: nobody listens to it, and it does not wait for its first input."""
    known = is_a(module, nn.Linear, pyg.Linear)
    return known and not is_hooked(module) and not is_uninitialized_parameter(module.weight)


def has_message_hooks(conv: Any) -> bool:
    """Whether message-passing hooks are registered; our kernels bypass message() and aggregate()."""
    own = conv.__dict__
    if any(map(own.get, MESSAGE_HOOKS)):
        return True
    aggregation = conv.aggr_module.__dict__
    return any(map(aggregation.get, HOOKS))


def falls_back(conv: Any, x: Any, edge_index: Any) -> bool:
    """Whether PyG's own forward must run: for explainers and message hooks, other kinds of x, inside torch.func."""
    falls = _falls_back(conv, x, edge_index)
    return falls if torch.compiler.is_compiling() else not _noted(not falls)


def _falls_back(conv: Any, x: Any, edge_index: Any) -> bool:
    if conv.flow != "source_to_target":  # set after the conversion
        if isinstance(edge_index, Graph):
            raise ValueError(
                f"`flow` must be 'source_to_target' with a Graph (got {conv.flow!r}): build the Graph of the edges "
                "the other way round, edge_index.flip(0), or pass edge_index"
            )
        return True
    if torch.compiler.is_compiling() and torch.onnx.is_in_onnx_export():  # our ops have no form there
        return True
    if torch.compiler.is_exporting():  # whatever the size, which may be left open
        if not is_traced(edge_index):
            return True
    elif type(edge_index) is Tensor and _has_few_messages(conv, x, edge_index):
        return True
    if not torch.compiler.is_compiling():
        _check_inputs(conv, x, edge_index)
    if isinstance(edge_index, Graph):
        _refuse_half(x)
        return False
    if hasattr(edge_index, "to_torch_sparse_csr_tensor"):  # torch_sparse's SparseTensor
        return True
    if is_sparse(edge_index) and edge_index.requires_grad:  # entries with a gradient
        return True
    if not isinstance(x, Tensor) or not on_cpu(x) or x.dim() != 2:
        return True
    return bool(conv.explain) or has_message_hooks(conv) or transformed() or not _has_kernels(conv, x)


def _check_inputs(conv: Any, x: Any, edge_index: Any) -> None:
    """Raise for what no forward takes, ours or PyG's, whose errors are of some product inside."""
    plain = isinstance(x, (Tensor, CodedRows))
    if not plain or type(edge_index).__module__ in ("numpy", "builtins"):
        name, given = ("edge_index", edge_index) if plain else ("x", x)
        raise TypeError(
            f"`{name}` must be a tensor (got {type(given).__name__}); convert NumPy arrays with torch.from_numpy"
        )
    kind, shape = type(conv).__name__, x.shape
    if len(shape) < 2:
        raise ValueError(f"`x` must be a matrix, a row per node (got the shape {tuple(shape)}); try x.view(-1, 1)")
    columns = getattr(conv, "in_channels", None)
    if columns is None:  # a sum that goes through a network, where PyG converts dtypes
        columns = _columns_of(conv._modules.get("nn"))
    elif x.dtype != torch.float32 and not torch.is_autocast_enabled(x.device.type):
        weights = next(conv.parameters()).dtype
        if x.dtype != weights:
            raise TypeError(
                f"`x` must be {weights} as the weights of {kind} are (got {x.dtype}); convert it with `x.to({weights})`"
            )
    columns = columns[0] if isinstance(columns, tuple) else columns
    if columns > 0 and shape[-1] != columns:
        raise ValueError(
            f"`x` must have {columns} columns, for which {kind} was built (got the shape {tuple(shape)}); pass the "
            f"features that belong to the model, or build it with in_channels={shape[-1]}"
        )


def _columns_of(network: Any) -> int:
    """How many columns a network takes, if it begins with a product; else -1."""
    while network is not None and not is_a(network, nn.Linear, pyg.Linear):
        inner = network._modules["lins"]._modules if is_a(network, pyg.MLP) else network._modules
        known = is_a(network, pyg.MLP, nn.Sequential)
        network = next(iter(inner.values()), None) if known else None
    weight = None if network is None else network._parameters["weight"]
    return -1 if weight is None or is_uninitialized_parameter(weight) else int(weight.shape[1])


def _refuse_half(x: Any) -> None:
    """A Graph cannot go to PyG's own code, which runs models of half precision."""
    if isinstance(x, Tensor) and x.dtype == torch.float16 and not torch.is_autocast_enabled("cpu"):
        raise TypeError(
            f"`x` must be float32 or float64 where `edge_index` is a gs.Graph (got {x.dtype}): pass PyG's edge_index, "
            "call model.float(), or use torch.autocast"
        )


def _has_few_messages(conv: Any, x: Any, edge_index: Tensor) -> bool:
    """Whether PyG's own forward is as fast, and nothing is lost by it."""
    if not isinstance(x, Tensor) or x.dim() != 2 or edge_index.dtype != torch.int64:
        return False
    most = 2 * least.messages * (1 if torch.is_grad_enabled() else 2) / (4 if hasattr(conv, "heads") else 1)
    if edge_index.numel() * x.size(1) >= most:
        return False
    state = state_of(conv)
    return state is None or state.engine.leaves_small_to_pyg


def _has_kernels(conv: Any, x: Tensor) -> bool:
    """float32, and under autocast bfloat16 for sums; float64 would meet a Graph's float32 weights."""
    cast = torch.is_autocast_enabled(x.device.type)
    if cast and (conv.aggr == "max" or torch.get_autocast_dtype(x.device.type) != torch.bfloat16):
        return False
    return x.dtype == torch.float32 or (cast and x.dtype == torch.bfloat16)


def autocast_dtype(x: Tensor) -> torch.dtype | None:
    """What products of x are made in under autocast; None outside of it."""
    kind = x.device.type
    known = kind in ("cpu", "cuda") or torch.amp.is_autocast_available(kind)
    return torch.get_autocast_dtype(kind) if known and torch.is_autocast_enabled(kind) else None


def as_product(out: Tensor) -> Tensor:
    """A product's result as autocast has it; those in int8 are float32."""
    dtype = autocast_dtype(out)
    return out.to(dtype) if dtype is not None and out.dtype == torch.float32 else out


def attends(x: Any, edge_index: Any) -> bool:
    """What the attention kernels take."""
    fits = isinstance(x, (Tensor, CodedRows)) and x.dim() == 2 and x.dtype == torch.float32
    return (
        fits and x.device.type != "meta" and not torch.is_autocast_enabled(x.device.type) and not is_sparse(edge_index)
    )
