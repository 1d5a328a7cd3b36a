"""Feature stores in PyG's own loaders: codes with a transform, and as PyG's kind of feature store."""

from __future__ import annotations

import pickle

import pytest
import torch
from torch_geometric.data import Data, GraphStore, TensorAttr
from torch_geometric.loader import NodeLoader
from torch_geometric.sampler import BaseSampler, SamplerOutput

import gossamer as gs


class Ring(BaseSampler):
    """Every seed and the node after it."""

    def __init__(self, num_nodes: int) -> None:
        super().__init__()
        self.num_nodes = num_nodes

    def sample_from_nodes(self, index, **kwargs):
        seeds = index.node
        count = torch.arange(len(seeds))
        node = torch.cat([seeds, (seeds + 1) % self.num_nodes])
        return SamplerOutput(node, count + len(seeds), count, None, metadata=(index.input_id, index.time))

    def sample_from_edges(self, index, neg_sampling=None):
        raise NotImplementedError


class NoEdges(GraphStore):
    def _put_edge_index(self, edge_index, edge_attr):
        return False

    def _get_edge_index(self, edge_attr):
        return None

    def _remove_edge_index(self, edge_attr):
        return False

    def get_all_edge_attrs(self):
        return []


def nodes(batch, num_nodes: int = 137):
    return torch.cat([batch.input_id, (batch.input_id + 1) % num_nodes])


@pytest.fixture(params=["memory", "mapped"])
def store(request, codec, x, path) -> gs.FeatureStore:
    return gs.compress(x, codec, path if request.param == "mapped" else None)


def test_codes_are_plain_rows(store):
    codes = store.codes
    assert codes.dtype == torch.uint8 and codes.shape[0] == 137
    assert codes.nbytes <= store.nbytes


@pytest.mark.parametrize("workers", [0, 2])
def test_codes_and_a_transform(store, workers):
    data = Data(x=store.codes, edge_index=torch.zeros(2, 0, dtype=torch.long), num_nodes=137)
    loader = NodeLoader(data, Ring(137), transform=store.transform(), batch_size=20, num_workers=workers)
    count = 0
    for batch in loader:
        assert torch.equal(batch.x, store[nodes(batch)])
        count += 1
    assert count == 7


def test_a_transform_may_have_another_name_and_dtype(store):
    decode = pickle.loads(pickle.dumps(store.transform("feat", torch.bfloat16)))
    batch = decode(Data(feat=store.codes[[3, 5]]))
    assert torch.equal(batch.feat, store.gather([3, 5], dtype=torch.bfloat16))
    with pytest.raises(
        ValueError, match=r"`feat` must be rows of `store\.codes`, uint8 \[count, \d+\].*decode a batch once"
    ):
        decode(batch)


@pytest.mark.parametrize("workers", [0, 2])
def test_as_the_feature_store_of_a_loader(store, workers):
    loader = NodeLoader((store.as_pyg(), NoEdges()), Ring(137), input_nodes=torch.arange(0, 137, 3), batch_size=10,
                        num_workers=workers)  # fmt: skip
    seen = 0
    for batch in loader:
        expected = nodes(Data(input_id=torch.arange(0, 137, 3)[batch.input_id]))
        assert torch.equal(batch.x, store[expected])
        seen += len(batch.input_id)
    assert seen == 46


def test_as_pyg(store):
    features = store.as_pyg("paper", "feat")
    assert [(a.group_name, a.attr_name) for a in features.get_all_tensor_attrs()] == [("paper", "feat")]
    assert features.get_tensor_size(group_name="paper", attr_name="feat") == (137, 21)
    assert features.get_tensor_size(group_name="author", attr_name="feat") is None
    assert torch.equal(features["paper", "feat", None], store.decode())
    assert torch.equal(features["paper", "feat", torch.tensor([3, 1])], store[[3, 1]])
    assert torch.equal(features.get_tensor("paper", "feat", 5), store[[5]])
    assert torch.equal(features["paper"]["feat"][slice(2, 4)], store[2:4])
    assert features.get_tensor("author", "feat", None) is None
    assert "PyGFeatureStore('feat': FeatureStore(" in repr(features) and len(features) == 1
    for change in (
        lambda: features.put_tensor(torch.zeros(3), TensorAttr("paper", "feat", None)),
        lambda: features.remove_tensor(TensorAttr("paper", "feat", None)),
    ):
        with pytest.raises(TypeError, match="compressed features cannot be changed"):
            change()


def test_pyg_is_not_imported_for_the_store_alone():
    from gossamer.features import store as module

    assert "torch_geometric" not in vars(module)
