"""Small models as PyG's users write them: what one step of training or evaluation is called with, and how it runs.

A case is a model and its steps; one epoch is a list of steps. Batches are put together before an epoch is timed, anew
each time as a loader does, so that what a lightened model derives of a batch is paid in every epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric import nn as pyg
from torch_geometric.data import HeteroData
from torch_geometric.loader import DataLoader
from torch_geometric.utils import negative_sampling

import gossamer as gs


class Case(NamedTuple):
    """`loss(model, step)` is trained; `predict(model, step)` is evaluated."""

    model: nn.Module
    steps: Callable[[], list[Any]]
    loss: Callable[[nn.Module, Any], Tensor]
    predict: Callable[[nn.Module, Any], Any]


# Node level -------------------------------------------------------------------------------------------------------


class HandGCN(nn.Module):
    def __init__(self, inputs: int, width: int, outputs: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = pyg.GCNConv(inputs, width), pyg.GCNConv(width, outputs)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = functional.dropout(x, p=0.5, training=self.training)
        x = self.conv1(x, edge_index).relu()
        x = functional.dropout(x, p=0.5, training=self.training)
        return self.conv2(x, edge_index)


class HandGAT(nn.Module):
    def __init__(self, inputs: int, width: int, outputs: int, heads: int = 8) -> None:
        super().__init__()
        self.conv1 = pyg.GATConv(inputs, width, heads, dropout=0.6)
        self.conv2 = pyg.GATConv(width * heads, outputs, heads=1, concat=False, dropout=0.6)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = functional.dropout(x, p=0.6, training=self.training)
        x = functional.elu(self.conv1(x, edge_index))
        x = functional.dropout(x, p=0.6, training=self.training)
        return self.conv2(x, edge_index)


class LittleConverted(nn.Module):
    """Of three convolutions none is known to us; around them there are linear layers, norms and ReLU."""

    def __init__(self, inputs: int, width: int, outputs: int) -> None:
        super().__init__()
        self.lin1, self.lin2 = nn.Linear(inputs, width), nn.Linear(width, outputs)
        self.convs = nn.ModuleList(pyg.TAGConv(width, width, K=2) for _ in range(3))
        self.norms = nn.ModuleList(nn.BatchNorm1d(width) for _ in range(3))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.lin1(x).relu()
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = x + functional.relu(norm(conv(x, edge_index)))
        return self.lin2(functional.dropout(x, 0.5, self.training))


def nodes_case(data: Any, model: nn.Module) -> Case:
    def loss(model: nn.Module, step: Any) -> Tensor:
        out = model(data.x, data.edge_index)
        return functional.cross_entropy(out[data.train_mask], data.y[data.train_mask])

    return Case(model, lambda: [None], loss, lambda model, step: model(data.x, data.edge_index))


def cora() -> Any:
    return gs.datasets.load("cora")


def karate() -> Any:
    """34 nodes, 156 edges, one-hot features: as small as examples get."""
    from torch_geometric.datasets import KarateClub

    data = KarateClub()[0]
    return data


# Links ------------------------------------------------------------------------------------------------------------


class LinkEncoder(nn.Module):
    def __init__(self, inputs: int, width: int, outputs: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = pyg.GCNConv(inputs, width), pyg.GCNConv(width, outputs)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.conv2(self.conv1(x, edge_index).relu(), edge_index)


def links_case(data: Any) -> Case:
    positive = data.edge_index

    def loss(model: nn.Module, step: Any) -> Tensor:
        z = model(data.x, data.edge_index)
        negative = negative_sampling(positive, data.num_nodes, positive.size(1))
        pairs = torch.cat([positive, negative], dim=1)
        logits = (z[pairs[0]] * z[pairs[1]]).sum(dim=-1)
        wanted = torch.cat([torch.ones(positive.size(1)), torch.zeros(negative.size(1))])
        return functional.binary_cross_entropy_with_logits(logits, wanted)

    return Case(LinkEncoder(data.num_features, 128, 64), lambda: [None], loss, lambda m, s: m(data.x, data.edge_index))


# Graph level ------------------------------------------------------------------------------------------------------


class GraphGIN(nn.Module):
    def __init__(self, inputs: int, width: int, outputs: int, layers: int = 5) -> None:
        super().__init__()
        self.gnn = pyg.GIN(inputs, width, layers, dropout=0.5, jk="cat")
        self.classifier = pyg.MLP([width, width, outputs], norm="batch_norm", dropout=0.5)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor, size: int) -> Tensor:
        return self.classifier(pyg.global_add_pool(self.gnn(x, edge_index), batch, size))


class GraphGCN(nn.Module):
    """Written by hand, with mean pooling: PyG's tutorial on graph classification."""

    def __init__(self, inputs: int, width: int, outputs: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = pyg.GCNConv(inputs, width), pyg.GCNConv(width, width)
        self.conv3, self.lin = pyg.GCNConv(width, width), nn.Linear(width, outputs)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor, size: int) -> Tensor:
        x = self.conv1(x, edge_index).relu()
        x = self.conv2(x, edge_index).relu()
        x = pyg.global_mean_pool(self.conv3(x, edge_index), batch, size)
        return self.lin(functional.dropout(x, p=0.5, training=self.training))


