"""Feature codecs by a short text, for command lines.

scalar:1   scalar:4:log   scalar:8:uniform:column      bits, and optionally scale and per
product:16x2048   product:16x2048:cosine               width x length, and optionally the metric
"""

from __future__ import annotations

from .codec import Codec
from .product import Product
from .scalar import Scalar

TAKEN = (
    "'scalar:BITS' with 1, 2, 4 or 8 bits, then optionally ':uniform' or ':log' and ':tensor' or ':column' "
    "(such as 'scalar:4:log'), or 'product:WIDTHxLENGTH', then optionally ':cosine' (such as 'product:16x2048')"
)


def codec_of(text: str) -> Codec:
    """The codec that a text names."""
    kind, *given = text.strip().lower().split(":")
    try:
        if kind == "scalar" and given:
            return _scalar(*given)
        if kind == "product" and given:
            return _product(*given)
    except (TypeError, ValueError) as error:
        raise ValueError(f"`codec` must be {TAKEN} (got {text!r}: {error})") from None
    raise ValueError(f"`codec` must be {TAKEN} (got {text!r})")


def _scalar(bits: str, *options: str) -> Scalar:
    chosen: dict[str, str] = {}
    for option in options:
        name = {"uniform": "scale", "log": "scale", "tensor": "per", "column": "per"}.get(option)
        if name is None or name in chosen:
            raise ValueError(f"{option!r} is unknown, or given twice")
        chosen[name] = option
    return Scalar(bits=int(bits), **chosen)  # type: ignore[arg-type]


def _product(sizes: str, metric: str = "euclidean") -> Product:
    width, length = sizes.split("x")
    return Product(int(width), int(length), metric)  # type: ignore[arg-type]
