"""Gossamer: graph neural networks that weigh next to nothing."""

# Names stand in the order in which data flows.
# isort: off

# Data in
from . import datasets
from .graph import Blocks, Graph
from .sampling import NeighborLoader, LinkNeighborLoader, NeighborSampler

# A recipe: which codec or arithmetic sits where
from . import codecs
from .codecs import Codec, Codes, Blockwise, Uniform, Projected, RowInt8, Scalar, Product, Principal, TwoLevel
from .recipe import Recipe, recipes, UnknownRecipe, Float32, Int8, Keep, Published, Exact, NonzeroRows, TopRows
from .recipe import QAT, DegreeQuant, Messages

# Features in few bits
from .features import compress, FeatureStore, feature_report, BadFeatureFile, FeatureFileChanged

# A model made lighter
from .pyg import lighten_, restore_, NothingToLighten
from .saved_tensors import compressed_activations

# Serving it in integers
from .conversion import calibrate, export, CannotCapture, NotQuantised
from .inference import load, Engine, BadModelFile

# Training it
from .training import train, BadCheckpoint, TrainingDiverged, infer_layerwise
from .engine.int8.precision import precision
from .aggregate.health import selection

# On several machines
from . import distributed

# What it costs, and against what
from .comparison import compare
from . import report
from . import measurement as measure

# What it runs on
from . import ops, memory, backends
from . import native as kernels

# isort: on

backends.bind()

__version__ = "0.1.0"

__all__ = [  # noqa: RUF022 (the order above)
    # Data in
    "datasets",
    "Graph",
    "Blocks",
    "NeighborLoader",
    "LinkNeighborLoader",
    "NeighborSampler",
    # A recipe
    "codecs",
    "Codec",
    "Codes",
    "Blockwise",
    "Uniform",
    "Projected",
    "RowInt8",
    "Scalar",
    "Product",
    "Principal",
    "TwoLevel",
    "Recipe",
    "recipes",
    "UnknownRecipe",
    "Float32",
    "Int8",
    "Keep",
    "Published",
    "Exact",
    "NonzeroRows",
    "TopRows",
    "QAT",
    "DegreeQuant",
    "Messages",
    # Features in few bits
    "compress",
    "FeatureStore",
    "feature_report",
    "BadFeatureFile",
    "FeatureFileChanged",
    # A model made lighter
    "lighten_",
    "restore_",
    "NothingToLighten",
    "compressed_activations",
    # Serving it in integers
    "calibrate",
    "export",
    "load",
    "Engine",
    "BadModelFile",
    "CannotCapture",
    "NotQuantised",
    # Training it
    "train",
    "BadCheckpoint",
    "TrainingDiverged",
    "infer_layerwise",
    "precision",
    "selection",
    # On several machines
    "distributed",
    # What it costs, and against what
    "compare",
    "report",
    "measure",
    # What it runs on
    "ops",
    "memory",
    "kernels",
]
