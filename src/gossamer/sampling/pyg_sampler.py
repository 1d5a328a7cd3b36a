"""A NeighborSampler as PyG's `BaseSampler`, so that PyG's own loaders run without pyg-lib."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..quiet_pyg import importing_pyg

if TYPE_CHECKING:
    from .sampler import NeighborSampler


def pyg_sampler(sampler: NeighborSampler) -> Any:
    return _class()(sampler)


@functools.cache
def _class() -> type:
    """The class is made when it is first needed: its base is PyG's."""
    with importing_pyg():
        from torch_geometric.sampler import BaseSampler, SamplerOutput
        from torch_geometric.sampler.neighbor_sampler import edge_sample, node_sample

    class PyGSampler(BaseSampler):
        def __init__(self, sampler: NeighborSampler) -> None:
            self.sampler = sampler

        def sample_from_nodes(self, inputs: Any, **_: Any) -> Any:
            _refuse_times(inputs)
            return node_sample(inputs, self._sample)

        def sample_from_edges(self, inputs: Any, neg_sampling: Any = None) -> Any:
            _refuse_times(inputs)
            count = self.sampler.graph.num_nodes
            return edge_sample(inputs, self._sample, count, disjoint=False, neg_sampling=neg_sampling)

        @property
        def edge_permutation(self) -> Tensor | None:
            return self.sampler.graph.perm

        def _sample(self, seeds: Tensor, _: Any = None) -> Any:
            ordered = self.sampler.graph.perm is not None  # else the order of the edge attributes is not known
            sample = self.sampler.sample(seeds.long(), draw=int(torch.randint(2**62, ())), edges=ordered)
            return SamplerOutput(
                node=sample.n_id,
                row=sample.edge_index[0],
                col=sample.edge_index[1],
                edge=sample.e_id,
                num_sampled_nodes=sample.nodes_per_hop,
                num_sampled_edges=sample.edges_per_hop,
            )

        def __reduce__(self) -> Any:
            return pyg_sampler, (self.sampler,)

        def __repr__(self) -> str:
            return f"PyGSampler({self.sampler})"

    return PyGSampler


def _refuse_times(inputs: Any) -> None:
    if inputs.time is not None:
        raise ValueError("`input_time` must be None (got times): this sampler does not draw by time; leave it out")
