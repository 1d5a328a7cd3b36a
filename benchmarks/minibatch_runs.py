"""What benchmarks/minibatch.py measures: steps of a model on sampled batches, and whole runs that have a process of
their own.
"""

from __future__ import annotations

import resource
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

import gossamer as gs
from gossamer.datasets import stream, stream_open
from gossamer.datasets.block_model import BlockModel

FANOUTS, BATCH, WIDTH = [10, 10, 10], 1024, 256


class Trainee:
    """A model with its optimizer, and how it takes a batch."""

    def __init__(self, features: int, classes: int, recipe: str | None, trim: bool = False) -> None:
        from torch_geometric.nn import GraphSAGE

        torch.manual_seed(0)
        self.model = GraphSAGE(features, WIDTH, len(FANOUTS), classes, dropout=0.5, norm="batch_norm")
        self.recipe, self.trim = recipe, trim
        if recipe is not None:
            gs.lighten_(self.model, recipe)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)

    def forward(self, batch: Any) -> torch.Tensor:
        if self.recipe is not None:
            return self.model(batch.x, batch.blocks)
        hops: dict[str, Any] = {}
        if self.trim:
            hops["num_sampled_nodes_per_hop"] = batch.num_sampled_nodes
            hops["num_sampled_edges_per_hop"] = batch.num_sampled_edges
        return self.model(batch.x, batch.edge_index, **hops)

    def step(self, batch: Any) -> tuple[float, float]:
        """Seconds of forward and of backward with the optimizer's step."""
        start = time.perf_counter()
        self.optimizer.zero_grad()
        count = batch.batch_size
        loss = functional.cross_entropy(self.forward(batch)[:count], batch.y[:count])
        middle = time.perf_counter()
        loss.backward()
        self.optimizer.step()
        return middle - start, time.perf_counter() - middle


def loader_of(graph: gs.Graph, x: Any, y: Any, seeds: torch.Tensor, trainee: Trainee, **more: Any) -> Any:
    blocks = trainee.recipe is not None
    return gs.NeighborLoader(graph, x, FANOUTS, seeds, BATCH, y=y, shuffle=True, blocks=blocks, **more)


def epoch(loader: Any, trainee: Trainee) -> float:
    start = time.perf_counter()
    trainee.model.train()
    for batch in loader:
        trainee.step(batch)
    return time.perf_counter() - start


def model_of(nodes: int) -> BlockModel:
    """Ten edges into a node, 128 features; one node in a hundred is a seed."""
    return BlockModel(nodes, 5 * nodes, 128, 64, split=(0.01, 0.01, 0.01))


def generate(folder: Path, nodes: int) -> None:
    stream.write_stream(folder, model_of(nodes), progress=False)


def compress(folder: Path) -> dict[str, Any]:
    store = gs.compress(folder / "x.npy", gs.Scalar(bits=1), folder / "x.gsf", progress=False)
    return {"bytes": store.nbytes, "ratio": store.ratio}


def train(folder: Path, seeds: int, features: str, recipe: str, warm: int = 0, most: int | None = None) -> dict:
    """One epoch; of features behind a memory map, or of codes. Returns the seconds and the loss at its end."""
    torch.set_num_threads(2)
    warnings.simplefilter("ignore")
    data = stream_open.open_stream(folder)
    graph = gs.Graph(data.rowptr, data.col, data.num_nodes)  # both directions are stored: its own transpose
    x = gs.FeatureStore.open(folder / "x.gsf") if features == "codes" else data.x
    chosen = torch.from_numpy(np.random.default_rng(0).choice(data.num_nodes, seeds, replace=False))
    trainee = Trainee(data.x.size(1), 64, recipe)
    start, steps, losses = time.perf_counter(), 0, []
    for batch in loader_of(graph, x, data.y, chosen, trainee, prefetch=2 if most is None else 0):
        if steps == warm:
            start = time.perf_counter()
        trainee.step(batch)
        steps += 1
        if steps % 20 == 0:
            with torch.no_grad():
                out = trainee.forward(batch)[: batch.batch_size]
                losses.append(float(functional.cross_entropy(out, batch.y[: batch.batch_size])))
        if most is not None and steps == warm + most:
            break
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"seconds": seconds, "batches": steps - warm, "peak_bytes": peak, "losses": losses}
