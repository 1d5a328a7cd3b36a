"""NeighborLoader: what a batch holds, that epochs and resumed epochs are the same to the bit, and bad arguments."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch
from torch_geometric.nn import SAGEConv
from torch_geometric.utils import trim_to_layer

import gossamer as gs
from support import graphs
from support.paths import needs_native

NODES = 400
GRAPH = graphs.graph("power law")
X = torch.arange(NODES * 3.0).view(NODES, 3)
Y = torch.arange(NODES) % 7


def loader(**changed):
    given = {"graph": GRAPH, "x": X, "fanouts": [3, 2], "seeds": torch.arange(10, 110), "batch_size": 32}
    return gs.NeighborLoader(**(given | changed))


def tensors(batch) -> list:
    edges = batch.edge_index if "edge_index" in batch else torch.cat([batch.blocks.rowptr, batch.blocks.col])
    return [batch.n_id, batch.x, batch.input_id, edges]


def equal(batches, others) -> bool:
    pairs = zip(batches, others, strict=True)
    return all(torch.equal(a, b) for one, other in pairs for a, b in zip(tensors(one), tensors(other), strict=True))


# Batches --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefetch", [0, 2])
def test_rows_may_stay_codes(prefetch):
    store = gs.compress(torch.randn(NODES, 19), gs.Scalar(bits=2))
    decoded = list(loader(x=store, blocks=True))
    for coded, batch in zip(loader(x=store, blocks=True, decode=False, prefetch=prefetch), decoded, strict=True):
        assert isinstance(coded.x, gs.codecs.CodedRows) and coded.x.shape == batch.x.shape
        assert torch.equal(coded.x.decode(), batch.x) and coded.x.requires_grad is False
        assert torch.equal(coded.x.first(5).decode(), batch.x[:5]) and len(coded.x) == len(batch.x)
        assert coded.x.nbytes == len(batch.x) * 5 + coded.x.codes.tensors[1].nbytes  # 19 codes of 2 bits in 5 bytes
        assert repr(coded.x).startswith(f"CodedRows({len(batch.x)} x 19, Scalar(bits=2")
    (mixed,) = loader(x=store, blocks=True, decode=False, batch_size=100, dtype=torch.bfloat16)
    assert mixed.x.dtype == mixed.x.decode().dtype == torch.bfloat16


@pytest.mark.parametrize("codec", [gs.Product(width=4, length=16), gs.Principal()], ids=repr)
def test_other_codes_are_decoded_by_the_loader(codec):
    store = gs.compress(torch.randn(NODES, 16), codec)
    pairs = zip(loader(x=store, blocks=True, decode=False), loader(x=store, blocks=True), strict=True)
    assert all(torch.equal(one.x, other.x) for one, other in pairs)


def test_codes_need_blocks_and_compressed_features():
    store = gs.compress(torch.randn(NODES, 3), gs.Scalar(bits=2))
    with pytest.raises(ValueError, match=r"`decode`.*blocks=True.*got blocks=False"):
        loader(x=store, decode=False)
    with pytest.raises(TypeError, match=r"`x` must be compressed features.*got Tensor.*gs\.compress"):
        loader(blocks=True, decode=False)


@pytest.mark.parametrize("blocks", [False, True])
@pytest.mark.parametrize("prefetch", [0, 1, 4])
def test_a_batch_holds_what_belongs_to_its_nodes(blocks, prefetch, threads):
    found = loader(y=Y, blocks=blocks, prefetch=prefetch)
    batches = list(found)
    assert len(found) == len(batches) == 4 and [batch.batch_size for batch in batches] == [32, 32, 32, 4]
    assert torch.cat([batch.n_id[: batch.batch_size] for batch in batches]).tolist() == list(range(10, 110))
    assert torch.cat([batch.input_id for batch in batches]).tolist() == list(range(100))
    edges = {tuple(pair) for pair in GRAPH.edge_index.t().tolist()}
    for batch in batches:
        assert torch.equal(batch.x, X[batch.n_id]) and torch.equal(batch.y, Y[batch.n_id])
        assert batch.num_nodes == batch.n_id.numel()
        if blocks:
            assert "edge_index" not in batch and batch.blocks.sizes[0] == batch.num_nodes
            assert batch.blocks.sizes[-1] == batch.batch_size
        else:
            assert "blocks" not in batch
            assert {tuple(pair) for pair in batch.n_id[batch.edge_index].t().tolist()} <= edges
            assert sum(batch.num_sampled_nodes) == batch.num_nodes
            assert sum(batch.num_sampled_edges) == batch.num_edges


def test_pygs_trim_to_layer_gives_the_blocks():
    """The layers of a model, on trimmed edges and on blocks: the same rows of the seeds."""
    torch.manual_seed(0)
    layers = [SAGEConv(3, 8), SAGEConv(8, 4)]
    for batch, other in zip(loader(), loader(blocks=True), strict=True):
        x, edge_index, rows = batch.x, batch.edge_index, other.x
        for number, layer in enumerate(layers):
            hops = batch.num_sampled_nodes, batch.num_sampled_edges
            x, edge_index, _ = trim_to_layer(number, *hops, x, edge_index)
            x = layer(x, edge_index)
            block = other.blocks.of_rows(rows.size(0))
            rows = layer((rows, rows[: block.num_dst]), block.edge_index)
        torch.testing.assert_close(rows, x[: batch.batch_size])


def test_where_a_hop_finds_no_new_node():
    """Blocks have a placeholder, a copy of the first seed; edges have none."""
    graph = graphs.graph("isolated nodes")
    given = {"graph": graph, "x": X[:12], "seeds": [7, 3], "fanouts": [2, 2, 2], "batch_size": 2}
    (batch,) = loader(**given)
    assert batch.n_id.tolist() == [7, 3, 9, 4] and batch.num_sampled_nodes == [2, 2, 0, 0]
    (batch,) = loader(**given, blocks=True)
    assert batch.n_id.tolist() == [7, 3, 9, 4, 7, 7] and batch.blocks.sizes == (6, 5, 4, 2)
    assert torch.equal(batch.x, X[batch.n_id])


def test_blocks_stay_blocks_where_pyg_moves_a_batch():
    for batch in loader(blocks=True):
        assert batch.to("cpu").blocks is batch.blocks and batch.clone().blocks.sizes == batch.blocks.sizes


def test_weights_of_edges():
    graph = graphs.random_graph(50, 50, 400, weighted=True)
    weight_of = {(s, d): set() for s, d in graph.edge_index.t().tolist()}
    for (s, d), w in zip(graph.edge_index.t().tolist(), graph.value.tolist(), strict=True):
        weight_of[s, d].add(w)
    for weighted in (False, True):
        for batch in loader(graph=graph, x=X[:50], seeds=torch.arange(50), weighted=weighted):
            pairs = batch.n_id[batch.edge_index].t().tolist()
            assert all(w in weight_of[s, d] for (s, d), w in zip(pairs, batch.edge_weight.tolist(), strict=True))


def test_replacement_draws_as_many_as_asked_for():
    (batch,) = loader(seeds=torch.tensor([0]), fanouts=[1000], replace=True)
    assert batch.num_sampled_edges == [1000]


# Features -------------------------------------------------------------------------------------------------------


class Store:
    """Rows behind `[ids]`."""

    def __len__(self):
        return NODES

    shape = (NODES, 3)

    def __getitem__(self, ids):
        return X[ids].double()


class GatheringStore(Store):
    """Rows behind `gather`, as compressed features have it."""

    def __getitem__(self, ids):
        raise AssertionError("`gather` decodes to the dtype asked for")

    def gather(self, ids, out=None, dtype=torch.float32):
        return X[ids].to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_whatever_holds_the_rows(dtype, tmp_path):
    np.save(tmp_path / "x.npy", X.numpy())
    read_only = np.load(tmp_path / "x.npy", mmap_mode="r")
    for x in (X, X.double(), X.int(), X.numpy(), read_only, Store(), GatheringStore(), X.t().contiguous().t()):
        for batch in loader(x=x, dtype=dtype):
            assert batch.x.dtype == dtype and torch.equal(batch.x, X[batch.n_id].to(dtype))


def test_numbers_and_ids_of_numpy():
    two, ids = np.int64(2), np.arange(10, 110, dtype=np.int32)
    assert equal(list(loader(seeds=ids, fanouts=[two, two], batch_size=np.int32(32))), list(loader(fanouts=[2, 2])))


def test_a_mask_of_seeds():
    mask = torch.zeros(NODES, dtype=torch.bool)
    mask[10:110] = True
    assert equal(list(loader(seeds=mask)), list(loader()))


def test_no_features():
    assert all("x" not in batch for batch in loader(x=None))


# Epochs ---------------------------------------------------------------------------------------------------------


def test_the_same_arguments_give_the_same_epochs(threads):
    one, other = loader(shuffle=True, seed=5), loader(shuffle=True, seed=5, prefetch=0)
    torch.manual_seed(threads)  # has no influence
    epochs = [list(one) for _ in range(3)]
    assert all(equal(epoch, list(other)) for epoch in epochs)
    orders = [torch.cat([batch.input_id for batch in epoch]) for epoch in epochs]
    assert all(order.sort().values.tolist() == list(range(100)) for order in orders)
    assert not torch.equal(orders[0], orders[1]) and not torch.equal(orders[1], orders[2])
    assert not equal(epochs[0], list(loader(shuffle=True, seed=6)))


def test_other_edges_in_every_epoch_and_batch_without_shuffling():
    found = loader(seeds=torch.tensor([0]), batch_size=1)
    draws = [next(iter(found)).n_id.tolist() for _ in range(5)]
    assert len({tuple(draw) for draw in draws}) == 5


def test_the_last_batch_is_dropped():
    found = loader(drop_last=True)
    assert len(found) == 3 and [batch.batch_size for batch in found] == [32, 32, 32]


@pytest.mark.parametrize("prefetch", [0, 3])
@pytest.mark.parametrize("done", [0, 1, 3, 4])
def test_an_epoch_is_resumed_in_another_loader(done, prefetch):
    found = loader(shuffle=True)
    whole = [list(found) for _ in range(3)]
    first = loader(shuffle=True, prefetch=prefetch)
    list(first)
    batches = iter(first)
    begun = [next(batches) for _ in range(done)]
    state = first.state()
    assert equal(begun, whole[1][:done]) and state == {"epoch": 1, "batch": done}
    second = loader(shuffle=True, prefetch=prefetch)
    second.restore(state)
    assert second.epoch == 1
    assert equal(list(second), whole[1][done:])
    assert second.epoch == 2 and equal(list(second), whole[2])


def test_an_iteration_that_is_left_early_ends_its_epoch():
    found = loader(shuffle=True)
    whole = [list(found) for _ in range(2)]
    other = loader(shuffle=True)
    for _ in other:
        break
    assert equal(list(other), whole[1]) and other.epoch == 2
    other.epoch = 0
    assert equal(list(other), whole[0])


def test_two_iterators_of_one_loader():
    found = loader(shuffle=True)
    whole = [list(found) for _ in range(2)]
    found.epoch = 0
    one, other = iter(found), iter(found)
    pairs = list(zip(one, other, strict=True))
    assert equal([a for a, _ in pairs], whole[0]) and equal([b for _, b in pairs], whole[1])


# The thread -----------------------------------------------------------------------------------------------------


def test_an_exception_of_the_thread_is_raised_in_the_loop():
    class Broken(Store):
        def __getitem__(self, ids):
            raise OSError("the file is gone")

    with pytest.raises(OSError, match="the file is gone"):
        list(loader(x=Broken()))


def test_the_thread_ends_with_the_loop():
    for _ in loader():
        break
    assert not [thread for thread in threading.enumerate() if thread.name == "gossamer-prefetch"]


@needs_native
def test_what_the_sampler_made_is_not_checked_again(monkeypatch):
    found = loader(blocks=True, prefetch=0)
    batches = iter(found)
    next(batches)

    def refused(*args):
        raise AssertionError("row pointers are checked once more")

    def not_columns(name, *args):
        assert name != "col", "columns are checked once more"

    monkeypatch.setattr("gossamer.ops._checks.library.check_rowptr", refused)
    monkeypatch.setattr("gossamer.ops._checks.ids_within", not_columns)
    batch = next(batches)
    for block in batch.blocks:
        gs.ops.spmm(block, batch.x[: block.num_src])


# Bad arguments --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changed, error, message",
    [
        ({"graph": GRAPH.edge_index}, TypeError, "`graph` must be a gs.Graph"),
        ({"graph": graphs.small()}, ValueError, "`graph` must have as many sources as destinations"),
        ({"seeds": [3, 400, 500]}, IndexError, "`seeds` must hold ids from 0 to 399.*got 400 at position 1"),
        ({"seeds": [-1]}, IndexError, "`seeds`.*got -1 at position 0"),
        ({"seeds": []}, ValueError, "`seeds` must hold at least one node"),
        ({"seeds": torch.zeros(NODES).bool()}, ValueError, "`seeds` must hold at least one node"),
        ({"seeds": torch.zeros(3).bool()}, ValueError, r"`seeds` must have the shape \[400\] if it is a mask"),
        ({"seeds": [4, 5, 4]}, ValueError, "`seeds` must hold each node once.*got 4 at positions 0 and 2"),
        ({"seeds": [0.5]}, TypeError, "`seeds` must be int64"),
        ({"seeds": [[1]]}, ValueError, r"`seeds` must have the shape \[count\]"),
        ({"fanouts": [0]}, ValueError, "`fanouts` must be at least 1"),
        ({"fanouts": "3"}, TypeError, "`fanouts` must be a list"),
        ({"batch_size": 0}, ValueError, "`batch_size` must be at least 1"),
        ({"batch_size": 2.0}, TypeError, "`batch_size` must be a whole number"),
        ({"batch_size": 101, "drop_last": True}, ValueError, "`batch_size` must be at most 100.*got 101"),
        ({"prefetch": -1}, ValueError, "`prefetch` must be at least 0"),
        ({"seed": "1"}, TypeError, "`seed` must be a whole number"),
        ({"x": X[1:]}, ValueError, "`x` must have one row for each of the graph's 400 nodes.*got 399"),
        ({"x": X.numpy()[1:]}, ValueError, "`x` must have one row for each of the graph's 400 nodes"),
        ({"x": 3}, ValueError, "`x` must have one row for each of the graph's 400 nodes.*got None"),
        ({"x": X.clone().requires_grad_()}, ValueError, "`x` must not require grad"),
        ({"y": Y[1:]}, ValueError, "`y` must have one row for each of the graph's 400 nodes"),
        ({"weighted": True}, ValueError, "`weighted` needs edge weights"),
    ],
)
def test_bad_arguments(changed, error, message):
    with pytest.raises(error, match=message):
        loader(**changed)


def test_weights_that_are_none():
    value = torch.ones(GRAPH.num_edges)
    value[int(GRAPH.rowptr[10])] = -1
    with pytest.raises(ValueError, match=r"`weight` must be finite and not negative \(got -1.0 at edge"):
        list(loader(graph=GRAPH.with_value(value), weighted=True))


@pytest.mark.parametrize(
    "state, error, message",
    [
        ({"epoch": 0, "batch": 5}, ValueError, r"`state\['batch'\]` must be at most 4"),
        ({"epoch": -1, "batch": 0}, ValueError, r"`state\['epoch'\]` must be at least 0"),
        ({"epoch": 1}, TypeError, r"`state\['batch'\]` must be a whole number \(got None\)"),
    ],
)
def test_bad_state(state, error, message):
    with pytest.raises(error, match=message):
        loader().restore(state)


def test_rows_of_a_store_are_as_many_as_asked_for():
    class Short(Store):
        def __getitem__(self, ids):
            return X[ids][1:]

    with pytest.raises(ValueError, match=r"`x\[ids\]` must be a tensor with one row per id"):
        list(loader(x=Short()))
