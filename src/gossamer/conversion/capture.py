"""The structure of a model, read once: a list of nodes that the program is made from.

PyG's ready models, MLPs and sequences are read module by module; a forward of the user's own is traced by `torch.fx` in
evaluation mode, with our layers as leaves. Known are convolutions, linear layers, norms, activations, dropout (nothing,
in evaluation), sums and concatenations, pooling over graphs, embeddings of node types, and a softmax at the end.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional
from torch_geometric import nn as pyg

from ..engine.epilogue import act_of
from ..engine.rules import LAYERS
from ..state.layer import MADE
from .errors import CannotCapture

NAMES = ("x", "edge_index", "batch", "edge_weight", "edge_attr", "batch_size", "adj_t")
"""What a model is called with; `forward(data)` takes them as attributes."""


@dataclass(frozen=True, eq=False)
class Node:
    """One computation: its kind, the nodes it reads, the module and its name, and what else there is to it."""

    kind: str
    inputs: tuple[Node, ...] = ()
    module: Any = None
    name: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    line: str = ""

    def __repr__(self) -> str:
        return f"{self.kind}({self.name or ', '.join(map(repr, self.inputs))})"


def capture(model: nn.Module) -> Node:
    """The node of the model's result; every other is reached from it."""
    was_training = model.training
    model.eval()
    try:
        return _Reader(model).read()
    finally:
        model.train(was_training)


CONVOLUTIONS = (pyg.GCNConv, pyg.SAGEConv, pyg.GraphConv, pyg.GINConv, pyg.GATConv)
STACKED = (pyg.GCN, pyg.GraphSAGE, pyg.GIN, pyg.GAT)
NORMS = (nn.BatchNorm1d, pyg.BatchNorm, nn.LayerNorm, pyg.LayerNorm)
POOLS: dict[Any, str] = {
    pyg.global_add_pool: "sum", pyg.global_mean_pool: "mean", pyg.global_max_pool: "max",
}  # fmt: skip
POOLING: dict[type[nn.Module], str] = {
    pyg.aggr.SumAggregation: "sum", pyg.aggr.MeanAggregation: "mean", pyg.aggr.MaxAggregation: "max",
}  # fmt: skip
ACTIVATIONS: dict[Any, Callable[..., tuple[str, float]]] = {
    functional.relu: lambda inplace=False: ("relu", 0.0),
    torch.relu: lambda: ("relu", 0.0),
    functional.leaky_relu: lambda negative_slope=0.01, inplace=False: ("leaky_relu", negative_slope),
    functional.elu: lambda alpha=1.0, inplace=False: ("elu", alpha),
    functional.gelu: lambda approximate="none": ("gelu", 0.0),
}
TAILS: dict[Any, str] = {
    functional.log_softmax: "log_softmax", torch.log_softmax: "log_softmax", functional.softmax: "softmax",
    torch.softmax: "softmax", torch.sigmoid: "sigmoid", functional.sigmoid: "sigmoid",
}  # fmt: skip
METHODS: dict[str, Any] = {
    "relu": functional.relu, "log_softmax": functional.log_softmax, "softmax": functional.softmax,
    "sigmoid": torch.sigmoid, "add": operator.add,
}  # fmt: skip


RESHAPES = ("squeeze", "flatten", "view", "reshape", "long", "float", "int", "to", "contiguous")


