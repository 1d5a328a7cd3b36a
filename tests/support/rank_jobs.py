"""What the ranks of a test do, and the same in one process."""

from __future__ import annotations

import os
import signal
import time
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional as F

import gossamer as gs
from gossamer.quiet_pyg import importing_pyg

with importing_pyg():
    from torch_geometric import nn as pyg

from gossamer.aggregate import Messages
from gossamer.aggregate.halo import fetch, fetched
from gossamer.distributed import Part, RankPart, cut, start, sum_gradients
from gossamer.engine import rules
from gossamer.ranks import Ranks

NODES, FEATURES, CLASSES, SIZES = 300, 24, 5, (1, 2, 4)


class Data(NamedTuple):
    graph: gs.Graph
    x: Tensor
    y: Tensor
    train: Tensor
    part: Tensor


def data(kind: str) -> Data:
    """With loops, repeated edges, isolated nodes, and all training nodes outside of the last part."""
    rng = torch.Generator().manual_seed(0)
    src, dst = torch.randint(0, NODES - 3, (2, 2000), generator=rng)
    ends = torch.stack([src, dst])
    if kind == "symmetric":
        ends = torch.unique(torch.cat([ends, ends.flip(0)], dim=1), dim=1)
    weight = torch.rand(ends.size(1), generator=rng) + 0.1 if kind == "weighted" else None
    graph = gs.Graph.from_edge_index(ends, NODES, weight)
    x, y = torch.randn(NODES, FEATURES, generator=rng), torch.randint(0, CLASSES, (NODES,), generator=rng)
    part = torch.randint(0, 4, (NODES,), generator=rng)
    return Data(graph, x, y, (torch.rand(NODES, generator=rng) < 0.5) & (part != 3), part)


def parts_of(d: Data, size: int) -> list[Part]:
    return cut(d.graph, d.part % size, d.x, d.y, d.train, d.train, d.train, num_parts=size)


MODELS: dict[str, Any] = {
    "gcn": lambda **n: pyg.GCN(FEATURES, 32, 3, CLASSES, **n),
    "narrow gcn": lambda **n: pyg.GCN(FEATURES, 8, 3, CLASSES, **n),  # multiplies first
    "gcn2": lambda **n: _Gcn2(),
    "sage": lambda **n: pyg.GraphSAGE(FEATURES, 32, 3, CLASSES, **n),
    "sage, max": lambda **n: pyg.GraphSAGE(FEATURES, 32, 2, CLASSES, aggr="max", **n),
    "graph conv": lambda **n: _GraphConvs(),
    "gin": lambda **n: pyg.GIN(FEATURES, 32, 2, 16, train_eps=True, **n),
    "gat": lambda **n: pyg.GAT(FEATURES, 32, 2, CLASSES, heads=4, **n),
    "gatv2": lambda **n: pyg.GAT(FEATURES, 32, 2, CLASSES, heads=4, v2=True, **n),
}


