"""From the nodes of a model (capture.py) and its quantisers to an integer program (inference/program.py).

A node becomes a step whose sum is still `Open`: norms that follow are folded into its factors, activations into its
slope, until something reads it. What reads it at a quantiser makes it codes of that scale; everything else, and what is
read twice, makes it floats. Convolutions are those of the fused plan of sites (published.py has the other ones).
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric import nn as pyg

from ..engine.fake_quant.engine import SITES, Quantising, Sites, sums_first, symmetric_scale, wide_columns
from ..engine.fake_quant.quantiser import Quantiser
from ..inference.layout import packed_weights
from ..inference.program import (
    FLOATS,
    Attend,
    FloatStep,
    Linear,
    Pool,
    Program,
    Quantise,
    Result,
    Step,
    Sum,
)
from ..ops.activation import ACTIVATIONS
from ..ops.norm_act import Over
from ..state import state_of
from .capture import Node
from .errors import CannotCapture, NotQuantised

GIN_UNIT = 256
"""Fixed-point weight 1 of GIN's sum."""


@dataclass
class Open:
    """A step without a result: its sum times `mult` (and a row factor), plus `shift` and another sum, then `slope`.

    `mult` and `shift` are float64, [columns] or [1]. `make` adds the step with its result.
    """

    columns: int
    mult: Tensor
    make: Any
    shift: Tensor | None = None
    row: str = ""
    slope: float = 1.0
    add: Open | None = None
    second_mult: Tensor | None = None

    def scaled(self, factor: Tensor) -> None:
        """All of it times a number per column."""
        self.mult = self.mult * factor
        self.shift = None if self.shift is None else self.shift * factor
        self.second_mult = None if self.second_mult is None else self.second_mult * factor
        if self.add is not None:
            self.add.scaled(factor)

    def shifted(self, constant: Tensor) -> None:
        self.shift = constant if self.shift is None else self.shift + constant


@dataclass(frozen=True)
class Floats:
    """A register of floats."""

    register: str
    columns: int


@dataclass(frozen=True)
class Codes:
    """A register of codes, x = scale (q - zero), times a factor per column where the features were equalised."""

    register: str
    columns: int
    scale: float
    zero: int
    bits: int


Value = Open | Floats
Lower = Callable[["Lowering", "Node"], Value]


