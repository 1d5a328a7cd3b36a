"""Graphs in parts, for several machines.

part, cut, merge        what one part holds; cut from a whole graph; neighbouring parts as the part of one rank
assign                  which node belongs to which part: metis, stream
folder, write, read     parts on disk
partition               from a graph to a folder; costs: bytes on the wire and memory of a rank, by formula
start, watch            join the other processes of a job; which of them failed
network                 what connects them, for `gossamer doctor`
load                    the part of this process, ready for a model
gradients               gradients of parameters over all ranks
"""

from ..ranks import RankFailed
from .cut import cut
from .folder import BadPartFile
from .gradients import data_parallel, sum_gradients
from .load import RankPart, load
from .merge import groups, merge
from .network import network
from .part import Part
from .partition import Partition, partition
from .read import read
from .start import start, stop

__all__ = [
    "BadPartFile",
    "Part",
    "Partition",
    "RankFailed",
    "RankPart",
    "cut",
    "data_parallel",
    "groups",
    "load",
    "merge",
    "network",
    "partition",
    "read",
    "start",
    "stop",
    "sum_gradients",
]
