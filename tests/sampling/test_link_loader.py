"""LinkNeighborLoader: positive and negative edges, their labels, and the neighbourhoods of their ends."""

from __future__ import annotations

import math

import pytest
import torch

import gossamer as gs
from support import graphs

GRAPH = graphs.graph("power law")
X = torch.arange(400.0).unsqueeze(1)
EDGES = GRAPH.edge_index[:, ::40]  # 75 of them


def loader(**changed):
    given = {"graph": GRAPH, "x": X, "fanouts": [3, 2], "edge_label_index": EDGES, "batch_size": 20}
    return gs.LinkNeighborLoader(**(given | changed))


@pytest.mark.parametrize("ratio", [0, 0.5, 1, 2.5])
@pytest.mark.parametrize("blocks", [False, True])
def test_positives_and_negatives(ratio, blocks):
    found = loader(neg_sampling_ratio=ratio, blocks=blocks)
    batches = list(found)
    assert len(found) == len(batches) == 4
    for number, batch in enumerate(batches):
        positives = EDGES[:, 20 * number : 20 * number + 20]
        count, pairs = positives.size(1), batch.n_id[batch.edge_label_index]
        assert torch.equal(pairs[:, :count], positives)
        assert pairs.size(1) == count + math.ceil(ratio * count)
        assert batch.edge_label_index.max() < batch.batch_size and torch.equal(batch.x, X[batch.n_id])
        assert batch.input_id.tolist() == list(range(20 * number, 20 * number + count))
        if ratio:
            assert batch.edge_label.tolist() == [1.0] * count + [0.0] * (pairs.size(1) - count)
        else:
            assert "edge_label" not in batch
        assert ("blocks" in batch) == blocks and ("edge_index" in batch) != blocks
        if blocks:
            assert batch.blocks.sizes[-1] == batch.batch_size


@pytest.mark.parametrize(
    "label, ratio, want",
    [
        (torch.arange(75) % 3, 1, torch.arange(75) % 3 + 1),  # zero stands for negatives, as PyG has it
        (torch.arange(75) % 3 + 1, 1, torch.arange(75) % 3 + 1),
        (torch.arange(75) % 3, 0, torch.arange(75) % 3),
        (torch.rand(75, 2) + 1, 1, None),
    ],
)
def test_given_labels(label, ratio, want):
    want = label if want is None else want
    for batch in loader(edge_label=label, neg_sampling_ratio=ratio, shuffle=True):
        count = batch.input_id.numel()
        assert torch.equal(batch.edge_label[:count], want[batch.input_id])
        assert not batch.edge_label[count:].any() and batch.edge_label.dtype == label.dtype
        assert batch.edge_label.size(0) == batch.edge_label_index.size(1)


def test_negatives_are_uniform():
    """Both ends, over 400 nodes in 40 bins."""
    (batch,) = loader(batch_size=75, neg_sampling_ratio=400)
    ends = batch.n_id[batch.edge_label_index[:, 75:]]
    assert ends.size(1) == 30_000
    for end in ends:
        count, expected = (end // 10).bincount(minlength=40), 30_000 / 40
        assert ((count - expected).abs() < 5 * expected**0.5).all()


def test_strict_negatives_are_no_edges():
    dense = gs.Graph.from_edge_index(
        (torch.rand(30, 30, generator=torch.Generator().manual_seed(0)) < 0.7).nonzero().t()
    )
    given = {"graph": dense, "x": X[:30], "edge_label_index": dense.edge_index[:, :40], "neg_sampling_ratio": 3}
    edges = {tuple(pair) for pair in dense.edge_index.t().tolist()}

    def negatives(strict):
        for batch in loader(**given, strict=strict):
            pairs = batch.n_id[batch.edge_label_index[:, batch.input_id.numel() :]].t().tolist()
            yield from (tuple(pair) in edges for pair in pairs)

    assert any(negatives(False)) and not any(negatives(True))


def test_a_complete_graph_has_no_strict_negatives():
    complete = gs.Graph.from_edge_index(torch.ones(4, 4).nonzero().t())
    given = {"graph": complete, "x": X[:4], "edge_label_index": complete.edge_index}
    with pytest.raises(ValueError, match="`strict` needs pairs of nodes that are no edges"):
        list(loader(**given, strict=True))


def test_epochs_are_the_same_and_are_resumed(threads):
    def tensors(found):
        return [(b.n_id, b.edge_index, b.edge_label_index) for b in found]

    one, other = loader(shuffle=True, strict=True), loader(shuffle=True, strict=True, prefetch=0)
    whole = [tensors(one) for _ in range(2)]
    other.restore({"epoch": 1, "batch": 2})
    for a, b in zip(whole[1][2:], tensors(other), strict=True):
        assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))
    assert whole[0][0][2].shape == whole[1][0][2].shape and not torch.equal(whole[0][0][0], whole[1][0][0])


@pytest.mark.parametrize(
    "changed, error, message",
    [
        ({"graph": graphs.small()}, ValueError, "`graph` must have as many sources as destinations"),
        ({"edge_label_index": EDGES[:, :0]}, ValueError, "`edge_label_index` must hold at least one edge"),
        ({"edge_label_index": EDGES.t()}, ValueError, r"`edge_label_index` must have the shape \[2, edges\]"),
        ({"edge_label_index": EDGES + 399}, IndexError, "`edge_label_index` must hold ids from 0 to 399"),
        ({"edge_label_index": EDGES.float()}, TypeError, "`edge_label_index` must be int64"),
        ({"edge_label": torch.ones(74)}, ValueError, "`edge_label` must have one row for each of 75 edges"),
        ({"neg_sampling_ratio": -1}, ValueError, "`neg_sampling_ratio` must be finite and not negative"),
        ({"neg_sampling_ratio": math.nan}, ValueError, "`neg_sampling_ratio` must be finite and not negative"),
        ({"batch_size": 0}, ValueError, "`batch_size` must be at least 1"),
        ({"fanouts": [-3]}, ValueError, "`fanouts` must be at least 1"),
        ({"x": X[1:]}, ValueError, "`x` must have one row"),
    ],
)
def test_bad_arguments(changed, error, message):
    with pytest.raises(error, match=message):
        loader(**changed)