class Lowering:
    """`table`: what makes a value of each kind of node, by the plan of sites that the model was trained with."""

    def __init__(self, model: nn.Module, output: Node, table: Mapping[str, Lower]) -> None:
        self.model, self.output, self.table = model, output, table
        self.steps: list[Step] = []
        self.tensors: dict[str, Tensor] = {}
        self.uses = _uses(output)
        self.values: dict[Node, Value] = {}
        self.convolutions = 0
        self.graph_level = False
        self.columns: int | None = None
        self.registers = 0

    def program(self) -> Program:
        result = self.floats(self.value(self.output))
        return Program(
            tuple(self.steps), result.register, self.columns or 0, self.graph_level, self.convolutions
        )  # fmt: skip

    # Registers and tensors --------------------------------------------------------------------------------------

    def new(self) -> str:
        self.registers += 1
        return f"v{self.registers}"

    def keep(self, name: str, tensor: Tensor) -> str:
        """A tensor of the file, by its name."""
        self.tensors[name] = tensor
        return name

    def factors(self, vector: Tensor) -> str:
        """A vector of the file; one number where all are equal."""
        flat = vector.to(torch.float32)
        flat = flat[:1] if bool((flat == flat[0]).all()) else flat
        name = f".{sum(key.startswith('.') for key in self.tensors)}"  # as no module can be called
        for known, tensor in self.tensors.items():
            if tensor.shape == flat.shape and tensor.dtype == flat.dtype and torch.equal(tensor, flat):
                return known
        return self.keep(name, flat.contiguous())

    def append(self, step: Step) -> None:
        self.steps.append(step)

    # Values -----------------------------------------------------------------------------------------------------

    def value(self, node: Node) -> Value:
        """What a node computes; floats if several nodes read it."""
        if node not in self.values:
            made = self.table[node.kind](self, node)
            if self.uses[node] > 1 and isinstance(made, Open):
                made = self.floats(made)
            self.values[node] = made
        return self.values[node]

    def floats(self, value: Value) -> Floats:
        """The value as floats."""
        if isinstance(value, Floats):
            return value
        return Floats(self._close(value, FLOATS, 0, torch.ones(1, dtype=torch.float64)), value.columns)

    def _close(self, value: Open, bits: int, zero: int, per_unit: Tensor) -> str:
        """The register of an open value in codes of scale 1 / per_unit."""
        value.scaled(per_unit)
        add = None if value.add is None else self.floats(value.add).register
        out = self.new()
        shift = None if value.shift is None else self.factors(value.shift.expand(value.columns))
        result = Result(self.factors(value.mult), bits, zero, value.slope, shift, value.row, add)
        second = None if value.second_mult is None else self.factors(value.second_mult)
        self.append(value.make(out, result) if second is None else value.make(out, result, second))
        return out

    def levels(self, quantiser: Quantiser, where: str) -> tuple[float, int]:
        """scale and zero of a quantiser."""
        if not quantiser.is_ready:
            raise NotQuantised(
                f"{where} has no range yet: train the model with gs.DegreeQuant or gs.QAT, or call "
                "gs.calibrate(model, (x, edge_index)), before you export it"
            )
        scale, zero = (float(number) for number in quantiser.levels())
        return scale, int(zero)

    def codes(self, value: Value, quantiser: Quantiser, where: str, row: str = "") -> Codes:
        """The value as codes of a quantiser, times row factors."""
        scale, zero = self.levels(quantiser, where)
        per_unit = torch.tensor([1.0 / scale], dtype=torch.float32).double()
        bits = quantiser.setting.bits
        fits = isinstance(value, Open) and value.add is None and not (row and (value.row or value.shift is not None))
        if isinstance(value, Open) and fits and quantiser_columns(quantiser) is None:
            value.row = value.row or row
            return Codes(self._close(value, bits, zero, per_unit), value.columns, scale, zero, bits)
        given = self.floats(value)
        columns = quantiser_columns(quantiser)
        factor = (scale * columns).reciprocal() if columns is not None else torch.tensor([scale]).reciprocal()
        out = self.new()
        self.append(Quantise(out, given.register, Result(self.factors(factor), bits, zero, row=row)))
        return Codes(out, given.columns, scale, zero, bits)

    def weight(self, weight: Tensor, name: str, bits: int) -> tuple[str, Tensor]:
        """Integer weights in the file, and their scale per output."""
        scale = symmetric_scale(weight, bits)
        codes = (weight / scale).round().to(torch.int8)
        return self.keep(name, packed_weights(codes) if bits == 4 else codes), scale.squeeze(1).double()

    def product(self, x: Codes, weight: Tensor, name: str, columns: Tensor | None, bias: Tensor | None) -> Open:
        """x W^T + b. Where columns of a model's features are wide, their weights are a second product."""
        exact = weight.detach() if columns is None else weight.detach() * columns
        shift = None if bias is None else bias.detach().double()
        wide = None if columns is None else wide_columns(columns)
        if wide is None or not bool(wide.any()):
            stored, scale = self.weight(exact, name, x.bits)

            def make(out: str, result: Result) -> Step:
                return Linear(out, x.register, stored, result)

            return Open(weight.size(0), x.scale * scale, make, shift)
        stored, scale = self.weight(torch.where(wide, 0.0, exact), name, x.bits)
        other, other_scale = self.weight(torch.where(wide, exact, 0.0), f"{name}.wide", x.bits)

        def make_two(out: str, result: Result, second_mult: str) -> Step:
            return Linear(out, x.register, stored, result, x.register, other, second_mult)

        return Open(weight.size(0), x.scale * scale, make_two, shift, second_mult=x.scale * other_scale)


def quantiser_columns(quantiser: Quantiser) -> Tensor | None:
    columns = quantiser.columns
    return None if columns is None or bool((columns == 1).all()) else columns


