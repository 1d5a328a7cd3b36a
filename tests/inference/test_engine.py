"""The engine: what it takes, refuses, and that its bits depend on nothing but its inputs."""

from __future__ import annotations

import pytest
import torch
from torch_geometric import nn as pyg

import gossamer as gs
from gossamer.inference import BadProgram, Engine, Program
from gossamer.ops import OPS
from support.compare import on_baseline, same_bits
from support.graphs import graph
from support.integer_models import CLASSES, COLUMNS, MODELS
from support.tensors import rand

KINDS = ("GCN, batch norm", "GraphSAGE", "GIN", "GAT")


def inputs(nodes: int = 300):
    g = graph("power law")
    edge_index = g.edge_index[:, (g.edge_index < nodes).all(0)]
    return rand(nodes, COLUMNS), edge_index


@pytest.fixture(scope="module")
def engines(tmp_path_factory) -> dict[tuple[str, int], tuple[torch.nn.Module, Engine]]:
    folder, found = tmp_path_factory.mktemp("models"), {}
    for name in KINDS:
        for bits in (8, 4):
            torch.manual_seed(0)
            model = MODELS[name]().eval()
            gs.calibrate(model, inputs(), bits)
            gs.export(model, folder / "m")
            found[name, bits] = model.eval(), gs.load(folder / "m")
    return found


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("name", KINDS)
def test_same_bits_for_every_instruction_set_and_thread_count(name, bits, engines, isa, threads):
    x, edge_index = inputs()
    engine = engines[name, bits][1]
    assert same_bits(engine(x, edge_index), on_baseline(lambda: engine(x, edge_index)))


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("name", KINDS)
def test_equals_the_references_of_its_ops(name, bits, engines, monkeypatch):
    """The engine in plain PyTorch gives the same bits."""
    x, edge_index = inputs()
    engine = engines[name, bits][1]
    want = engine(x, edge_index)

    def reference(op, *args, **named):
        op.check(*args)
        return op.reference(*args)

    with monkeypatch.context() as patch:
        patch.setattr(type(OPS["spmm"]), "__call__", reference)
        assert same_bits(engine(x, edge_index), want)


@pytest.mark.parametrize("name", KINDS)
def test_the_order_of_edges_does_not_matter(name, engines):
    x, edge_index = inputs()
    engine = engines[name, 8][1]
    shuffled = edge_index[:, torch.randperm(edge_index.size(1), generator=torch.Generator().manual_seed(0))]
    assert same_bits(engine(x, edge_index), engine(x, shuffled))


@pytest.mark.parametrize("name", KINDS)
def test_graphs_that_it_has_never_seen(name, engines):
    """Also without edges, with one node, with loops."""
    model, engine = engines[name, 8]
    for case in ("no edges", "one node", "self-loops", "duplicate edges", "star"):
        g = graph(case)
        x = rand(g.num_nodes, COLUMNS, seed=9)
        with torch.no_grad():
            want = model(x, g.edge_index)
        assert torch.allclose(engine(x, g), want, atol=0.05 * float(want.abs().max()) + 1e-3)


@pytest.mark.parametrize("name", KINDS)
def test_sampled_blocks(name, engines):
    model, engine = engines[name, 8]
    x, edge_index = inputs()
    whole = gs.Graph.from_edge_index(edge_index, len(x))
    layers = engine.program.convolutions
    for fanouts, exact in (([-1] * layers, name != "GCN, batch norm"), ([3] * layers, False)):
        loader = gs.NeighborLoader(whole, x, fanouts, torch.arange(0, 300, 7), 20, blocks=True)
        for batch in loader:
            out = engine(batch.x, batch.blocks)
            with torch.no_grad():
                want = model(batch.x, batch.blocks)
            assert out.shape == want.shape == (batch.batch_size, CLASSES)
            assert torch.allclose(out, want, atol=0.05 * float(want.abs().max()) + 1e-3)
            if exact:  # all neighbours: what the whole graph gives; GCN's degrees are those of the blocks
                assert same_bits(out, engine(x, whole)[batch.n_id[: batch.batch_size]])


def test_features_kept_as_codes(engines):
    x, edge_index = inputs()
    engine = engines["GCN, batch norm", 8][1]
    store = gs.compress(x, gs.Scalar(bits=8), progress=False)
    assert same_bits(engine(store, edge_index), engine(store.decode(), edge_index))


def test_features_are_decoded_by_parts(engines, monkeypatch):
    from gossamer.inference import engine as module

    x, edge_index = inputs()
    engine = engines["GraphSAGE", 8][1]
    store = gs.compress(x, gs.Scalar(bits=4), progress=False)
    want = engine(store, edge_index)
    monkeypatch.setattr(module, "ROWS_AT_A_TIME", 37)
    assert same_bits(engine(store, edge_index), want)


