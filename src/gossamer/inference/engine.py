"""The integer engine: runs a program (program.py) on features and a graph.

    engine = gs.load("model.safetensors")
    out = engine(x, graph)                         floats [nodes, outputs]
    out = engine(x, blocks)                        of the seeds of a sampled batch
    out = engine(x, graph, batch)                  [graphs, outputs], for graph-level models

x is a float matrix, or features kept as codes (gs.FeatureStore, gs.CodedRows), which are decoded some rows at a time.
The same bits on every processor and for any number of threads; NaN and infinity are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, final

import torch
from torch import Tensor

from .. import ops
from ..graph import Graph
from ..ops._checks import csr
from ..ops.encode_codes import EncodedRows
from ..ops.integer_linear import IntegerProduct
from ..ops.integer_sum import MOST_EDGES
from ..ops.requantize import Requantize
from . import floats
from .graphs import Graphs, pool_graph
from .layout import Register, vector, weights, zero_bias
from .program import (
    FLOATS,
    Attend,
    BadProgram,
    Convert,
    FloatStep,
    Linear,
    Messages,
    Pool,
    Program,
    Quantise,
    Result,
    Step,
    Sum,
)

ROWS_AT_A_TIME = 2**16
"""Of features that are decoded, so that they are never in memory as floats as a whole."""
Values = dict[str, Any]


class Call:
    """One call: its graph, and the registers that are still needed."""

    def __init__(self, graphs: Graphs, values: Values, batch: Tensor | None, num_graphs: int | None) -> None:
        self.graphs, self.values, self.batch, self.num_graphs = graphs, values, batch, num_graphs


Run = Callable[[Call], Tensor]


@final
class Finish:
    """A `Result`, laid out: factors and shifts of all columns."""

    def __init__(self, result: Result, register: Register, tensors: Mapping[str, Tensor]) -> None:
        self.result = result
        self.mult = vector(_named(tensors, result.mult), register, result.mult)
        shift = result.shift
        self.shift = None if shift is None else vector(_named(tensors, shift), register, shift)

    def of(self, call: Call, rows: int, count: int | None = None) -> Requantize:
        """With the factors of the graph that has so many sources; `count`: the rows of the result, if fewer."""
        result, made = self.result, rows if count is None else count
        add = None if result.add is None else call.values[result.add][:count]
        row = call.graphs.factors(result.row, rows)
        if (row is not None and row.size(0) != made) or (add is not None and add.size(0) != made):
            raise BadProgram(
                f"the result of a step must have the rows of what is added to it ({made}); export the model again"
            )
        return Requantize(row, self.shift, add, result.slope, result.zero, result.bits)


@final
class Engine:
    """A program, ready to run."""

    def __init__(self, program: Program, tensors: Mapping[str, Tensor], facts: Mapping[str, Any] | None = None) -> None:
        self.program, self.tensors, self.facts = program, dict(tensors), dict(facts or {})
        self._registers = {"x": Register.of(program.columns, FLOATS, 0)}
        self._groups = {step.x: step.heads for step in program if isinstance(step, Attend)}
        self._runs: list[tuple[Step, Run, tuple[str, ...]]] = []
        last = {name: k for k, step in enumerate(program) for name in step.reads}
        for k, step in enumerate(program):
            run, register = self._laid_out(step)
            self._registers[step.out] = register
            done = tuple(name for name, end in last.items() if end == k and name != program.output)
            self._runs.append((step, run, done))
        if self._registers[program.output].is_codes:
            raise BadProgram(f"the output {program.output!r} must be floats")

    @property
    def num_features(self) -> int:
        return self.program.columns

    @property
    def num_outputs(self) -> int:
        return self._registers[self.program.output].columns

    @property
    def nbytes(self) -> int:
        """Of weights and factors, as they are stored."""
        return sum(tensor.nbytes for tensor in self.tensors.values())

    @torch.inference_mode()
    def __call__(self, x: Any, graph: Any = None, batch: Tensor | None = None, num_graphs: int | None = None) -> Tensor:
        x = self._checked(x)
        if batch is not None and not self.program.graph_level:
            raise ValueError("`batch` must be left out: the model gives a row for each node")
        call = Call(Graphs(graph, x.shape[0]), {"x": x}, batch, num_graphs)
        for step, run, done in self._runs:
            call.values[step.out] = run(call)
            for name in done:
                call.values.pop(name, None)
        return call.values[self.program.output]

    def __repr__(self) -> str:
        bits = sorted({r.bits for r in self._registers.values() if r.is_codes})
        of = "graphs" if self.program.graph_level else "nodes"
        width = " and ".join(map(str, bits)) or "32"
        return (
            f"Engine({width} bits, {self.num_features} features to {self.num_outputs} outputs of {of}, "
            f"{self.program.convolutions} convolutions, {self.nbytes / 1e6:.2f} MB)"
        )

    def _checked(self, x: Any) -> Any:
        if (hasattr(x, "decode") and hasattr(x, "shape")) or isinstance(x, Tensor):  # features kept as codes
            shape = tuple(x.shape)
        else:
            raise TypeError(f"`x` must be a tensor or a gs.FeatureStore (got {type(x).__name__})")
        if len(shape) != 2 or shape[1] != self.num_features:
            raise ValueError(
                f"`x` must have the shape [nodes, {self.num_features}] (got {shape}); pass the features that the model "
                "was trained on"
            )
        if isinstance(x, Tensor):
            if not (x.is_floating_point() or x.dtype in (torch.int64, torch.int32, torch.uint8, torch.bool)):
                raise TypeError(f"`x` must hold numbers (got {x.dtype}); convert it with `.float()`")
            x = x.detach().to("cpu", torch.float32).resolve_neg().contiguous()
        return x

    # Steps ------------------------------------------------------------------------------------------------------

    def _laid_out(self, step: Step) -> tuple[Run, Register]:
        for kind, lay_out in LAY_OUT.items():
            if isinstance(step, kind):
                return lay_out(self, step)
        raise BadProgram(f"there is no step {step!r}")

    def codes(self, name: str) -> Register:
        found = self._registers[name]
        if not found.is_codes:
            raise BadProgram(f"the register {name!r} must hold codes")
        return found

    def register(self, name: str) -> Register:
        return self._registers[name]

    def tensor(self, name: str) -> Tensor:
        return _named(self.tensors, name)

    def number(self, name: str) -> Tensor:
        """A tensor of one float."""
        found = self.tensor(name)
        if found.dtype != torch.float32 or found.shape != (1,) or not bool(found.isfinite()):
            raise BadProgram(f"`{name}` must be one finite float32 number")
        return found

    def finish(self, step: Any, columns: int) -> tuple[Finish, Register]:
        """How a step's sums of so many columns end, and the register that they end in."""
        result: Result = step.result
        register = Register.of(columns, result.bits, result.zero, self._groups.get(step.out, 1))
        if result.add is not None and self._registers[result.add] != Register.of(columns, FLOATS, 0):
            raise BadProgram(f"the register {result.add!r} must hold floats of {columns} columns")
        if result.add is not None and register.stored != columns:
            raise BadProgram(
                f"the result {step.out!r} must be floats, or {columns} columns of whole lines, to be added to"
            )
        return Finish(result, register, self.tensors), register