def _uses(output: Node) -> Counter[Node]:
    """How many nodes read each node."""
    uses: Counter[Node] = Counter({output: 1})
    seen: set[Node] = set()
    todo = [output]
    while todo:
        node = todo.pop()
        if node in seen:
            continue
        seen.add(node)
        uses.update(node.inputs)
        todo += node.inputs
    return uses


def engine_and_sites(module: Any) -> tuple[Quantising | None, Sites | None]:
    state = state_of(module)
    engine = None if state is None else state.engine
    return (engine, module._modules.get(SITES)) if isinstance(engine, Quantising) else (None, None)


# Nodes ------------------------------------------------------------------------------------------------------------


def _input(to: Lowering, node: Node) -> Value:
    if node.name != "x":
        raise CannotCapture(f"`{node.name}` is used as features{node.line}; the engine computes with `x` alone")
    if to.columns is None:
        raise CannotCapture("the first layer must be a convolution, a linear layer or an embedding")
    return Floats("x", to.columns)


def read(to: Lowering, node: Node, columns: int) -> Value:
    """The value of a node that a layer of so many inputs reads."""
    if node.kind == "input" and to.columns is None:
        to.columns = columns
    return to.value(node)


def _linear(to: Lowering, node: Node) -> Value:
    lin, (source,) = node.module, node.inputs
    engine, sites = engine_and_sites(lin)
    if source.kind == "gin" and to.uses[source] == 1 and _starts_sum(sites):
        return _convolved_sum(to, node, source)
    if source.kind == "gin":
        read(to, source.inputs[0], lin.weight.size(1))  # a sum has the columns of what it sums
    x = read(to, source, lin.weight.size(1))
    if engine is None or sites is None:
        return _float_linear(to, x, lin, node.name)
    site = sites["input"]
    return to.product(
        to.codes(x, site, f"{node.name}'s input"), lin.weight, node.name, quantiser_columns(site), lin.bias
    )


def _starts_sum(sites: Sites | None) -> bool:
    return sites is not None and "aggregate" in sites._modules


def _float_linear(to: Lowering, x: Value, lin: Any, name: str) -> Value:
    given = to.floats(x)
    tensors = {"weight": to.keep(f"{name}.weight", lin.weight.detach())}
    if lin.bias is not None:
        tensors["bias"] = to.keep(f"{name}.bias", lin.bias.detach())
    out = to.new()
    to.append(FloatStep(out, given.register, "linear", (), tensors))
    return Floats(out, lin.weight.size(0))


def _conv(to: Lowering, node: Node) -> Value:
    conv = node.module
    to.convolutions += 1
    if isinstance(conv, pyg.GATConv):
        return _gat(to, node)
    return _convolve(to, node, node.inputs[0], conv)


def _gin(to: Lowering, node: Node) -> Value:
    """The sum alone, where GIN's network does not begin with a linear layer."""
    to.convolutions += 1
    engine, sites = engine_and_sites(node.module)
    x = to.value(node.inputs[0])
    own = 1.0 + float(node.module.eps.detach())
    if engine is None or sites is None or "input" not in sites._modules:
        given = to.floats(x)
        out = to.new()
        to.append(FloatStep(out, given.register, "sum", numbers={"own": own}))
        return Floats(out, given.columns)
    return summed(to.codes(x, sites["input"], f"{node.name}'s input"), Plan(own=gin_own(own)))


def _convolved_sum(to: Lowering, node: Node, gin: Node) -> Value:
    """GIN: the sum, and the linear layer that its network begins with."""
    to.convolutions += 1
    to.values[gin] = Floats("", 0)  # taken care of here
    return _convolve(to, node, gin.inputs[0], gin.module)


def gin_own(own: float) -> int:
    return round(GIN_UNIT * own)


@dataclass(frozen=True)
class Plan:
    """What a convolution sums: factors of sources and destinations, the node's own weight, and along which edges."""

    src: str = ""
    dst: str = ""
    own: int = 0
    loops: bool = False
    reduce: str = "sum"
    norm: str = ""
    edges: str | None = None
    edge_scale: float = 1.0


