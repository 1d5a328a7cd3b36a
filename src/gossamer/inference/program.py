"""The integer program: a trained model as data. Steps run in order, each writes one register.

A register holds codes of 8 or 4 bits with a zero point, or floats (`bits` 32); its scale is known to whoever wrote the
program, and is in the factors of the steps. The register `x`, the features, is given.

    Quantise    x floats to codes                                        times `mult` per column
    Linear      x W^T, or x W^T + second x W2^T                          integer weights
    Sum         sum or mean over the neighbours and the node itself      unweighted, or weights of edges as codes
    Messages    sum over the neighbours of messages                      each becomes codes before it is summed
    Attend      GAT's softmax and weighted sum                           terms: floats [nodes, 2 heads]
    Pool        sum, mean or maximum over the nodes of each graph
    Convert     codes to floats, or to codes of another scale
    Floats      what is left in float32: see `FloatStep.kind`

What a step has summed becomes its result by `Result` (ops/requantize.py). Row factors are those of the graph that the
step runs on: "gcn_src" and "gcn_dst" are 1 / sqrt(d) of its sources and destinations, where every node counts as its
own neighbour ("bare_src" and "bare_dst": only if the graph has that loop); "mean" is 1 / d. A program is plain values:
`to_plain` and `from_plain` are its JSON; tensors are named, and live in the same file.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, final

FLOATS = 32
ROWS = ("", "gcn_src", "gcn_dst", "bare_src", "bare_dst", "mean")
KINDS = ("linear", "sum", "mean", "max", "gcn", "add", "cat", "act", "norm", "affine", "maximum", "log_softmax",
         "softmax", "sigmoid", "lookup")  # fmt: skip


class BadProgram(ValueError):
    """Steps that cannot be run: a register that nothing writes, a tensor that is missing or of another shape."""


@dataclass(frozen=True)
class Result:
    """How sums become a register: times `mult` and `row`, plus `shift` and `add`, `slope` where negative, rounded."""

    mult: str
    bits: int = FLOATS
    zero: int = 0
    slope: float = 1.0
    shift: str | None = None
    row: str = ""
    add: str | None = None


@dataclass(frozen=True)
class Step:
    out: str
    x: str
    kind_name: ClassVar[str] = ""

    @property
    def reads(self) -> tuple[str, ...]:
        """The registers that the step needs."""
        result = getattr(self, "result", None)
        return (self.x, *((result.add,) if result is not None and result.add is not None else ()))


@final
@dataclass(frozen=True)
class Quantise(Step):
    result: Result
    kind_name: ClassVar[str] = "quantise"


@final
@dataclass(frozen=True)
class Linear(Step):
    """`weight` and `second_weight` name int8 tensors, or uint8 ones with two codes of four bits each."""

    weight: str
    result: Result
    second: str | None = None
    second_weight: str | None = None
    second_mult: str | None = None
    kind_name: ClassVar[str] = "linear"

    @property
    def reads(self) -> tuple[str, ...]:
        return (*super().reads, *((self.second,) if self.second is not None else ()))


@final
@dataclass(frozen=True)
class Sum(Step):
    """neighbours * (sum of x_j) + own * x_i, or, if `reduce` is "max", the largest code.

    `loops`: every node counts as its own neighbour once, whatever loops the graph has. For graphs with weights `edges`
    names the factor by which those become codes, after GCN's normalisation if `norm` is "gcn" (or "bare").
    """

    result: Result
    reduce: str = "sum"
    neighbours: int = 1
    own: int = 0
    loops: bool = False
    edges: str | None = None
    norm: str = ""
    kind_name: ClassVar[str] = "sum"


@final
@dataclass(frozen=True)
class Messages(Step):
    """The sum over the edges of (factor of the edge) x_j, each of which becomes codes by `message` before.

    The factors are those of GCN's normalisation if `norm` is "gcn" (or "bare"), the diagonal being edges, too; else
    weights of the graph. They are codes by `edges`. `scale` and `edge_scale` name the steps of x and of the factors.
    Slow, with tensors of edges x columns: for models that were trained with a rounding of every message.
    """

    result: Result
    message: Result
    scale: str
    edges: Result
    edge_scale: str
    norm: str = ""
    kind_name: ClassVar[str] = "messages"


@final
@dataclass(frozen=True)
class Attend(Step):
    terms: str
    heads: int
    slope: float
    result: Result
    mean: bool = False
    loops: bool = True
    kind_name: ClassVar[str] = "attend"

    @property
    def reads(self) -> tuple[str, ...]:
        return (*super().reads, self.terms)


@final
@dataclass(frozen=True)
class Pool(Step):
    """Of floats, their pool as it is: `result` is for codes."""

    reduce: str
    result: Result
    kind_name: ClassVar[str] = "pool"


@final
@dataclass(frozen=True)
class Convert(Step):
    result: Result
    kind_name: ClassVar[str] = "convert"


@final
@dataclass(frozen=True)
class FloatStep(Step):
    """A step in float32: `kind` is one of KINDS, `tensors` and `numbers` what it needs, `more` further registers."""

    kind: str
    more: tuple[str, ...] = ()
    tensors: dict[str, str] = field(default_factory=dict)
    numbers: dict[str, float] = field(default_factory=dict)
    kind_name: ClassVar[str] = "floats"

    @property
    def reads(self) -> tuple[str, ...]:
        return (self.x, *self.more)


STEPS: dict[str, type[Step]] = {
    kind.kind_name: kind for kind in (Quantise, Linear, Sum, Messages, Attend, Pool, Convert, FloatStep)
}


@final
@dataclass(frozen=True)
class Program:
    steps: tuple[Step, ...]
    output: str
    columns: int
    """Of the features that it takes."""
    graph_level: bool = False
    """Whether there is a row per graph, and `batch` is needed."""
    convolutions: int = 0

    def __iter__(self) -> Iterator[Step]:
        return iter(self.steps)

    def to_plain(self) -> dict[str, Any]:
        return {
            "columns": self.columns, "graph_level": self.graph_level, "convolutions": self.convolutions,
            "output": self.output, "steps": [_step_to_plain(step) for step in self.steps],
        }  # fmt: skip

    @classmethod
    def from_plain(cls, plain: Any) -> Program:
        """The program that `to_plain` wrote; BadProgram for anything else."""
        try:
            steps = tuple(_step_from_plain(step) for step in plain["steps"])
            program = cls(
                steps, str(plain["output"]), _count(plain["columns"]), plain["graph_level"] is True,
                _count(plain["convolutions"]),
            )  # fmt: skip
        except (KeyError, TypeError, AttributeError) as error:
            raise BadProgram(f"the program does not have the form of this version ({error!r})") from None
        program._check_registers()
        return program

    def _check_registers(self) -> None:
        known = {"x", "batch"}
        for step in self.steps:
            missing = [name for name in step.reads if name not in known]
            if missing:
                raise BadProgram(
                    f"a step of kind {step.kind_name!r} reads {missing[0]!r}, which no step before it writes"
                )
            if step.out in known:
                raise BadProgram(f"the register {step.out!r} is written twice")
            known.add(step.out)
        if self.output not in known - {"x", "batch"}:
            raise BadProgram(f"the output {self.output!r} is written by no step")


def _step_to_plain(step: Step) -> dict[str, Any]:
    found: dict[str, Any] = {"op": step.kind_name}
    for each in dataclasses.fields(step):
        value = getattr(step, each.name)
        default = each.default_factory() if callable(each.default_factory) else each.default
        if value != default:
            found[each.name] = _result_to_plain(value) if isinstance(value, Result) else value
    return found


def _result_to_plain(result: Result) -> dict[str, Any]:
    pairs = ((each, getattr(result, each.name)) for each in dataclasses.fields(result))
    return {each.name: value for each, value in pairs if value != each.default}


def _step_from_plain(plain: Mapping[str, Any]) -> Step:
    kind = STEPS.get(plain["op"])
    if kind is None:
        raise BadProgram(f"there is no step {plain['op']!r}; this version knows {', '.join(STEPS)}")
    given = {name: value for name, value in plain.items() if name != "op"}
    for each in dataclasses.fields(kind):
        if each.type == "Result" and each.name in given:
            given[each.name] = _result_from_plain(given[each.name])
    if "more" in given:
        given["more"] = tuple(given["more"])
    step = kind(**given)
    _check_fields(step)
    return step


def _result_from_plain(plain: Any) -> Result:
    result = Result(**plain)
    _check_fields(result)
    if result.bits not in (8, 4, FLOATS) or result.row not in ROWS:
        raise BadProgram(f"a result of {result.bits} bits with the row factor {result.row!r}")
    if not 0 <= result.slope <= 1 or (result.bits != FLOATS and not 0 <= result.zero < 2**result.bits):
        raise BadProgram(f"a result with the slope {result.slope} and the zero point {result.zero}")
    return result


TYPES: dict[str, tuple[type, ...]] = {
    "str": (str,), "int": (int,), "float": (float, int), "bool": (bool,), "str | None": (str, type(None)),
    "Result": (Result,), "tuple[str, ...]": (tuple,), "dict[str, str]": (dict,), "dict[str, float]": (dict,),
}  # fmt: skip


def _check_fields(made: Any) -> None:
    """Every field is of its type; JSON may hold anything."""
    for each in dataclasses.fields(made):
        value, allowed = getattr(made, each.name), TYPES[str(each.type)]
        if type(value) not in allowed:
            raise BadProgram(f"`{each.name}` of {type(made).__name__} is {value!r}")
        if isinstance(value, int) and abs(value) > 2**31:
            raise BadProgram(f"`{each.name}` of {type(made).__name__} is {value}")
    if isinstance(made, FloatStep):
        plain = all(isinstance(k, str) and isinstance(v, str) for k, v in made.tensors.items())
        numbers = all(isinstance(k, str) and type(v) in (int, float) for k, v in made.numbers.items())
        if made.kind not in KINDS or not plain or not numbers or not all(isinstance(r, str) for r in made.more):
            raise BadProgram(f"a step in float32 of the kind {made.kind!r} with {made.tensors!r} and {made.numbers!r}")


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**31:
        raise BadProgram(f"a count is {value!r}")
    return value
