"""Gossamer: graph neural networks that weigh next to nothing."""

from . import codecs, datasets, kernels, measure, memory, ops
from .codecs import Blockwise, Codec, Codes, RowInt8, Uniform
from .compare import compare
from .graph import Graph
from .pyg import lighten_, restore_
from .recipe import Exact, Float32, Keep, Recipe, recipes
from .train import train

if kernels.native:
    from .kernels import cpu

    cpu.bind()

__version__ = "0.1.0"

__all__ = [
    "Blockwise",
    "Codec",
    "Codes",
    "Exact",
    "Float32",
    "Graph",
    "Keep",
    "Recipe",
    "RowInt8",
    "Uniform",
    "codecs",
    "compare",
    "datasets",
    "kernels",
    "lighten_",
    "measure",
    "memory",
    "ops",
    "recipes",
    "restore_",
    "train",
]