def summed(x: Codes, plan: Plan) -> Open:
    unit = GIN_UNIT if plan.own not in (0, 1) else 1

    def make(out: str, result: Result) -> Step:
        norm = plan.norm if plan.edges is not None else ""
        return Sum(out, x.register, result, plan.reduce, unit, plan.own, plan.loops, plan.edges, norm)

    mult = torch.tensor([x.scale * plan.edge_scale / unit], dtype=torch.float64)
    return Open(x.columns, mult, make, None, plan.dst)


def _convolve(to: Lowering, node: Node, source: Node, conv: Any) -> Value:
    """GCN, GraphSAGE, GraphConv, and GIN with its first linear layer; as engine/fake_quant/engine.py computes it."""
    lin, root, bias = parts_of(node, conv)
    engine, sites = engine_and_sites(node.module)
    x = read(to, source, lin.weight.size(1))
    if engine is None or sites is None:
        return _float_convolve(to, x, conv, lin, root, bias, node.name)
    plan = _weighted(to, plan_of(conv, node), sites["edges"], node)
    first = sums_first(lin.weight, root is not None) or plan.reduce == "max"
    inner = to.codes(x, sites["input"], f"{node.name}'s input", plan.src if first else "")
    columns = quantiser_columns(sites["input"])
    rooted = None if root is None else to.product(inner, root.weight, f"{node.name}.root", columns, root.bias)
    if first:
        sums = largest(to, inner) if plan.reduce == "max" else _sums(to, inner, plan, sites, node)
        product = to.product(sums, lin.weight, node.name, columns, bias)
        if rooted is None:
            return product
        if product.second_mult is None and rooted.second_mult is None:
            return joined_products(product, rooted)
        product.add = rooted
        return product
    h = to.product(inner, lin.weight, node.name, columns, None)
    message = to.codes(h, sites["message"], f"{node.name}'s messages", plan.src)
    out = summed(message, plan)
    if bias is not None:
        out.shifted(bias.detach().double())
    out.add = rooted
    return out


def _sums(to: Lowering, inner: Codes, plan: Plan, sites: Sites, node: Node) -> Codes:
    return to.codes(summed(inner, plan), sites["aggregate"], f"{node.name}'s sum")


def largest(to: Lowering, x: Codes) -> Codes:
    """The maximum over the neighbours: codes of the same scale."""
    out = to.new()
    result = Result(to.factors(torch.ones(1)), x.bits, x.zero)
    to.append(Sum(out, x.register, result, "max"))
    return dataclasses.replace(x, register=out)


def _weighted(to: Lowering, plan: Plan, edges: Quantiser, node: Node) -> Plan:
    """The plan for graphs with weights, if the layer was trained on such."""
    if not edges.is_ready:
        return plan
    scale, zero = (float(number) for number in edges.levels())
    if zero or plan.reduce == "max":
        raise CannotCapture(f"{node.name} was trained on weights below 0, or takes maxima by weights: no integer form")
    factor, dst = to.factors(torch.tensor([scale]).reciprocal()), plan.dst if plan.dst == "mean" else ""
    return dataclasses.replace(plan, src="", dst=dst, own=0, loops=False, edges=factor, edge_scale=scale)


def joined_products(first: Open, second: Open) -> Open:
    """The sum of two products as one step."""
    one, two = first.make("", Result("")), second.make("", Result(""))

    def make(out: str, result: Result, second_mult: str) -> Step:
        return Linear(out, one.x, one.weight, result, two.x, two.weight, second_mult)

    joined = Open(first.columns, first.mult, make, first.shift, second_mult=second.mult)
    if second.shift is not None:
        joined.shifted(second.shift)
    return joined


def parts_of(node: Node, conv: Any) -> tuple[Any, Any, Tensor | None]:
    """The linear layer, the root's, and the bias added to both."""
    if isinstance(conv, pyg.GCNConv):
        return conv.lin, None, conv.bias
    if isinstance(conv, pyg.SAGEConv):
        return conv.lin_l, conv.lin_r if conv.root_weight else None, conv.lin_l.bias
    if isinstance(conv, pyg.GraphConv):
        return conv.lin_rel, conv.lin_root, conv.lin_rel.bias
    return node.module, None, node.module.bias


