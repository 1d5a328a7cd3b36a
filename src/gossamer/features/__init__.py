"""Node features in few bits: compressed once, kept as codes in memory or in a mapped file, decoded when gathered.

source      where features come from: arrays, files, chunks; read in blocks
layout      which tensors of a codec's codes have a part for every row
file        the format of the file; mapped: the file while it is in use; writer: how it is written and resumed
store       FeatureStore: rows by their ids, decoded; transform, pyg_store: for PyG's own loaders
compress    gs.compress: sample, fit, encode, write
report      gs.feature_report: size, error, and what neighbour averages leave of it (profile)
"""

from .compress import compress
from .file import BadFeatureFile
from .mapped import FeatureFileChanged
from .report import FeatureReport, feature_report
from .store import FeatureStore

__all__ = ["BadFeatureFile", "FeatureFileChanged", "FeatureReport", "FeatureStore", "compress", "feature_report"]
