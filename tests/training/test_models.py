"""Models of the command line: PyG's own classes, with the sizes asked for, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch_geometric.data import Batch, Data
from torch_geometric.nn import models as pyg

import gossamer as gs
from gossamer.training.models import MODELS, UnknownModel, build

DIGITS = gs.datasets.load("digits")
EDGES = torch.tensor([[0, 1, 2], [1, 2, 0]])
GRAPHS = [Data(x=torch.rand(3, 5), edge_index=EDGES, y=torch.tensor([label])) for label in (0, 1, 2, 1)]
TARGETS = [Data(x=torch.rand(3, 5), edge_index=EDGES, y=torch.tensor([value])) for value in (0.5, 1.5)]


@pytest.mark.parametrize("norm", ["batch", "layer", "none"])
@pytest.mark.parametrize("name", MODELS)
def test_node_models_are_pygs_own(name: str, norm: str) -> None:
    model = build(name, DIGITS, layers=2, width=8, norm=norm, heads=2)
    assert type(model) is getattr(pyg, MODELS[name])
    assert len(model.convs) == 2
    assert model(DIGITS.x, DIGITS.edge_index).shape == (1797, 10)


@pytest.mark.parametrize("name", MODELS)
def test_graph_models_pool_and_end_in_a_linear_layer(name: str) -> None:
    for graphs, columns in ((GRAPHS, 3), (TARGETS, 1)):
        batch = Batch.from_data_list(graphs)
        model = build(name, graphs, width=8, layers=2)
        assert model(batch.x, batch.edge_index, batch.batch).shape == (len(graphs), columns)


def test_gin_adds_and_the_others_average() -> None:
    x, batch = torch.ones(4, 5), torch.zeros(4, dtype=torch.long)
    assert build("gin", GRAPHS).pool(x, batch)[0, 0] == 4
    assert build("gcn", GRAPHS).pool(x, batch)[0, 0] == 1


def test_layer_norm_is_per_node() -> None:
    model = build("gcn", DIGITS, norm="layer")
    assert model.norms[0].mode == "node"


def test_out_channels_can_be_told() -> None:
    assert build("sage", DIGITS, out_channels=3)(DIGITS.x, DIGITS.edge_index).shape == (1797, 3)


@pytest.mark.parametrize(("name", "nearest"), [("gatt", "gat"), ("GCN2", "gcn"), ("graphsage", "sage")])
def test_unknown_model_suggests_the_nearest(name: str, nearest: str) -> None:
    with pytest.raises(UnknownModel, match=f"no model '{name}'. Did you mean '{nearest}'.*Models: gcn, sage, gin, gat"):
        build(name, DIGITS)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"layers": 0}, r"`layers` must be a whole number of at least 1 \(got 0\)"),
        ({"width": 2.5}, r"`width` must be a whole number of at least 1 \(got 2.5\)"),
        ({"heads": 0}, r"`heads` must be"),
        ({"dropout": 1.0}, r"`dropout` must be at least 0 and below 1 \(got 1.0\)"),
        ({"dropout": -0.1}, r"`dropout`"),
        ({"dropout": float("nan")}, r"`dropout`"),
        ({"norm": "bach"}, r"`norm` must be one of batch, layer, none \(got 'bach'\)"),
        ({"name": "gat", "width": 10, "heads": 4}, r"multiple of `heads` for gat.*got 10 and 4.*nearest is 8"),
    ],
)
def test_sizes_out_of_range(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(**({"name": "gcn", "data": DIGITS} | settings))


def test_data_without_features_is_refused() -> None:
    with pytest.raises(ValueError, match="node features"):
        build("gcn", Data(edge_index=EDGES, y=torch.tensor([0, 1, 1]), num_nodes=3))
