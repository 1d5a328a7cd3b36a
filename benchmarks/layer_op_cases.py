"""The ops that layers are made of, forward and backward, against the torch and PyG functions they replace."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from op_cases import Bench, Case, Run
from torch import nn
from torch_geometric.utils import softmax

from gossamer import ops
from gossamer.ops.activation import ACTIVATIONS
from gossamer.ops.norm_act import Over


def both(b: Bench, forward: Run, *leaves: torch.Tensor) -> Run:
    """forward() and its backward with a gradient of ones' size."""

    def run() -> None:
        for leaf in leaves:
            leaf.grad = None
        out = forward()
        out.backward(b.y if out.shape == b.y.shape else torch.ones_like(out))

    return run


def _epilogue(b: Bench, over: Over, norm: nn.Module, name: str) -> Case:
    x = b.x.clone().requires_grad_()
    settings = (int(over), 1e-5, ACTIVATIONS.index("relu"), 0.0, 0.5, 1)

    def ours() -> torch.Tensor:
        return ops.norm_act(x, norm.weight, norm.bias, None, None, *settings)[0]

    def modules() -> torch.Tensor:
        return F.dropout(F.relu(norm(x)), 0.5)

    passes = 8 if over == Over.COLUMNS else 5  # of x: read and write forward, (x, dout) read and dx written backward
    return Case(name, both(b, ours, x), {"torch's three": both(b, modules, x)}, passes * b.n * b.row_bytes)


def batch_norm_epilogue(b: Bench) -> Case:
    return _epilogue(b, Over.COLUMNS, nn.BatchNorm1d(b.d), "batch norm, relu, dropout, forward + backward")


def layer_norm_epilogue(b: Bench) -> Case:
    return _epilogue(b, Over.ROWS, nn.LayerNorm(b.d), "layer norm, relu, dropout, forward + backward")


def linear(b: Bench) -> Case:
    x, layer = b.x.clone().requires_grad_(), nn.Linear(b.d, b.d)

    def ours() -> torch.Tensor:
        return ops.linear(x, layer.weight, layer.bias)

    baselines = {"F.linear": both(b, lambda: layer(x), x, *layer.parameters())}
    run = both(b, ours, x, *layer.parameters())
    return Case(f"linear {b.d}x{b.d}, forward + backward", run, baselines, 6 * b.n * b.row_bytes)


def gat_attention(b: Bench) -> Case:
    heads = 4
    a_src, a_dst = (torch.randn(b.n, heads, requires_grad=True) for _ in range(2))
    b.graph.t()

    def pyg() -> torch.Tensor:
        return softmax(F.leaky_relu(a_src[b.src] + a_dst[b.dst], 0.2), b.dst, num_nodes=b.n)

    run = both(b, lambda: ops.gat_attention(b.graph, a_src, a_dst), a_src, a_dst)
    moved = b.graph.num_edges * (5 * 4 * heads + 8)
    return Case("GAT attention, 4 heads, forward + backward", run, {"PyG": both(b, pyg, a_src, a_dst)}, moved)


def gatv2_logits(b: Bench) -> Case:
    heads = 4
    x_src, x_dst = (torch.randn(b.n, b.d, requires_grad=True) for _ in range(2))
    att = torch.randn(heads, b.d // heads, requires_grad=True)
    leaves = (x_src, x_dst, att)
    b.graph.t()

    def pyg() -> torch.Tensor:
        rows = F.leaky_relu(x_src[b.src] + x_dst[b.dst], 0.2).view(-1, *att.shape)
        return (rows * att).sum(-1)

    run = both(b, lambda: ops.gatv2_logits(b.graph, *leaves), *leaves)
    return Case(
        "GATv2 logits, 4 heads, forward + backward", run, {"PyG gather": both(b, pyg, *leaves)}, 3 * b.gathered(4)
    )


def head_mean(b: Bench) -> Case:
    heads = 4
    x, value = torch.randn(b.n, b.d, requires_grad=True), torch.rand(b.graph.num_edges, heads, requires_grad=True)
    b.graph.t()

    def apart() -> torch.Tensor:
        return ops.spmm(b.graph, x.view(b.n, heads, -1), value).mean(1)

    run = both(b, lambda: ops.head_mean_spmm(b.graph, x, value), x, value)
    moved = b.gathered(4) + b.gathered(4) // heads
    return Case("mean of 4 heads, forward + backward", run, {"spmm and mean": both(b, apart, x, value)}, moved)


CASES: list[Callable[[Bench], Case]] = [
    batch_norm_epilogue,
    layer_norm_epilogue,
    linear,
    gat_attention,
    gatv2_logits,
    head_mean,
]
