"""A sparse matrix with a diagonal beside it, for float rows and for int8 rows, forward and backward.

    A = diag(dst_scale) V diag(src_scale) + diag(diagonal)        V: `value` on the edges of `graph`
    product        A x + b + add                                  back        A^T g
    product_rows   the same for int8 rows, in or out              back_rows   the same

The diagonal holds what is not a neighbour: GCN's self-loops, GIN's own row. In a rectangular matrix it is the main
diagonal: the nodes that are both source and destination come first. `reduce` "max" takes the maximum over the
edges in place of the sum. Every transposed product of training is `back`, `back_of_rows` or `back_rows`, where `policy`
says how much of the matrix is multiplied. A fixed adjacency saves nothing for backward but itself.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from .. import ops
from ..graph import Graph
from ..ops.csr import Sparse, row_of_edge
from ..ops.linear import bias_gradient
from ..ops.quantize_rows import QRows
from ..ops.sddmm import edge_gradient, sddmm_op
from ..ops.spmm import row_sums, spmm_op
from ..ops.spmm_int8 import spmm_int8_op
from ..state import facts
from .policy import Exact, Policy, Transposed

if TYPE_CHECKING:
    from typing_extensions import Self

    from ..codecs import CodedRows
    from .messages import Messages

Reduce = Literal["sum", "mean", "max"]
EXACT = Exact()


class Edges(NamedTuple):
    """The structure of a graph and of its transpose, for attention: its weights are made anew in every call."""

    rowptr: Tensor
    col: Tensor
    t_rowptr: Tensor
    t_col: Tensor
    t_perm: Tensor

    def dots(self, a: Tensor, b: Tensor, heads: int) -> Tensor:
        """<a_i, b_j> of each edge and head."""
        return sddmm_op(self.rowptr, self.col, a, b, heads, None, None, None)

    def back(self, w: Tensor, dout: Tensor) -> Tensor:
        """The sum of w_e dout_i over the edges out of each node."""
        return row_sums(Sparse(self.t_rowptr, self.t_col, ops.gather_rows(w, self.t_perm)), dout)


@dataclass(frozen=True, eq=False)
class Adjacency:
    graph: Graph
    value: Tensor | None = None
    """Weights of edges in CSR order in place of the graph's own; they may require grad."""
    src_scale: Tensor | None = None
    dst_scale: Tensor | None = None
    diagonal: Tensor | None = None
    """[min(num_src, num_dst)], or one number for all; it may require grad."""
    reduce: Literal["sum", "max"] = "sum"
    policy: Policy = EXACT

    @classmethod
    def of(cls, graph: Graph, value: Tensor | None = None, reduce: Reduce = "sum") -> Adjacency:
        """Sum, mean or maximum over the neighbours."""
        degree = graph.inverse_degree if reduce == "mean" else None
        return cls(
            graph, value, None, degree, None, "max" if reduce == "max" else "sum", EXACT
        )  # dynamo finds no default

    @property
    def is_linear(self) -> bool:
        return self.reduce == "sum"

    @property
    def is_fixed(self) -> bool:
        """Whether it is linear and nothing of it requires grad."""
        parts = (self.value, self.diagonal)
        return self.is_linear and not any(part is not None and part.requires_grad for part in parts)

    def _but(self, **changes: Any) -> Self:
        """With some fields changed; `dataclasses.replace` takes several times as long."""
        made = object.__new__(type(self))
        made.__dict__.update(self.__dict__)
        made.__dict__.update(changes)
        return made

    def with_diagonal(self, diagonal: Tensor | None) -> Adjacency:
        return self._but(diagonal=diagonal)

    def times(self, factor: float) -> Adjacency:
        """factor A, of a sum."""
        dst_scale, diagonal = self.dst_scale, self.diagonal
        if dst_scale is None:
            dst_scale = torch.ones(self.graph.num_dst, device=self.graph.rowptr.device)
        diagonal = None if diagonal is None else factor * diagonal
        return self._but(dst_scale=factor * dst_scale, diagonal=diagonal)

    def under(self, policy: Policy) -> Adjacency:
        return self if policy == self.policy else self._but(policy=policy)

    def sending(self, messages: Messages | None) -> Adjacency:
        """With rows that travel between machines like this, if any do."""
        return self

    # The matrix -------------------------------------------------------------------------------------------------

    def matrix(self) -> Sparse:
        value = self.graph.value if self.value is None else self.value
        return Sparse(self.graph.rowptr, self.graph.col, value, self.src_scale, self.dst_scale)

    def transpose(self) -> Sparse:
        t = self.graph.t()
        value = t.value if self.value is None else ops.gather_rows(self.value, self.graph.t_perm)
        return Sparse(t.rowptr, t.col, value, self.dst_scale, self.src_scale)

    @property
    def edges(self) -> Edges:
        t = self.graph.t()
        return Edges(self.graph.rowptr, self.graph.col, t.rowptr, t.col, self.graph.t_perm)

    def _spread(self, dtype: torch.dtype = torch.float32) -> Tensor | None:
        """The diagonal as kernels take it for rows of `dtype`: one number expanded."""
        if self.diagonal is None:
            return None
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        return self.diagonal.to(wide).reshape(-1).expand(min(self.graph.num_src, self.graph.num_dst))

    # Float rows -------------------------------------------------------------------------------------------------

    def product(
        self, x: Tensor, bias: Tensor | None = None, add: Tensor | None = None,
        result: Callable[[], Tensor] | None = None,
    ) -> Tensor:  # fmt: skip
        """A x + b + add; of a fixed adjacency the caller may give the tensor that stands for it."""
        if self.diagonal is not None and self.diagonal.requires_grad:
            own = self.diagonal.reshape(-1, 1) * x[: self.graph.num_dst]
            if len(own) < self.graph.num_dst:
                own = functional.pad(own, (0, 0, 0, self.graph.num_dst - len(own)))
            return self.with_diagonal(None).product(x, bias, own if add is None else own + add)
        self.graph.check_rows("x", x)
        known = (torch.float32, torch.float64, torch.bfloat16) if self.is_linear else (torch.float32, torch.float64)
        if x.dtype not in known and torch.is_autocast_enabled(x.device.type):  # what autocast made of rows
            return self.product(x.float(), bias, add).to(x.dtype)
        if not self.is_linear or torch.compiler.is_compiling() or not torch.is_grad_enabled():
            return self._by_op(x, bias, add) if result is None else result()
        return _Product.apply(x, self.value, bias, add, self, result)

    def _by_op(self, x: Tensor, bias: Tensor | None, add: Tensor | None) -> Tensor:
        """As a registered op, which has a gradient of its own: that of maxima, and what `torch.compile` traces."""
        diagonal = self._spread(x.dtype)
        if not self.is_linear:
            return ops.spmm(self.graph, x, self.value, "max", bias=bias, diagonal=diagonal, rows=add)
        transposed: tuple[Tensor | None, ...] = (None, None, None, None)
        learns = torch.compiler.is_compiling() and torch.is_grad_enabled() and x.requires_grad
        if learns and not self.graph.is_traced:
            t = self.graph.t()
            transposed = (t.rowptr, t.col, *((None, t.value) if self.value is None else (self.graph.t_perm, None)))
        return spmm_op(self.matrix(), x.contiguous(), bias, diagonal, add, *transposed)

    def product_coded(self, x: CodedRows) -> Tensor:
        """A x of a fixed adjacency, straight from codes; there is no gradient."""
        self.graph.check_rows("x", x)
        return ops.spmm_scalar(self.matrix(), *x.codes.tensors, self._spread(), x.size(1), x.codec.bits)

    def back(self, dout: Tensor) -> Tensor:
        """A^T dout."""
        dout, own = dout.contiguous(), self._spread(dout.dtype)
        # with create_graph, the derivative by a row that is skipped would be lost
        policy = EXACT if torch.is_grad_enabled() else self.policy
        return policy.multiply(self, dout, lambda t: row_sums(t.matrix, dout, own, t.keep))

    def edge_gradient(self, x: Tensor, dout: Tensor) -> Tensor:
        """The gradient of `value`; zero for edges into destinations that the policy leaves out."""
        factor, matrix = self.policy.edge_rows(), self.matrix()
        if factor is None or torch.is_grad_enabled():
            return edge_gradient(matrix, x, dout)
        assert matrix.value is not None
        of_edge = factor[row_of_edge(matrix.rowptr)]  # whole rows, so that those of other destinations are empty
        picked, count = of_edge != 0, torch.where(factor != 0, self.graph.degree, 0)
        part = matrix._replace(
            rowptr=torch.cat([count.new_zeros(1), count.cumsum(0)]),
            col=matrix.col[picked],
            value=matrix.value[picked],
        )
        found = edge_gradient(part, x, dout) * of_edge[picked].to(matrix.value.dtype)
        return torch.zeros_like(matrix.value).masked_scatter_(picked, found)

    def gradients(
        self, dout: Tensor, needs_x: bool, needs_value: bool, x: Callable[[], Tensor]
    ) -> tuple[Tensor | None, Tensor | None]:
        """Of x and of `value`; x() is asked for only if it is needed."""
        dx = self.back(dout) if needs_x else None
        if not needs_value:
            return dx, None
        chosen = self if needs_x else self.under(EXACT)  # without a product no rows were selected for this graph
        return dx, chosen.edge_gradient(x(), dout)

    # Int8 rows --------------------------------------------------------------------------------------------------

    def product_of_rows(self, x: QRows, bias: Tensor | None = None, add: Tensor | None = None) -> Tensor:
        """A x + b + add in float32."""
        return spmm_int8_op(self.matrix(), x, bias, self._spread(), add)

    def product_rows(self, x: QRows, noise: int | None) -> QRows:
        """A x, quantised as it is made."""
        return ops.spmm_rows(self.matrix(), x, None, self._spread(), None, None, noise)

    def product_rows_once(self, x: QRows) -> QRows:
        """`product_rows` to nearest, remembered while these rows and this matrix live and are not changed."""
        known = facts.recall(x.codes, "sum")
        if known is not None and known.is_of(self):
            return known.rows
        with facts.lasting():
            made = _Sum.of(self, self.product_rows(x, None))
        facts.note(x.codes, "sum", made)
        return made.rows

    def back_of_rows(self, g: QRows) -> Tensor:
        """A^T g in float32."""
        own = self._spread()
        return self.policy.multiply(self, g, lambda t: spmm_int8_op(t.matrix, g, None, own, None, t.keep))

    def back_rows(self, g: QRows, factor: Tensor, noise: int | None) -> QRows:
        """A^T g times a factor per column, quantised as it is made."""
        own = self._spread()

        def product(t: Transposed) -> QRows:
            return ops.spmm_rows(t.matrix, g, None, own, None, factor, noise, t.keep)

        return self.policy.multiply(self, g, product, factor)