class _Reader:
    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.names = {module: name for name, module in model.named_modules()}

    def read(self) -> Node:
        model = self.model
        if self._is_leaf(model):
            batch = (Node("input", name="batch"),) if type(model) in POOLING else ()
            return self.of_module(model, (Node("input", name="x"), *batch), {}, "")
        return self._traced()

    def _is_leaf(self, module: nn.Module) -> bool:
        kind = type(module)
        if isinstance(module, (nn.Sequential, nn.ModuleList, nn.ModuleDict)) or MADE in kind.__dict__:
            return False
        if isinstance(module, (pyg.Sequential, _PoolLeaf)):
            return isinstance(module, _PoolLeaf)
        return kind.__module__.startswith((LAYERS, "torch.nn.", "torch_geometric.nn."))

    # Modules ----------------------------------------------------------------------------------------------------

    def of_module(self, module: Any, inputs: tuple[Any, ...], named: dict[str, Any], line: str) -> Node:
        name, x = self.names[module], inputs[0] if inputs else None
        if not isinstance(x, Node):
            raise CannotCapture(f"{name or 'the model'} ({type(module).__name__}) is called without a tensor{line}")
        if isinstance(module, STACKED):
            return self._stacked(module, x, line)
        if isinstance(module, pyg.MLP):
            return self._mlp(module, x, line)
        if isinstance(module, nn.Sequential):
            for part in module:
                x = self.of_module(part, (x,), {}, line)
            return x
        if isinstance(module, CONVOLUTIONS):
            return self._convolution(module, x, inputs, named, line)
        if isinstance(module, (nn.Linear, pyg.Linear)):
            return Node("linear", (x,), module, name, line=line)
        if isinstance(module, NORMS):
            return Node("norm", (x,), module, name, line=line)
        if isinstance(module, (nn.Dropout, nn.Identity)):
            return x
        if isinstance(module, nn.Embedding):
            return Node("lookup", (x,), module, name, line=line)
        pooling = next((reduce for kind, reduce in POOLING.items() if isinstance(module, kind)), None)
        if pooling is not None:
            return Node("pool", (x,), module, name, {"reduce": pooling}, line)
        if isinstance(module, (nn.LogSoftmax, nn.Softmax, nn.Sigmoid)):
            kinds = {nn.LogSoftmax: "log_softmax", nn.Softmax: "softmax", nn.Sigmoid: "sigmoid"}
            return Node("tail", (x,), options={"tail": kinds[type(module)]}, line=line)
        act = act_of(module)
        if act is not None:
            return Node("act", (x,), options={"act": act.name, "slope": act.slope}, line=line)
        raise CannotCapture(
            f"{name or 'the model'} is a {type(module).__name__}, which has no integer form{line}; replace it, or "
            "leave the model in float32 (gs.lighten_ alone makes it faster)"
        )

    def _convolution(self, module: Any, x: Node, inputs: tuple[Any, ...], named: dict[str, Any], line: str) -> Node:
        name = self.names[module]
        extra = [
            value for value in (*inputs[2:], *named.values()) if isinstance(value, Node) and value.name != "edge_index"
        ]
        if extra:
            raise CannotCapture(
                f"{name} ({type(module).__name__}) is called with {extra[0].name or extra[0].kind}{line}; the engine "
                "takes weights of edges from a gs.Graph, and no features of edges"
            )
        unknown = _without_integer_form(module)
        if unknown:
            raise CannotCapture(f"{name} ({type(module).__name__}) has {unknown}, which has no integer form{line}")
        if isinstance(module, pyg.GINConv):
            summed = Node("gin", (x,), module, name, line=line)
            return Node("updated", (self.of_network(module.nn, summed, line),), module, name, line=line)
        return Node("conv", (x,), module, name, line=line)

    def of_network(self, network: Any, summed: Node, line: str) -> Node:
        """GIN's network behind the sum of neighbours."""
        return self.of_module(network, (summed,), {}, line)

    def _stacked(self, model: Any, x: Node, line: str) -> Node:
        hidden, jumps = [], hasattr(model, "jk")
        for k, (conv, norm) in enumerate(zip(model.convs, model.norms, strict=True)):
            x = self.of_module(conv, (x,), {}, line)
            if k == model.num_layers - 1 and model.jk_mode is None:
                break
            for part in (model.act, norm) if model.act_first else (norm, model.act):
                x = x if part is None else self.of_module(part, (x,), {}, line)
            if jumps:
                hidden.append(x)
        if jumps:
            x = self._jumped(model, hidden, line)
        return self.of_module(model.lin, (x,), {}, line) if hasattr(model, "lin") else x

    def _jumped(self, model: Any, hidden: list[Node], line: str) -> Node:
        mode = model.jk.mode
        if mode == "last":
            return hidden[-1]
        if mode not in ("cat", "max"):
            raise CannotCapture(f"jumping knowledge by {mode!r} has no integer form{line}; use 'cat', 'max' or 'last'")
        return Node("cat" if mode == "cat" else "maximum", tuple(hidden), line=line)

    def _mlp(self, module: Any, x: Node, line: str) -> Node:
        for k, lin in enumerate(module.lins):
            x = self.of_module(lin, (x,), {}, line)
            if k == len(module.lins) - 1 and module.plain_last:
                break
            norm = module.norms[k]
            for part in (module.act, norm) if module.act_first else (norm, module.act):
                x = x if part is None else self.of_module(part, (x,), {}, line)
        return x

    # Forwards of the user's own ---------------------------------------------------------------------------------

    def _traced(self) -> Node:
        tracer = _Tracer(self._is_leaf)
        with _as_written(self.model):
            try:
                graph = tracer.trace(self.model)
            except Exception as error:  # whatever the user's forward does with what is not a tensor
                raise CannotCapture(
                    f"the forward of {type(self.model).__name__} cannot be traced{_line_of(error)}: {error}; torch.fx "
                    "follows no branch or loop that depends on a tensor's contents: move it out of forward, or export "
                    "a model without it"
                ) from error
        values: dict[fx.Node, Any] = {}
        for node in graph.nodes:
            if node.op == "output":
                return self._result(node.args[0], values)
            values[node] = self._value(node, values)
        raise CannotCapture(f"the forward of {type(self.model).__name__} returns nothing")

    def _result(self, given: Any, values: dict[fx.Node, Any]) -> Node:
        found = values.get(given) if isinstance(given, fx.Node) else None
        if not isinstance(found, Node) or found.kind == "input":
            raise CannotCapture(
                f"the forward of {type(self.model).__name__} must return one tensor that it computed (got {given!r}); "
                "return the logits alone"
            )
        return found

    def _value(self, node: fx.Node, values: dict[fx.Node, Any]) -> Any:
        line = _line_in(node.stack_trace)
        args = fx.map_arg(node.args, lambda n: values[n])
        named = fx.map_arg(node.kwargs, lambda n: values[n])
        if node.op == "placeholder":
            return Node("input", name=str(node.target)) if node.target in NAMES else Node("data", name=str(node.target))
        if node.op == "call_module":
            module = self.model.get_submodule(str(node.target))
            return self.of_module(module, tuple(args), dict(named), line)
        if node.op == "get_attr":
            return _attribute(self.model, str(node.target))
        if (
            node.op == "call_method"
            and node.target in RESHAPES
            and isinstance(args[0], Node)
            and args[0].kind == "input"
        ):
            return args[0]  # of node types, which the engine takes as they come
        target = METHODS.get(str(node.target)) if node.op == "call_method" else node.target
        return self._of_function(target, args, named, line, node)

    def _of_function(self, target: Any, args: Any, named: Any, line: str, node: fx.Node) -> Any:
        if target is getattr and isinstance(args[0], Node) and args[0].kind == "data" and args[1] in NAMES:
            return Node("input", name=args[1])
        tensors = [arg for arg in args if isinstance(arg, Node)]
        if target in POOLS:
            return Node("pool", (args[0],), options={"reduce": POOLS[target]}, line=line)
        if target in ACTIVATIONS:
            act, slope = ACTIVATIONS[target](*args[1:], **named)
            return Node("act", (args[0],), options={"act": act, "slope": float(slope)}, line=line)
        if target is functional.dropout:
            return args[0]
        if target in TAILS:
            return Node("tail", (args[0],), options={"tail": TAILS[target]}, line=line)
        if target in (operator.add, torch.add, operator.iadd) and len(tensors) == 2:
            return Node("add", tuple(tensors), line=line)
        if target in (torch.cat, torch.concat):
            dim = args[1] if len(args) > 1 else named.get("dim", 0)
            if dim in (1, -1) and all(isinstance(each, Node) for each in args[0]):
                return Node("cat", tuple(args[0]), line=line)
        shown = getattr(target, "__name__", None) or str(node.target)
        raise CannotCapture(
            f"`{shown}` has no integer form{line}; known are convolutions, linear layers, batch and layer norm, relu, "
            "leaky_relu, elu, gelu, dropout, +, torch.cat of columns, global pooling and a softmax at the end"
        )


