"""Gossamer: graph neural networks that weigh next to nothing."""

from . import codecs, datasets, kernels, memory, ops, report
from . import measurement as measure
from .checkpoint import BadCheckpoint
from .codecs import Blockwise, Codec, Codes, Projected, RowInt8, Uniform
from .compare import compare
from .compute.watch import precision
from .graph import Graph
from .pyg import NothingToLighten, lighten_, restore_
from .recipe import Exact, Float32, Int8, Keep, Published, Recipe, UnknownRecipe, recipes
from .saved_tensors import compressed_activations
from .train import TrainingDiverged, train

if kernels.native:
    from .kernels import cpu

    cpu.bind()

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
