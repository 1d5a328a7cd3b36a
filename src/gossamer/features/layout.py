"""How a codec's codes are stored: tensors with a part for every row, and tables that all rows share.

A codec that can be asked for single rows (`decode_rows`) encodes each row for itself. So encoding one row and two rows
shows which of its tensors grow with the rows, and by how much; what does not grow is a table. Codes of a block of rows
are then a slice of the codes of all rows, and blocks can be written one after the other.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple, final

import torch
from torch import Tensor

from .. import codecs
from ..codecs import Codec, Codes
from ..codecs.rows import RowCodec


class Part(NamedTuple):
    """One tensor of the codes. `per_row` elements belong to a row, 0 in a table; `shape` is that of one row's codes."""

    dtype: torch.dtype
    per_row: int
    shape: tuple[int, ...]

    def shape_of(self, num_rows: int) -> tuple[int, ...]:
        """The shape of this tensor for so many rows."""
        return (self.shape[0] * num_rows, *self.shape[1:]) if self.per_row else self.shape

    def nbytes(self, num_rows: int) -> int:
        count = 1
        for extent in self.shape_of(num_rows):
            count *= extent
        return count * self.dtype.itemsize


@final
class Layout(NamedTuple):
    """The tensors of a codec's codes, in the codec's order."""

    parts: tuple[Part, ...]

    @property
    def row_bytes(self) -> int:
        return sum(part.per_row * part.dtype.itemsize for part in self.parts)

    def nbytes(self, num_rows: int) -> int:
        return sum(part.nbytes(num_rows) for part in self.parts)

    def rows(self, tensors: tuple[Tensor, ...], low: int, high: int) -> list[Tensor]:
        """What belongs to the rows low .. high, as views."""
        pairs = [(part, tensor) for part, tensor in zip(self.parts, tensors, strict=True) if part.per_row]
        return [tensor[low * part.shape[0] : high * part.shape[0]] for part, tensor in pairs]

    def tables(self, tensors: tuple[Tensor, ...]) -> list[Tensor]:
        return [tensor for part, tensor in zip(self.parts, tensors, strict=True) if not part.per_row]


def layout_of(codec: Codec, num_features: int) -> Layout:
    """How the codec stores rows of so many features."""
    one, two = (codec.encode(torch.zeros(n, num_features)).tensors for n in (1, 2))
    parts = []
    for a, b in zip(one, two, strict=True):
        grows = b.numel() == 2 * a.numel() and b.numel() > 0
        if not grows and a.shape != b.shape:
            raise TypeError(f"`codec` must encode each row for itself, to be stored in blocks (got {codec!r})")
        parts.append(Part(a.dtype, a.numel() if grows else 0, tuple(a.shape)))
    return Layout(tuple(parts))


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
