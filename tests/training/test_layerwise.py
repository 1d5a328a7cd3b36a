"""gs.infer_layerwise: the result of model(x, graph), a part of the nodes at a time, in memory or in files."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch_geometric import nn as pyg

import gossamer as gs
from support.graphs import random_graph
from support.pyg_models import NASTY, Gcnii

NODES = 60
BATCHES = (1, 7, 25, 59, 60, 1000)
MODELS = {
    "gcn": lambda **o: pyg.GCN(12, 8, 3, 5, **o),
    "gcn improved": lambda **o: pyg.GCN(12, 8, 3, 5, improved=True, **o),
    "gcn no loops": lambda **o: pyg.GCN(12, 8, 3, 5, add_self_loops=False, **o),
    "gcn narrow": lambda **o: pyg.GCN(12, 30, 2, 3, **o),
    "sage": lambda **o: pyg.GraphSAGE(12, 8, 3, 5, **o),
    "sage max": lambda **o: pyg.GraphSAGE(12, 8, 2, 5, aggr="max", project=True, **o),
    "sage without kernels": lambda **o: pyg.GraphSAGE(12, 8, 2, 5, aggr="min", **o),
    "gin": lambda **o: pyg.GIN(12, 8, 3, 5, **o),
    "gat": lambda **o: pyg.GAT(12, 8, 2, 5, heads=2, **o),
    "gatv2": lambda **o: pyg.GAT(12, 8, 2, 5, heads=2, v2=True, **o),
    "pna": lambda **o: pyg.PNA(
        12, 8, 2, 5, aggregators=["mean", "max"], scalers=["identity", "amplification"], deg=torch.ones(9).long(), **o
    ),
    "edge": lambda **o: pyg.EdgeCNN(12, 8, 2, 5, **o),
}


@pytest.fixture(autouse=True)
def _same_numbers():
    torch.manual_seed(0)


@pytest.fixture
def graph():
    """With loops, repeated edges and isolated nodes."""
    return random_graph(NODES, NODES, 300)


@pytest.fixture
def x():
    return torch.randn(NODES, 12)


def trained(model):
    """With running statistics that are not those of a new model."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
    return model


def whole(model, x, graph):
    """What PyG computes, of all nodes at once."""
    plain = gs.restore_(copy.deepcopy(model)).eval()
    weight = {} if graph.value is None else {"edge_weight": graph.value}
    with torch.no_grad():
        return plain(x, graph.edge_index, **weight)


def infer(model, graph, x, batch_size, **named):
    return gs.infer_layerwise(model, graph, x, batch_size=batch_size, progress=False, **named)


# The same result ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lightened", [True, False])
@pytest.mark.parametrize("batch_size", BATCHES)
@pytest.mark.parametrize("name", MODELS)
def test_ready_models(name, batch_size, lightened, graph, x):
    model = trained(MODELS[name](norm="batch_norm", dropout=0.5))
    want = whole(model, x, graph)
    if lightened:
        gs.lighten_(model)
    torch.testing.assert_close(infer(model, graph, x, batch_size), want)


@pytest.mark.parametrize("name", ["gcn", "gcn improved", "gcn no loops"])
@pytest.mark.parametrize("batch_size", [7, 60])
def test_weights_of_edges(name, batch_size, x):
    graph, model = random_graph(NODES, NODES, 300, weighted=True), MODELS[name]()
    torch.testing.assert_close(infer(model, graph, x, batch_size), whole(model, x, graph))


@pytest.mark.parametrize("jk", ["last", "cat", "max", "lstm"])
@pytest.mark.parametrize("name", ["gcn", "gat"])
@pytest.mark.parametrize("batch_size", [7, 60])
def test_jumping_knowledge(name, jk, batch_size, graph, x):
    model = MODELS[name](jk=jk)
    torch.testing.assert_close(infer(model, graph, x, batch_size), whole(model, x, graph))


@pytest.mark.parametrize(
    "options", [{"act": None}, {"act_first": True, "norm": "batch_norm"}, {"act": "prelu"}], ids=str
)
def test_activations(options, graph, x):
    model = trained(MODELS["gcn"](**options))
    torch.testing.assert_close(infer(model, graph, x, 7), whole(model, x, graph))


