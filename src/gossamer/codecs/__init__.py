"""Codecs: quantise float tensors to few bits. Where a codec is used decides what becomes cheap.

To add one: one file here with a frozen dataclass derived from `Codec`, and one line below; the contract suite in
tests/codecs finds it and tests it.
"""

from .blockwise import Blockwise
from .codec import Codec, Codes
from .coded import CodedRows
from .hotness import hotness, hottest
from .named import codec_of
from .principal import Principal
from .product import Product
from .projected import Projected
from .row_int8 import RowInt8
from .rows import NotFinite, RowCodec, sample_ids
from .scalar import Scalar
from .two_level import TwoLevel
from .uniform import Uniform

__all__ = [
    "Blockwise",
    "Codec",
    "CodedRows",
    "Codes",
    "NotFinite",
    "Principal",
    "Product",
    "Projected",
    "RowCodec",
    "RowInt8",
    "Scalar",
    "TwoLevel",
    "Uniform",
    "codec_of",
    "hotness",
    "hottest",
    "sample_ids",
]
