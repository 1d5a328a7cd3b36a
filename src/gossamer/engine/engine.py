"""HOW a layer computes, and what it saves: the interface between layers and arithmetic.

    multiply   lin(x) + b + add                         product, of a plain weight
    convolve   A (x W^T) + b + x_dst W_r^T              multiply or aggregate first is decided inside
    transform  network(A x + add)                       a product that it begins with may run within the sum
    attend     attention layers (attention.py)
    epilogue   dropout(act(norm(x)))                    a tensor, or a `Deferred` that the next product runs

An engine is a recipe, lowered for one module (choice.py). `x` may be a `Deferred` wherever a layer passes what the
layer before it returned. The public methods below are the same for all engines; what differs is abstract.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from .. import memory
from ..aggregate import Adjacency
from ..aggregate.halo import HaloAdjacency, fetched
from ..aggregate.messages import FLOATS, Messages
from ..codecs import CodedRows
from ..graph.halo import Halo
from ..state import state_of
from . import epilogue as epilogues
from . import rules
from .attention import Attention, Gat, Projected
from .epilogue import Batch, Deferred, EpilogueSpec, ready
from .virtual import Pending


class Engine(ABC):
    # What layers call -------------------------------------------------------------------------------------------

    def multiply(self, lin: Any, x: Any, bias: Tensor | None = None, add: Tensor | None = None) -> Tensor:
        """lin(x) + bias + add, in one product where the module is only a weight and a bias."""
        plain = rules.is_plain(lin)
        if plain and isinstance(x, Deferred) and bias is None and add is None:
            found = self.of(lin).products_of(x, [lin.weight], [lin.bias])
            if found is not None:
                return found[0]
        x = ready(x)
        if not plain:
            out = lin(x)
            out = out if bias is None else out + bias
            return out if add is None else out + add
        total = lin.bias if bias is None else bias if lin.bias is None else lin.bias + bias
        return self.of(lin).product(x, lin.weight, total, add)

    def convolve(
        self, x: Any, adjacency: Adjacency, lin: Any, bias: Tensor | None, root: Any = None, x_dst: Any = None,
        inside: bool = False,
    ) -> Tensor:  # fmt: skip
        """A (x W^T) + bias + root(x_dst), W the weight of `lin`.

        `bias` is the layer's, added after the sum. A module `lin` that is more than a weight is called as the formula
        says: `inside` the sum, A lin(x) + bias, or after it, lin(A x), its own bias being `bias`. Of an x_dst with more
        rows than there are destinations, as of a block, the first are taken.
        """
        adjacency, x = entered(adjacency, x)
        roots = [] if root is None else [root]
        plain = rules.is_plain(lin) and adjacency.is_linear and not (inside and lin.bias is not None)
        if isinstance(x, CodedRows):
            if plain and self.sums_codes(x, lin.weight.size(0), adjacency):
                return self._convolve_coded(x, adjacency, lin, bias, root, x_dst)
            x, x_dst = _ready(x, x_dst)
        if root is not None:
            x, x_dst = _first_rows(x, x_dst, adjacency.graph.num_dst)
        if plain:
            if isinstance(x, Deferred) and all(map(rules.is_plain, roots)):
                out = self.convolve_deferred(x, adjacency, lin, bias, root)
                if out is not None:
                    return out
            x, x_dst = _ready(x, x_dst)
            return self.convolve_plain(x, adjacency, lin, bias, root, x_dst)
        x, x_dst = _ready(x, x_dst)
        if inside:
            return self.aggregate(adjacency, self.multiply(lin, x), bias)
        return self.multiply(lin, self.aggregate(adjacency, x), None, self.rooted(root, x_dst))

    def _convolve_coded(
        self, x: CodedRows, adjacency: Adjacency, lin: Any, bias: Tensor | None, root: Any, x_dst: Any
    ) -> Tensor:
        """(A x) W^T + bias + root(x_dst); decoded are the rows of destinations alone, for their root."""
        rooted = None
        if root is not None and x_dst is not None:
            num_dst = adjacency.graph.num_dst
            rooted = self.rooted(root, x_dst.first(num_dst).decode() if isinstance(x_dst, CodedRows) else x_dst)
        return self.of(lin).product(adjacency.product_coded(x), lin.weight, bias, rooted)

    def rooted(self, root: Any, x_dst: Tensor | None) -> Tensor | None:
        """root(x_dst), None without either."""
        return None if root is None or x_dst is None else self.multiply(root, x_dst)

    def transform(self, network: Any, first: Any, adjacency: Adjacency, x: Any, add: Tensor | None = None) -> Tensor:
        """network(A x + add), the whole of a layer whose sum goes through a network (GIN).

        `first`: the product that the network begins with, if it may be computed together with the sum.
        """
        if isinstance(x, Deferred):
            x.waits = None  # the network reads the sum
        adjacency, x = entered(adjacency, x)
        if first is None or add is not None:
            return network(self.aggregate(adjacency, ready(x), None, add))
        return network.after_first(rules.as_product(self.of(first).convolve(x, adjacency, first, first.bias)))

    def attend(
        self, x: Any, x_dst: Any, adjacency: Adjacency, attention: Attention, shows_weights: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """The layer's result, and the weights of edges after dropout if they are to be shown."""
        num_dst, (adjacency, x) = adjacency.graph.num_dst, entered(adjacency, x)
        if x_dst is not x or len(attention.lins) > 1:  # else one projection serves both ends
            x, x_dst = _first_rows(x, x_dst, num_dst)
        rows = self.project_deferred(x, attention) if isinstance(x, Deferred) else None
        if rows is None:
            x, x_dst = _ready(x, x_dst)
            drop = attention.draw_dropout()  # before any noise, so that recipes share masks
            rows = self.project(x, x_dst, attention, shows_weights)
            x, x_dst = _first_rows(x, x_dst, num_dst)
        else:
            x_dst, drop = None, attention.draw_dropout()
        rows = rows.to_first(num_dst)
        if adjacency.graph.halo is not None:
            adjacency, rows = self._fetched(adjacency, rows, attention, shows_weights)
        out, weights = self.weigh(adjacency, rows, attention, drop, shows_weights)
        return self._finish(attention, out, x_dst, rows.residual), weights

    def _fetched(
        self, adjacency: Adjacency, rows: Projected, a: Attention, shows_weights: bool
    ) -> tuple[Adjacency, Projected]:
        """Rows of other ranks fetched, and the matrix that they are sources of.

        What goes into a softmax travels in float32: GAT's terms beside its rows, and GATv2's rows.
        """
        if shows_weights:
            raise ValueError(
                "`return_attention_weights` must be False on a part of a graph, whose edges have no list of their own; "
                "use one process on the whole graph"
            )
        halo, messages, terms = adjacency.graph.halo, getattr(adjacency, "messages", FLOATS), rows.terms
        assert halo is not None
        if isinstance(a, Gat):
            a_src, a_dst = self.node_terms(rows, a) if terms is None else terms
            assert a_src is not None
            terms = (fetched(halo, a_src, FLOATS), a_dst)
        else:
            messages = FLOATS
        h_src = self.fetched_rows(halo, rows.h_src, messages)
        return Adjacency(adjacency.graph.local), rows._replace(h_src=h_src, terms=terms)

    def node_terms(self, rows: Projected, a: Gat) -> tuple[Tensor, Tensor | None]:
        """GAT's <h, att> of sources and destinations."""
        return self.floats.node_terms(rows, a)

    def fetched_rows(self, halo: Halo, h: Tensor, messages: Messages) -> Tensor:
        """Rows that attention weighs, of [own | halo]."""
        return fetched(halo, h, messages)

    def _finish(self, a: Attention, out: Tensor, x_dst: Tensor | None, residual: Tensor | None) -> Tensor:
        """What becomes of the heads; bias and residual, as far as they have not been added."""
        averaged = a.averages and out.size(1) == a.width
        if not a.concat and not averaged:
            out = out.view(-1, a.heads, a.width).mean(dim=1)
        if residual is not None:
            out = out + residual
        elif a.res is not None and x_dst is not None:
            out = self.multiply(a.res, x_dst, None, out)
        added = a.early_bias(averaged) is not None
        return out if a.bias is None or added else out + a.bias

    def epilogue(
        self, x: Any, norm: nn.Module | None = None, act: nn.Module | None = None, drop: nn.Dropout | float = 0.0,
        batch: Batch = None, defer: bool = False,
    ) -> Any:  # fmt: skip
        """drop(act(norm(x))); a Deferred if the engine can run it with the next product and `defer` allows that."""
        return epilogues.run(self, x, norm, act, drop, batch, defer)

    def leave_room_for_loss(self, out: Any) -> Any:
        """`out`, a model's result, after the pool made room for the loss, which takes torch's own memory.

        The logarithm of a softmax, its gradient and that of the result are each as large as the result.
        """
        if self.saves and isinstance(out, Tensor) and out.requires_grad and rules.saves_little(out):
            memory.leave_room(3 * out.nbytes)
        return out

    def of(self, module: Any) -> Engine:
        """The engine of a part of the module: a recipe may make exceptions by name."""
        state = state_of(module)
        return self.floats if state is None or torch.compiler.is_compiling() else state.engine

    # What engines differ in -------------------------------------------------------------------------------------

    defers: bool = False
    """Whether an epilogue may run with the product behind it, so that it gains by waiting for it."""
    saves: bool = False
    """Whether activations are saved in few bits."""
    leaves_small_to_pyg: bool = True
    """Whether a convolution with few messages runs PyG's own forward."""

    @property
    def floats(self) -> Engine:
        """The engine of everything that is no product: itself, or what an int8 engine stands on."""
        return self

    @abstractmethod
    def product(self, x: Tensor, weight: Tensor, bias: Tensor | None, add: Tensor | None = None) -> Tensor:
        """x W^T + b + add."""

    def products_of(
        self, x: Deferred, weights: Sequence[Tensor], biases: Sequence[Tensor | None]
    ) -> tuple[Tensor, ...] | None:
        """x W_k^T + b_k for each k; None, with the epilogue still to run, where that cannot be."""
        return x.products(list(weights), list(biases)) if x.multiplies else None

    @abstractmethod
    def aggregate(
        self, adjacency: Adjacency, x: Tensor, bias: Tensor | None = None, add: Tensor | None = None
    ) -> Tensor:
        """A x + b + add."""

    def aggregates_first(self, x: Tensor, out_channels: int, adjacency: Adjacency) -> bool:
        """(A x) W^T in place of A (x W^T)."""
        return rules.aggregates_first(x, x.size(1), out_channels, adjacency.graph)

    def sums_codes(self, x: CodedRows, out_channels: int, adjacency: Adjacency) -> bool:
        """Whether A x is made straight from the codes of x."""
        return rules.sums_codes(x, out_channels, adjacency)

    @abstractmethod
    def convolve_plain(
        self, x: Tensor, adjacency: Adjacency, lin: Any, bias: Tensor | None, root: Any, x_dst: Tensor | None
    ) -> Tensor:
        """`convolve` for a plain `lin` and a linear adjacency."""

    def convolve_deferred(
        self, x: Deferred, adjacency: Adjacency, lin: Any, bias: Tensor | None, root: Any
    ) -> Tensor | None:
        """The same behind an epilogue, of which x_dst is the result, too; None where that cannot be."""
        roots = [] if root is None else [root]
        weights, biases = [lin.weight, *(r.weight for r in roots)], [None, *(r.bias for r in roots)]
        made = self.products_of(x, weights, biases)
        return None if made is None else self._summed(x, adjacency, made[0], bias, made[1] if roots else None)

    def _summed(self, x: Deferred, adjacency: Adjacency, h: Tensor, bias: Tensor | None, add: Tensor | None) -> Tensor:
        """A h + bias + add, which waits if x asks for that: while x can be reached, its input is not free."""
        if x.waits is None or not adjacency.is_fixed or adjacency.graph.halo is not None:
            return self.aggregate(adjacency, h, bias, add)
        shape, given = torch.Size((adjacency.graph.num_dst, h.size(1))), (h.detach(), bias, add)
        later = partial(Pending, shape, lambda: adjacency.product(*given))
        return x.waits(adjacency.product(h, bias, add, later))

    @abstractmethod
    def project(self, x: Tensor, x_dst: Tensor | None, a: Attention, shows_weights: bool) -> Projected:
        """The rows that attention weighs."""

    @abstractmethod
    def project_deferred(self, x: Deferred, a: Attention) -> Projected | None:
        """The same behind an epilogue; None, with the epilogue still to run, where that cannot be."""

    @abstractmethod
    def weigh(
        self, adjacency: Adjacency, rows: Projected, a: Attention, drop: Any, shows_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        """The weighted sum of rows, averaged over the heads if it can be, and the weights if they are to be shown."""

    @abstractmethod
    def takes(self, x: Tensor, alone: bool = False) -> bool:
        """Whether a fused epilogue on x is worth its call, or an activation `alone`."""

    @abstractmethod
    def run(self, x: Tensor, epilogue: EpilogueSpec) -> Tensor:
        """An epilogue as one op."""

    @abstractmethod
    def defer(self, x: Tensor, epilogue: EpilogueSpec) -> Deferred | None:
        """An epilogue, to be run with the product behind it; None if that gains nothing."""

    @abstractmethod
    def dropout(self, x: Tensor, p: float) -> Tensor:
        """Dropout alone."""


def entered(adjacency: Adjacency, x: Any) -> tuple[Adjacency, Any]:
    """Of a part whose remote rows of x are known here: all of them, and the matrix that they are sources of."""
    both = adjacency.known(x) if isinstance(adjacency, HaloAdjacency) else None
    return (adjacency, x) if both is None or not isinstance(adjacency, HaloAdjacency) else (adjacency.on_local(), both)


def _first_rows(x: Any, x_dst: Any, count: int) -> tuple[Any, Any]:
    """Both, as tensors if x_dst is cut to so many rows."""
    if x_dst is None or x_dst.size(0) == count:
        return x, x_dst
    x, x_dst = _ready(x, x_dst)
    return x, x_dst[:count]


def _ready(x: Any, x_dst: Any) -> tuple[Any, Any]:
    """Both as tensors; one if they are the same Deferred."""
    made = ready(x)
    return made, made if x_dst is x else ready(x_dst)