class TopK(nn.Module):
    """GraphConv and pooling by a learned score, three times; the readouts are added up."""

    def __init__(self, inputs: int, width: int, outputs: int) -> None:
        super().__init__()
        self.convs = nn.ModuleList(pyg.GraphConv(inputs if k == 0 else width, width) for k in range(3))
        self.pools = nn.ModuleList(pyg.TopKPooling(width, ratio=0.8) for _ in range(3))
        self.lins = nn.ModuleList([nn.Linear(2 * width, width), nn.Linear(width, width // 2)])
        self.head = nn.Linear(width // 2, outputs)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor, size: int) -> Tensor:
        total: Any = 0
        for conv, pool in zip(self.convs, self.pools, strict=True):
            x = functional.relu(conv(x, edge_index))
            x, edge_index, _, batch, _, _ = pool(x, edge_index, None, batch)
            total = total + torch.cat([pyg.global_max_pool(x, batch, size), pyg.global_mean_pool(x, batch, size)], 1)
        x = functional.dropout(functional.relu(self.lins[0](total)), p=0.5, training=self.training)
        return self.head(functional.relu(self.lins[1](x)))


class GraphGAT(nn.Module):
    def __init__(self, inputs: int, width: int, outputs: int) -> None:
        super().__init__()
        self.gnn = pyg.GAT(inputs, width, 3, heads=4, norm="batch_norm", dropout=0.2)
        self.lin = nn.Linear(width, outputs)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor, size: int) -> Tensor:
        return self.lin(pyg.global_mean_pool(self.gnn(x, edge_index), batch, size))


class GraphSAGEs(nn.Module):
    """Layer norm by graph, which looks at the batch, and attentional pooling: little of it is fused."""

    def __init__(self, inputs: int, width: int, outputs: int) -> None:
        super().__init__()
        self.gnn = pyg.GraphSAGE(inputs, width, 3, norm="layer_norm")
        self.pool = pyg.AttentionalAggregation(nn.Linear(width, 1))
        self.lin = nn.Linear(width, outputs)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor, size: int) -> Tensor:
        return self.lin(self.pool(self.gnn(x, edge_index, batch=batch), batch, dim_size=size))


def graphs_case(name: str, model: type[nn.Module], width: int, batch_size: int, most: int = 1200) -> Case:
    graphs = list(gs.datasets.load(name))[:most]
    outputs = int(max(int(g.y) for g in graphs)) + 1
    loader = DataLoader(graphs, batch_size=batch_size, shuffle=True)

    def inputs(batch: Any) -> tuple[Any, ...]:
        return batch.x, batch.edge_index, batch.batch, batch.num_graphs

    return Case(
        model(graphs[0].num_features, width, outputs), lambda: list(loader),
        lambda model, batch: functional.cross_entropy(model(*inputs(batch)), batch.y),
        lambda model, batch: model(*inputs(batch)),
    )  # fmt: skip


# Several types of nodes -------------------------------------------------------------------------------------------


def hetero_data(authors: int = 4000, papers: int = 6000, edges: int = 20000) -> HeteroData:
    rng = torch.Generator().manual_seed(0)
    data = HeteroData()
    data["author"].x = torch.randn(authors, 64, generator=rng)
    data["paper"].x = torch.randn(papers, 64, generator=rng)
    data["paper"].y = torch.randint(0, 4, (papers,), generator=rng)
    ends = [torch.randint(0, n, (edges,), generator=rng) for n in (authors, papers, papers, papers)]
    data["author", "writes", "paper"].edge_index = torch.stack(ends[:2])
    data["paper", "written_by", "author"].edge_index = torch.stack(ends[:2][::-1])
    data["paper", "cites", "paper"].edge_index = torch.stack(ends[2:])
    return data


class Hetero(nn.Module):
    """HeteroConv of GraphSAGE and GAT layers, as in PyG's example of heterogeneous convolutions."""

    def __init__(self, data: HeteroData, width: int, outputs: int) -> None:
        super().__init__()
        self.convs = nn.ModuleList()
        for k in range(2):
            inputs = 64 if k == 0 else width
            kinds = {
                ("paper", "cites", "paper"): pyg.GCNConv(inputs, width),
                ("author", "writes", "paper"): pyg.SAGEConv((inputs, inputs), width),
                ("paper", "written_by", "author"): pyg.GATConv((inputs, inputs), width, add_self_loops=False),
            }
            self.convs.append(pyg.HeteroConv(kinds, aggr="sum"))
        self.lin = nn.Linear(width, outputs)

    def forward(self, x: dict[str, Tensor], edges: dict[Any, Tensor]) -> Tensor:
        for conv in self.convs:
            x = {name: rows.relu() for name, rows in conv(x, edges).items()}
        return self.lin(x["paper"])


class PlainSAGE(nn.Module):
    def __init__(self, width: int, outputs: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = pyg.SAGEConv((-1, -1), width), pyg.SAGEConv((-1, -1), outputs)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.conv2(self.conv1(x, edge_index).relu(), edge_index)


def hetero_case(converted: bool) -> Case:
    data = hetero_data()
    if converted:
        model: nn.Module = pyg.to_hetero(PlainSAGE(64, 4), data.metadata(), aggr="sum")
        with torch.no_grad():
            model(data.x_dict, data.edge_index_dict)  # sizes that were left open
    else:
        model = Hetero(data, 64, 4)

    def predict(model: nn.Module, step: Any) -> Tensor:
        out = model(data.x_dict, data.edge_index_dict)
        return out["paper"] if isinstance(out, dict) else out

    return Case(
        model, lambda: [None], lambda model, step: functional.cross_entropy(predict(model, step), data["paper"].y),
        predict,
    )  # fmt: skip


def cases() -> dict[str, Callable[[], Case]]:
    """Names, as users would tell what they run, to what makes the case."""

    def on_cora(model: Callable[[int, int], nn.Module]) -> Callable[[], Case]:
        def make() -> Case:
            data = cora()
            return nodes_case(data, model(data.num_features, data.num_classes))

        return make

    def on_karate() -> Case:
        data = karate()
        return nodes_case(data, HandGCN(data.num_features, 16, 4))

    return {
        "tiny: GCN on 34 nodes": on_karate,
        "node: GCN 2x16, cora": on_cora(lambda i, o: HandGCN(i, 16, o)),
        "node: GAT 2x(8x8), cora": on_cora(lambda i, o: HandGAT(i, 8, o)),
        "node: GraphSAGE 2x64 ready, cora": on_cora(lambda i, o: pyg.GraphSAGE(i, 64, 2, o, dropout=0.5)),
        "node: TAGConv 3x64, not converted, cora": on_cora(lambda i, o: LittleConverted(i, 64, o)),
        "link: GCN 128-64, cora": lambda: links_case(cora()),
        "graph: GIN 5x32, mutag": lambda: graphs_case("tu_mutag", GraphGIN, 32, 128),
        "graph: GIN 5x64, enzymes": lambda: graphs_case("tu_enzymes", GraphGIN, 64, 64),
        "graph: GCN 3x64, mutag": lambda: graphs_case("tu_mutag", GraphGCN, 64, 64),
        "graph: GAT 3x64, proteins": lambda: graphs_case("tu_proteins", GraphGAT, 64, 60),
        "graph: GraphSAGE 3x64, layer norm by graph, proteins": lambda: graphs_case("tu_proteins", GraphSAGEs, 64, 60),
        "pool: TopK 3x128, proteins": lambda: graphs_case("tu_proteins", TopK, 128, 60),
        "pool: TopK 3x128, dd": lambda: graphs_case("tu_dd", TopK, 128, 16, most=200),
        "hetero: HeteroConv 2x64": lambda: hetero_case(converted=False),
        "hetero: to_hetero(GraphSAGE)": lambda: hetero_case(converted=True),
    }


def train(case: Case, model: nn.Module, optimizer: torch.optim.Optimizer, steps: Iterable[Any]) -> None:
    model.train()
    for step in steps:
        optimizer.zero_grad()
        case.loss(model, step).backward()
        optimizer.step()


@torch.no_grad()
def evaluate(case: Case, model: nn.Module, steps: Iterable[Any]) -> None:
    model.eval()
    for step in steps:
        case.predict(model, step)
