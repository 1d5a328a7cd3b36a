"""Codecs: quantise float tensors to few bits. Where a codec is used decides what becomes cheap.

To add one: one file here with a frozen dataclass derived from `Codec`, and one line below; the contract suite in
tests/codecs finds it and tests it.
"""

from .blockwise import Blockwise
from .codec import Codec, Codes
from .product import Product
from .projected import Projected
from .row_int8 import RowInt8
from .scalar import Scalar
from .uniform import Uniform

__all__ = ["Blockwise", "Codec", "Codes", "Product", "Projected", "RowInt8", "Scalar", "Uniform"]
