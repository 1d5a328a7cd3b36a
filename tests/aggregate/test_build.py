"""What a layer may be called with, and the adjacency built from it: once, anew after a change, gone with its tensor."""

from __future__ import annotations

import copy
import gc
import io
import weakref

import pytest
import torch
from torch_geometric import EdgeIndex
from torch_geometric import nn as pyg
from torch_geometric.data import Data
from torch_geometric.nn.conv.gcn_conv import gcn_norm

import gossamer as gs
from gossamer.aggregate import build
from gossamer.graph import normalise
from gossamer.graph.graph import Block
from support.adjacencies import dense_of
from support.pyg_models import NASTY, assert_same, random_input

pytestmark = [
    pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta"),
    pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled"),
    pytest.mark.filterwarnings("ignore:Converting sparse tensor to CSR format"),
]
MODELS = {
    "gcn": lambda: pyg.GCN(12, 16, 2, 5),
    "sage": lambda: pyg.GraphSAGE(12, 16, 2, 5),
    "sage max": lambda: pyg.GraphSAGE(12, 16, 2, 5, aggr="max"),
    "gin": lambda: pyg.GIN(12, 16, 2, 5),
    "gat": lambda: pyg.GAT(12, 16, 2, 5, heads=2),
    "gatv2": lambda: pyg.GAT(12, 16, 2, 5, heads=2, v2=True),
}


@pytest.fixture(autouse=True)
def _same_numbers():
    torch.manual_seed(0)


@pytest.fixture
def graph():
    return random_input()


@pytest.fixture(params=MODELS)
def model(request):
    return MODELS[request.param]()


@pytest.fixture
def builds(monkeypatch):
    """The calls that build a graph from an edge list."""
    calls = []
    whole = gs.Graph.from_edge_index.__func__

    def counted(cls, *args, **named):
        calls.append(args)
        return whole(cls, *args, **named)

    monkeypatch.setattr(gs.Graph, "from_edge_index", classmethod(counted))
    return calls


def coo(edge_index, value=None):
    """Destinations as rows; repeated edges merged, as most adjacencies have none."""
    value = torch.ones(edge_index.size(1)) if value is None else value
    return torch.sparse_coo_tensor(edge_index.flip(0), value, (50, 50)).coalesce()


# Kinds ----------------------------------------------------------------------------------------------------------


def test_edge_index_of_pyg(model, graph):
    x, edge_index = graph
    assert_same(model, x, EdgeIndex(edge_index, sparse_size=(50, 50)))
    gs.lighten_(model)
    by_destination = EdgeIndex(edge_index, sparse_size=(50, 50)).sort_by("col")[0]
    torch.testing.assert_close(model(x, by_destination), model(x, edge_index))


def test_int32_edges(model, graph):
    gs.lighten_(model)
    assert torch.equal(model(graph[0], graph[1].int()), model(*graph))


@pytest.mark.parametrize("name", ["gcn", "sage", "gin", "sage max"])
@pytest.mark.parametrize("layout", ["csr", "coo"])
def test_torch_sparse(name, layout, graph):
    matrix, model = coo(graph[1]), MODELS[name]()
    if (name, layout) == ("sage max", "coo"):  # PyG has no maximum over a COO matrix
        gs.lighten_(model)
        assert torch.equal(model(graph[0], matrix), model(graph[0], matrix.to_sparse_csr()))
    else:
        assert_same(model, graph[0], matrix.to_sparse_csr() if layout == "csr" else matrix)


@pytest.mark.parametrize("layout", ["csr", "coo"])
def test_torch_sparse_with_attention_is_left_to_pyg(layout, graph):
    matrix = coo(graph[1])
    matrix = matrix.to_sparse_csr() if layout == "csr" else matrix
    model = MODELS["gat"]().eval()
    want = model(graph[0], matrix)
    gs.lighten_(model)
    torch.testing.assert_close(model(graph[0], matrix), want)


