"""Graphs in parts, for several machines.

part, cut, merge    what one part holds; cut from a whole graph; neighbouring parts as the part of one rank
"""

from .cut import cut
from .merge import groups, merge
from .part import Part

__all__ = ["Part", "cut", "groups", "merge"]