class _Tracer(fx.Tracer):
    record_stack_traces = True

    def __init__(self, is_leaf: Callable[[nn.Module], bool]) -> None:
        super().__init__(autowrap_functions=tuple(POOLS))
        self._is_leaf = is_leaf
        self.record_stack_traces = True

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return self._is_leaf(m)


@contextlib.contextmanager
def _as_written(model: nn.Module) -> Iterator[None]:
    """With the forwards that the user wrote, and pooling functions that modules hold as traceable ones."""
    made = [m for m in model.modules() if MADE in type(m).__dict__]
    kinds = [type(m) for m in made]
    modules = list(model.modules())
    held = [(m, name, value) for m in modules for name, value in vars(m).items() if _is_pool(value)]
    pools = [
        (m, name, child) for m in modules for name, child in m._modules.items() if isinstance(child, tuple(POOLING))
    ]
    for m, kind in zip(made, kinds, strict=True):
        m.__class__ = kind.__mro__[1]
    for m, name, value in held:
        m.__dict__[name] = _traceable(value)
    for m, name, child in pools:
        if child is not None and not isinstance(m, pyg.MessagePassing):
            m._modules[name] = _PoolLeaf(child)
    try:
        yield
    finally:
        for m, name, value in held:
            m.__dict__[name] = value
        for m, name, child in pools:
            m._modules[name] = child
        for m, kind in zip(made, kinds, strict=True):
            m.__class__ = kind


