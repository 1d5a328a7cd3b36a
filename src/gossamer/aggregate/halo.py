"""The adjacency of a part: rows of other ranks are fetched before the sum, in forward and in backward.

    forward     x of own nodes  -- rows of remote sources -->       [own | halo]      out = A [own | halo]
    backward    dout of own     -- rows of remote destinations -->  [own | halo]      dx = A^T [own | halo]

What travels is always a node's own row, encoded once by its owner, never a partial sum. The edges of a row stand in the
order of the whole graph, so that with float32 messages a sum has the bits of one process. Where backward multiplies by
no fixed matrix (maxima, weights that require grad, attention), `Fetched` sends the gradients of halo rows back to their
owners, which add them in the order of ranks.

Rows of features are known on both sides from the beginning: a fact about the tensor x (`note_known`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor

from .. import ops
from ..graph import Graph
from ..graph.halo import Halo
from ..ops.csr import Sparse
from ..ops.quantize_rows import QRows
from ..ops.spmm import row_sums
from ..ops.spmm_int8 import spmm_int8_op
from ..state import facts
from . import wire
from .adjacency import Adjacency
from .messages import FLOATS, Messages
from .policy import Exact, NonzeroRows, Transposed

if TYPE_CHECKING:
    from ..codecs import CodedRows

KNOWN = "rows with those of the halo"


def note_known(x: Any, both: Any) -> None:
    """Let it be known that `both` are the rows x of own nodes, then those of the halo."""
    facts.note(x if isinstance(x, Tensor) else x.codes.tensors[0], KNOWN, both)


@final
@dataclass(frozen=True, eq=False)
class HaloAdjacency(Adjacency):
    messages: Messages = FLOATS

    @property
    def halo(self) -> Halo:
        assert self.graph.halo is not None
        return self.graph.halo

    def sending(self, messages: Messages | None) -> Adjacency:
        """With rows that travel like this; in evaluation they are exact."""
        messages = messages if messages is not None and torch.is_grad_enabled() else FLOATS
        return self if messages == self.messages else self._but(messages=messages)

    def transpose(self) -> Sparse:
        t, halo = self.graph.t(), self.graph.t().halo
        assert halo is not None
        into, out_of = self.dst_scale, self.src_scale
        far = None if into is None else facts.remember(into, ("spread", id(halo)), lambda: halo.spread(into))
        own = None if out_of is None else facts.remember(out_of, "own", lambda: out_of[: self.graph.num_dst].clone())
        return Sparse(t.rowptr, t.col, t.value, far, own)

    def _from_sources(self) -> Adjacency:
        """What backward multiplies, as a policy sees it: rows are destinations, own and remote, of own sources."""
        if isinstance(self.policy, (Exact, NonzeroRows)):
            return self
        t, matrix = self.graph.t().local, self.transpose()
        return Adjacency(t.t(), None, matrix.dst_scale, matrix.src_scale, self.diagonal, policy=self.policy)

    def known(self, x: Any) -> Any:
        """Rows of [own | halo], if those of x are known here; then nothing has to travel."""
        tensor = x if isinstance(x, Tensor) else x.codes.tensors[0] if hasattr(x, "codes") else None
        return None if tensor is None else facts.recall(tensor, KNOWN)

    # Float rows -------------------------------------------------------------------------------------------------

    def product(
        self, x: Tensor, bias: Tensor | None = None, add: Tensor | None = None,
        result: Callable[[], Tensor] | None = None,
    ) -> Tensor:  # fmt: skip
        wide = not self.is_linear or (self.value is not None and self.value.requires_grad)
        grown = self.diagonal is not None and self.diagonal.requires_grad
        if not wide or grown:
            return super().product(x, bias, add, result)
        self.graph.check_rows("x", x)
        return self.on_local().product(fetched(self.halo, x, self.messages), bias, add)

    def on_local(self) -> Adjacency:
        """The bipartite matrix [own | halo] -> own, for rows that have been fetched."""
        return Adjacency(
            self.graph.local, self.value, self.src_scale, self.dst_scale, self.diagonal, self.reduce, self.policy
        )

    def _by_op(self, x: Tensor, bias: Tensor | None, add: Tensor | None) -> Tensor:
        return super()._by_op(fetch(self.halo, x, self.messages), bias, add)

    def product_coded(self, x: CodedRows) -> Tensor:
        return self.product(x.decode())

    def back(self, dout: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "second derivatives are not available on a part of a graph; differentiate once, or use one process"
            )
        reverse = self.graph.t().halo
        assert reverse is not None
        both, own = fetch(reverse, dout.contiguous(), self.messages), self._spread(dout.dtype)
        return self.policy.multiply(self._from_sources(), both, lambda t: row_sums(t.matrix, both, own, t.keep))

    # Int8 rows --------------------------------------------------------------------------------------------------

    def _both(self, x: QRows, halo: Halo | None) -> QRows:
        assert halo is not None
        return wire.codes(halo, x, self.messages)()

    def product_of_rows(self, x: QRows, bias: Tensor | None = None, add: Tensor | None = None) -> Tensor:
        return super().product_of_rows(self._both(x, self.halo), bias, add)

    def product_rows(self, x: QRows, noise: int | None) -> QRows:
        return super().product_rows(self._both(x, self.halo), noise)

    def back_of_rows(self, g: QRows) -> Tensor:
        both, own = self._both(g, self.graph.t().halo), self._spread()
        return self.policy.multiply(
            self._from_sources(), both, lambda t: spmm_int8_op(t.matrix, both, None, own, None, t.keep)
        )

    def back_rows(self, g: QRows, factor: Tensor, noise: int | None) -> QRows:
        both, own = self._both(g, self.graph.t().halo), self._spread()

        def product(t: Transposed) -> QRows:
            return ops.spmm_rows(t.matrix, both, None, own, None, factor, noise, t.keep)

        return self.policy.multiply(self._from_sources(), both, product, factor)


def adjacency_on(graph: Graph, *parts: Any, **named: Any) -> Adjacency:
    """The Adjacency of a graph, or of a part."""
    kind = Adjacency if graph.halo is None else HaloAdjacency
    return kind(graph, *parts, **named)


def fetch(halo: Halo, x: Tensor, messages: Messages) -> Tensor:
    """Rows of [own | halo], without a gradient."""
    known = facts.recall(x, KNOWN)
    return known if known is not None else wire.floats(halo, x, messages)()


class Fetched(torch.autograd.Function):
    """Rows of [own | halo]; gradients of the halo's rows go back to their owners."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, halo: Halo, messages: Messages) -> Tensor:
        ctx.halo, ctx.messages = halo, messages
        return wire.floats(halo, x, messages)()

    @staticmethod
    def backward(ctx: Any, dboth: Tensor) -> tuple[Tensor, None, None]:
        return wire.back(ctx.halo, dboth.contiguous(), ctx.messages), None, None


def fetched(halo: Halo, x: Tensor, messages: Messages) -> Tensor:
    """Rows of [own | halo], differentiable."""
    if not (torch.is_grad_enabled() and x.requires_grad):
        return fetch(halo, x, messages)
    return Fetched.apply(x, halo, messages)