class _Sum(NamedTuple):
    """A neighbour sum of int8 rows, and the adjacency that it was made by."""

    parts: tuple[weakref.ref[Any] | float | None, ...]
    versions: tuple[int | None, ...]
    rows: QRows

    @classmethod
    def of(cls, adjacency: Adjacency, rows: QRows) -> _Sum:
        parts = tuple(weakref.ref(p) if isinstance(p, (Tensor, Graph)) else p for p in _parts(adjacency))
        return cls(parts, _versions(adjacency), rows)

    def is_of(self, adjacency: Adjacency) -> bool:
        held = [part() if isinstance(part, weakref.ref) else (part,) for part in self.parts]
        now = [part if isinstance(part, (Tensor, Graph)) else (part,) for part in _parts(adjacency)]
        same = all(a is b or (isinstance(a, tuple) and a == b) for a, b in zip(held, now, strict=True))
        return same and self.versions == _versions(adjacency)


def _parts(adjacency: Adjacency) -> tuple[Graph | Tensor | float | None, ...]:
    """What makes the matrix; a constant diagonal by its number, as a layer makes a new tensor of it in every call."""
    diagonal = adjacency.diagonal
    own = float(diagonal) if diagonal is not None and diagonal.numel() == 1 else diagonal
    return adjacency.graph, *adjacency.matrix()[2:], own


