"""Gossamer: graph neural networks that weigh next to nothing."""

from . import backends, codecs, datasets, measure, memory, ops, report
from . import native as kernels
from .activations import compressed_activations
from .checkpoint import BadCheckpoint
from .codecs import Blockwise, Codec, Codes, Projected, RowInt8, Uniform
from .compare import compare
from .compute.watch import precision
from .graph import Graph
from .pyg import NothingToLighten, lighten_, restore_
from .recipe import Exact, Float32, Int8, Keep, Published, Recipe, UnknownRecipe, recipes
from .train import TrainingDiverged, train

backends.bind()

__version__ = "0.1.0"

__all__ = [
    "BadCheckpoint",
    "Blockwise",
    "Codec",
    "Codes",
    "Exact",
    "Float32",
    "Graph",
    "Int8",
    "Keep",
    "NothingToLighten",
    "Projected",
    "Published",
    "Recipe",
    "RowInt8",
    "TrainingDiverged",
    "Uniform",
    "UnknownRecipe",
    "codecs",
    "compare",
    "compressed_activations",
    "datasets",
    "kernels",
    "lighten_",
    "measure",
    "memory",
    "ops",
    "precision",
    "recipes",
    "report",
    "restore_",
    "train",
]
