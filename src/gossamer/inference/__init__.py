"""Integer inference: a program, the engine that runs it, and its file. Needs neither PyG nor what trained the model.

program   the steps, as data
layout    how registers and weights lie in memory
graphs    what steps need of a graph
floats    steps in float32
engine    Engine: runs a program
file      gs.load, and what gs.export writes
"""

from .engine import Engine
from .file import BadModelFile, load
from .program import BadProgram, Program

__all__ = ["BadModelFile", "BadProgram", "Engine", "Program", "load"]
