"""Lightened models within the rest of PyTorch and PyG: compile, autocast, torch.func, hetero graphs, batches."""

from __future__ import annotations

import copy
import random
import shutil

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch_geometric import nn as pyg
from torch_geometric.data import Batch, Data

import gossamer as gs
from support.pyg_models import Gcnii, assert_same

MODELS = {
    "gcn": lambda: pyg.GCN(12, 16, 2, 5, norm="batch_norm"),
    "sage": lambda: pyg.GraphSAGE(12, 16, 2, 5, norm="layer_norm"),
    "sage max": lambda: pyg.GraphSAGE(12, 16, 2, 5, aggr="max"),
    "gin": lambda: pyg.GIN(12, 16, 2, 5),
    "gat": lambda: pyg.GAT(12, 16, 2, 5, heads=2),
    "gatv2": lambda: pyg.GAT(12, 16, 2, 5, heads=2, v2=True),
    "gcnii": lambda: Gcnii(12, 16, 2, 5),
    "gcnii, two weights": lambda: Gcnii(12, 16, 2, 5, shared_weights=False),
}


@pytest.fixture(params=MODELS)
def model(request):
    return MODELS[request.param]()


class Own(nn.Module):
    """A model as users write them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = pyg.GCNConv(12, 16), pyg.SAGEConv(16, 5)
        self.norm = nn.BatchNorm1d(16)

    def forward(self, x, edge_index):
        x = F.relu(self.norm(self.first(x, edge_index)))
        return self.second(F.dropout(x, 0.0, self.training), edge_index)


def results(model, x, edge_index):
    model.zero_grad()
    x = x.detach().clone().requires_grad_()
    out = model(x, edge_index)
    out.square().sum().backward()
    return out.detach(), x.grad, *[p.grad.clone() for p in model.parameters()]


# torch.compile --------------------------------------------------------------------------------------------------


@pytest.fixture
def dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


# What dynamo says of itself while it traces is no concern of these tests.
quiet = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")


@quiet
@pytest.mark.parametrize("kind", ["gcn", "gat", "gatv2", "sage", "sage max", "gin", "gcnii", "own"])
def test_compiled(kind, graph, fused, dynamo):
    """One traced program, also for another graph than the one that it was traced with."""
    plain = Own() if kind == "own" else MODELS[kind]()
    model = copy.deepcopy(plain)
    gs.lighten_(model)
    backend = "aot_eager" if kind in ("own", "gat") else "eager"
    compiled = torch.compile(model, backend=backend, fullgraph=True, dynamic=True)
    x, edge_index = graph
    for edges in (edge_index, edge_index[:, ::2].flip(0).contiguous()):
        torch.testing.assert_close(results(compiled, x, edges), results(plain, x, edges), rtol=1e-4, atol=1e-4)


@quiet
def test_compiled_evaluation(graph, dynamo):
    plain = pyg.GCN(12, 16, 2, 5, norm="batch_norm", jk="cat", dropout=0.5).eval()
    model = copy.deepcopy(plain)
    gs.lighten_(model)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    with torch.no_grad():
        torch.testing.assert_close(compiled(*graph), plain(*graph), rtol=1e-4, atol=1e-4)


@quiet
def test_compiled_builds_the_graph_once(graph, dynamo):
    """Also with no `fullgraph`: nothing breaks the program."""
    programs = []

    def backend(module, _):
        programs.append(module)
        return module.forward

    model = pyg.GCN(12, 16, 3, 5)
    gs.lighten_(model)
    torch.compile(model, backend=backend)(*graph)
    assert len(programs) == 1
    assert sum("coo_to_csr" in str(node.target) for node in programs[0].graph.nodes) == 1


@quiet
@pytest.mark.parametrize("made", [lambda: pyg.GCN(12, 16, 2, 5), lambda: pyg.GAT(12, 16, 2, 5)], ids=["gcn", "gat"])
def test_compiled_with_a_graph(made, graph, dynamo):
    plain = made()
    model, x = copy.deepcopy(plain), graph[0].detach()
    gs.lighten_(model)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    for edges in (graph[1], graph[1].flip(0).contiguous()):
        ours = compiled(x, gs.Graph.from_edge_index(edges, len(x)))
        torch.testing.assert_close(ours, plain(x, edges), rtol=1e-4, atol=1e-4)


@quiet
def test_compiled_weights_of_edges_learn(graph, dynamo):
    plain = pyg.GCN(12, 16, 2, 5, improved=True)
    model, grads, (x, edge_index) = copy.deepcopy(plain), [], graph
    gs.lighten_(model)
    for run in (torch.compile(model, backend="eager", fullgraph=True), plain):
        weight = torch.linspace(0.1, 1.0, edge_index.size(1)).requires_grad_()
        run(x, edge_index, weight).square().sum().backward()
        grads.append(weight.grad)
    torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-4)


@quiet
def test_compiled_small_and_large_graphs(graph, sizes_in_use, dynamo):
    """The sizes that decide for a path are guards of the program."""
    plain = pyg.GraphSAGE(12, 16, 2, 5)
    model, (x, edge_index) = copy.deepcopy(plain), graph
    gs.lighten_(model)
    compiled = torch.compile(model, backend="eager", fullgraph=True, dynamic=True)
    for edges in (edge_index, edge_index.repeat(1, 50)):
        torch.testing.assert_close(compiled(x, edges), plain(x, edges), rtol=1e-4, atol=1e-4)


@quiet
@pytest.mark.skipif(shutil.which("g++") is None, reason="the default backend needs a C++ compiler")
def test_compiled_by_the_default_backend(graph, dynamo):
    model = pyg.SAGEConv(12, 5)
    gs.lighten_(model)
    want = results(copy.deepcopy(model), *graph)
    compiled = torch.compile(model, fullgraph=True)
    torch.testing.assert_close(results(compiled, *graph), want, rtol=1e-4, atol=1e-4)


class Held(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(8, 8), nn.ReLU())

    def forward(self, x):
        return F.relu(self.inner(x))


def test_a_part_may_be_compiled(dynamo):
    model, x = Held(), torch.randn(20, 8)
    want = model(x)
    gs.lighten_(model)
    model.inner = torch.compile(model.inner, backend="eager", fullgraph=True)
    torch.testing.assert_close(model(x), want)


@quiet
@pytest.mark.parametrize("recipe", ["exact-int2", "exact-int2-published", "tango", "feather"])
def test_compiled_under_a_recipe_it_is_float32(recipe, dynamo):
    """What is traced is float32 whatever the recipe says; breaks in the graph may leave parts to the recipe."""
    model = nn.Sequential(nn.Linear(12, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 5))
    x = torch.randn(300, 12)
    plain = torch.compile(copy.deepcopy(model), backend="aot_eager")
    gs.lighten_(model, recipe)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    for module in (plain, compiled):
        module.zero_grad()
        module(x).square().sum().backward()
    for ours, theirs in zip(compiled.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-4)


# Precision and modes --------------------------------------------------------------------------------------------


def test_autocast(model, graph, fused):
    """Our error against float32 is of the order of PyG's, whose products are bfloat16 too."""
    x, edge_index = graph
    exact = results(copy.deepcopy(model), x, edge_index)
    lighter = copy.deepcopy(model)
    gs.lighten_(lighter)
    with torch.autocast("cpu", torch.bfloat16):
        plain, ours = results(model, x, edge_index), results(lighter, x, edge_index)
    top = max(grad.abs().max().item() for grad in exact[1:])
    for k, (truth, theirs, mine) in enumerate(zip(exact, plain, ours, strict=True)):
        scale = truth.abs().max().item() + (top if k else 0.0)
        usual = (theirs.float() - truth).abs().max().item()
        assert (mine.float() - truth).abs().max().item() <= 4 * usual + 2.0**-7 * scale


