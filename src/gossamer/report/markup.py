"""HTML and SVG as strings, escaped once: `tag` escapes all attributes, and each child that is not `Markup` already."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable

# what neither XML nor a terminal takes: control characters, halves of surrogate pairs, non-characters
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")

Attribute = str | float | None


class Markup(str):
    """Text that is markup and will not be escaped again."""


def printable(text: str) -> str:
    """The text with a replacement character for everything that cannot be shown."""
    return _UNPRINTABLE.sub("\ufffd", text)


def escaped(text: str) -> Markup:
    return text if isinstance(text, Markup) else Markup(html.escape(printable(text)))


def joined(parts: Iterable[str]) -> Markup:
    return Markup("".join(escaped(part) for part in parts))


def tag(name: str, /, *children: str, **attributes: Attribute) -> Markup:
    """`<name attributes>children</name>`; `class_` is class, `stroke_width` is stroke-width, None leaves one out."""
    told = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escaped(_plain(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    inside = joined(children)
    closes = inside or name not in ("path", "rect", "circle", "line", "meta", "br")
    return Markup(f"<{name}{told}>{inside}</{name}>" if closes else f"<{name}{told}/>")


def _plain(value: str | float) -> str:
    """A tenth of a pixel is enough."""
    return value if isinstance(value, str) else f"{value:.1f}".removesuffix(".0")
