"""Graph: CSR by destination, with what is derived from it; how it is built, and its file."""

from .graph import Graph

__all__ = ["Graph"]
