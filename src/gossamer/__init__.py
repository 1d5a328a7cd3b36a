"""Gossamer: graph neural networks that weigh next to nothing."""

from . import codecs, datasets, kernels, memory, ops
from .codecs import Blockwise, Codec, Codes, RowInt8, Uniform
from .graph import Graph

if kernels.native:
    from .kernels import cpu

    cpu.bind()

__version__ = "0.1.0"

__all__ = [
    "Blockwise",
    "Codec",
    "Codes",
    "Graph",
    "RowInt8",
    "Uniform",
    "codecs",
    "datasets",
    "kernels",
    "memory",
    "ops",
]