def _versions(adjacency: Adjacency) -> tuple[int | None, ...]:
    tensors = [part for part in _parts(adjacency) if isinstance(part, Tensor)]
    return tuple(None if tensor.is_inference() else tensor._version for tensor in tensors)


class _Product(torch.autograd.Function):
    """`Adjacency.product` of a sum."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, value: Tensor | None, bias: Tensor | None, add: Tensor | None, adjacency: Adjacency,
        result: Callable[[], Tensor] | None,
    ) -> Tensor:  # fmt: skip
        _, needs_value, *_ = ctx.needs_input_grad
        ctx.adjacency = adjacency._but(value=None) if needs_value else adjacency
        ctx.bias_dtype, ctx.add_dtype = (None if tensor is None else tensor.dtype for tensor in (bias, add))
        ctx.save_for_backward(*((x, value) if needs_value else ()))
        return adjacency._by_op(x, bias, add) if result is None else result()

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        needs_x, needs_value, needs_bias, needs_add, _, _ = ctx.needs_input_grad
        adjacency = ctx.adjacency
        if needs_value:
            x, value = ctx.saved_tensors
            adjacency = adjacency._but(value=value)
        dx, dvalue = adjacency.gradients(dout, needs_x, needs_value, lambda: x)
        dbias = bias_gradient(dout).to(ctx.bias_dtype) if needs_bias else None
        return dx, dvalue, dbias, dout.to(ctx.add_dtype) if needs_add else None, None, None
