"""What benchmarks/inference.py measures: each function runs in a process of its own."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import gossamer as gs
from gossamer import measure
from gossamer.comparison.variants import CSR, EDGE_INDEX, Variant, adjacency_of, prepare
from gossamer.training import models

BITS = {"int8": 8, "int4": 4}
FANOUTS = [15, 10]


def variants_of(case: str) -> list[str]:
    return [EDGE_INDEX, *([CSR] if case != "gat" else []), "float32", "tango", "int8", "int4"]


def best_of(run: Callable[[], Any], repeat: int) -> dict[str, Any]:
    """Best seconds of a call after a first one, the peak above the start, and the sum of a result as a check."""
    seconds = []
    with measure.peak() as peak:
        out = run()
        for _ in range(repeat):
            del out
            start = time.perf_counter()
            out = run()
            seconds.append(time.perf_counter() - start)
    return {"seconds": min(seconds), "peak_bytes": peak.bytes, "rows": len(out)}


def quiet(threads: int) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(threads)


# Whole graphs -------------------------------------------------------------------------------------------------------


def node_net(case: str, data: Any) -> nn.Module:
    torch.manual_seed(0)
    return models.build(case, data, layers=3, width=256, norm="batch", heads=4)


def write_model(model: nn.Module, name: str, folder: str, calibration: Any) -> dict[str, Any]:
    """The model in float32, and exported in eight and four bits; returns the bytes of each file."""
    base = Path(folder) / name
    save_file(model.state_dict(), f"{base}.float32")
    sizes, outputs = {"float32": Path(f"{base}.float32").stat().st_size}, None
    for variant, bits in BITS.items():
        gs.restore_(model)
        model.load_state_dict(load_file(f"{base}.float32"))
        with torch.no_grad():
            outputs = model.eval()(*calibration) if outputs is None else outputs
        report = gs.calibrate(model, calibration, bits=bits)
        gs.export(model, f"{base}.{variant}")
        sizes[variant] = Path(f"{base}.{variant}").stat().st_size
        sizes[f"agreement {variant}"] = report.agreement
    return sizes


def prepare_node_model(case: str, dataset: str, folder: str) -> dict[str, Any]:
    """Weights after a few epochs, so that norms and ranges are those of a trained model."""
    warnings.simplefilter("ignore")
    data = gs.datasets.load(dataset)
    model = node_net(case, data)
    gs.train(model, data, "float32", epochs=5, progress=False)
    gs.restore_(model)
    return write_model(model, case, folder, (data.x, data.edge_index))


def node_model(variant: str, case: str, dataset: str, folder: str, repeat: int, threads: int) -> dict[str, Any]:
    quiet(threads)
    data = gs.datasets.load(dataset)
    graph = gs.Graph.from_edge_index(data.edge_index, data.num_nodes)
    if variant in BITS:
        engine = gs.load(f"{Path(folder) / case}.{variant}")
        return best_of(lambda: engine(data.x, graph), repeat)
    baseline = Variant(variant, variant, gs.recipes.get(variant))
    adjacency = adjacency_of(baseline, case, data)
    edges: Any = graph if baseline.recipe is not None else data.edge_index if adjacency is None else adjacency
    model = node_net(case, data)
    prepare(baseline, model, one_graph=True)
    model.load_state_dict(load_file(f"{Path(folder) / case}.float32"))
    if baseline.recipe is not None:
        gs.lighten_(model, baseline.recipe)
    model.eval()
    with torch.inference_mode():
        return best_of(lambda: model(data.x, edges), repeat)


# Batches of graphs --------------------------------------------------------------------------------------------------


class GraphNet(nn.Module):
    def __init__(self, kind: str, columns: int) -> None:
        from torch_geometric import nn as pyg

        super().__init__()
        nets = {"gin": pyg.GIN, "gcn": pyg.GCN}
        self.gnn = nets[kind](columns, 128, 4, 128, norm="batch_norm")
        self.head = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 1))
        self.pool = pyg.global_mean_pool

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        return self.head(self.pool(self.gnn(x, edge_index), batch))


def molecules(count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Trees of 14 to 32 nodes with a few rings, both directions of every bond; 28 columns."""
    rng = torch.Generator().manual_seed(0)
    sizes = torch.randint(14, 33, (count,), generator=rng)
    batch = torch.arange(count).repeat_interleave(sizes)
    first = sizes.cumsum(0) - sizes
    place = torch.arange(len(batch)) - first[batch]
    parent = (place - 1 - torch.randint(0, 2, (len(batch),), generator=rng)).clamp(min=0)
    tree = place > 0
    ring = tree & (torch.rand(len(batch), generator=rng) < 0.12)
    far = (place - 5).clamp(min=0)
    nodes, start = torch.arange(len(batch)), first[batch]
    source = torch.cat([nodes[tree], nodes[ring]])
    target = torch.cat([(parent + start)[tree], (far + start)[ring]])
    x = torch.nn.functional.one_hot(torch.randint(0, 28, (len(batch),), generator=rng), 28).float()
    return x, torch.cat([torch.stack([source, target]), torch.stack([target, source])], 1), batch