@pytest.mark.parametrize("options", [{}, {"improved": True}, {"add_self_loops": False}, {"normalize": False}])
def test_weighted_torch_sparse(options, graph):
    matrix = coo(graph[1], torch.rand(300)).to_sparse_csr()
    assert_same(pyg.GCNConv(12, 7, **options), graph[0], matrix)


def test_a_graph_of_ours(model, graph):
    x, edge_index = graph
    gs.lighten_(model)
    assert torch.equal(model(x, gs.Graph.from_edge_index(edge_index, 50)), model(x, edge_index))


@pytest.mark.parametrize("learned", [True, False])
@pytest.mark.parametrize("conv", [lambda: pyg.GCNConv(12, 7), lambda: pyg.GraphConv(12, 7)])
def test_a_graph_of_ours_with_weights(conv, learned, graph):
    x, edge_index = graph
    module = conv()
    gs.lighten_(module)
    weight = torch.rand(300, requires_grad=learned)
    adjacency_of_ours = gs.Graph.from_edge_index(edge_index, 50)
    ours, listed = module(x, adjacency_of_ours, weight), module(x, edge_index, weight)
    torch.testing.assert_close(ours, listed)
    if learned:
        noise = torch.randn_like(ours)
        torch.testing.assert_close(
            torch.autograd.grad((ours * noise).sum(), weight), torch.autograd.grad((listed * noise).sum(), weight)
        )
    else:
        torch.testing.assert_close(module(x, gs.Graph.from_edge_index(edge_index, 50, weight)), ours)


@pytest.mark.parametrize("loops", [True, False])
def test_a_graph_of_ours_with_edge_features(loops, graph):
    x, edge_index = graph
    conv = pyg.GATConv(12, 7, edge_dim=3, add_self_loops=loops)
    attr = torch.randn(300, 3)
    want = conv(x, edge_index, attr)
    gs.lighten_(conv)
    torch.testing.assert_close(conv(x, gs.Graph.from_edge_index(edge_index, 50), attr), want)


# The matrix -----------------------------------------------------------------------------------------------------


def counts(edge_index, sizes, value=None):
    """[num_dst, num_src] in float64: the weights of the edges from each node to each other."""
    value = torch.ones(edge_index.size(1)) if value is None else value
    return torch.zeros(sizes[::-1], dtype=torch.float64).index_put_(
        (edge_index[1], edge_index[0]), value.double(), True
    )


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("reduce", ["sum", "mean"])
@pytest.mark.parametrize("name", NASTY)
def test_neighbours(name, reduce, weighted):
    edge_index, nodes = NASTY[name]
    weight = torch.rand(edge_index.size(1)) if weighted else None
    want = counts(edge_index, (nodes, nodes), weight)
    if reduce == "mean":
        want /= counts(edge_index, (nodes, nodes)).sum(1, keepdim=True).clamp(min=1)
    found = build.neighbours(edge_index, (nodes, nodes), weight, reduce)
    torch.testing.assert_close(dense_of(found), want)


@pytest.mark.parametrize("weight", [None, "fixed", "requires grad"])
@pytest.mark.parametrize("options", [(False, True), (True, True), (False, False)], ids=["", "improved", "no loops"])
@pytest.mark.parametrize("given", ["edge_index", "Graph"])
@pytest.mark.parametrize("name", NASTY)
def test_the_matrix_of_a_graph_convolution(name, given, options, weight):
    """That of PyG's gcn_norm; loops beside the edges, except where weights that require grad pass through PyG."""
    edge_index, nodes = NASTY[name]
    improved, loops = options
    value = None if weight is None else torch.rand(edge_index.size(1), requires_grad=weight == "requires grad")
    edges, norm = gcn_norm(edge_index, value, nodes, improved, loops, dtype=torch.float32)
    edge_list = gs.Graph.from_edge_index(edge_index, nodes) if given == "Graph" else edge_index
    found = build.gcn(edge_list, nodes, value, improved, loops)
    torch.testing.assert_close(dense_of(found), counts(edges, (nodes, nodes), norm.detach()))
    if weight != "requires grad":
        src, dst = found.graph.edge_index
        assert found.is_fixed and not (src == dst).any()
        assert (found.diagonal is not None) == bool(loops or (edge_index[0] == edge_index[1]).any())