class _PoolLeaf(nn.Module):
    """In place of one of PyG's aggregations, whose __call__ looks at tensors before torch.fx sees the call."""

    def __init__(self, pool: nn.Module) -> None:
        super().__init__()
        self.reduce = next(reduce for kind, reduce in POOLING.items() if isinstance(pool, kind))

    def forward(self, x: Tensor, index: Any = None) -> Tensor:
        raise AssertionError("it is traced, not run")


def _without_integer_form(conv: Any) -> str:
    """A setting of a convolution that the engine does not have; empty if there is none."""
    sums = ("mean", "add", "sum", "max") if isinstance(conv, (pyg.SAGEConv, pyg.GraphConv)) else ("add", "sum")
    if conv.aggr not in sums:
        return f"aggr={conv.aggr!r}"
    if conv.flow != "source_to_target":
        return f"flow={conv.flow!r}"
    flags = ("improved",) if isinstance(conv, pyg.GCNConv) else ("project", "normalize")
    return next((f"{flag}=True" for flag in flags if getattr(conv, flag, False)), "")


def _is_pool(value: Any) -> bool:
    try:
        return callable(value) and value in POOLS
    except TypeError:  # not hashable
        return False


def _traceable(function: Any) -> Callable[..., Any]:
    def call(x: Any, *args: Any, **named: Any) -> Any:
        if isinstance(x, fx.Proxy):
            return x.tracer.create_proxy("call_function", function, (x, *args), named)
        return function(x, *args, **named)

    return call


def _attribute(model: nn.Module, target: str) -> Any:
    found: Any = model
    for part in target.split("."):
        found = getattr(found, part)
    return found if not isinstance(found, Tensor) else Node("constant", name=target)


def _line_in(trace: str | None) -> str:
    """The line of the user's file that a traced call stands in, as ` (file:line: code)`."""
    lines = (trace or "").strip().splitlines()
    places = [k for k, text in enumerate(lines) if text.strip().startswith("File ") and not _is_internal(text)]
    if not places:
        return ""
    at = places[-1]
    parts = lines[at].strip().split('"')
    number = lines[at].split("line ")[-1].split(",")[0]
    code = lines[at + 1].strip() if at + 1 < len(lines) else ""
    return f" ({parts[1]}:{number}: {code})"


def _is_internal(text: str) -> bool:
    """Whether a line of a trace is of torch, PyG or this package."""
    return any(part in text for part in ("/torch/", "/torch_geometric/", "/gossamer/conversion/", "/gossamer/layers/"))


def _line_of(error: BaseException) -> str:
    """The innermost line of an error outside of torch and this package."""
    trace, found = error.__traceback__, ""
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if not _is_internal(file):
            found = f" ({file}:{trace.tb_lineno})"
        trace = trace.tb_next
    return found