def _named(tensors: Mapping[str, Tensor], name: str) -> Tensor:
    if name not in tensors:
        raise BadProgram(f"there is no tensor {name!r}")
    return tensors[name]


def _quantise(engine: Engine, step: Quantise) -> tuple[Run, Register]:
    given = engine.register(step.x)
    if given.is_codes:
        raise BadProgram(f"the register {step.x!r} must hold floats to be quantised")
    finish, register = engine.finish(step, given.columns)

    def run(call: Call) -> Tensor:
        x = call.values[step.x]
        rows = x.shape[0]
        to = finish.of(call, rows)
        if isinstance(x, Tensor):
            return finite(ops.quantize_affine.trusted(x, finish.mult, to), step.x)
        parts = []
        for first in range(0, rows, ROWS_AT_A_TIME):
            last = min(first + ROWS_AT_A_TIME, rows)
            part = to if to.row is None else to._replace(row=to.row[first:last])
            decoded = x[first:last] if hasattr(x, "gather") else x.decode()
            parts.append(ops.quantize_affine(decoded.float(), finish.mult, part).codes)
            if not hasattr(x, "gather"):
                break
        return torch.cat(parts)

    return run, register


def finite(found: EncodedRows, name: str) -> Tensor:
    """The codes, if all of what the model is given was finite."""
    if name == "x" and int(found.bad) >= 0:
        raise ValueError(f"`x` must be finite (row {int(found.bad)} is not); clean it with torch.nan_to_num")
    return found.codes


