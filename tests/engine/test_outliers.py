"""Outlier columns of the input: which are found, that they harm nobody, and that other input gives the same bits."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch_geometric import nn as pyg

import gossamer as gs
from gossamer.engine import outliers
from gossamer.engine.int8.precision import nsr as measured
from gossamer.ops.quantize_rows import quantize_rows
from support.compare import nsr
from support.paths import nothing_too_small
from support.planted import CLASSES, NODES, WIDTH, planted

COLUMN = 5
KINDS = {
    "price": lambda n: 1000 * torch.rand(n),
    "year": lambda n: torch.full((n,), 2020.0),
    "node id": lambda n: torch.arange(n, dtype=torch.float32),
    "N(300, 5)": lambda n: 300 + 5 * torch.randn(n),
    "1e6": lambda n: torch.full((n,), 1e6),
    "rarely": lambda n: 1e4 * (torch.rand(n) < 0.05),
}
RECIPES = ["tango", "feather", "tango-rsc", "exact-int2", "exact-int4", "exact-int8"]


@pytest.fixture(autouse=True)
def _small():
    torch.manual_seed(0)
    with nothing_too_small():
        yield


def with_column(kind: str, rows: int = NODES, columns: int = WIDTH) -> torch.Tensor:
    x = torch.randn(rows, columns)
    x[:, COLUMN] = KINDS[kind](rows)
    return x


def found(x: torch.Tensor) -> list[int]:
    columns = outliers.outlier_columns(x)
    return [] if columns is None else columns.tolist()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [100, 20_000])
def test_a_column_of_large_numbers_is_found(kind: str, rows: int) -> None:
    x = with_column(kind, rows)
    assert found(x) == [COLUMN] and found(x.half().float() if kind != "1e6" else -x) == [COLUMN]
    assert found(F.dropout(x, 0.5)) == [COLUMN], "zeros do not count"


def test_several_columns_are_found() -> None:
    x = with_column("price")
    x[:, 9], x[:, 31] = 2020, -1e5 * torch.rand(NODES)
    assert found(x) == [COLUMN, 9, 31]


def words(rows: int = 400, columns: int = 64) -> torch.Tensor:
    """Word counts by a power law: some words in every second row, most in one of a hundred."""
    return torch.poisson(torch.rand(rows, 1) * 2 / torch.arange(1, columns + 1))


ORDINARY = {
    "normal": lambda: torch.randn(NODES, WIDTH),
    "binary words": lambda: (words() > 0).float(),
    "counted words": words,
    "shares of words": lambda: words() / words().sum(1, keepdim=True).clamp(min=1),
    "one-hot": lambda: F.one_hot(torch.randint(0, WIDTH, (NODES,)), WIDTH).float(),
    "scales up to eight": lambda: torch.randn(NODES, WIDTH) * torch.linspace(1, 8, WIDTH),
    "rows of other scale": lambda: torch.randn(NODES, WIDTH) * torch.rand(NODES, 1) * 1e4,
    "large numbers anywhere": lambda: torch.randn(NODES, WIDTH) + 1e4 * (torch.rand(NODES, WIDTH) < 0.05),
    "pixels": lambda: torch.rand(NODES, WIDTH) * 255,
    "zeros": lambda: torch.zeros(NODES, WIDTH),
    "ones": lambda: torch.ones(NODES, WIDTH),
    "one column": lambda: torch.rand(NODES, 1) * 1e4,
    "no rows": lambda: torch.randn(0, WIDTH),
    "no columns": lambda: torch.randn(NODES, 0),
    "NaN and infinity": lambda: torch.full((NODES, 4), float("inf")) * torch.tensor([1, -1, 0, 1.0]),
}


@pytest.mark.parametrize("kind", ORDINARY)
def test_ordinary_features_have_none(kind: str) -> None:
    assert found(ORDINARY[kind]()) == []


class Layer(nn.Module):
    """One layer, and a product that feeds the loss."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer, self.last = layer, nn.Linear(16, CLASSES)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        return self.layer(x) if isinstance(self.layer, nn.Linear) else self.layer(x, edge_index)