@pytest.mark.parametrize("nasty", NASTY)
@pytest.mark.parametrize("name", ["gcn", "gcn no loops", "sage", "gat"])
def test_nasty_graphs(name, nasty):
    edge_index, nodes = NASTY[nasty]
    graph, x, model = gs.Graph.from_edge_index(edge_index, nodes), torch.randn(nodes, 12), MODELS[name]()
    for batch_size in (1, 3, nodes):
        torch.testing.assert_close(infer(model, graph, x, batch_size), whole(model, x, graph))


def test_no_nodes(tmp_path):
    graph = gs.Graph(torch.zeros(1, dtype=torch.int64), torch.empty(0, dtype=torch.int32), 0)
    for out in (None, tmp_path / "out.npy"):
        assert infer(MODELS["sage"](), graph, torch.empty(0, 12), 7, out=out).shape == (0, 5)
    assert np.load(tmp_path / "out.npy").shape == (0, 5)


@pytest.mark.parametrize("recipe", ["tango", "feather", "exact-int2", "rsc"])
def test_recipes(recipe, x):
    """A lightened model computes as it always does, with int8 rounding of its own."""
    graph, x = random_graph(500, 500, 3000), torch.randn(500, 12)
    model = pyg.GraphSAGE(12, 64, 2, 5)
    gs.lighten_(model, recipe)
    want = model.eval()(x, graph).detach()
    found = infer(model, graph, x, 128)
    assert (found - want).norm() < 0.02 * want.norm()
    assert (found - whole(model, x, graph)).norm() < 0.05 * want.norm()


# Models of one's own --------------------------------------------------------------------------------------------


class Written(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2, self.lin = pyg.GCNConv(12, 8), pyg.SAGEConv(8, 6), nn.Linear(6, 5)

    def forward(self, x, edge_index):
        return self.lin(self.conv2(self.conv1(x, edge_index).relu(), edge_index).relu())

    def inference_layers(self):
        return [
            lambda x, block: self.conv1(x, block).relu(),
            lambda x, block: self.lin(self.conv2(x, block).relu()),
        ]


class Gcn2(Gcnii):
    """X_0 travels in columns of its own."""

    def inference_layers(self):
        first, last = (lambda x, block: self.lins[0](x[: block.num_dst]).relu().repeat(1, 2)), self.lins[1]

        def layer(conv, x, block):
            x, x_0 = x.chunk(2, dim=1)
            return torch.cat([conv(x, x_0, block).relu(), x_0[: block.num_dst]], dim=1)

        middle = [lambda x, block, conv=conv: layer(conv, x, block) for conv in self.convs]
        return [first, *middle, lambda x, block: last(x[: block.num_dst].chunk(2, dim=1)[0])]


@pytest.mark.parametrize("lightened", [True, False])
@pytest.mark.parametrize("kind", [Written, lambda: Gcn2(12, 8, 3, 5)])
def test_models_of_ones_own(kind, lightened, graph, x):
    model = kind()
    want = whole(model, x, graph)
    if lightened:
        gs.lighten_(model)
    for batch_size in (7, 60):
        torch.testing.assert_close(infer(model, graph, x, batch_size), want)


# Features -------------------------------------------------------------------------------------------------------


class Stored:
    """Rows that are decoded when they are asked for."""

    def __init__(self, x, by_gather) -> None:
        self.x, self.asked = x, 0
        self.shape = x.shape
        if by_gather:
            self.gather = self.__getitem__

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, ids):
        self.asked = max(self.asked, len(ids))
        return self.x[ids]


@pytest.mark.parametrize("batch_size", [7, 60])
@pytest.mark.parametrize("kind", ["array", "read-only map", "half", "gather", "getitem"])
def test_kinds_of_features(kind, batch_size, graph, x, tmp_path):
    np.save(tmp_path / "x.npy", x.numpy())
    given = {
        "array": x.numpy(),
        "read-only map": np.load(tmp_path / "x.npy", mmap_mode="r"),
        "half": x.half(),
        "gather": Stored(x, True),
        "getitem": Stored(x, False),
    }[kind]
    model = MODELS["sage"]()
    want = whole(model, x.half().float() if kind == "half" else x, graph)
    torch.testing.assert_close(infer(model, graph, given, batch_size), want)


def test_only_rows_of_the_part_are_asked_for():
    ring = gs.Graph.from_edge_index(torch.stack([torch.arange(100), (torch.arange(100) + 1) % 100]), 100)
    x = Stored(torch.randn(100, 12), False)
    infer(MODELS["sage"](), ring, x, 10)
    assert x.asked == 11