def prepare_graph_models(names: Sequence[str], count: int, folder: str) -> dict[str, Any]:
    warnings.simplefilter("ignore")
    x, edge_index, batch = molecules(count)
    torch.save((x, edge_index, batch), Path(folder) / "graphs.pt")
    for name in names:
        torch.manual_seed(0)
        model = GraphNet(name, x.size(1))
        model.train()
        for _ in range(20):
            model(x[:10_000], *_first(edge_index, batch, 10_000))  # statistics of the norms
        write_model(model.eval(), name, folder, (x, edge_index, batch))
    return {"count": count, "nodes": len(batch), "edges": edge_index.size(1), "features": x.size(1)}


def _first(edge_index: Tensor, batch: Tensor, nodes: int) -> tuple[Tensor, Tensor]:
    inside = (edge_index < nodes).all(0)
    return edge_index[:, inside], batch[:nodes]


def graph_model(variant: str, case: str, folder: str, repeat: int, threads: int) -> dict[str, Any]:
    quiet(threads)
    x, edge_index, batch = torch.load(Path(folder) / "graphs.pt")
    count = int(batch[-1]) + 1
    if variant in BITS:
        engine = gs.load(f"{Path(folder) / case}.{variant}")
        return best_of(lambda: engine(x, edge_index.clone(), batch, count), repeat)
    model = GraphNet(case, x.size(1)).eval()
    model.load_state_dict(load_file(f"{Path(folder) / case}.float32"))
    if variant in gs.recipes:
        gs.lighten_(model, variant)
    with torch.inference_mode():
        return best_of(lambda: model(x, edge_index.clone(), batch), repeat)  # a new batch at every call


# One node -----------------------------------------------------------------------------------------------------------


def sampled_net(data: Any) -> nn.Module:
    from torch_geometric.nn import GraphSAGE

    torch.manual_seed(0)
    return GraphSAGE(data.num_features, 256, len(FANOUTS), data.num_classes, norm="batch_norm")


def prepare_sampled_model(dataset: str, folder: str) -> None:
    warnings.simplefilter("ignore")
    data = gs.datasets.load(dataset)
    model = sampled_net(data)
    gs.train(model, data, "float32", epochs=3, progress=False)
    gs.restore_(model)
    write_model(model, "sampled", folder, (data.x, data.edge_index))


def one_node(variant: str, dataset: str, folder: str, count: int, threads: int) -> dict[str, Any]:
    """Median seconds of an answer, and the 99th percentile."""
    quiet(threads)
    data = gs.datasets.load(dataset)
    graph = gs.Graph.from_edge_index(data.edge_index, data.num_nodes)
    sampler = gs.NeighborSampler(graph, FANOUTS, seed=0)
    if variant in BITS:
        engine = gs.load(f"{Path(folder) / 'sampled'}.{variant}")
    else:
        model = sampled_net(data).eval()
        model.load_state_dict(load_file(f"{Path(folder) / 'sampled'}.float32"))
        if variant in gs.recipes:
            gs.lighten_(model, variant)

    def answer(node: Tensor) -> Tensor:
        sample = sampler.sample(node).with_placeholders()
        x = gs.ops.gather_rows(data.x, sample.n_id)
        if variant in BITS:
            return engine(x, sample.blocks(graph))
        if variant in gs.recipes:
            return model(x, sample.blocks(graph))
        hops: dict[str, Any] = {}
        if variant == "PyG trimmed":
            hops = {"num_sampled_nodes_per_hop": sample.nodes_per_hop,
                    "num_sampled_edges_per_hop": sample.edges_per_hop}  # fmt: skip
        return model(x, sample.edge_index, **hops)[:1]

    nodes = torch.randperm(data.num_nodes, generator=torch.Generator().manual_seed(1))[: count + 20]
    seconds = []
    with torch.inference_mode():
        for node in nodes.split(1):
            start = time.perf_counter()
            answer(node)
            seconds.append(time.perf_counter() - start)
    ordered = sorted(seconds[20:])
    return {"seconds": ordered[len(ordered) // 2], "p99": ordered[int(0.99 * len(ordered))]}
