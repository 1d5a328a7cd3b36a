"""How a codec's codes are stored: tensors with a part for every row, and tables that all rows share.

A codec that can be asked for single rows (`decode_rows`) encodes each row for itself. So encoding one row and two rows
shows which of its tensors grow with the rows, and by how much; what does not grow is a table. Codes of a block of rows
are then a slice of the codes of all rows, and blocks can be written one after the other. gs.TwoLevel has two matrices,
one for important rows and one for the others; tables tell where a row is.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import codecs
from ..codecs import Codec, Codes
from ..codecs.rows import RowCodec
from ..codecs.two_level import TwoLevel
from ..ops.rank_rows import level_bits

ROWS, IMPORTANT, OTHERS, TABLE = "rows", "important", "others", "table"


class Part(NamedTuple):
    """One tensor of the codes, and what it is `of`: all "rows", the "important" ones or the "others"; or a "table".

    `shape` is that of one row's codes, or of the table.
    """

    dtype: torch.dtype
    of: str
    shape: tuple[int, ...]

    @property
    def row_bytes(self) -> int:
        """Bytes of one row; 0 in a table."""
        return 0 if self.of == TABLE else math.prod(self.shape) * self.dtype.itemsize

    def shape_of(self, num_rows: int) -> tuple[int, ...]:
        """The shape of this tensor for so many of the rows that it has a part for."""
        return self.shape if self.of == TABLE else (self.shape[0] * num_rows, *self.shape[1:])

    def nbytes(self, num_rows: int) -> int:
        return math.prod(self.shape_of(num_rows)) * self.dtype.itemsize

    def slice(self, tensor: Tensor, low: int, high: int) -> Tensor:
        """What belongs to the rows low .. high."""
        return tensor[low * self.shape[0] : high * self.shape[0]]


Layout = tuple[Part, ...]
"""The tensors of a codec's codes, in the codec's order."""


def row_tensors(layout: Layout, tensors: Iterable[Tensor]) -> list[Tensor]:
    return [tensor for part, tensor in zip(layout, tensors, strict=True) if part.of != TABLE]


def tables(layout: Layout, tensors: Iterable[Tensor]) -> list[Tensor]:
    return [tensor for part, tensor in zip(layout, tensors, strict=True) if part.of == TABLE]


def layout_of(codec: Codec, num_features: int, important: Tensor | None = None) -> Layout:
    """How the codec stores rows of so many features."""
    if important is not None:
        return _layout_of_two(codec, num_features, important)
    one, two = (codec.encode(torch.zeros(n, num_features)).tensors for n in (1, 2))
    parts = []
    for a, b in zip(one, two, strict=True):
        grows = b.numel() == 2 * a.numel() and b.numel() > 0
        if not grows and a.shape != b.shape:
            raise TypeError(f"`codec` must encode each row for itself, to be stored in blocks (got {codec!r})")
        parts.append(Part(a.dtype, ROWS if grows else TABLE, tuple(a.shape)))
    return tuple(parts)


def _layout_of_two(codec: Codec, num_features: int, important: Tensor) -> Layout:
    """Two matrices of rows, then tables: which row is where, and those of each code that has any rows."""
    assert isinstance(codec, TwoLevel)
    one_each = codec.encode(torch.zeros(2, num_features), important=torch.tensor([True, False])).tensors
    found = two_level_tables(codec, important)
    rows = [Part(t.dtype, of, tuple(t.shape)) for t, of in zip(one_each[:2], (IMPORTANT, OTHERS), strict=True)]
    return (*rows, *(Part(table.dtype, TABLE, tuple(table.shape)) for table in found))


def two_level_tables(codec: Codec, important: Tensor) -> tuple[Tensor, ...]:
    """What follows the two matrices in a two-level code: bits and counts of the important rows, tables of both."""
    assert isinstance(codec, TwoLevel)
    none = torch.empty(0, dtype=torch.uint8)
    found = [*level_bits(important)]
    for level, has_rows in ((codec.mild, bool(important.any())), (codec.aggressive, not bool(important.all()))):
        found += [table if has_rows else none for table in level.tables()]
    return tuple(found)


def fitted_tables(codec: Codec, num_features: int, important: Tensor | None) -> list[Tensor]:
    """The tables of a fitted codec, as they stand among its codes."""
    if important is not None:
        return list(two_level_tables(codec, important))
    return tables(layout_of(codec, num_features), codec.encode(torch.zeros(1, num_features)).tensors)


def refines(codec: Codec) -> bool:
    """Whether the codec's tables become means over all rows that are encoded."""
    return isinstance(codec, RowCodec) and getattr(codec, "refine", True)