def test_autocast_trains(graph, fused):
    model = Own()
    gs.lighten_(model)
    optimizer = torch.optim.Adam(model.parameters(), 0.02)
    target = torch.randint(0, 5, (50,))
    losses = []
    for _ in range(30):
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.cross_entropy(model(*graph), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]


def test_no_grad_gives_the_same(model, graph, paths):
    gs.lighten_(model)
    model.eval()
    with torch.no_grad():
        out = model(*graph)
    assert not out.requires_grad
    torch.testing.assert_close(out, model(*graph).detach())


def test_backward_twice(model, graph, fused):
    gs.lighten_(model)
    model.eval()
    out = model(*graph).square().sum()
    first = torch.autograd.grad(out, list(model.parameters()), retain_graph=True, allow_unused=True)
    second = torch.autograd.grad(out, list(model.parameters()), allow_unused=True)
    assert all(a is b is None or torch.equal(a, b) for a, b in zip(first, second, strict=True))


class Twice(nn.Module):
    """One module used twice, on two graphs."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.act = pyg.GCNConv(12, 12), nn.BatchNorm1d(12), nn.ReLU()

    def forward(self, x, edge_index):
        for edges in (edge_index, edge_index.flip(0)):
            x = self.act(self.norm(self.conv(x, edges)))
        return x


def test_a_module_used_twice(graph, paths):
    assert_same(Twice(), *graph)


def test_the_same_seed_gives_the_same_run(model, graph, fused):
    model.dropout.p = 0.5
    gs.lighten_(model)

    def steps():
        trained = copy.deepcopy(model)
        torch.manual_seed(11)
        optimizer = torch.optim.SGD(trained.parameters(), 0.01)
        for _ in range(3):
            optimizer.zero_grad()
            trained(*graph).square().mean().backward()
            optimizer.step()
        return list(trained.parameters())

    assert all(torch.equal(a, b) for a, b in zip(steps(), steps(), strict=True))


def test_gradients_of_gradients(graph):
    """Sums are linear: a penalty on gradients works where the activation is torch's."""
    model = pyg.GCN(12, 16, 2, 5, act="tanh")
    lighter = copy.deepcopy(model)
    gs.lighten_(lighter)
    seconds = []
    for m in (model, lighter):
        x = graph[0].detach().clone().requires_grad_()
        (dx,) = torch.autograd.grad(m(x, graph[1]).square().sum(), x, create_graph=True)
        dx.square().sum().backward()
        seconds.append(x.grad)
    torch.testing.assert_close(seconds[1], seconds[0], rtol=1e-4, atol=1e-4)


