"""What is summed along edges: a sparse matrix with its diagonal, and the policy of its backward.

adjacency   Adjacency: products of float rows and of int8 rows, forward and transposed
policy      what backward multiplies: Exact()
build       the Adjacency behind what a layer was called with, built once per tensor
"""

from .adjacency import Adjacency, Edges
from .policy import Exact

__all__ = ["Adjacency", "Edges", "Exact"]