LAYERS = {
    "Linear": lambda wide: nn.Linear(wide, 16),
    "GCN": lambda wide: pyg.GCNConv(wide, 16),
    "SAGE": lambda wide: pyg.SAGEConv(wide, 16),
    "SAGE, max": lambda wide: pyg.SAGEConv(wide, 16, aggr="max"),
    "GraphConv": lambda wide: pyg.GraphConv(wide, 16),
    "GIN": lambda wide: pyg.GINConv(nn.Sequential(nn.Linear(wide, 16))),
    "GAT": lambda wide: pyg.GATConv(wide, 4, 4),
    "GATv2": lambda wide: pyg.GATv2Conv(wide, 4, 4),
}


def run(name: str, x: torch.Tensor, recipe: str) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """The result of one layer, and the gradients of its weights."""
    torch.manual_seed(1)
    model = Layer(LAYERS[name](x.size(1)))
    with torch.no_grad():  # as after training: what is multiplied by large numbers is small
        for p in model.layer.parameters():
            if p.dim() == 2 and p.size(1) == x.size(1):
                p /= x.abs().amax(0).clamp(min=4) / 4
    gs.lighten_(model, recipe)
    out = model(x, planted()[1])
    (out * torch.randn(out.shape)).sum().backward()
    return out.detach(), [p.grad for p in model.layer.parameters() if p.grad is not None and p.dim() == 2]


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("columns", [12, 40])
@pytest.mark.parametrize("recipe", RECIPES[:2] + RECIPES[3:4])
def test_a_layer_computes_as_in_float32(name: str, columns: int, recipe: str) -> None:
    """Aggregate first and multiply first. The gradient of every column of a weight, not of the large ones alone."""
    x = with_column("price", columns=columns)
    out, grads = run(name, x, recipe)
    exact, expected = run(name, x, "float32")
    assert nsr(out, exact) < 1e-3
    for grad, truth in zip(grads, expected, strict=True):
        if truth.size(1) == columns:
            by_column = (grad - truth).square().sum(0) / truth.square().sum(0)
            assert by_column.max() < 0.1, "it was 1"


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("name", ["GCN", "SAGE", "GIN", "GAT"])
def test_ordinary_features_give_the_bits_they_gave(name: str, recipe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x = ORDINARY["scales up to eight"]()
    out, grads = run(name, x, recipe)
    monkeypatch.setattr(outliers, "outlier_columns", lambda x: None)
    plain, expected = run(name, x, recipe)
    assert torch.equal(out, plain) and all(map(torch.equal, grads, expected))


def test_what_is_known_of_an_input_is_void_when_it_changes() -> None:
    x = with_column("price")
    split = outliers.split_of(x)
    assert split is not None and split is outliers.split_of(x), "made once"
    assert torch.equal(split.ordinary[:, COLUMN], torch.zeros(NODES)) and torch.equal(
        split.outliers[:, 0], x[:, COLUMN]
    )
    x[:, COLUMN] = 0
    assert outliers.split_of(x) is None


@functools.cache
def accuracy(recipe: str, kind: str, by_hand: bool) -> float:
    """In percent, on the second half of the nodes, after a few steps."""
    x, edge_index, y = planted()
    torch.manual_seed(0)
    x[:, COLUMN] = KINDS[kind](NODES)
    model = pyg.GCN(WIDTH, 16, 2, CLASSES, norm="batch_norm")
    dropped = nn.Dropout(0.2 if by_hand else 0.0)
    gs.lighten_(model, recipe)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(30):
        optimizer.zero_grad()
        F.cross_entropy(model(dropped(x), edge_index)[: NODES // 2], y[: NODES // 2]).backward()
        optimizer.step()
    with torch.no_grad():
        right = model(x, edge_index).argmax(1) == y
    return 100 * right[NODES // 2 :].float().mean().item()


@pytest.mark.parametrize("by_hand", [False, True])
@pytest.mark.parametrize("recipe", ["tango", "tango-auto", "feather", "exact-int2"])
def test_one_column_costs_no_accuracy(recipe: str, by_hand: bool) -> None:
    assert accuracy(recipe, "price", by_hand) > accuracy("float32", "price", by_hand) - 3


def test_automatic_precision_sees_what_columns_lose() -> None:
    x = with_column("year")
    rows = quantize_rows(x)
    assert nsr(rows.codes * rows.scale.unsqueeze(1), x) < 1e-3, "of the energy, hardly anything is lost"
    assert measured(x, rows) > 0.5 and measured(x, rows, centred=True) > 0.5
    shifted = torch.randn(NODES, WIDTH) + 300
    assert (
        measured(shifted, quantize_rows(shifted)) < 1e-3 < 0.1 < measured(shifted, quantize_rows(shifted), None, True)
    )