def test_torch_func(model, graph, fused):
    model.eval()
    x, edge_index = graph[0].detach(), graph[1]
    parameters = {name: p.detach() for name, p in model.named_parameters()}

    def loss(parameters):
        return torch.func.functional_call(model, parameters, (x, edge_index)).square().sum()

    want = torch.func.grad(loss)(parameters)
    gs.lighten_(model)
    torch.testing.assert_close(torch.func.grad(loss)(parameters), want)


def test_vmap(fused):
    model = nn.Sequential(nn.Linear(12, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 3))
    x = torch.randn(4, 50, 12)
    want = torch.vmap(model)(x)
    gs.lighten_(model)
    torch.testing.assert_close(torch.vmap(model)(x), want)


# Graphs of several kinds, and many graphs -----------------------------------------------------------------------


@pytest.fixture
def hetero():
    x = {"paper": torch.randn(30, 12), "author": torch.randn(20, 12)}
    edges = {
        ("author", "writes", "paper"): torch.stack([torch.randint(0, 20, (80,)), torch.randint(0, 30, (80,))]),
        ("paper", "cites", "paper"): torch.randint(0, 30, (2, 90)),
        ("paper", "by", "author"): torch.stack([torch.randint(0, 30, (70,)), torch.randint(0, 20, (70,))]),
    }
    return x, edges


def assert_hetero(plain, lighter, x, edges):
    want, ours = plain(x, edges), lighter(x, edges)
    assert ours.keys() == want.keys()
    for kind in want:
        torch.testing.assert_close(ours[kind], want[kind], rtol=1e-4, atol=1e-5)
    for out in (want, ours):
        sum(o.square().sum() for o in out.values()).backward()
    for (name, p), q in zip(plain.named_parameters(), lighter.parameters(), strict=True):
        assert (p.grad is None) == (q.grad is None), name
        if p.grad is not None:
            torch.testing.assert_close(q.grad, p.grad, rtol=1e-3, atol=1e-3)


def test_hetero_conv(hetero, fused):
    convs = {
        ("author", "writes", "paper"): pyg.SAGEConv((12, 12), 8),
        ("paper", "cites", "paper"): pyg.GCNConv(12, 8),
        ("paper", "by", "author"): pyg.GATConv((12, 12), 8, add_self_loops=False),
    }
    plain = pyg.HeteroConv(convs)
    lighter = copy.deepcopy(plain)
    report = gs.lighten_(lighter)
    assert {"SAGEConv", "GCNConv", "GATConv"} <= {row.kind for row in report.converted}
    assert_hetero(plain, lighter, *hetero)


class Homogeneous(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = pyg.SAGEConv((-1, -1), 8), pyg.SAGEConv((-1, -1), 5)

    def forward(self, x, edge_index):
        return self.second(self.first(x, edge_index).relu(), edge_index)


@pytest.mark.parametrize("first", ["to_hetero", "lighten_"])
def test_to_hetero(first, hetero, fused):
    x, edges = hetero
    metadata = (list(x), list(edges))
    if first == "to_hetero":
        plain = pyg.to_hetero(Homogeneous(), metadata)
        plain(x, edges)  # the lazy widths
        lighter = copy.deepcopy(plain)
        gs.lighten_(lighter)
    else:
        model = Homogeneous()
        gs.lighten_(model)
        lighter = pyg.to_hetero(model, metadata)
        lighter(x, edges)
        plain = gs.restore_(copy.deepcopy(lighter))
    assert_hetero(plain, lighter, x, edges)


class OnGraphs(nn.Module):
    def __init__(self, pool) -> None:
        super().__init__()
        self.body = pyg.GIN(12, 16, 3, norm="batch_norm")
        self.head = pyg.MLP([16, 8, 2], norm="batch_norm")
        self.pool = pool

    def forward(self, x, edge_index, batch):
        return self.head(self.pool(self.body(x, edge_index, batch=batch), batch))


@pytest.mark.parametrize("pool", [pyg.global_mean_pool, pyg.global_add_pool, pyg.global_max_pool])
def test_batches_of_graphs(pool, paths):
    sizes = (3, 1, 7, 5, 2)  # one of them without edges
    batch = Batch.from_data_list(
        [Data(x=torch.randn(n, 12), edge_index=torch.randint(0, n, (2, 3 * n if n > 1 else 0))) for n in sizes]
    )
    assert_same(OnGraphs(pool), batch.x.requires_grad_(), batch.edge_index, batch.batch)


def test_pyg_sequential(graph, fused):
    random.seed()  # PyG names the code that it writes for a Sequential by it; another test may have left its seed
    model = pyg.Sequential(
        "x, edge_index",
        [(pyg.GCNConv(12, 8), "x, edge_index -> x"), nn.ReLU(), (pyg.SAGEConv(8, 5), "x, edge_index -> x")],
    )
    assert_same(model, *graph)