# Results --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("jk", [None, "cat"])
@pytest.mark.parametrize("batch_size", [7, 60])
def test_a_file(jk, batch_size, graph, x, tmp_path):
    model, path = MODELS["gcn"](jk=jk), tmp_path / "out.npy"
    path.write_text("what was there before")
    want = whole(model, x, graph)
    found = infer(model, graph, x, batch_size, out=path)
    torch.testing.assert_close(found, want)
    torch.testing.assert_close(torch.from_numpy(np.load(path)), want)
    assert [file.name for file in tmp_path.iterdir()] == ["out.npy"]


@pytest.mark.parametrize("kind", ["array", "map"])
def test_an_array_of_the_users(kind, graph, x, tmp_path):
    model = MODELS["gcn"]()
    out = np.empty((NODES, 5), np.float32)
    if kind == "map":
        out = np.lib.format.open_memmap(tmp_path / "out.npy", "w+", np.float32, (NODES, 5))
    found = infer(model, graph, x, 7, out=out)
    assert found.data_ptr() == out.ctypes.data
    torch.testing.assert_close(torch.from_numpy(out), whole(model, x, graph))


def test_no_file_is_left_after_an_error(graph, x, tmp_path):
    model, path = Written(), tmp_path / "out.npy"
    path.write_text("before")
    seen = []

    def fails(x, block):
        seen.extend(file.name for file in tmp_path.iterdir())
        raise RuntimeError("in the second layer")

    first, _ = model.inference_layers()
    model.inference_layers = lambda: [first, fails]
    with pytest.raises(RuntimeError, match="in the second layer"):
        infer(model, graph, x, 7, out=path)
    assert len(seen) == 2  # what was there, and the result so far
    assert [file.name for file in tmp_path.iterdir()] == ["out.npy"] and path.read_text() == "before"


@pytest.mark.parametrize("kind", ["path", "map"])
def test_inner_layers_are_in_files_until_they_are_read(kind, graph, x, tmp_path):
    """Of five layers the last reads the fourth, and the others' files are gone."""
    model, maps, files, out = pyg.GraphSAGE(12, 8, 5, 5), [], [], tmp_path / "out.npy"
    want = whole(model, x, graph)
    gs.lighten_(model)

    def look(*given):
        maps.append(sum(str(tmp_path) in line for line in Path("/proc/self/maps").read_text().splitlines()))
        files.append(len(list(tmp_path.iterdir())))

    model.convs[4].register_forward_pre_hook(look)
    if kind == "map":
        out = np.lib.format.open_memmap(out, "w+", np.float32, (NODES, 5))
    torch.testing.assert_close(infer(model, graph, x, 7, out=out), want)
    assert maps[0] <= 2 and set(maps[1:]) == {2} and set(files) == {1}  # the fourth, and the result


# The model is left as it was ------------------------------------------------------------------------------------


@pytest.mark.parametrize("fails", [True, False])
@pytest.mark.parametrize("lightened", [True, False])
def test_modes_and_classes_stay(lightened, fails, graph, x):
    model = MODELS["gcn"](norm="batch_norm", dropout=0.5)
    if lightened:
        gs.lighten_(model)
    model.train()
    model.norms[1].eval()
    before = [(type(module), module.training) for module in model.modules()]
    state = copy.deepcopy(model.state_dict())
    if fails:
        with pytest.raises(ValueError, match=r"`x` must have 12 columns.*31, 11"):
            infer(model, graph, x[:, :11], 7)
    else:
        infer(model, graph, x, 7)
    assert [(type(module), module.training) for module in model.modules()] == before
    assert all(torch.equal(state[name], tensor) for name, tensor in model.state_dict().items())
    assert not any(p.grad is not None for p in model.parameters())


def test_nothing_requires_grad(graph, x):
    assert not infer(MODELS["gat"](), graph, x, 7).requires_grad


@pytest.mark.parametrize("shown", [True, False])
def test_a_bar_on_standard_error(shown, graph, x, capfd):
    gs.infer_layerwise(MODELS["gcn"](), graph, x, batch_size=7, progress=shown)
    out, err = capfd.readouterr()
    assert out == "" and ("layer 3 of 3" in err) == shown


# What cannot be -------------------------------------------------------------------------------------------------


class Silent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = pyg.GCNConv(12, 5)

    def forward(self, x, edge_index):
        return self.conv(x, edge_index)


class Subclass(pyg.GCN):
    def forward(self, x, edge_index):
        return 2 * super().forward(x, edge_index)


