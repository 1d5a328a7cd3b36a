"""Feature codecs by a short text, for command lines.

scalar:1   scalar:4:log   scalar:8:uniform:column      bits, and optionally scale and per
product:16x2048   product:16x2048:cosine               width x length, and optionally the metric
principal:2   principal:4:scalar:2:optimal             ratio, and optionally the codec of the components
"""

from __future__ import annotations

from collections.abc import Callable

from .codec import Codec
from .principal import Principal
from .product import Product
from .scalar import Scalar

TAKEN = (
    "'scalar:BITS' with 1, 2, 4 or 8 bits, then optionally ':uniform', ':log' or ':optimal' and ':tensor' or ':column' "
    "(such as 'scalar:4:log'), or 'product:WIDTHxLENGTH', then optionally ':cosine' (such as 'product:16x2048'), or "
    "'principal:RATIO', then optionally one of these (such as 'principal:2:scalar:4')"
)


def codec_of(text: str) -> Codec:
    """The codec that a text names."""
    try:
        found = _codec(*text.strip().lower().split(":"))
    except (TypeError, ValueError) as error:
        raise ValueError(f"`codec` must be {TAKEN} (got {text!r}: {error})") from None
    if found is None:
        raise ValueError(f"`codec` must be {TAKEN} (got {text!r})")
    return found


def _codec(kind: str, *given: str) -> Codec | None:
    makers: dict[str, Callable[..., Codec]] = {"scalar": _scalar, "product": _product, "principal": _principal}
    return makers[kind](*given) if kind in makers and given else None


def _scalar(bits: str, *options: str) -> Scalar:
    chosen: dict[str, str] = {}
    for option in options:
        name = {"uniform": "scale", "log": "scale", "optimal": "scale", "tensor": "per", "column": "per"}.get(option)
        if name is None or name in chosen:
            raise ValueError(f"{option!r} is unknown, or given twice")
        chosen[name] = option
    return Scalar(bits=int(bits), **chosen)  # type: ignore[arg-type]


def _product(sizes: str, metric: str = "euclidean") -> Product:
    width, length = sizes.split("x")
    return Product(int(width), int(length), metric)  # type: ignore[arg-type]


def _principal(ratio: str, *then: str) -> Principal:
    number = int(ratio) if ratio.isdigit() else float(ratio)
    return Principal(number, _codec(*then)) if then else Principal(number)  # type: ignore[arg-type]
