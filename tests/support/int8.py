"""Int8 training by its definition: the straight-through function in float64, and the noise that theory predicts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from gossamer import ops
from gossamer.aggregate import Adjacency
from gossamer.ops.quantize_rows import QRows

from .compare import UNIT

CODE_MAX = 127


class Quantised(TorchDispatchMode):
    """Names of the parameters of a model that are quantised as a whole, in order: the weights of int8 products."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.names: list[str] = []
        self._known = {p.data_ptr(): name.removesuffix(".weight") for name, p in model.named_parameters()}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func._schema.name == "gossamer::quantize_rows" and args[0].data_ptr() in self._known:
            self.names.append(self._known[args[0].data_ptr()])
        return func(*args, **(kwargs or {}))


def decoded(rows: Sequence[Tensor]) -> Tensor:
    codes, scale = rows
    return codes.double() * scale.double().unsqueeze(1)


def dense_of(adjacency: Adjacency) -> Tensor:
    """[num_dst, num_src] in float64, factors of both ends and the own row included."""
    graph = adjacency.graph
    src, dst = graph.edge_index
    value = graph.value if adjacency.value is None else adjacency.value
    weight = torch.ones(len(src), dtype=torch.float64) if value is None else value.double()
    matrix = torch.zeros(graph.num_dst, graph.num_src, dtype=torch.float64).index_put_((dst, src), weight, True)
    matrix = matrix if adjacency.dst_scale is None else matrix * adjacency.dst_scale.double().unsqueeze(1)
    matrix = matrix if adjacency.src_scale is None else matrix * adjacency.src_scale.double()
    if adjacency.diagonal is None:
        return matrix
    main = matrix.diagonal()
    main += adjacency.diagonal.double().reshape(-1).expand(len(main))
    return matrix


def as_rows(value: Tensor, rows: Sequence[Tensor]) -> Tensor:
    """`value` rounded to these rows, straight through; they are within half a step of it."""
    found, step = decoded(rows), rows[1].double().unsqueeze(1)
    assert bool(((found - value.detach()).abs() <= step / 2 * (1 + 1e-3)).all())
    return value + (found - value).detach()


class Exact(NamedTuple):
    """The straight-through function in float64: result, gradients of x, weights and biases, sums of magnitudes."""

    out: Tensor
    dx: Tensor
    dweights: list[Tensor]
    dbiases: list[Tensor]
    size: Tensor


def exact(
    x: Tensor, adjacency: Adjacency | None, weights: Sequence[Tensor], biases: Sequence[Tensor | None], first: str,
    dout: Tensor, add: Tensor | None = None,
) -> Exact:  # fmt: skip
    """y and its gradients, every operand replaced by what its int8 rows decode to."""
    x_rows, w_rows = ops.quantize_rows(x.detach()), [ops.quantize_rows(w.detach()) for w in weights]
    xs = decoded(x_rows).requires_grad_()
    ws = [decoded(w).requires_grad_() for w in w_rows]
    bs = [None if b is None else b.detach().double().requires_grad_() for b in biases]
    if adjacency is None:
        out, size = xs @ ws[0].t(), xs.abs() @ ws[0].abs().t()
    elif first == "multiply":
        h = as_rows(xs @ ws[0].t(), ops.int8_linear_rows(*x_rows, *w_rows[0], None, None, None))
        matrix = dense_of(adjacency)
        out, size = matrix @ h, matrix.abs() @ h.abs()
    else:
        matrix = dense_of(adjacency)
        z = as_rows(matrix @ xs, adjacency.product_rows(QRows(*x_rows), None))
        out, size = z @ ws[0].t(), z.abs() @ ws[0].abs().t()
    for more, less in ((xs @ w.t(), xs.abs() @ w.abs().t()) for w in ws[1:]):
        out, size = out + more, size + less
    for each in (*bs, None if add is None else add.detach().double()):
        out, size = (out, size) if each is None else (out + each, size + each.abs())
    there = [b for b in bs if b is not None]
    dx, *grads = torch.autograd.grad(out, [xs, *ws, *there], dout.double())
    return Exact(out.detach(), dx, grads[: len(ws)], grads[len(ws) :], size.detach())


def assert_near(found: Tensor, truth: Tensor, size: Tensor, terms: int) -> None:
    """Sums of `terms` float32 products, whose magnitudes sum up to `size`, each rounded once more by its scale."""
    assert found.dtype == torch.float32 and found.shape == truth.shape
    off, allowed = (found.double() - truth).abs(), (terms + 8) * UNIT * size
    assert bool((off <= allowed).all()), f"off by {float((off / allowed).max()):.3g} of what is allowed"


def predicted(x: Tensor, stochastic: bool, by_column_of: int | None = None) -> float:
    """nsr of x in int8 rows: phi s^2 / 12 per element to nearest, / 6 stochastically; s = max / 127 of the row.

    Or of columns in chunks of `by_column_of` rows.
    """
    x = x.detach().double()
    groups = [x] if by_column_of is None else [chunk.t() for chunk in x.split(by_column_of)]
    noise = [((g.abs().amax(1) / CODE_MAX).square() * (g != 0).sum(1)).sum() for g in groups]
    return float(sum(noise) / (6 if stochastic else 12) / x.square().sum())
