"""Mini-batches of sampled neighbourhoods: the sampler, and loaders that prefetch batches with their features."""

from .link_loader import LinkNeighborLoader
from .loader import NeighborLoader
from .sampler import NeighborSampler, Sample

__all__ = ["LinkNeighborLoader", "NeighborLoader", "NeighborSampler", "Sample"]
