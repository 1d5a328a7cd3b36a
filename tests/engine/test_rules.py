"""Which path a call takes; and where ours meets what PyG also takes: autocast, matrices that require grad, devices."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric import nn as pyg
from torch_geometric.nn import GATConv, GATv2Conv, GCNConv, GraphConv, SAGEConv

import gossamer as gs
from gossamer.engine import rules
from gossamer.ops.int8_linear import MAX_COLUMNS
from support.paths import forced, needs_native
from support.traces import Calls

NODES, EDGES = 20, 60


@pytest.fixture
def edges() -> Tensor:
    return torch.randint(0, NODES, (2, EDGES), generator=torch.Generator().manual_seed(0))


@pytest.fixture
def x() -> Tensor:
    return torch.randn(NODES, 8, generator=torch.Generator().manual_seed(1))


def pair(module: nn.Module) -> tuple[nn.Module, nn.Module]:
    """A module, and a lightened copy of it."""
    light = copy.deepcopy(module)
    gs.lighten_(light)
    return module, light


# PyG, torch and ours --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "make", [lambda: SAGEConv(8, 4, aggr="max", project=True), lambda: GCNConv(8, 4), lambda: GraphConv(8, 4)]
)
def test_autocast(make: Any, dtype: torch.dtype, x: Tensor, edges: Tensor) -> None:
    plain, light = pair(make())
    with torch.autocast("cpu", dtype):
        torch.testing.assert_close(light(x, edges).float(), plain(x, edges).float(), rtol=0.03, atol=0.03)


@pytest.mark.parametrize("kind", [GCNConv, GraphConv])
def test_weights_that_require_grad_under_autocast(kind: Any, x: Tensor, edges: Tensor) -> None:
    plain, light = pair(kind(8, 4))
    found = []
    for model in (plain, light):
        weight = torch.rand(EDGES, 1, generator=torch.Generator().manual_seed(2)).requires_grad_()
        with torch.autocast("cpu", torch.bfloat16):
            scaled = functional.linear(weight, torch.full((1, 1), 0.5)).view(-1)  # bfloat16, as from a network
            model(x, edges, scaled).float().sum().backward()
        found.append(weight.grad)
    torch.testing.assert_close(found[1], found[0], rtol=0.05, atol=0.05)


def test_a_matrix_that_requires_grad_is_left_to_pyg(x: Tensor, edges: Tensor) -> None:
    plain, light = pair(GraphConv(8, 4))
    grads = []
    for model in (plain, light):
        value = torch.ones(EDGES, requires_grad=True)
        matrix = torch.sparse_coo_tensor(edges, value, (NODES, NODES)).to_sparse_csr()
        model(x, matrix).sum().backward()
        grads.append(value.grad)
    torch.testing.assert_close(grads[1], grads[0])


def test_whole_numbers_as_weights(x: Tensor, edges: Tensor) -> None:
    plain, light = pair(GCNConv(8, 4))
    weight = torch.arange(EDGES) % 3 + 1
    torch.testing.assert_close(light(x, edges, weight), plain(x, edges, weight.float()))


def test_no_destination_rows_but_a_matrix_that_knows_them(x: Tensor) -> None:
    plain, light = pair(SAGEConv((8, 8), 4, root_weight=False))
    rectangle = torch.rand(6, NODES).round().to_sparse_csr()
    want = plain((x, None), rectangle)
    torch.testing.assert_close(light((x, None), rectangle), want)
    torch.testing.assert_close(light((x, None), gs.Graph.from_torch_sparse(rectangle)), want)


@pytest.mark.parametrize("kind", [GATConv, GATv2Conv])
def test_attention_takes_a_graph_in_any_precision(kind: Any, x: Tensor, edges: Tensor) -> None:
    plain, light = pair(kind(8, 4, heads=2))
    graph = gs.Graph.from_edge_index(edges, NODES)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(light(x, graph).float(), plain(x, edges).float(), rtol=0.03, atol=0.03)
    torch.testing.assert_close(light.double()(x.double(), graph), plain.double()(x.double(), edges))


@pytest.mark.parametrize("least", [1, 2**30])
@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Sequential(nn.Linear(8, 6), nn.LayerNorm(6), nn.GELU(), nn.Linear(6, 3)),
        lambda: nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6), nn.ELU(), nn.Linear(6, 3)),
    ],
)
def test_second_derivatives(make: Any, least: int, x: Tensor) -> None:
    grads = []
    for model in pair(make()):
        leaf = x.clone().requires_grad_()
        with forced(least):
            (slope,) = torch.autograd.grad((model(leaf) ** 2).sum(), leaf, create_graph=True)
            (slope**2).sum().backward()
        grads.append([leaf.grad, *(p.grad for p in model.parameters())])
    for ours, theirs in zip(grads[1], grads[0], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    "conv", [GATConv(8, 4, heads=2), GATv2Conv(8, 4, heads=2), SAGEConv(8, 4, aggr="max"), GCNConv(8, 4)]
)
def test_second_derivatives_of_convolutions(conv: nn.Module, x: Tensor, edges: Tensor) -> None:
    grads = []
    for model in pair(conv):
        leaf = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad((model(leaf, edges) ** 2).sum(), leaf, create_graph=True)
        (slope**2).sum().backward()
        grads.append([leaf.grad, *(p.grad for p in model.parameters())])
    for ours, theirs in zip(grads[1], grads[0], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)


# Devices --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("recipe", ["float32", "exact-int2", "tango", "feather"])
def test_nothing_of_ours_runs_on_another_device(recipe: str) -> None:
    model = nn.Sequential(nn.Linear(8, 300), nn.BatchNorm1d(300), nn.ReLU(), nn.Dropout(0.5), nn.Linear(300, 3))
    gs.lighten_(model, recipe)
    model.to("meta")
    with Calls() as calls:
        out = model(torch.randn(5000, 8, device="meta"))
    assert out.device.type == "meta" and calls.names == []


@pytest.mark.parametrize("kind", [GCNConv, SAGEConv, GraphConv, GATConv, GATv2Conv])
def test_who_serves_another_device(kind: Any, x: Tensor, edges: Tensor) -> None:
    """PyG serves an `edge_index`; it cannot take a Graph, so the references of our ops do."""
    conv, elsewhere = kind(8, 4), x.to("meta")
    assert rules.falls_back(conv, elsewhere, edges) and not rules.falls_back(conv, x, edges)
    graph = gs.Graph.from_edge_index(edges, NODES)
    assert not rules.falls_back(conv, elsewhere, graph) and not rules.falls_back(conv, x, graph)


# Sizes ----------------------------------------------------------------------------------------------------------


def test_forced_sizes_end_with_their_context() -> None:
    before = copy.copy(rules.least)
    with pytest.raises(KeyError), rules.forced(fused=1, int8=5):
        assert (rules.least.fused, rules.least.int8, rules.least.saved) == (1, 5, before.saved)
        raise KeyError
    assert rules.least == before
    with (
        pytest.raises(
            ValueError, match=r"`forced` knows fused, activation, dropout, saved, int8, messages \(got 'fuse'\)"
        ),
        rules.forced(fuse=1),
    ):
        pass
    assert rules.least == before


ROWS = torch.randn(64, 32)


def in_autocast(question: Any, x: Tensor) -> bool:
    with torch.autocast("cpu", torch.bfloat16):
        return question(x)


@needs_native
def test_what_is_dense() -> None:
    assert rules.is_dense(ROWS, ROWS.numel()) and not rules.is_dense(ROWS, ROWS.numel() + 1)
    assert not rules.is_dense(ROWS) and rules.is_dense(torch.empty(2**13, 2**5))
    for other in (ROWS.double(), ROWS.bfloat16(), ROWS.to("meta"), ROWS.to_sparse(), ROWS.view(2, 32, 32)):
        assert not rules.is_dense(other, 1)
    assert rules.is_dense(ROWS.view(2, 32, 32), 1, any_shape=True)
    assert not in_autocast(lambda x: rules.is_dense(x, 1), ROWS)
    seen: list[bool] = []
    torch.vmap(lambda row: seen.append(rules.is_dense(row, 1)) or row)(ROWS.view(2, 32, 32))
    assert seen == [False]


def test_what_is_saved_in_few_bits() -> None:
    assert rules.saves_little(ROWS) and rules.saves_rows(ROWS) and rules.saves_rows(ROWS.double())
    assert rules.saves_little(ROWS.view(2, 32, 32)) and not rules.saves_rows(ROWS.view(2, 32, 32))
    assert rules.saves_little(ROWS.bfloat16()) and not rules.saves_rows(ROWS.bfloat16())
    for other in (ROWS[:31], ROWS.to("meta"), ROWS.to_sparse(), ROWS.long()):
        assert not rules.saves_little(other)
    assert not in_autocast(rules.saves_little, ROWS)
    with torch.no_grad():
        assert not rules.saves_little(ROWS)


def test_what_fits_int8() -> None:
    assert rules.fits_int8(ROWS) and rules.fits_int8(ROWS.bfloat16()) and in_autocast(rules.fits_int8, ROWS)
    with torch.no_grad():
        assert rules.fits_int8(ROWS)
    wide = torch.empty(1, MAX_COLUMNS + 1)
    for other in (ROWS[:31], ROWS.double(), ROWS.to("meta"), ROWS.view(2, 32, 32), wide):
        assert not rules.fits_int8(other)
    assert rules.fits_int8(wide[:, :-1])


@pytest.mark.parametrize(
    "x_learns,grad,widths,first",
    [
        (True, True, (12, 13), True), (True, True, (12, 12), False), (False, True, (12, 7), True),
        (False, True, (12, 6), False), (True, False, (12, 13), True), (True, False, (12, 7), False),
    ],
)  # fmt: skip
def test_the_cheaper_order(x_learns: bool, grad: bool, widths: tuple[int, int], first: bool) -> None:
    """A sparse product costs its width, forward and, if a gradient flows through it, backward."""
    with torch.set_grad_enabled(grad):
        assert rules.aggregates_first(torch.empty(5, 12).requires_grad_(x_learns), *widths) is first


@pytest.mark.parametrize(
    "edges,grad,widths,first",
    [
        (100, False, (64, 8), True), (10_000, False, (64, 8), False), (10_000, False, (8, 64), True),
        (100, True, (64, 8), True), (10_000, True, (64, 8), False),
    ],
)  # fmt: skip
def test_the_cheaper_order_in_a_block(edges: int, grad: bool, widths: tuple[int, int], first: bool) -> None:
    """With few destinations a product behind the sum has few rows, which pays unless there are many edges."""
    rowptr, col = torch.tensor([0, *[edges] * 10]), torch.zeros(edges, dtype=torch.int32)
    with torch.set_grad_enabled(grad):
        x = torch.empty(1000, widths[0]).requires_grad_()
        assert rules.aggregates_first(x, *widths, gs.Graph(rowptr, col, 1000)) is first
        assert rules.aggregates_first(x, *widths) is (widths[0] < widths[1])


# Modules --------------------------------------------------------------------------------------------------------


class Own(nn.Linear):
    pass


def test_a_subclass_is_another_kind() -> None:
    light = nn.Sequential(nn.Linear(8, 8))
    gs.lighten_(light)
    assert rules.is_a(nn.Linear(8, 8), nn.Linear, nn.ReLU) and rules.is_a(light[0], nn.Linear)
    assert not rules.is_a(Own(8, 8), nn.Linear) and not rules.is_a(None, nn.Linear)


def test_what_is_plain() -> None:
    assert rules.is_plain(nn.Linear(8, 8)) and rules.is_plain(pyg.Linear(8, 8, bias=False))
    assert not rules.is_plain(Own(8, 8)) and not rules.is_plain(nn.ReLU()) and not rules.is_plain(None)
    assert not rules.is_plain(pyg.Linear(-1, 8))  # its width is told by its first input
    replaced = nn.Linear(8, 8)
    replaced.forward = lambda x: x
    assert not rules.is_plain(replaced)


@pytest.mark.parametrize(
    "hook",
    [
        "register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook",
        "register_full_backward_pre_hook",
    ],
)  # fmt: skip
def test_whoever_listens_is_noticed(hook: str) -> None:
    lin = nn.Linear(8, 8)
    handle = getattr(lin, hook)(lambda *args: None)
    assert rules.is_hooked(lin) and rules.is_hooked(None, 0.5, lin) and not rules.is_plain(lin)
    handle.remove()
    assert not rules.is_hooked(lin, None, 0.5) and rules.is_plain(lin)


def test_whoever_listens_to_all_modules_is_noticed() -> None:
    handle = nn.modules.module.register_module_forward_hook(lambda *args: None)
    try:
        assert rules.is_hooked() and rules.is_hooked(nn.ReLU())
    finally:
        handle.remove()
    assert not rules.is_hooked(nn.ReLU())


@pytest.mark.parametrize("hook", ["propagate", "message", "aggregate", "message_and_aggregate", "edge_update"])
@pytest.mark.parametrize("when", ["pre_hook", "hook"])
def test_whoever_listens_to_messages_is_served_by_pyg(hook: str, when: str, x: Tensor, edges: Tensor) -> None:
    conv = GCNConv(8, 4)
    assert not rules.falls_back(conv, x, edges)
    handle = getattr(conv, f"register_{hook}_forward_{when}")(lambda *args: None)
    assert rules.falls_back(conv, x, edges)
    handle.remove()
    assert not rules.falls_back(conv, x, edges)