class _GraphConvs(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = pyg.GraphConv(FEATURES, 16), pyg.GraphConv(16, CLASSES, aggr="mean")

    def forward(self, x: Tensor, edge_index: Any) -> Tensor:
        return self.second(F.relu(self.first(x, edge_index)), edge_index)


class _Gcn2(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = torch.nn.Linear(FEATURES, 16), torch.nn.Linear(16, CLASSES)
        self.conv = pyg.GCN2Conv(16, alpha=0.1, theta=0.5, layer=1)

    def forward(self, x: Tensor, edge_index: Any) -> Tensor:
        x = x_0 = F.relu(self.into(x))
        return self.out(self.conv(x, x_0, edge_index))


class Case(NamedTuple):
    model: str
    kind: str = "symmetric"
    recipe: gs.Recipe = gs.recipes["float32"]
    norm: str | None = None

    def built(self) -> Any:
        torch.manual_seed(1)
        model = MODELS[self.model](norm=self.norm)
        gs.lighten_(model, self.recipe)
        return model


class Step(NamedTuple):
    ids: Tensor
    out: Tensor
    loss: float
    grads: list[Tensor]
    buffers: list[Tensor]


def one_step(case: Case, x: Tensor, graph: gs.Graph, y: Tensor, mask: Tensor, ids: Tensor, part: Any = None) -> Step:
    model = case.built()
    torch.manual_seed(2)
    with rules.forced(saved=1, int8=1, messages=0):
        out = model(x, graph)
        total = F.cross_entropy(out[mask], y[mask], reduction="sum")
        loss = total / int(mask.sum()) if part is None else part.mean(total)
        loss.backward()
    if part is not None:
        sum_gradients(model, part.ranks)
    grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
    return Step(ids, out.detach(), float(loss.detach()), grads, list(model.buffers()))


def alone(case: Case) -> Step:
    d = data(case.kind)
    return one_step(case, d.x, d.graph, d.y, d.train, torch.arange(NODES))


def groups() -> dict[int, Ranks]:
    """This process among 1, 2 and 4 ranks."""
    everyone = start(seconds=120)
    pair = dist.new_group([0, 1])
    made = {everyone.size: everyone}
    if everyone.rank < 2:
        made[2] = Ranks(everyone.rank, 2, pair)
    if everyone.rank == 0:
        made[1] = Ranks(0, 1)
    return made


def job(cases: list[Case], folder: str) -> dict[str, Any]:
    made, steps = groups(), {}
    for size, ranks in made.items():
        for kind in dict.fromkeys(case.kind for case in cases):
            part = RankPart(parts_of(data(kind), size)[ranks.rank], ranks)
            for case in cases:
                if case.kind == kind and (size > 1 or case.recipe == gs.Recipe()):
                    given = (part.x, part.graph, part.y, part.train, part.node_ids, part)
                    steps[size, case] = one_step(case, *given)
    ranks = made[4]
    part = RankPart(parts_of(data("symmetric"), 4)[ranks.rank], ranks)
    found = {"steps": steps, "messages": messages(part), "refused": refused(part), "bytes": traffic(part)}
    return found | {"trained": trained(part, folder)}


def messages(part: RankPart) -> dict[int, Any]:
    """By bits: largest error of a row over its range, the mean error of many, gradients, bytes."""
    halo, found = part.graph.halo, {}
    assert halo is not None
    x = torch.randn(part.part.num_own, 32, generator=torch.Generator().manual_seed(part.ranks.rank))
    exact = fetch(halo, x, Messages())
    probe = torch.randn(exact.shape, generator=torch.Generator().manual_seed(9))
    leaf = x.clone().requires_grad_()
    (right,) = torch.autograd.grad((fetched(halo, leaf, Messages()) * probe).sum(), leaf)
    for bits in (8, 4, 2):
        before, errors, gradients = part.ranks.bytes_sent, [], []
        for seed in range(60):
            torch.manual_seed(seed)
            errors.append(fetch(halo, x, Messages(bits)) - exact)
            (got,) = torch.autograd.grad((fetched(halo, leaf, Messages(bits)) * probe).sum(), leaf)
            gradients.append(got - right)
        spread = exact.amax(1) - exact.amin(1)
        mean, noise = torch.stack(errors).mean(0), torch.stack(errors).std()
        sent = part.ranks.bytes_sent - before
        found[bits] = {
            "own": float(torch.stack(errors)[:, : len(x)].abs().max()),
            "largest": float((torch.stack(errors).abs().amax(2) / spread).max()),
            "mean": float(mean.norm() / (noise * mean[len(x) :].numel() ** 0.5 + 1e-12)),
            "gradients": float(torch.stack(gradients).mean(0).norm() / right.norm()),
            "bytes": sent / 60,
            "rows": sum(0 if p is None else len(p) for p in halo.plan.send) + halo.plan.num_halo,
        }
    return found


def refused(part: RankPart) -> dict[str, str]:
    """Messages of errors; every rank gets one."""
    rank, found = part.ranks.rank, {}

    def attempt(name: str, call: Any) -> None:
        try:
            call()
            found[name] = "no error"
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"

    differs = Case("gcn", recipe=gs.recipes["tango" if rank == 2 else "float32"]).built()
    attempt("recipe", lambda: differs(part.x, part.graph))
    other = Case("gcn").built()
    if rank == 1:
        other.convs[0].bias.data += 1
    attempt("weights", lambda: sum_gradients(other, part.ranks))
    attempt("rows", lambda: Case("gcn").built()(part.x[1:], part.graph))
    attempt("edge weights", lambda: Case("gcn").built()(part.x, part.graph, torch.ones(part.graph.num_edges)))
    qat = Case("gcn", recipe=gs.recipes["degree-quant-int8"]).built()
    attempt("quantisers", lambda: qat(part.x, part.graph))
    auto = Case("gcn", recipe=gs.recipes["tango-auto"]).built()
    attempt("precision", lambda: auto(part.x, part.graph))
    attempt("norm", lambda: Case("gcn", norm="LayerNorm").built()(part.x, part.graph))
    attempt("pair norm", lambda: sum_gradients(Case("gcn", norm="PairNorm").built(), part.ranks))
    attempt("pickle", lambda: torch.save(part.graph, os.devnull))
    return found


def traffic(part: RankPart) -> dict[str, int]:
    """Bytes that this rank sends."""
    found = {}

    def count(name: str, call: Any) -> None:
        before = part.ranks.bytes_sent
        call()
        found[name] = part.ranks.bytes_sent - before

    for name in ("gcn", "narrow gcn", "sage", "gat"):
        layer = Case(name).built().convs[0]
        layer(part.x, part.graph)  # factors of GCN travel once
        count(f"first layer of {name}", lambda layer=layer: layer(part.x, part.graph).sum().backward())
    model = Case("gcn", recipe=gs.Recipe(messages=gs.Messages(2))).built()
    torch.manual_seed(0)
    with torch.no_grad():
        exact = Case("gcn").built().eval()(part.x, part.graph)
        found["evaluation differs"] = int(not torch.equal(model.eval()(part.x, part.graph), exact))
    return found


def trained(part: RankPart, folder: str) -> dict[str, Any]:
    """gs.train on all ranks; and stopped, then resumed."""

    def run(epochs: int, out: str | None = None, resume: bool = False) -> Any:
        torch.manual_seed(0)
        model = pyg.GCN(FEATURES, 16, 2, CLASSES, dropout=0.5, norm="batch_norm")
        recipe = gs.Recipe(compute=gs.Int8(), messages=gs.Messages(4))
        with rules.forced(saved=1, int8=1, messages=0):
            result = gs.train(
                model, part, recipe, epochs=epochs, out=out, resume=resume, checkpoint_seconds=0, progress=False
            )  # fmt: skip
        return (
            result.history["loss"],
            result.history["val"],
            torch.cat([p.detach().flatten() for p in model.parameters()]),
        )

    whole = run(5)
    run(3, f"{folder}/run")
    again = run(5, f"{folder}/run", resume=True)
    try:
        run(5, f"{folder}/run")
        error = "no error"
    except Exception as caught:
        error = f"{type(caught).__name__}: {caught}"
    return {"whole": whole, "resumed": again, "taken": error}


def die() -> tuple[str, float]:
    """Rank 3 is killed; the others' error, and how long it took."""
    ranks = start()
    if ranks.rank == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    begun = time.monotonic()
    try:
        for _ in range(1000):
            ranks.gather(torch.zeros(4))
    except Exception as error:
        return f"{type(error).__name__}: {error}", time.monotonic() - begun
    return "no error", time.monotonic() - begun
