"""Feature codecs by a short text, for command lines: `scalar:4`, `product:16x2048`."""

from __future__ import annotations

from .codec import Codec
from .product import Product
from .scalar import Scalar


def codec_of(text: str) -> Codec:
    """The codec that a text names."""
    kind, _, rest = text.partition(":")
    width, _, length = rest.partition("x")
    if kind == "scalar" and rest.isdigit():
        return Scalar(int(rest))
    if kind == "product" and width.isdigit() and length.isdigit():
        return Product(int(width), int(length))
    raise ValueError(f"`codec` must be 'scalar:BITS' or 'product:WIDTHxLENGTH' (got {text!r})")