@pytest.mark.parametrize("name", NASTY)
def test_loops_for_attention_are_edges(name):
    edge_index, nodes = NASTY[name]
    want = counts(edge_index, (nodes, nodes)).fill_diagonal_(1.0)
    for given in (edge_index, gs.Graph.from_edge_index(edge_index, nodes)):
        assert torch.equal(counts(build.looped(given, (nodes, nodes)).edge_index, (nodes, nodes)), want)


# Blocks ---------------------------------------------------------------------------------------------------------


def rows_of(name, first, last):
    """A part of a graph: the edges into some nodes, which are its first sources, all others behind them."""
    edge_index, nodes = NASTY[name]
    order = torch.cat([torch.arange(first, last), torch.arange(first), torch.arange(last, nodes)])
    place = torch.empty_like(order)
    place[order] = torch.arange(nodes)
    into = (edge_index[1] >= first) & (edge_index[1] < last)
    return order, into, place[edge_index[:, into]]


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("options", [(False, True), (True, True), (False, False)], ids=["", "improved", "no loops"])
@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("name", NASTY)
def test_the_matrix_of_a_block(name, whole, options, weighted):
    """Of a sampled block, that of its sources as nodes; of a part of a graph, rows of that graph's matrix."""
    edge_index, nodes = NASTY[name]
    weight = torch.rand(edge_index.size(1)) if weighted else None
    for first, last in ((0, nodes), (nodes // 2, nodes), (0, nodes // 2), (nodes // 3, nodes // 3)):
        order, into, edges = rows_of(name, first, last)
        value = None if weight is None else weight[into]
        entire = (edge_index, weight) if whole else (edges, value)
        want_edges, norm = gcn_norm(*entire, nodes, *options, dtype=torch.float32)
        want = counts(want_edges, (nodes, nodes), norm)
        want = want[order][:, order] if whole else want
        part = gs.Graph.from_edge_index(edges, (nodes, last - first), value)
        of = Block(gs.Graph.from_edge_index(edge_index, nodes, weight), order) if whole else Block()
        block = gs.Graph(part.rowptr, part.col, nodes, part.value, block=of)
        found = build.gcn(block, nodes, None, *options)
        torch.testing.assert_close(dense_of(found), want[: last - first])
        src, dst = found.graph.edge_index
        assert found.is_fixed and not (src == dst).any()
        assert build.gcn(block, nodes, None, *options) is found


def test_factors_of_a_graph_are_computed_by_parts(monkeypatch):
    edge_index, nodes = NASTY["random"]
    want = normalise.factors_of(gs.Graph.from_edge_index(edge_index, nodes), False, True)
    monkeypatch.setattr(normalise, "ROWS_AT_A_TIME", 7)
    assert torch.equal(normalise.factors_of(gs.Graph.from_edge_index(edge_index, nodes), False, True), want)


@pytest.mark.parametrize("name", ["loops", "random"])
def test_loops_for_attention_in_a_block(name):
    """Of its destinations alone."""
    nodes = NASTY[name][1]
    _, _, edges = rows_of(name, 0, nodes // 2)
    part = gs.Graph.from_edge_index(edges, (nodes, nodes // 2))
    block = gs.Graph(part.rowptr, part.col, nodes, block=Block())
    sizes = (nodes, nodes // 2)
    want = counts(edges, sizes)
    want.diagonal().fill_(1.0)
    assert torch.equal(counts(build.looped(block, sizes).edge_index, sizes), want)


# The graph is built once ----------------------------------------------------------------------------------------


def test_built_once_per_tensor(model, graph, builds):
    gs.lighten_(model)
    for _ in range(3):
        model(*graph).sum().backward()
    assert len(builds) == 1
    model(graph[0], graph[1].clone())
    assert len(builds) == 2


def test_built_once_per_weights(graph, builds):
    conv = pyg.GCNConv(12, 7)
    gs.lighten_(conv)
    weight = torch.rand(300)
    first = conv(*graph, weight)
    assert torch.equal(conv(*graph, weight), first) and len(builds) == 1
    other = weight.flip(0)
    assert not torch.equal(conv(*graph, other), first) and len(builds) == 2
    assert torch.equal(conv(*graph, weight), first) and len(builds) == 2


def test_structure_built_once_under_learned_weights(graph, builds):
    conv = pyg.GCNConv(12, 7)
    gs.lighten_(conv)
    for _ in range(3):
        conv(*graph, torch.rand(300, requires_grad=True))
    assert len(builds) <= 2  # the edges as given, to check them, and with loops


def test_two_models_share_a_graph(graph, builds):
    for _ in range(2):
        model = MODELS["gcn"]()
        gs.lighten_(model)
        model(*graph)
    assert len(builds) == 1


# Changes are noticed --------------------------------------------------------------------------------------------


def fresh(model, x, *args):
    """What PyG computes now."""
    return gs.restore_(copy.deepcopy(model))(x, *args)


def test_edges_changed_in_place(model, graph):
    x, edge_index = graph
    gs.lighten_(model)
    before = model(x, edge_index)
    edge_index[0, :40] = 3
    after = model(x, edge_index)
    assert not torch.equal(before, after)
    torch.testing.assert_close(after, fresh(model, x, edge_index))
    edge_index[:, 10:20].zero_()  # through a view
    torch.testing.assert_close(model(x, edge_index), fresh(model, x, edge_index))


@pytest.mark.parametrize("through", ["EdgeIndex", "its tensor"])
def test_edge_index_of_pyg_changed_in_place(through, graph):
    x, edge_index = graph
    conv = pyg.GCNConv(12, 7)
    gs.lighten_(conv)
    wrapped = EdgeIndex(edge_index, sparse_size=(50, 50))
    conv(x, wrapped)
    (wrapped if through == "EdgeIndex" else edge_index)[0, :40] = 3
    torch.testing.assert_close(conv(x, wrapped), fresh(conv, x, wrapped))


def test_edges_replaced_through_data(graph):
    x, edge_index = graph
    conv = pyg.GCNConv(12, 7)
    gs.lighten_(conv)
    conv(x, edge_index)
    edge_index.data = edge_index.flip(0)
    torch.testing.assert_close(conv(x, edge_index), fresh(conv, x, edge_index))


@pytest.mark.parametrize("kind", [pyg.GCNConv, pyg.GraphConv])
def test_weights_changed_in_place(kind, graph):
    conv = kind(12, 7)
    gs.lighten_(conv)
    weight = torch.rand(300)
    conv(*graph, weight)
    weight.mul_(torch.rand(300))
    torch.testing.assert_close(conv(*graph, weight), fresh(conv, *graph, weight))


@pytest.mark.parametrize("layout", ["csr", "coo"])
def test_a_matrix_changed_in_place(layout, graph):
    matrix = coo(graph[1])
    matrix = matrix.to_sparse_csr() if layout == "csr" else matrix
    conv = pyg.GCNConv(12, 7, normalize=False)
    gs.lighten_(conv)
    conv(graph[0], matrix)
    matrix.values().mul_(2)
    torch.testing.assert_close(conv(graph[0], matrix), fresh(conv, graph[0], matrix))


def test_another_number_of_nodes(graph):
    x, edge_index = graph
    model = MODELS["gcn"]()
    gs.lighten_(model)
    more = torch.cat([x, torch.randn(9, 12)])
    for features in (x, more, x):
        torch.testing.assert_close(model(features, edge_index), fresh(model, features, edge_index))


def test_a_new_tensor_at_the_same_address(graph):
    conv = pyg.GCNConv(12, 7)
    gs.lighten_(conv)
    storage = torch.zeros(2, 300, dtype=torch.int64)
    for seed in range(5):
        values = torch.randint(0, 50, (2, 300), generator=torch.Generator().manual_seed(seed))
        storage.numpy()[:] = values.numpy()  # below torch's counting of changes
        edge_index = torch.from_numpy(storage.numpy())
        torch.testing.assert_close(conv(graph[0], edge_index), fresh(conv, graph[0], values))
        del edge_index


# Nothing is left behind -----------------------------------------------------------------------------------------


def built(model, edge_index, weight=None):
    """The graph that a convolution of the model works on."""
    if isinstance(model, pyg.GCN):
        return build.gcn(edge_index, 50, weight, False, True).graph
    if isinstance(model, pyg.GAT):
        return build.looped(edge_index, (50, 50))
    return build.neighbours(edge_index, (50, 50), weight).graph


def test_what_is_built_dies_with_its_tensor(model, graph):
    gs.lighten_(model)
    edge_index = graph[1].clone()
    model(graph[0], edge_index).sum().backward()
    reference = weakref.ref(built(model, edge_index))
    gc.collect()
    assert reference() is not None and built(model, edge_index) is reference()
    del edge_index
    gc.collect()
    assert reference() is None


@pytest.mark.parametrize("first", ["edges", "weights"])
def test_what_is_built_of_two_tensors_dies_with_either(first, graph):
    model = MODELS["gcn"]()
    gs.lighten_(model)
    pair = {"edges": graph[1].clone(), "weights": torch.rand(300)}
    model(graph[0], *pair.values()).sum().backward()
    reference = weakref.ref(built(model, *pair.values()))
    gc.collect()
    assert reference() is not None and built(model, *pair.values()) is reference()
    del pair[first]
    gc.collect()
    assert reference() is None


def test_data_carries_nothing_of_ours(graph):
    x, edge_index = graph
    data = Data(x=x.detach(), edge_index=edge_index)
    model = MODELS["gcn"]()

    def written() -> int:
        file = io.BytesIO()
        torch.save(data, file)
        return len(file.getvalue())

    before = written()
    gs.lighten_(model)
    model(data.x, data.edge_index)
    assert written() == before
    copied = copy.deepcopy(data)
    assert not vars(copied.edge_index)
    assert torch.equal(model(copied.x, copied.edge_index), model(data.x, data.edge_index))


# Inference mode -------------------------------------------------------------------------------------------------


def test_a_graph_built_in_inference_mode_serves_training(model, graph):
    gs.lighten_(model)
    with torch.inference_mode():
        seen = model(*graph)
    model(*graph).sum().backward()
    assert all(p.grad is not None for p in model.parameters())
    torch.testing.assert_close(model(*graph), seen)


@pytest.mark.parametrize("layout", ["csr", "coo"])
def test_a_matrix_seen_in_inference_mode_serves_training(layout, graph):
    matrix = coo(graph[1])
    matrix = matrix.to_sparse_csr() if layout == "csr" else matrix
    model = MODELS["gcn"]()
    gs.lighten_(model)
    with torch.inference_mode():
        model(graph[0], matrix)
    model(graph[0], matrix).sum().backward()
    assert all(p.grad is not None for p in model.parameters())


def test_tensors_of_inference_mode_are_never_remembered(model, graph):
    """They count no changes."""
    gs.lighten_(model)
    model.eval()
    with torch.inference_mode():
        edge_index = graph[1].clone()
        model(graph[0], edge_index)
        edge_index[0, :40] = 3
        torch.testing.assert_close(model(graph[0], edge_index), fresh(model, graph[0], edge_index))