def test_other_dtypes_of_features(engines):
    x, edge_index = inputs()
    engine = engines["GCN, batch norm", 8][1]
    assert same_bits(engine(x.double(), edge_index), engine(x, edge_index))
    ids = (x > 0).long()
    assert same_bits(engine(ids, edge_index), engine(ids.float(), edge_index))
    assert engine(x.t().contiguous().t(), edge_index).shape == (300, CLASSES)


def test_what_it_is(engines):
    engine = engines["GIN", 4][1]
    assert (engine.num_features, engine.num_outputs) == (COLUMNS, CLASSES)
    assert repr(engine).startswith("Engine(4 bits, 12 features to 5 outputs of nodes, 3 convolutions")
    assert engine.facts["recipe"]["training"]["bits"] == 4
    plain = engine.program.to_plain()
    assert Program.from_plain(plain) == engine.program


def test_bad_inputs(engines):
    x, edge_index = inputs()
    engine = engines["GCN, batch norm", 8][1]
    with pytest.raises(
        ValueError, match=r"`x` must have the shape \[nodes, 12\] \(got \(300, 11\)\); pass the features"
    ):
        engine(x[:, :11], edge_index)
    with pytest.raises(TypeError, match=r"`x` must be a tensor or a gs.FeatureStore"):
        engine(x.numpy(), edge_index)
    with pytest.raises(TypeError, match="`x` must hold numbers"):
        engine(x.to(torch.complex64), edge_index)
    bad = x.clone()
    bad[17, 3] = torch.nan
    with pytest.raises(ValueError, match=r"`x` must be finite \(row 17 is not\)"):
        engine(bad, edge_index)
    with pytest.raises(IndexError, match="must hold ids of the 300 nodes"):
        engine(x, edge_index + 1)
    with pytest.raises(ValueError, match="`x` must have one row for each of the 299 nodes"):
        engine(x, gs.Graph.from_edge_index(edge_index[:, (edge_index < 299).all(0)], 299))
    for nothing in (None, 3):
        with pytest.raises(TypeError, match=r"`graph` must be a gs.Graph, gs.Blocks or an edge_index tensor"):
            engine(x, nothing)
    with pytest.raises(ValueError, match="`batch` must be left out"):
        engine(x, edge_index, torch.zeros(300, dtype=torch.long))
    with pytest.raises(ValueError, match="as many sources as destinations"):
        engine(x, gs.Graph.from_edge_index(edge_index, (300, 400)))


def test_memory_of_a_call_is_that_of_codes(engines):
    """No register of floats as large as a hidden layer."""
    model = pyg.GCN(64, 256, 3, 8, norm="batch_norm").eval()
    x, (src, dst) = rand(20_000, 64), torch.randint(20_000, (2, 60_000))
    graph_ = gs.Graph.from_edge_index(torch.stack([src, dst]), 20_000)
    gs.calibrate(model, (x, graph_), check=False)
    from gossamer.conversion.capture import capture
    from gossamer.conversion.lower import lower

    engine = Engine(*lower(model, capture(model)))
    assert not any(r.columns == 256 and not r.is_codes for r in engine._registers.values())


def test_rows_of_a_program_must_fit_each_other():
    """A file may say what no lowering writes: factors of nodes for rows of graphs."""
    tensors = {"w": torch.ones(4, COLUMNS, dtype=torch.int8), "m": torch.ones(1)}
    steps = [
        {"op": "pool", "out": "p", "x": "x", "reduce": "mean", "result": {"mult": "m"}},
        {"op": "quantise", "out": "q", "x": "p", "result": {"mult": "m", "bits": 8}},
        {"op": "linear", "out": "y", "x": "q", "weight": "w", "result": {"mult": "m", "row": "mean"}},
    ]
    plain = {"columns": COLUMNS, "graph_level": True, "convolutions": 0, "output": "y", "steps": steps}
    engine = Engine(Program.from_plain(plain), tensors)
    g = graph("power law")
    with pytest.raises(BadProgram, match="rows of what is added to it"):
        engine(rand(400, COLUMNS), g, torch.arange(400) % 7)


@pytest.mark.parametrize("op", ["sum", "convert"])
def test_a_result_is_not_wider_than_what_it_is_made_from(op):
    """Of 140 columns, codes of four bits fill more columns than those of eight: kernels would read beyond the rows."""
    steps = [
        {"op": "quantise", "out": "q", "x": "x", "result": {"mult": "m", "bits": 8}},
        {"op": op, "out": "s", "x": "q", "result": {"mult": "m", "bits": 4}},
        {"op": "convert", "out": "y", "x": "s", "result": {"mult": "m"}},
    ]
    plain = {"columns": 140, "graph_level": False, "convolutions": 1, "output": "y", "steps": steps}
    with pytest.raises(BadProgram, match="256 stored columns, what it is made from 192; export"):
        Engine(Program.from_plain(plain), {"m": torch.ones(1)})
