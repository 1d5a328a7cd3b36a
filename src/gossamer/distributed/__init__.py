"""Graphs in parts, for several machines.

part, cut, merge        what one part holds; cut from a whole graph; neighbouring parts as the part of one rank
assign                  which node belongs to which part: metis, stream
folder, write, read     parts on disk
partition               from a graph to a folder; costs: bytes on the wire and memory of a rank, by formula
"""

from .cut import cut
from .folder import BadPartFile
from .merge import groups, merge
from .part import Part
from .partition import Partition, partition
from .read import read

__all__ = ["BadPartFile", "Part", "Partition", "cut", "groups", "merge", "partition", "read"]
