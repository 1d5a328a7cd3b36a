"""Accuracy of recipes where one of 40 normal columns of the features is replaced by one of another scale.

    python benchmarks/outlier_columns.py [--columns price,year] [--models gcn,sage] [--recipes float32,tango]
                                         [--layers 3] [--norms batch,none] [--forms ready,by hand] [--seeds 3]
                                         [--epochs 150] [--threads 1] [--out FILE]

A planted graph of 2,000 nodes and four classes; layers of 64 columns, Adam with learning rate 0.01 and a cosine
schedule; test accuracy in percent at the best validation. By hand: dropout of the input, F.relu and F.dropout between
the layers. Every recipe is forced to take these small tensors as it takes large ones. The same seed gives every recipe
the same graph, weights and dropout masks. Results that FILE has already are kept.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import warnings
from pathlib import Path
from typing import Any

import torch
from harness import RESULTS, machine, write_json
from rich.progress import Progress
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric import nn as pyg

import gossamer as gs
from gossamer.engine import rules

NODES, NEIGHBOURS, FEATURES, CLASSES, WIDTH = 2000, 3, 40, 4, 64
EVERY = 5
"""Epochs between two evaluations."""

COLUMNS = {
    "normal": lambda rng: torch.randn(NODES, generator=rng),
    "price": lambda rng: 1000 * torch.rand(NODES, generator=rng),
    "year": lambda rng: torch.full((NODES,), 2020.0),
    "node id": lambda rng: torch.arange(NODES, dtype=torch.float32),
    "N(300, 5)": lambda rng: 300 + 5 * torch.randn(NODES, generator=rng),
    "1e6": lambda rng: torch.full((NODES,), 1e6),
    "U(0, 1e6)": lambda rng: 1e6 * torch.rand(NODES, generator=rng),
}
"""What takes the place of the last column."""


def planted(column: str, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Features, edges and classes: neither features nor edges alone tell the class well."""
    rng = torch.Generator().manual_seed(seed)
    y = torch.randint(0, CLASSES, (NODES,), generator=rng)
    src = torch.randint(0, NODES, (4 * NEIGHBOURS * NODES,), generator=rng)
    dst = torch.randint(0, NODES, (4 * NEIGHBOURS * NODES,), generator=rng)
    kept = (y[src] == y[dst]) | (torch.rand(len(src), generator=rng) < 0.1)
    edge_index = torch.stack([src, dst])[:, kept]
    x = torch.randn(NODES, FEATURES, generator=rng) + torch.randn(CLASSES, FEATURES, generator=rng)[y] / 4
    x[:, -1] = COLUMNS[column](rng)
    return x, torch.cat([edge_index, edge_index.flip(0)], dim=1), y


class ByHand(nn.Module):
    def __init__(self, kind: str, layers: int, norm: str) -> None:
        super().__init__()
        sizes = list(itertools.pairwise([FEATURES, *[WIDTH] * (layers - 1), CLASSES]))
        self.convs = nn.ModuleList(conv(kind, a, b) for a, b in sizes)
        self.norms = nn.ModuleList(nn.BatchNorm1d(b) if norm == "batch" else nn.Identity() for _, b in sizes[:-1])

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = functional.dropout(x, 0.2, self.training)
        for layer, norm in zip(self.convs, self.norms, strict=False):
            x = functional.dropout(functional.relu(norm(layer(x, edge_index))), 0.2, self.training)
        return self.convs[-1](x, edge_index)


def conv(kind: str, a: int, b: int) -> nn.Module:
    if kind == "gin":
        return pyg.GINConv(nn.Sequential(nn.Linear(a, WIDTH), nn.ReLU(), nn.Linear(WIDTH, b)))
    if kind in ("gat", "gatv2"):
        heads = 4 if b > CLASSES else 1
        return {"gat": pyg.GATConv, "gatv2": pyg.GATv2Conv}[kind](a, b // heads, heads)
    return {"gcn": pyg.GCNConv, "sage": pyg.SAGEConv, "graphconv": pyg.GraphConv}[kind](a, b)


def ready(kind: str, layers: int, norm: str) -> nn.Module:
    made = {"gcn": pyg.GCN, "sage": pyg.GraphSAGE, "gin": pyg.GIN, "gat": pyg.GAT, "gatv2": pyg.GAT}
    more: dict[str, Any] = {"heads": 4, "v2": kind == "gatv2"} if kind in ("gat", "gatv2") else {}
    chosen = "batch_norm" if norm == "batch" else None
    return made[kind](FEATURES, WIDTH, layers, CLASSES, dropout=0.2, norm=chosen, **more)


def one_run(job: dict[str, Any], seed: int, epochs: int) -> float:
    """Test accuracy in percent at the best validation accuracy."""
    x, edge_index, y = planted(job["column"], seed)
    train, val, test = (torch.arange(NODES) % 4 < 2), torch.arange(NODES) % 4 == 2, torch.arange(NODES) % 4 == 3
    torch.manual_seed(seed)
    make = ready if job["form"] == "ready" else ByHand
    model = make(job["model"], job["layers"], job["norm"])
    gs.lighten_(model, job["recipe"])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    best = (-1.0, 0.0)
    for epoch in range(1, epochs + 1):
        model.train()
        optimizer.zero_grad()
        functional.cross_entropy(model(x, edge_index)[train], y[train]).backward()
        optimizer.step()
        schedule.step()
        if epoch % EVERY == 0:
            model.eval()
            with torch.no_grad():
                right = (model(x, edge_index).argmax(1) == y).float()
            best = max(best, (right[val].mean().item(), right[test].mean().item()), key=lambda pair: pair[0])
    return 100 * best[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--columns", default="normal,price,year,node id,N(300; 5),1e6")
    parser.add_argument("--models", default="gcn,sage,gin,gat")
    parser.add_argument("--recipes", default="float32,tango,tango-auto,feather,exact-int2")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--layers", default="3")
    parser.add_argument("--norms", default="batch,none")
    parser.add_argument("--forms", default="ready")
    parser.add_argument("--epochs", type=int, default=150)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=RESULTS / "outlier-columns.json")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(args.threads)
    found = json.loads(args.out.read_text())["results"] if args.out.exists() else []
    places = ("form", "layers", "norm", "model", "column", "recipe")
    done = {tuple(row[place] for place in places) for row in found}
    given = (args.forms, args.layers, args.norms, args.models, args.columns.replace(";", ","), args.recipes)
    asked = [text.split(",") for text in given]
    asked[4] = [name for name in COLUMNS if name in asked[4] or name.replace(", ", ",") in given[4].replace(", ", ",")]
    with Progress(disable=None) as progress, rules.forced(fused=1, dropout=1, saved=1, int8=1, messages=1):
        jobs = [dict(zip(places, job, strict=True)) for job in itertools.product(*asked)]
        task = progress.add_task("columns", total=len(jobs) * args.seeds)
        for job in jobs:
            job["layers"] = int(job["layers"])
            if tuple(job.values()) in done:
                progress.advance(task, args.seeds)
                continue
            tests = []
            for seed in range(args.seeds):
                tests.append(one_run(job, seed, args.epochs))
                progress.advance(task)
            found.append(job | {"epochs": args.epochs, "mean": statistics.fmean(tests), "tests": tests})
            write_json(args.out, {"machine": machine() | {"threads": args.threads}, "results": found})
            print(" ".join(f"{value!s:10}" for value in job.values()), f"{found[-1]['mean']:.1f}", flush=True)


if __name__ == "__main__":
    main()
