"""A lightened model against PyG: outputs, all gradients and buffers, with float64 as the truth; and graphs for it."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.nn import BatchNorm, GCN2Conv, LayerNorm

import gossamer as gs

from .compare import UNIT
from .graphs import random_graph
from .tensors import tensors


def _edges(*pairs: tuple[int, int]) -> Tensor:
    return torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2).t().contiguous()


NASTY = {
    "no edges": (_edges(), 5),
    "one node": (_edges(), 1),
    "one node, two loops": (_edges((0, 0), (0, 0)), 1),
    "isolated nodes": (_edges((9, 3), (3, 9), (4, 3)), 12),
    "loops": (_edges(*((k, k) for k in range(6)), (2, 2), (0, 5), (2, 2)), 6),
    "duplicate edges": (_edges((1, 0), (1, 0), (2, 0), (1, 0), (0, 2), (0, 2)), 3),
    "star": (_edges(*((k, 0) for k in range(60, 0, -1))), 61),
    "random": (torch.randint(0, 50, (2, 300), generator=torch.Generator().manual_seed(1)), 50),
}


def random_input() -> tuple[Tensor, Tensor]:
    """x [50, 12], which requires grad, and a random edge_index with loops and duplicates."""
    return torch.randn(50, 12).requires_grad_(), NASTY["random"][0].clone()


class Gcnii(nn.Module):
    """GCNII as users write it: all convolutions read the result of the first of two linear layers, listed first."""

    def __init__(
        self, in_channels, hidden_channels, num_layers, out_channels, dropout=0.0, norm=None, **options
    ) -> None:
        super().__init__()
        self.lins = nn.ModuleList([nn.Linear(in_channels, hidden_channels), nn.Linear(hidden_channels, out_channels)])
        convs = [GCN2Conv(hidden_channels, 0.2, 0.5, layer + 1, **options) for layer in range(num_layers)]
        self.convs, self.dropout = nn.ModuleList(convs), nn.Dropout(dropout)
        kind = {None: nn.Identity, "batch_norm": BatchNorm, "layer_norm": LayerNorm}[norm]
        self.norms = nn.ModuleList([kind(hidden_channels) for _ in convs])

    def forward(self, x, edge_index, edge_weight=None):
        x = x_0 = functional.relu(self.lins[0](self.dropout(x)))
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = functional.relu(norm(conv(self.dropout(x), x_0, edge_index, edge_weight)))
        return self.lins[1](self.dropout(x))


def _as(value, dtype):
    """A fresh leaf of this dtype, which requires grad if `value` does; also inside tuples and dicts."""
    if isinstance(value, (tuple, list)):
        return type(value)(_as(v, dtype) for v in value)
    if isinstance(value, dict):
        return {k: _as(v, dtype) for k, v in value.items()}
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return value
    return value.detach().clone().to(dtype).requires_grad_(value.requires_grad)


def _leaves(value):
    if isinstance(value, Tensor):
        return [value] if value.requires_grad else []
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, (tuple, list)) else ()
    return [leaf for part in parts for leaf in _leaves(part)]


def run(model, args, named, dtype=torch.float32):
    """The output, all gradients of <output, fixed noise> and the buffers, by name."""
    args, named = _as(args, dtype), _as(named, dtype)
    out = model(*args, **named)
    noise = torch.randn(out.shape, generator=torch.Generator().manual_seed(7), dtype=torch.float64).to(out.dtype)
    wanted = {f"grad {name}": p for name, p in model.named_parameters() if p.requires_grad}
    wanted |= {f"grad of input {k}": leaf for k, leaf in enumerate(_leaves((args, named)))}
    grads = [None] * len(wanted)
    if out.requires_grad:
        grads = torch.autograd.grad((out * noise).sum(), list(wanted.values()), allow_unused=True)
    buffers = {f"buffer {name}": b.clone() for name, b in model.named_buffers()}
    return {"output": out.detach()}, dict(zip(wanted, grads, strict=True)), buffers


def assert_close(ours, pyg, exact, roundings) -> None:
    """Our error is of the order of PyG's own.

    At most five times PyG's largest, plus some roundings of the tensor's largest element; and of the largest of its
    kind, because a gradient that is zero mathematically, as of a bias before a batch norm, is a sum that cancels.
    """
    assert list(ours) == list(pyg)
    top = max((e.abs().max().item() for e in exact.values() if e is not None and e.numel()), default=0.0)
    for name, truth in exact.items():
        mine, theirs = ours[name], pyg[name]
        if mine is None or theirs is None:  # one knows that nothing flows, the other computes zeros
            assert all(t is None or not t.any() for t in (mine, theirs)), name
            continue
        assert mine.shape == theirs.shape and mine.dtype == theirs.dtype, name
        if not mine.is_floating_point():
            assert torch.equal(mine, theirs), name
        elif mine.numel():
            off, usual = ((t.double() - truth.double()).abs().max().item() for t in (mine, theirs))
            allowed = 5 * usual + roundings * UNIT * (truth.abs().max().item() + top)
            assert off <= allowed, f"{name}: off by {off:.3g}, PyG by {usual:.3g}, allowed {allowed:.3g}"


def assert_same(model, *args, train=None, roundings=40, **named) -> gs.pyg.Report:
    """`model` lightened computes what PyG computes, in training and in evaluation (or in the one asked for)."""
    for mode in (True, False) if train is None else (train,):
        model.train(mode)
        plain, lighter, exact = (copy.deepcopy(model) for _ in range(3))
        report = gs.lighten_(lighter)
        assert list(lighter.state_dict()) == list(model.state_dict())
        results = (
            run(lighter, args, named),
            run(plain, args, named),
            run(exact.double(), args, named, torch.float64),
        )
        for ours, pyg, truth in zip(*results, strict=True):
            assert_close(ours, pyg, truth, roundings)
    return report


def attention_arguments(name, nodes, columns, edges):
    """What an attention layer is called with, by its name: pairs of nodes, sources only, features of edges."""
    graph = random_graph(nodes, nodes, edges)
    x, other, attr = tensors((nodes, columns), (nodes, columns), (graph.num_edges, 3), seed=2)
    edge_index = graph.edge_index
    if "two kinds" in name:
        return (x, other), edge_index
    if "sources only" in name:
        return (x, None), edge_index
    return (x, edge_index, attr) if "edges" in name else (x, edge_index)
