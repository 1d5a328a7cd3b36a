"""Mini-batches of one graph: seeds with their sampled neighbourhoods, features decoded as they are gathered.

An epoch draws a seed from torch's generator, whose state a checkpoint holds, and everything else from that: the order
of the training nodes and their neighbours. So a resumed run repeats it.

A lightened ready model gets blocks, a bipartite graph per layer; any other the sampled `edge_index`, which PyG's ready
models trim layer by layer. As in training on the whole graph,
models do not see `data.edge_weight`; those of a Graph given as `adjacency` reach a model with blocks. Scores are of all
neighbours, layer by layer (`infer_layerwise`), or, with `eval_fanouts`, of sampled ones: for graphs on which a pass
over all nodes would take longer than the epoch.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor, nn

from ..features import FeatureStore
from ..graph import Graph
from ..quiet_pyg import importing_pyg
from ..sampling import NeighborLoader
from ..state import model_state_of, state_of
from .examples import Batch, OneProcess, Sampling
from .layerwise import infer_layerwise
from .tasks import check_features, labelled_nodes, labels_of, task_of

if TYPE_CHECKING:
    from torch_geometric.data import Data


@final
class SampledNodes(OneProcess):
    """One graph, a batch of training nodes at a time."""

    def __init__(self, data: Data, adjacency: Any, sampling: Sampling) -> None:
        self.task, self.data, self.sampling = task_of(data), data, sampling
        self.x: Any = data.x
        if isinstance(self.x, Tensor):
            check_features(data, "it")
        self.train_ids, self.val_ids, self.test_ids = labelled_nodes(data, self.task)
        self.graph = _graph_of(data, adjacency)
        self.y = labels_of(data, self.task)
        for fanouts in (sampling.fanouts, sampling.eval_fanouts or sampling.fanouts):
            self._loader(False, self.train_ids, fanouts)  # an error in what it is given comes before the first epoch

    def batches(self, model: nn.Module) -> Iterator[Batch]:
        _check_layers(model, self.sampling.fanouts)
        _check_weights(model, self.graph)
        seed = int(torch.randint(2**62, ()))
        loader = self._loader(_takes_blocks(model), self.train_ids, self.sampling.fanouts, seed, shuffle=True)
        yield from (self._batch(model, batch) for batch in loader)

    def scores(self, model: nn.Module) -> tuple[float, float]:
        parts = (self.val_ids, self.test_ids)
        if self.sampling.eval_fanouts is not None:
            val, test = (self._sampled_score(model, ids, self.sampling.eval_fanouts) for ids in parts)
            return val, test
        out = self._all_nodes(model)
        val, test = (self.task.score(out[ids], self.y[ids]) for ids in parts)
        return val, test

    def describe(self) -> dict[str, Any]:
        counts = {"nodes": self.graph.num_nodes, "edges": self.graph.num_edges, "features": self.x.shape[1]}
        told = {"data": getattr(self.data, "name", None), **counts, "training_nodes": len(self.train_ids)}
        codec = {"codec": repr(self.x.codec)} if isinstance(self.x, FeatureStore) else {}
        return told | codec | self.sampling._asdict()

    def _loader(
        self, blocks: bool, ids: Tensor, fanouts: Sequence[int], seed: int = 0, shuffle: bool = False
    ) -> NeighborLoader:
        size, coded = self.sampling.batch_size, blocks and isinstance(self.x, FeatureStore)
        return NeighborLoader(
            self.graph, self.x, list(fanouts), ids, size, y=self.y, shuffle=shuffle, blocks=blocks, seed=seed,
            decode=not coded, ranks=(0, 1),
        )  # fmt: skip

    def _batch(self, model: nn.Module, batch: Any) -> Batch:
        named: dict[str, Any] = {}
        if "blocks" not in batch and _is_ready(model):
            named["num_sampled_nodes_per_hop"] = batch.num_sampled_nodes
            named["num_sampled_edges_per_hop"] = batch.num_sampled_edges
        edges = batch.blocks if "blocks" in batch else batch.edge_index
        count = batch.batch_size
        return Batch((batch.x, edges), batch.y[:count], slice(0, count), None, named)

    def _sampled_score(self, model: nn.Module, ids: Tensor, fanouts: Sequence[int]) -> float:
        loader = self._loader(_takes_blocks(model), ids, fanouts)
        batches = (self._batch(model, batch) for batch in loader)
        rows = [(batch.predict(model, self.task), batch.y) for batch in batches]
        out, y = (torch.cat(parts) for parts in zip(*rows, strict=True))
        return self.task.score(out, y)

    def _all_nodes(self, model: nn.Module) -> Tensor:
        if _is_ready(model) or hasattr(model, "inference_layers"):
            return infer_layerwise(model, self.graph, self.x, progress=False)
        x = self.x if isinstance(self.x, Tensor) else torch.as_tensor(self.x[:])
        edges = self.graph if _takes_graphs(model) else self.graph.edge_index
        return Batch((x, edges), self.y, None, len(self.y)).predict(model, self.task)


def _graph_of(data: Any, adjacency: Any) -> Graph:
    if adjacency is None:
        structure = copy.copy(data)  # PyG does not count the rows of compressed features
        structure.x, structure.edge_weight, structure.num_nodes = None, None, len(data.x)
        return Graph.from_data(structure)
    if not isinstance(adjacency, Graph):
        raise TypeError(
            f"`adjacency` must be a gs.Graph where neighbours are sampled (got {type(adjacency).__name__}); build it "
            "with gs.Graph.from_edge_index or gs.Graph.from_torch_sparse"
        )
    return adjacency


def _takes_blocks(model: nn.Module) -> bool:
    """Whether a lightened model computes rows of destinations alone: PyG's ready models do, and those that say what
    their layers are. Other models may add a layer's input to its result, which has fewer rows.
    """
    return _takes_graphs(model) and (_is_ready(model) or hasattr(model, "inference_layers"))


def _takes_graphs(model: nn.Module) -> bool:
    """Whether the model is lightened, and none of its convolutions is computed by PyG's own code."""
    if model_state_of(model) is None:
        return False
    with importing_pyg():
        from torch_geometric.nn import MessagePassing
    return all(state_of(module) is not None for module in model.modules() if isinstance(module, MessagePassing))


def _is_ready(model: Any) -> bool:
    """One of PyG's ready models, lightened or not."""
    with importing_pyg():
        from torch_geometric.nn.models.basic_gnn import BasicGNN

        from ..layers.models import Stacked
    return inspect.unwrap(type(model).forward) in (BasicGNN.forward, Stacked.forward)


def _check_weights(model: nn.Module, graph: Graph) -> None:
    if graph.value is not None and not _takes_blocks(model):
        raise ValueError(
            "`adjacency` must have no weights where the model gets a sampled `edge_index`, which has none; pass "
            "`adjacency.with_value(None)`, or a recipe that converts all convolutions of the model"
        )


def _check_layers(model: Any, fanouts: Sequence[int]) -> None:
    layers = getattr(model, "num_layers", None)
    if _is_ready(model) and layers != len(fanouts):
        raise ValueError(
            f"`fanouts` must have one number for each of the model's {layers} layers (got {list(fanouts)}); the first "
            "is of the seeds' own neighbours"
        )