def refined(codec: Codec, refining: Any) -> Codec:
    """The codec after all rows; a level of a two-level code that is not to be refined stays as it was fitted."""
    after = codec.refined(refining)  # type: ignore[attr-defined]
    if isinstance(codec, TwoLevel):
        levels = {"mild": codec.mild, "aggressive": codec.aggressive}
        after = dataclasses.replace(after, **{name: each for name, each in levels.items() if not refines(each)})
    return after


def check_codec(codec: object) -> Codec:
    """The codec, if single rows can be decoded from its codes."""
    if isinstance(codec, Codec) and hasattr(codec, "decode_rows"):
        return codec
    able = sorted(name for name, kind in _kinds().items() if hasattr(kind, "decode_rows"))
    got = repr(codec) if isinstance(codec, Codec) else type(codec).__name__
    raise TypeError(
        f"`codec` must be one that decodes single rows, {' or '.join(f'gs.{name}(...)' for name in able)} (got {got})"
    )


def decode_rows(codec: Codec, codes: Codes, ids: Tensor, dtype: torch.dtype, out: Tensor | None = None) -> Tensor:
    """Rows `ids` in `dtype`, in one pass; written into `out` if it is given."""
    if isinstance(codec, RowCodec):
        if out is None or out.is_contiguous():
            return codec.decode_rows(codes, ids, dtype, out)
        return out.copy_(codec.decode_rows(codes, ids, dtype))
    rows = codec.decode_rows(codes._replace(dtype=dtype), ids)  # type: ignore[attr-defined]
    return rows if out is None else out.copy_(rows)


def label(codec: Any) -> str:
    """The codec in short: its sizes, and what differs from the default."""
    told = []
    for each in dataclasses.fields(codec):
        value = getattr(codec, each.name)
        if each.repr and dataclasses.is_dataclass(value):
            told.append(label(value))
        elif each.repr and (type(value) is int or value != each.default) and each.name != "seed":
            told.append(f"{each.name}={value!r}")
    return f"{type(codec).__name__}({', '.join(told)})"


# Settings as JSON -------------------------------------------------------------------------------------------------


def to_plain(codec: Any) -> Any:
    """The settings of a codec, nested ones too; what it was fitted to is in its tables."""
    if not dataclasses.is_dataclass(codec):
        return codec
    fields = [f.name for f in dataclasses.fields(codec) if f.init and f.repr]
    return {"name": type(codec).__name__} | {name: to_plain(getattr(codec, name)) for name in fields}


def from_plain(plain: Any) -> Codec:
    """The codec that `to_plain` described."""
    named = dict(plain) if isinstance(plain, dict) else {}
    name, kinds = named.pop("name", None), _kinds()
    if name not in kinds:
        raise ValueError(f"codec must be one of {', '.join(kinds)} (got {name!r})")
    inner = {key: from_plain(value) if isinstance(value, dict) else value for key, value in named.items()}
    try:
        return kinds[name](**inner)
    except TypeError as error:
        raise ValueError(f"{name} does not have these settings ({error})") from None


def _kinds() -> dict[str, type[Codec]]:
    listed = {name: getattr(codecs, name) for name in codecs.__all__}
    return {name: kind for name, kind in listed.items() if isinstance(kind, type) and issubclass(kind, Codec)}