def _linear(engine: Engine, step: Linear) -> tuple[Run, Register]:
    inputs, tensor = engine.codes(step.x), engine.tensor(step.weight)
    finish, register = engine.finish(step, tensor.size(0) if tensor.dim() == 2 else 0)
    weight = weights(tensor, inputs, register, step.weight)
    bias = zero_bias(weight, inputs.zero)
    second_name = step.second
    if second_name is None or step.second_weight is None or step.second_mult is None:

        def run(call: Call) -> Tensor:
            x = call.values[step.x]
            to = finish.of(call, x.size(0))
            return ops.integer_linear.trusted(IntegerProduct(x, inputs.bits, weight, bias, finish.mult), to)

        return run, register
    others = engine.codes(second_name)
    other = weights(engine.tensor(step.second_weight), others, register, step.second_weight)
    other_bias = zero_bias(other, others.zero)
    mult = vector(engine.tensor(step.second_mult), register, step.second_mult)

    def run_two(call: Call) -> Tensor:
        x, second = call.values[step.x], call.values[second_name]
        rows = min(x.size(0), second.size(0))  # the destinations of a block are its first sources
        to = finish.of(call, rows)
        first = IntegerProduct(x[:rows], inputs.bits, weight, bias, finish.mult)
        again = IntegerProduct(second[:rows], others.bits, other, other_bias, mult)
        return ops.integer_linear_two.trusted(first, again, to)

    return run_two, register


def _sum(engine: Engine, step: Sum) -> tuple[Run, Register]:
    inputs = engine.codes(step.x)
    if step.reduce == "max":
        return _max(step, inputs)
    if step.reduce not in ("sum", "mean") or step.norm not in ("", "gcn", "bare"):
        raise BadProgram(f"there is no sum by {step.reduce!r} with the norm {step.norm!r}")
    finish, register = engine.finish(step, inputs.columns)
    _check_stored(register, inputs, step.out)
    if step.edges is not None:
        return _weighted(step, inputs, finish, engine.tensor(step.edges)), register

    def run(call: Call) -> Tensor:
        x = call.values[step.x]
        rows = x.size(0)
        graph = call.graphs.normalised(rows, True).graph if step.loops else call.graphs.of_rows(rows)
        if graph.value is not None:
            raise ValueError("`graph` must have no weights, as those that the model was trained on; leave them out")
        _check_degree(graph)
        csr(graph.rowptr, graph.col, rows)
        if graph.num_dst > rows:
            raise BadProgram(f"a sum over {graph.num_dst} nodes reads {rows} rows; export the model again")
        to = finish.of(call, rows, graph.num_dst)
        arguments = (x, inputs.bits, inputs.zero, step.neighbours, step.own, finish.mult)
        return ops.integer_sum.trusted(graph.rowptr, graph.col, *arguments, to)

    return run, register


