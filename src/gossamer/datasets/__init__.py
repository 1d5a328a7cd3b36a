"""Graphs to work on: embedded, generated, from local files, and through PyG and OGB.

data = load("digits")                          embedded
data = load("arxiv-like", scale=0.1)           generated, any size
data = load("cora", split=0)                   a file in $GOSSAMER_DATA, else a download through PyG
for info in available(): print(info)           what can be loaded here, and from where
"""

from .block_model import BlockModel
from .catalogue import available, load
from .graph_list import GraphList
from .info import BadDatasetFile, DatasetInfo, DatasetUnavailable, UnknownDataset
from .powerlaw import powerlaw
from .stream import write_stream
from .stream_open import edge_index, open_stream

__all__ = [
    "BadDatasetFile",
    "BlockModel",
    "DatasetInfo",
    "DatasetUnavailable",
    "GraphList",
    "UnknownDataset",
    "available",
    "edge_index",
    "load",
    "open_stream",
    "powerlaw",
    "write_stream",
]
