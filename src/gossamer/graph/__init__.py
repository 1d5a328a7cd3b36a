"""Graph: CSR by destination, with what is derived from it; how it is built, and its file. Blocks: those of a batch."""

from .blocks import Blocks
from .graph import Graph

__all__ = ["Blocks", "Graph"]