def plan_of(conv: Any, node: Node) -> Plan:
    """Along unweighted edges."""
    if isinstance(conv, pyg.GCNConv):
        if not conv.normalize:
            return Plan()
        loops = bool(conv.add_self_loops)
        kind = "gcn" if loops else "bare"
        return Plan(f"{kind}_src", f"{kind}_dst", int(loops), loops, norm=kind)
    if isinstance(conv, pyg.GINConv):
        return Plan(own=gin_own(1.0 + float(conv.eps.detach())))
    reduce = {"mean": "mean", "add": "sum", "sum": "sum", "max": "max"}[str(conv.aggr)]
    return Plan(dst="mean" if reduce == "mean" else "", reduce=reduce)


def _float_convolve(to: Lowering, x: Value, conv: Any, lin: Any, root: Any, bias: Tensor | None, name: str) -> Value:
    """A convolution that stays in float32."""
    given, kind, numbers = to.floats(x), "sum", {}
    if isinstance(conv, pyg.GCNConv) and conv.normalize:
        kind, numbers = "gcn", {"loops": float(conv.add_self_loops)}
    elif isinstance(conv, pyg.GINConv):
        numbers = {"own": 1.0 + float(conv.eps.detach())}
    elif str(conv.aggr) in ("mean", "max"):
        kind = str(conv.aggr)
    summed = to.new()
    to.append(FloatStep(summed, given.register, kind, numbers=numbers))
    tensors = {"weight": to.keep(f"{name}.weight", lin.weight.detach())}
    if bias is not None:
        tensors["bias"] = to.keep(f"{name}.bias", bias.detach())
    out = to.new()
    to.append(FloatStep(out, summed, "linear", (), tensors))
    if root is None:
        return Floats(out, lin.weight.size(0))
    rooted = _float_linear(to, given, root, f"{name}.root")
    both = to.new()
    to.append(FloatStep(both, out, "add", (to.floats(rooted).register,)))
    return Floats(both, lin.weight.size(0))


def _gat(to: Lowering, node: Node) -> Value:
    conv = node.module
    engine, sites = engine_and_sites(conv)
    if engine is None or sites is None:
        raise CannotCapture(f"{node.name} is attention in float32, which the engine does not have; do not skip it")
    if conv.lin is None or conv.edge_dim is not None or conv.res is not None:
        raise CannotCapture(f"{node.name} has two projections, features of edges or a residual{node.line}")
    x = read(to, node.inputs[0], conv.lin.weight.size(1))
    inner = to.codes(x, sites["input"], f"{node.name}'s input")
    h = to.product(inner, conv.lin.weight, node.name, quantiser_columns(sites["input"]), None)
    rows = to.codes(h, sites["message"], f"{node.name}'s rows")
    heads, width = conv.heads, conv.out_channels
    vectors = torch.cat([torch.block_diag(*att.detach()[0]) for att in (conv.att_src, conv.att_dst)])
    scales = torch.cat([symmetric_scale(att.detach()[0], rows.bits) for att in (conv.att_src, conv.att_dst)])
    codes = (vectors / scales).round().to(torch.int8)
    name = to.keep(f"{node.name}.att", packed_weights(codes) if rows.bits == 4 else codes)
    terms = to.new()
    to.append(Linear(terms, rows.register, name, Result(to.factors(rows.scale * scales.squeeze(1).double()))))
    mean = not conv.concat
    columns = width if mean else heads * width

    def make(out: str, result: Result) -> Step:
        return Attend(
            out, rows.register, terms, heads, float(conv.negative_slope), result, mean, bool(conv.add_self_loops)
        )  # fmt: skip

    mult = torch.full((1,), rows.scale / (heads if mean else 1), dtype=torch.float64)
    out = Open(columns, mult, make)
    if conv.bias is not None:
        out.shifted(conv.bias.detach().double())
    return out