def _check_stored(register: Register, inputs: Register, name: str) -> None:
    """Column by column, a result cannot have more stored columns than what it is made from."""
    if register.stored > inputs.stored:
        raise BadProgram(
            f"the result {name!r} has {register.stored} stored columns, what it is made from {inputs.stored}; export "
            "the model again"
        )


def _check_degree(graph: Graph) -> None:
    if graph.num_edges >= MOST_EDGES and graph.max_degree >= MOST_EDGES:
        raise ValueError(f"`graph` must have fewer than {MOST_EDGES} edges into a node (got {graph.max_degree})")


def _messages(engine: Engine, step: Messages) -> tuple[Run, Register]:
    inputs = engine.codes(step.x)
    for codes in (step.message, step.edges):
        if codes != Result(codes.mult, codes.bits, codes.zero) or codes.bits == FLOATS:
            raise BadProgram("messages and the factors of edges must become codes, by one factor alone")
    if step.norm not in ("", "gcn", "bare"):
        raise BadProgram(f"there is no norm {step.norm!r} of edges")
    finish, register = engine.finish(step, inputs.columns)
    message = Register.of(inputs.columns, step.message.bits, step.message.zero)
    to_message = vector(engine.tensor(step.message.mult), message, step.message.mult)
    scale = engine.number(step.scale).expand(inputs.columns).contiguous()
    to_norm, norm_scale = engine.number(step.edges.mult).repeat(2), engine.number(step.edge_scale).repeat(2)

    def norm_of(value: Tensor) -> Tensor:
        """A factor of each edge, after it was codes. Two equal columns: codes of four bits come in pairs."""
        to = Requantize(zero=step.edges.zero, bits=step.edges.bits)
        codes = ops.quantize_affine(value.unsqueeze(1).expand(-1, 2), to_norm, to).codes
        return ops.requantize(codes, to.bits, to.zero, norm_scale, Requantize(bits=FLOATS))[:, 0].contiguous()

    def run(call: Call) -> Tensor:
        x = call.values[step.x]
        edges = call.graphs.edges(x.size(0), step.norm)
        _check_degree(edges)
        assert edges.value is not None
        gathered = x.index_select(0, edges.col)  # [edges, bytes]
        to = Requantize(norm_of(edges.value), bits=FLOATS)
        products = ops.requantize(gathered, inputs.bits, inputs.zero, scale, to)
        to = Requantize(zero=message.zero, bits=message.bits)
        codes = ops.quantize_affine(products, to_message, to).codes
        each = torch.arange(edges.num_edges, dtype=torch.int32)
        to = finish.of(call, x.size(0), edges.num_dst)
        return ops.integer_sum(edges.rowptr, each, codes, message.bits, message.zero, 1, 0, finish.mult, to)

    return run, register


def _max(step: Sum, inputs: Register) -> tuple[Run, Register]:
    def run(call: Call) -> Tensor:
        x = call.values[step.x]
        graph = call.graphs.of_rows(x.size(0))
        return ops.integer_max(graph.rowptr, graph.col, x, inputs.bits, inputs.zero)

    return run, inputs


def _weighted(step: Sum, inputs: Register, finish: Finish, factor: Tensor) -> Run:
    """A sum by weights of edges, which become codes of eight bits."""
    if factor.dtype != torch.float32 or factor.shape != (1,):
        raise BadProgram(f"`{step.edges}` must be one float32 number")

    def coded(values: Tensor) -> Tensor:
        return ops.quantize_affine(values.reshape(-1, 1).contiguous(), factor, Requantize()).codes.squeeze(1)

    def run(call: Call) -> Tensor:
        x = call.values[step.x]
        rows = x.size(0)
        graph, own = call.graphs.of_rows(rows), None
        if graph.value is None:
            raise ValueError("`graph` must have weights, as those that the model was trained on; pass them to gs.Graph")
        if bool((graph.value < 0).any()):
            raise ValueError("`graph` must have weights of at least 0, which the integer engine takes")
        if step.norm:
            parts = call.graphs.normalised(rows, step.norm == "gcn")
            graph = parts.graph
            own = None if parts.diagonal is None else coded(parts.diagonal)
        assert graph.value is not None
        weights = graph.derived(f"codes {float(factor)}", lambda: coded(graph.value))
        arguments = (x, inputs.bits, inputs.zero, finish.mult, finish.of(call, rows, graph.num_dst))
        return ops.integer_weighted_sum(graph.rowptr, graph.col, weights, own, *arguments)

    return run


