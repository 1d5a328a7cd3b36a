"""Training: a plain loop, and what makes it resumable; tasks and models for the datasets."""

from .checkpoint import BadCheckpoint
from .divergence import TrainingDiverged
from .layerwise import infer_layerwise
from .loop import train

__all__ = ["BadCheckpoint", "TrainingDiverged", "infer_layerwise", "train"]
