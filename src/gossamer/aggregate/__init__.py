"""What is summed along edges: a sparse matrix with its diagonal, and the policy of its backward.

adjacency   Adjacency: products of float rows and of int8 rows, forward and transposed
policy      what backward multiplies: Exact(), NonzeroRows(), TopRows()
selection   TopRows for one module: scores, rows, the matrix that is left
budget      TopRows for a model: which layer may multiply how much, and when
health      gs.selection: what was kept, what it may have cost, what it can gain
build       the Adjacency behind what a layer was called with, built once per tensor
"""

from .adjacency import Adjacency, Edges
from .messages import Messages
from .policy import Exact, NonzeroRows, TopRows

__all__ = ["Adjacency", "Edges", "Exact", "Messages", "NonzeroRows", "TopRows"]
