"""PyG's ready models, MLPs and sequences: the same modules in the same order, but each epilogue of norm, activation and
dropout run as one, together with the product behind it where the engine can.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn
from torch_geometric import nn as pyg

from ..aggregate.traced import graph_of, is_traced
from ..engine.choice import engine_of, note_call
from ..engine.epilogue import Deferred, act_of, ready
from ..engine.rules import LAYERS, falls_back, is_a, is_hooked, is_plain
from ..graph import Blocks
from ..state import state_of


class Stacked:
    """The forward of PyG's ready models: conv, norm, activation, dropout, again; then jumping knowledge."""

    def forward(
        self, x: Any, edge_index: Any, edge_weight: Tensor | None = None, edge_attr: Tensor | None = None,
        batch: Tensor | None = None, batch_size: int | None = None,
        num_sampled_nodes_per_hop: list[int] | None = None, num_sampled_edges_per_hop: list[int] | None = None,
    ) -> Tensor:  # fmt: skip
        model: Any = self
        note_call(state_of(model), Stacked.forward, (x, edge_index), {"batch": batch})
        if isinstance(edge_index, Blocks):
            _check_layers(model, edge_index)
        if num_sampled_nodes_per_hop is not None:
            return super().forward(  # type: ignore[misc]
                x, edge_index, edge_weight, edge_attr, batch, batch_size, num_sampled_nodes_per_hop,
                num_sampled_edges_per_hop,
            )  # fmt: skip
        if is_traced(edge_index) and edge_attr is None and _all_take_graphs(model.convs, x, edge_index):
            edge_index = graph_of(edge_index, (x.size(0), x.size(0)))  # built once in the traced program
        given: dict[str, Any] = {}
        if model.supports_edge_weight:
            given["edge_weight"] = edge_weight
        if model.supports_edge_attr:
            given["edge_attr"] = edge_attr
        grouped = (batch, batch_size) if model.supports_norm_batch else None
        engine, hidden, jumps = engine_of(model), [], hasattr(model, "jk")
        for k, (conv, norm) in enumerate(zip(model.convs, model.norms, strict=True)):
            x = conv(x if _takes_deferred(conv) else ready(x), edge_index, **given)
            if k == model.num_layers - 1 and model.jk_mode is None:
                break
            act = model.act
            if act is not None and model.act_first:
                x, act = engine.epilogue(x, act=act), None
            defer = not jumps and not (model.act is not None and model.act_first)
            x = engine.epilogue(x, norm, act, model.dropout, grouped, defer)
            if jumps:
                hidden.append(x)
        x = model.jk([_of_seeds(h, edge_index) for h in hidden]) if jumps else ready(x)
        return engine.leave_room_for_loss(model.lin(x) if hasattr(model, "lin") else x)


def _check_layers(model: Any, blocks: Blocks) -> None:
    if len(blocks) != model.num_layers:
        raise ValueError(
            f"`edge_index` must have one block for each of the model's {model.num_layers} layers (got {blocks}); give "
            f"the loader {model.num_layers} fanouts"
        )


def _of_seeds(hidden: Tensor, edge_index: Any) -> Tensor:
    """The rows of a mini-batch's seeds, which are the first; without blocks all rows."""
    return hidden[: edge_index.sizes[-1]] if isinstance(edge_index, Blocks) else hidden


def _all_take_graphs(convs: Iterable[nn.Module], x: Any, edge_index: Any) -> bool:
    return all(_takes_deferred(conv) and not falls_back(conv, x, edge_index) for conv in convs)


def _takes_deferred(conv: Any) -> bool:
    """A convolution of ours that nobody listens to: a hook would be shown the Deferred."""
    return type(conv).__module__.startswith(LAYERS) and not is_hooked(conv)


class GCN(Stacked, pyg.GCN):
    pass


class GraphSAGE(Stacked, pyg.GraphSAGE):
    pass


class GIN(Stacked, pyg.GIN):
    pass


class GAT(Stacked, pyg.GAT):
    pass


class MLP(pyg.MLP):
    def forward(
        self, x: Tensor, batch: Tensor | None = None, batch_size: int | None = None, return_emb: Any = None
    ) -> Any:
        return self.after_first(self.lins[0](x), batch, batch_size, return_emb)

    def after_first(
        self, x: Any, batch: Tensor | None = None, batch_size: int | None = None, return_emb: Any = None
    ) -> Any:
        """What follows the first product."""
        drops = self.dropout if self.training else [0.0] * len(self.dropout)
        grouped = (batch, batch_size) if self.supports_norm_batch else None
        engine, emb = engine_of(self), None
        for k, (lin, norm, p) in enumerate(zip(self.lins, self.norms, drops, strict=False)):  # a plain last has no norm
            x = x if k == 0 else _multiplied(lin, x)
            if self.act is not None and self.act_first:
                x = engine.epilogue(engine.epilogue(x, act=self.act), norm, None, p, grouped)
            elif return_emb is True:
                x = emb = engine.epilogue(x, norm, self.act, p, grouped)
            else:
                x = engine.epilogue(x, norm, self.act, p, grouped, defer=True)
        if self.plain_last:
            x = engine.dropout(x if len(self.lins) == 1 else _multiplied(self.lins[-1], x), drops[-1])
        x = ready(x)
        return (x, emb) if isinstance(return_emb, bool) else x


class Sequential(nn.Sequential):
    """One module after the other; a run of norm, activation, dropout (each may be missing) at once."""

    def forward(self, x: Any) -> Any:
        return self._through(list(self), x)

    def after_first(self, x: Any) -> Any:
        """What follows the first module."""
        return self._through(list(self)[1:], x)

    def _through(self, modules: list[nn.Module], x: Any) -> Any:
        engine = engine_of(self)
        while modules:
            kinds = _leading_epilogue(modules) if isinstance(x, Tensor) else []
            if len(kinds) > 1 or (kinds and engine.saves):
                parts: dict[str, Any] = dict(zip(kinds, modules, strict=False))
                modules = modules[len(kinds) :]
                x = engine.epilogue(x, **parts, defer=bool(modules) and is_plain(modules[0]))
            else:
                x, modules = _multiplied(modules[0], x), modules[1:]
        return x


def _multiplied(lin: Any, x: Any) -> Any:
    """lin(x), where x may be an epilogue that waits for it."""
    return engine_of(lin).multiply(lin, x) if isinstance(x, Deferred) else lin(x)


def leading_linear(module: nn.Module) -> Any:
    """The product that an MLP or sequence of ours begins with, if it may be computed apart from `after_first`."""
    if type(module) not in (MLP, Sequential) or is_hooked(module):
        return None
    first = next(iter(module.lins if isinstance(module, MLP) else module.children()), None)
    return first if first is not None and is_plain(first) else None


KINDS = ("norm", "act", "drop")
"""The parts of an epilogue, in their order."""


def _leading_epilogue(modules: Iterable[nn.Module]) -> list[str]:
    """The kinds of the leading modules, as long as they come in that order."""
    kinds: list[str] = []
    for module in modules:
        kind = _kind(module)
        if kind is None or (kinds and KINDS.index(kind) <= KINDS.index(kinds[-1])):
            break
        kinds.append(kind)
    return kinds


def _kind(module: nn.Module) -> str | None:
    if is_a(module, nn.BatchNorm1d, nn.LayerNorm, pyg.BatchNorm, pyg.LayerNorm):
        return "norm"
    if type(module) is not nn.Identity and act_of(module) is not None:
        return "act"
    return "drop" if is_a(module, nn.Dropout) else None