def _norm(to: Lowering, node: Node) -> Value:
    module = node.module.module if isinstance(node.module, pyg.BatchNorm) else node.module
    x = to.value(node.inputs[0])
    if isinstance(module, nn.BatchNorm1d) and module.running_mean is not None and module.running_var is not None:
        if isinstance(x, Open) and x.slope == 1 and x.row != "gcn_src":
            rstd = (module.running_var.double() + module.eps).rsqrt()
            scale = rstd if module.weight is None else rstd * module.weight.detach().double()
            x.scaled(scale)
            bias = torch.zeros(1, dtype=torch.float64) if module.bias is None else module.bias.detach().double()
            x.shifted(bias - module.running_mean.double() * scale)
            return x
        kind, over = "affine", Over.FIXED
        given = {"mean": module.running_mean, "var": module.running_var, "weight": module.weight, "bias": module.bias}
    elif isinstance(module, (nn.LayerNorm, pyg.LayerNorm)):
        graph_mode = isinstance(module, pyg.LayerNorm) and module.mode == "graph"
        if graph_mode:
            raise CannotCapture(f"{node.name} normalises whole graphs, which has no integer form; use mode='node'")
        kind, over, given = "norm", Over.ROWS, {"weight": module.weight, "bias": module.bias}
    else:
        raise CannotCapture(f"{node.name} takes its statistics from the batch even in evaluation{node.line}")
    held = to.floats(x)
    tensors = {
        name: to.keep(f"{node.name}.{name}", tensor.detach().float())
        for name, tensor in given.items()
        if tensor is not None
    }
    out = to.new()
    to.append(FloatStep(out, held.register, kind, (), tensors, {"eps": float(module.eps), "over": float(over)}))
    return Floats(out, held.columns)


def _act(to: Lowering, node: Node) -> Value:
    act, slope = node.options["act"], node.options["slope"]
    x = to.value(node.inputs[0])
    if act == "identity":
        return x
    if isinstance(x, Open) and x.slope == 1 and act in ("relu", "leaky_relu") and 0 <= slope <= 1:
        return dataclasses.replace(x, slope=0.0 if act == "relu" else float(slope))
    given = to.floats(x)
    out = to.new()
    numbers = {"act": float(ACTIVATIONS.index(act)), "slope": float(slope)}
    to.append(FloatStep(out, given.register, "act", numbers=numbers))
    return Floats(out, given.columns)


def _joining(kind: str) -> Any:
    def lower(to: Lowering, node: Node) -> Value:
        given = [to.floats(to.value(each)) for each in node.inputs]
        out = to.new()
        to.append(FloatStep(out, given[0].register, kind, tuple(each.register for each in given[1:])))
        return Floats(out, sum(each.columns for each in given) if kind == "cat" else given[0].columns)

    return lower


def _pool(to: Lowering, node: Node) -> Value:
    given, out = to.floats(to.value(node.inputs[0])), to.new()
    to.graph_level = True
    to.append(Pool(out, given.register, node.options["reduce"], Result(to.factors(torch.ones(1)))))
    return Floats(out, given.columns)


def _tail(to: Lowering, node: Node) -> Value:
    given, out = to.floats(to.value(node.inputs[0])), to.new()
    to.append(FloatStep(out, given.register, node.options["tail"]))
    return Floats(out, given.columns)


def _lookup(to: Lowering, node: Node) -> Value:
    to.columns = to.columns or 1
    given, out = to.floats(to.value(node.inputs[0])), to.new()
    table = to.keep(f"{node.name}.table", node.module.weight.detach().float())
    to.append(FloatStep(out, given.register, "lookup", (), {"table": table}))
    return Floats(out, node.module.embedding_dim)


def _updated(to: Lowering, node: Node) -> Value:
    """What GIN's network made: its convolution does nothing more with it."""
    return to.value(node.inputs[0])


FUSED: dict[str, Lower] = {
    "input": _input, "linear": _linear, "conv": _conv, "gin": _gin, "updated": _updated, "norm": _norm, "act": _act,
    "add": _joining("add"), "cat": _joining("cat"), "maximum": _joining("maximum"), "pool": _pool, "tail": _tail,
    "lookup": _lookup,
}  # fmt: skip