def _attend(engine: Engine, step: Attend) -> tuple[Run, Register]:
    inputs, terms = engine.codes(step.x), engine.register(step.terms)
    heads = step.heads
    if heads < 1 or inputs.columns % heads or terms.is_codes or terms.columns != 2 * heads:
        raise BadProgram(f"{heads} heads of {inputs.columns} columns with {terms.columns} terms")
    width = inputs.columns // heads
    finish, register = engine.finish(step, width if step.mean else inputs.columns)

    def run(call: Call) -> Tensor:
        x, both = call.values[step.x], call.values[step.terms]
        graph = call.graphs.looped(x.size(0)) if step.loops else call.graphs.of_rows(x.size(0))
        a_src, a_dst = both[:, :heads].contiguous(), both[: graph.num_dst, heads:].contiguous()
        to = finish.of(call, x.size(0), graph.num_dst)
        return ops.integer_attention(
            graph.rowptr, graph.col, a_src, a_dst, None, step.slope, x, inputs.bits, inputs.zero, width, step.mean,
            finish.mult, to,
        )  # fmt: skip

    return run, register


def _pool(engine: Engine, step: Pool) -> tuple[Run, Register]:
    if step.reduce not in ("sum", "mean", "max"):
        raise BadProgram(f"there is no pooling by {step.reduce!r}")
    inputs = engine.register(step.x)
    if not inputs.is_codes:
        return (lambda call: floats.pooled(call, call.values[step.x], step.reduce)), inputs
    if step.reduce == "max":
        raise BadProgram("a maximum is taken of floats")
    finish, register = engine.finish(step, inputs.columns)

    def run(call: Call) -> Tensor:
        x = call.values[step.x]
        pool = pool_graph(call.batch, x.size(0), call.num_graphs)
        to = finish.of(call, x.size(0))._replace(row=pool.inverse_degree if step.reduce == "mean" else None)
        return ops.integer_sum(pool.rowptr, pool.col, x, inputs.bits, inputs.zero, 1, 0, finish.mult, to)

    return run, register


def _convert(engine: Engine, step: Convert) -> tuple[Run, Register]:
    inputs = engine.codes(step.x)
    finish, register = engine.finish(step, inputs.columns)
    _check_stored(register, inputs, step.out)

    def run(call: Call) -> Tensor:
        x = call.values[step.x]
        return ops.requantize.trusted(x, inputs.bits, inputs.zero, finish.mult, finish.of(call, x.size(0)))

    return run, register


def _float(engine: Engine, step: FloatStep) -> tuple[Run, Register]:
    registers = [engine.register(name) for name in step.reads]
    if any(register.is_codes for register in registers):
        raise BadProgram(f"a step in float32 of the kind {step.kind!r} reads codes")
    tensors = {name: engine.tensor(stored) for name, stored in step.tensors.items()}
    run, columns = floats.lay_out(step, [register.columns for register in registers], tensors)

    def call_run(call: Call) -> Tensor:
        given = [call.values[name] for name in step.reads]
        given = [value if isinstance(value, Tensor) else value.decode() for value in given]
        return run(call, *given)

    return call_run, Register(columns, columns, FLOATS, 0)


LAY_OUT: dict[type[Step], Callable[[Engine, Any], tuple[Run, Register]]] = {
    Quantise: _quantise, Linear: _linear, Sum: _sum, Messages: _messages, Attend: _attend, Pool: _pool,
    Convert: _convert, FloatStep: _float,
}  # fmt: skip