@pytest.mark.parametrize("model", [Silent, lambda: Subclass(12, 8, 2, 5)])
def test_models_that_do_not_say_what_their_layers_are(model, graph, x):
    with pytest.raises(
        TypeError, match=r"(?s)or say what its layers are \(got S.*def inference_layers\(self\):\n.*conv1"
    ):
        infer(model(), graph, x, 7)


@pytest.mark.parametrize("norm", ["layer_norm", "instance_norm", "graph_norm", "pair_norm"])
@pytest.mark.parametrize("name", ["gcn", "gin"])
def test_statistics_over_all_nodes(name, norm, graph, x):
    with pytest.raises(ValueError, match=r"statistics of \w+ `.*` are taken over all nodes at once; use"):
        infer(MODELS[name](norm=norm), graph, x, 7)
    by_row = MODELS[name](norm="layer_norm", norm_kwargs={"mode": "node"})
    torch.testing.assert_close(infer(by_row, graph, x, 7), whole(by_row, x, graph))


class Several(nn.Module):
    def __init__(self, conv) -> None:
        super().__init__()
        self.conv = conv

    def inference_layers(self):
        return [lambda x, block: self.conv(x, block.edge_index)[: block.num_dst]]


@pytest.mark.parametrize("conv", [lambda: pyg.TAGConv(12, 5), lambda: pyg.SGConv(12, 5, K=2)])
def test_convolutions_over_several_hops(conv, graph, x):
    with pytest.raises(ValueError, match=r"Conv `conv` needs degrees or hops beyond its part of the graph"):
        infer(Several(conv()), graph, x, 7)


def test_reversed_edges(graph, x):
    with pytest.raises(ValueError, match="SAGEConv `conv` sums along reversed edges"):
        infer(Several(pyg.SAGEConv(12, 5, flow="target_to_source")), graph, x, 7)


def test_layers_that_return_other_rows(graph, x):
    model = Written()
    model.inference_layers = lambda: [lambda x, block: x]
    with pytest.raises(ValueError, match=r"layer 0 of `model` must return one row for each of the block's 7 dest"):
        infer(model, graph, x, 7)
    model.inference_layers = list
    with pytest.raises(TypeError, match=r"`inference_layers` must return functions .* at least one \(got \[\]\)"):
        infer(model, graph, x, 7)


def test_other_bad_input(graph, x, tmp_path):
    model = MODELS["gcn"]()
    with pytest.raises(TypeError, match=r"`model` must be a torch.nn.Module \(got int"):
        infer(3, graph, x, 7)
    with pytest.raises(TypeError, match=r"`graph` must be a gs.Graph \(got Tensor\); build it with"):
        infer(model, graph.edge_index, x, 7)
    with pytest.raises(ValueError, match=r"as many sources as destinations.*\(got Graph\(9 -> 4"):
        infer(model, random_graph(9, 4, 5), x, 7)
    with pytest.raises(ValueError, match=r"`x` must have one row for each of the graph's 60 nodes \(got 59 rows\)"):
        infer(model, graph, x[1:], 7)
    with pytest.raises(TypeError, match=r"`x` must be a tensor, an array, or have .* \(got int\)"):
        infer(model, graph, 3, 7)
    for batch_size in (0, 2.5, True):
        with pytest.raises(ValueError, match="`batch_size` must be a whole number of rows, at least 1"):
            infer(model, graph, x, batch_size)
    with pytest.raises(TypeError, match=r"`out` must be a path, an array or a memory map \(got int\)"):
        infer(model, graph, x, 7, out=3)
    with pytest.raises(ValueError, match=r"`out` must be an array of 60 rows .*\(got the shape \(59, 5\)"):
        infer(model, graph, x, 7, out=np.empty((59, 5), np.float32))
    with pytest.raises(ValueError, match=r"`out` must have 5 columns of float32.*\(60, 5\) of float64"):
        infer(model, graph, x, 7, out=np.empty((60, 5)))
    with pytest.raises(FileNotFoundError, match="`out` must lie in an existing folder"):
        infer(model, graph, x, 7, out=tmp_path / "none" / "out.npy")


@pytest.mark.parametrize("learned", [True, False])
def test_weights_beside_a_part(learned, graph, x):
    class Weighted(Written):
        def inference_layers(self):
            return [lambda x, block: self.conv1(x, block, torch.rand(block.num_edges, requires_grad=learned))]

    with pytest.raises(ValueError, match=r"`edge_weight` must be None with a part of a graph.*from_edge_index"):
        infer(Weighted(), graph, x, 7)
