"""Steps in float32: what a program leaves unquantised, and what stands between codes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from .. import ops
from ..ops.activation import ACTIVATIONS
from ..ops.csr import Sparse
from ..ops.norm_act import Epilogue, Over
from ..ops.spmm import spmm_op
from .graphs import pool_graph
from .program import BadProgram, FloatStep

FloatRun = Callable[..., Tensor]


def lay_out(step: FloatStep, columns: list[int], tensors: Mapping[str, Tensor]) -> tuple[FloatRun, int]:
    """What runs the step on a call and the registers it reads, and the columns of its result."""
    kind, numbers = step.kind, step.numbers
    if kind == "linear":
        weight, bias = _floats(tensors, "weight", 2), tensors.get("bias")
        _expect(weight.size(1) == columns[0] and (bias is None or bias.shape == (weight.size(0),)), step)
        return (lambda call, x: ops.linear(x, weight, bias)), weight.size(0)
    if kind in ("sum", "mean", "max", "gcn"):
        return _aggregation(kind, numbers), columns[0]
    if kind == "add":
        _expect(len(set(columns)) == 1, step)
        return (lambda call, *given: _added(given)), columns[0]
    if kind == "maximum":
        _expect(len(set(columns)) == 1, step)
        return (lambda call, *given: torch.stack(_of_seeds(given)).amax(0)), columns[0]
    if kind == "cat":
        return (lambda call, *given: torch.cat(_of_seeds(given), 1)), sum(columns)
    if kind == "act":
        act, slope = int(numbers["act"]), float(numbers.get("slope", 0.0))
        _expect(0 <= act < len(ACTIVATIONS), step)
        return (lambda call, x: ops.norm_act(x, Epilogue(act=act, slope=slope))[0]), columns[0]
    if kind in ("norm", "affine"):
        return _norm(kind, tensors, numbers, columns[0], step), columns[0]
    if kind == "lookup":
        table = _floats(tensors, "table", 2)
        return (lambda call, x: table[_ids(x, len(table))]), table.size(1)
    return TAILS[kind], columns[0]


TAILS: dict[str, FloatRun] = {
    "log_softmax": lambda call, x: functional.log_softmax(x, dim=-1),
    "softmax": lambda call, x: functional.softmax(x, dim=-1),
    "sigmoid": lambda call, x: torch.sigmoid(x),
}


def _expect(condition: bool, step: FloatStep) -> None:
    if not condition:
        raise BadProgram(f"the tensors of a step in float32 of the kind {step.kind!r} do not fit what it reads")


def _floats(tensors: Mapping[str, Tensor], name: str, dim: int) -> Tensor:
    tensor = tensors.get(name)
    if tensor is None or tensor.dtype != torch.float32 or tensor.dim() != dim:
        raise BadProgram(f"`{name}` must be a float32 tensor with {dim} dimensions")
    return tensor


def _of_seeds(given: tuple[Tensor, ...]) -> list[Tensor]:
    """The rows that all have: in a sampled batch those of the seeds, which are the first."""
    rows = min(len(each) for each in given)
    return [each[:rows] for each in given]


def _added(given: tuple[Tensor, ...]) -> Tensor:
    first, *rest = _of_seeds(given)
    for each in rest:
        first = first + each
    return first


def _ids(x: Tensor, count: int) -> Tensor:
    ids = x[:, 0].long()
    if len(ids) and (int(ids.min()) < 0 or int(ids.max()) >= count):
        raise IndexError(f"`x` must hold types from 0 to {count - 1} (got {int(ids.min())} to {int(ids.max())})")
    return ids


def _aggregation(kind: str, numbers: Mapping[str, float]) -> FloatRun:
    own, loops = float(numbers.get("own", 0.0)), bool(numbers.get("loops", 0.0))

    def run(call: Any, x: Tensor) -> Tensor:
        rows = x.size(0)
        if kind == "gcn":
            parts = call.graphs.normalised(rows, loops)
            matrix = Sparse(parts.graph.rowptr, parts.graph.col, parts.graph.value, parts.src, parts.dst)
            return spmm_op(matrix, x.contiguous(), None, parts.diagonal, None, None, None, None, None)
        graph = call.graphs.of_rows(rows)
        diagonal = torch.full((1,), own).expand(graph.num_dst) if own else None
        return ops.spmm(graph, x, reduce=kind, diagonal=diagonal)  # type: ignore[arg-type]

    return run


def _norm(
    kind: str, tensors: Mapping[str, Tensor], numbers: Mapping[str, float], columns: int, step: FloatStep
) -> FloatRun:
    given = {name: tensors.get(name) for name in ("weight", "bias", "mean", "var")}
    _expect(all(t is None or (t.dtype == torch.float32 and t.shape == (columns,)) for t in given.values()), step)
    over = Over.FIXED if kind == "affine" else Over(int(numbers["over"]))
    weight, bias, mean, var = given.values()
    epilogue = Epilogue(weight, bias, mean, var, int(over), float(numbers["eps"]))
    return lambda call, x: ops.norm_act(x.contiguous(), epilogue)[0]


def pooled(call: Any, x: Tensor, reduce: str) -> Tensor:
    """Sum, mean or maximum over the nodes of each graph."""
    pool = pool_graph(call.batch, x.size(0), call.num_graphs)
    return ops.spmm(pool, x, reduce=reduce)  # type: ignore[arg-type]
