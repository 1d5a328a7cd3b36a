"""PyG's ready models, MLPs and sequences: the same modules in the same order, but each chain of norm, activation and
dropout run as one (chain.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn
from torch_geometric import nn as pyg

from ..activations.plan import leave_room_for_loss
from ..activations.plan import of as plan_of
from ..compute.box import drop_box
from ..compute.conv import products as int8_products
from ..compute.plan import of as int8_of
from . import chain, rules
from .dense import is_plain


class _Stacked:
    """The forward of PyG's ready models: conv, norm, activation, dropout, again; then jumping knowledge."""

    def forward(
        self, x: Any, edge_index: Any, edge_weight: Tensor | None = None, edge_attr: Tensor | None = None,
        batch: Tensor | None = None, batch_size: int | None = None,
        num_sampled_nodes_per_hop: list[int] | None = None, num_sampled_edges_per_hop: list[int] | None = None,
    ) -> Tensor:  # fmt: skip
        model: Any = self
        if num_sampled_nodes_per_hop is not None:
            return super().forward(  # type: ignore[misc]
                x, edge_index, edge_weight, edge_attr, batch, batch_size, num_sampled_nodes_per_hop,
                num_sampled_edges_per_hop,
            )  # fmt: skip
        given: dict[str, Any] = {}
        if model.supports_edge_weight:
            given["edge_weight"] = edge_weight
        if model.supports_edge_attr:
            given["edge_attr"] = edge_attr
        grouped = (batch, batch_size) if model.supports_norm_batch else None
        plan, how, hidden = plan_of(model), int8_of(model), []
        for k, (conv, norm) in enumerate(zip(model.convs, model.norms, strict=True)):
            x = _convolved(conv, x, edge_index, given)
            if k == model.num_layers - 1 and model.jk_mode is None:
                break
            if model.act is not None and model.act_first:
                x = chain.run(
                    chain.run(x, act=model.act, plan=plan, how=how), norm, None, model.dropout, grouped, plan, how
                )
            elif hasattr(model, "jk"):
                x = chain.run(x, norm, model.act, model.dropout, grouped, plan, how)
            else:
                x = chain.pend(x, norm, model.act, model.dropout, grouped, plan, how, sole=True)
            if hasattr(model, "jk"):
                hidden.append(x)
        x = x.run() if isinstance(x, chain.Pending) else x
        x = model.jk(hidden) if hasattr(model, "jk") else x
        return leave_room_for_loss(model.lin(x) if hasattr(model, "lin") else x, plan)


def _convolved(conv: Any, x: Any, edge_index: Any, given: dict[str, Any]) -> Any:
    """conv(x, ...), where x may be a chain that waits for conv's product."""
    x = x.run() if isinstance(x, chain.Pending) and (not hasattr(conv, "after_chain") or rules.hooked(conv)) else x
    if not isinstance(x, chain.Pending):
        out = conv(x, edge_index, **given)
        return drop_box(out) if rules.hooked(conv) else out
    return conv.after_chain(x, edge_index, **given)


def _multiplied(lin: Any, x: Any) -> Any:
    """lin(x), where x may be a chain that waits for it."""
    if not isinstance(x, chain.Pending):
        return lin(x)
    how = int8_of(lin) if is_plain(lin) else None
    if how is not None:
        return x.in_int8(how, lambda x, *entry: int8_products(x, [lin.weight], [lin.bias], *entry))[0]
    return x.products([lin.weight], [lin.bias])[0] if x.multiplies and is_plain(lin) else lin(x.run())


class GCN(_Stacked, pyg.GCN):
    pass


class GraphSAGE(_Stacked, pyg.GraphSAGE):
    pass


class GIN(_Stacked, pyg.GIN):
    pass


class GAT(_Stacked, pyg.GAT):
    pass


class MLP(pyg.MLP):
    def forward(
        self, x: Tensor, batch: Tensor | None = None, batch_size: int | None = None, return_emb: Any = None
    ) -> Any:
        out = self.after_first(self.lins[0](x), batch, batch_size, return_emb)
        return drop_box(out) if rules.hooked(self) else out

    def after_first(
        self, x: Any, batch: Tensor | None = None, batch_size: int | None = None, return_emb: Any = None
    ) -> Any:
        """What follows the first product."""
        drops = self.dropout if self.training else [0.0] * len(self.dropout)
        grouped = (batch, batch_size) if self.supports_norm_batch else None
        plan, how, emb = plan_of(self), int8_of(self), None
        for k, (lin, norm, p) in enumerate(zip(self.lins, self.norms, drops, strict=False)):  # a plain last has no norm
            x = x if k == 0 else _multiplied(lin, x)
            if self.act is not None and self.act_first:
                x = chain.run(x, act=self.act, plan=plan, how=how)
                x = chain.run(x, norm, None, p, grouped, plan, how)
            elif return_emb is True:
                x = emb = chain.run(x, norm, self.act, p, grouped, plan, how)
            else:
                x = chain.pend(x, norm, self.act, p, grouped, plan, how, sole=True)
        if self.plain_last:
            x = chain.dropout(x if len(self.lins) == 1 else _multiplied(self.lins[-1], x), drops[-1], plan)
        x = x.run() if isinstance(x, chain.Pending) else x
        return (x, emb) if isinstance(return_emb, bool) else x


class Sequential(nn.Sequential):
    """One module after the other; a run of norm, activation, dropout (each may be missing) at once."""

    def forward(self, x: Any) -> Any:
        out = self._through(list(self), x, own=False)
        return drop_box(out) if rules.hooked(self) else out

    def after_first(self, x: Any) -> Any:
        """What follows the first module."""
        return self._through(list(self)[1:], x, own=True)

    def _through(self, modules: list[nn.Module], x: Any, own: bool) -> Any:
        """`own`: nobody else has x."""
        plan = plan_of(self)
        while modules:
            run = _leading_chain(modules) if isinstance(x, Tensor) else []
            if len(run) > 1 or (run and plan is not None):
                slots: list[Any] = [None, None, 0.0]
                for module, kind in zip(modules, run, strict=False):
                    slots[kind] = module
                norm, act, drop = slots
                x, modules = chain.pend(x, norm, act, drop, None, plan, int8_of(self), own), modules[len(run) :]
                if isinstance(x, chain.Pending) and not (modules and is_plain(modules[0])):
                    x = x.run()
            else:
                own = is_plain(modules[0])  # others may give back what they were given
                x, modules = _multiplied(modules[0], x), modules[1:]
        return x


def leading_linear(module: nn.Module) -> Any:
    """The product that an MLP or sequence of ours begins with, if it may be computed apart from `after_first`."""
    if type(module) not in (MLP, Sequential) or rules.hooked(module):
        return None
    first = next(iter(module.lins if isinstance(module, MLP) else module.children()), None)
    return first if first is not None and is_plain(first) else None


def _leading_chain(modules: Iterable[nn.Module]) -> list[int]:
    """The kinds (0 norm, 1 activation, 2 dropout) of the leading modules, as long as they ascend."""
    kinds: list[int] = []
    for module in modules:
        kind = _kind(module)
        if kind is None or (kinds and kind <= kinds[-1]):
            break
        kinds.append(kind)
    return kinds


def _kind(module: nn.Module) -> int | None:
    if rules.plainly(module, nn.BatchNorm1d, nn.LayerNorm, pyg.BatchNorm, pyg.LayerNorm):
        return 0
    if type(module) is not nn.Identity and chain.act_of(module) is not None:
        return 1
    return 2 if rules.plainly(module, nn.Dropout) else None
