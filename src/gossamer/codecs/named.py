"""Codecs by name, as the command line takes them: `uniform:4`."""

from __future__ import annotations

from .codec import Codec
from .uniform import Uniform


def codec_of(name: str) -> Codec:
    """The codec of a name such as "uniform:4"."""
    kind, _, rest = name.partition(":")
    if kind != "uniform" or not rest.isdigit():
        raise ValueError(f"there is no codec {name!r}. Codecs: uniform:BITS.")
    return Uniform(int(rest))
