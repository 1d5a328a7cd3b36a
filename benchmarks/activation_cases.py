"""What each departure from the published form of compressed activations gains, one small experiment each.

norms        x_hat is saved, not the input: squared error of a gradient over its squared norm
activations  the derivative is saved, not the input: how far the mean gradient is from the true one
sage         one tensor is saved, not the rows and their sums: bytes
epilogue     norm, activation, dropout and product share one saved tensor: bytes
dweight      weight gradients without the decoded rows: seconds and peak memory

and the model whose bytes are compared with what the published code logged.
"""

from __future__ import annotations

import copy
import time
import warnings
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from rich.progress import Progress
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.nn import GraphSAGE, SAGEConv

import gossamer as gs
from gossamer.engine.saved.policy import saving_of
from gossamer.engine.saved.source import source_of

TWO_BITS = gs.Blockwise(bits=2, block=256)
OURS, PUBLISHED = gs.Recipe(activations=TWO_BITS), gs.Recipe(activations=gs.Published(TWO_BITS))


def sage_bytes(recipe: gs.Recipe | None, scale: float, threads: int) -> dict[str, int]:
    """Kept bytes without the loss, and the peak of two training steps above what was there before the model."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(threads)
    data: Any = gs.datasets.load("arxiv-like", scale=scale)
    with gs.measure.peak() as peak:
        torch.manual_seed(0)
        model = GraphSAGE(data.num_features, 128, 3, data.num_classes, dropout=0.5, norm="batch_norm")
        if recipe is not None:
            gs.lighten_(model, recipe)
        for _ in range(2):
            functional.cross_entropy(model(data.x, data.edge_index), data.y).backward()
    kept = gs.measure.kept_bytes(lambda: model(data.x, data.edge_index), exclude=[model, data])
    return {"kept_bytes": kept, "peak_bytes": peak.bytes, "nodes": data.num_nodes, "edges": data.num_edges}


def improvements_part(threads: int, quick: bool, scale: float) -> dict[str, Any]:
    """A row each: what is compared, ours and the published form, and the unit."""
    cases = [norms, activations, shared_bytes, dweight]
    results: list[dict[str, Any]] = []
    with Progress() as progress:
        for case in progress.track(cases, description="improvements"):
            results += case(threads, quick)
    return {"results": results}


def row(what: str, measured: str, both: Iterable[float], unit: str) -> dict[str, Any]:
    published, ours = both
    return {"what": what, "measured": measured, "published": published, "ours": ours, "unit": unit}


def norms(threads: int, quick: bool) -> list[dict[str, Any]]:
    """Columns of log-normal scales (sigma 0.5) share blocks; their normalised forms are alike."""
    nodes, columns, draws = 4096, 128, 2 if quick else 20
    torch.manual_seed(0)
    x = torch.randn(nodes, columns) * torch.randn(columns).mul(0.5).exp()
    x_hat = (x - x.mean(0)) / x.std(0, correction=0)
    unrelated = torch.randn(nodes, columns)
    found = []
    for said, dout, wanted in (
        ("gradient of the norm's weight, unrelated signal", unrelated, 1),
        ("gradient of the norm's input, signal along it", unrelated + x_hat, 0),
    ):
        errors = [norm_error(recipe, x, dout, wanted, draws) for recipe in (PUBLISHED, OURS)]
        found.append(row("norms keep x-hat, not their input", said, errors, "error²/norm², 2 bits"))
    return found


def norm_error(recipe: gs.Recipe, x: Tensor, dout: Tensor, wanted: int, draws: int) -> float:
    """Mean squared error of one gradient of a batch norm, relative to its squared norm."""

    def grads(model: nn.Module) -> Tensor:
        x_in = x.clone().requires_grad_()
        return torch.autograd.grad(model(x_in), [x_in, model.weight], dout)[wanted]  # type: ignore[list-item]

    exact, few = nn.BatchNorm1d(x.size(1)), nn.BatchNorm1d(x.size(1))
    gs.lighten_(few, recipe)
    truth, total = grads(exact), 0.0
    for draw in range(draws):
        torch.manual_seed(draw)
        total += float((grads(few) - truth).square().sum())
    return total / draws / float(truth.square().sum())


def activations(threads: int, quick: bool) -> list[dict[str, Any]]:
    """The derivative at a decoded input is biased; the decoded derivative is not."""
    draws, found = 10 if quick else 300, []
    for name, act in (("ELU", nn.ELU()), ("GELU", nn.GELU())):
        torch.manual_seed(0)
        x, dout = torch.randn(64, 256), torch.randn(64, 256)
        truth = slope_times(act, x, dout)
        few = nn.Sequential(nn.Identity(), type(act)())
        gs.lighten_(few, gs.Recipe(activations=gs.Blockwise(bits=4)))
        ours, resolution = bias_of(partial(slope_times, few, x, dout), truth, draws)
        for bits in (2, 4):
            codec = gs.Blockwise(bits=bits)
            theirs, _ = bias_of(partial(slope_times, act, x, dout, codec), truth, draws)
            said = f"bias of {name}'s gradient, input at {bits} bits, derivative at 4"
            what, unit = "smooth activations keep their derivative", "of the gradient's norm"
            found.append(row(what, said, (theirs, ours), unit) | {"resolution": resolution})
    return found


def slope_times(act: nn.Module, x: Tensor, dout: Tensor, codec: gs.Codec | None = None) -> Tensor:
    """The gradient at x, or at what x decodes to."""
    x = x.clone() if codec is None else codec.decode(codec.encode(x, torch.initial_seed()))
    x.requires_grad_()
    return torch.autograd.grad(act(x), x, dout)[0]


def bias_of(draw: Callable[[], Tensor], truth: Tensor, draws: int) -> tuple[float, float]:
    """|mean - truth| / |truth|, without what chance alone would give, and the least that could be told from chance.

    m: the mean errors over the draws, of variances v: ||m||^2 - sum v, whose standard deviation is sqrt(2 sum v^2).
    """
    total, squares = torch.zeros_like(truth), torch.zeros_like(truth)
    for seed in range(draws):
        torch.manual_seed(seed)
        error = draw() - truth
        total, squares = total + error, squares + error.square()
    mean = total / draws
    by_chance = (squares / draws - mean.square()) / (draws - 1)
    bias = (mean.square() - by_chance).sum().clamp(min=0).sqrt()
    least = (2 * by_chance.square().sum()) ** 0.25
    return float(bias / truth.norm()), float(least / truth.norm())


def shared_bytes(threads: int, quick: bool) -> list[dict[str, Any]]:
    """One layer of 20,000 nodes and 128 columns, its input from a layer below."""
    nodes, columns = 1000 if quick else 20_000, 128
    torch.manual_seed(0)
    x, edge_index = torch.randn(nodes, columns, requires_grad=True), torch.randint(0, nodes, (2, 4 * nodes))
    epilogue = nn.Sequential(nn.BatchNorm1d(columns), nn.ReLU(), nn.Dropout(0.5), nn.Linear(columns, columns))
    found = []
    for what, said, layer, others in (
        ("SAGE keeps one tensor, not rows and sums", "SAGEConv", SAGEConv(columns, columns), (edge_index,)),
        ("an epilogue saves one tensor", "batch norm, ReLU, dropout, linear", epilogue, ()),
    ):
        kept = []
        for recipe in (PUBLISHED, OURS):
            model = copy.deepcopy(layer)
            gs.lighten_(model, recipe)
            count = gs.measure.kept_bytes(partial(model, x * 1, *others), exclude=[model, edge_index])
            kept.append(8 * count / x.numel())
        found.append(row(what, said, kept, "bits per element, codes of 2 bits"))
    return found


def dweight(threads: int, quick: bool) -> list[dict[str, Any]]:
    """Peak memory in a fresh process each, beside the codes and the gradient that came in."""
    nodes, found = 2000 if quick else 100_000, []
    for codec, what in (
        (gs.Projected(8, TWO_BITS), "(Gᵀ P̂) Sᵀ, not Gᵀ (P̂ Sᵀ): projected rows"),
        (TWO_BITS, "tile by tile, not after decoding all: rows in 2 bits"),
    ):
        runs = [
            gs.measure.in_fresh_process(weight_gradient, codec, decode, nodes, threads).value
            for decode in (True, False)
        ]
        title = "weight gradients without the decoded rows"
        found.append(row(title, what, (r["peak_bytes"] / 1e6 for r in runs), "MB of buffers"))
        found.append(row(title, what, (r["seconds"] * 1e3 for r in runs), "ms"))
    return found


def weight_gradient(codec: gs.Codec, decode: bool, nodes: int, threads: int) -> dict[str, float]:
    """Best of five seconds, and the peak of the first time: G^T x^ for x of 256 columns."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    x, dout = torch.randn(nodes, 256, requires_grad=True), torch.randn(nodes, 256)
    codes = codec.encode(x.detach(), 0)
    plan = saving_of(codec)
    assert plan is not None
    source = source_of(x, plan)
    dout[:300].t() @ dout[:300]  # what the first product sets up is no buffer

    def run() -> Any:
        return dout.t() @ codec.decode(codes) if decode else source.products(source.tensors, [dout])

    with gs.measure.peak() as peak:
        run()
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return {"seconds": min(seconds), "peak_bytes": peak.bytes}
