"""The file of a feature store, `.gsf`.

It is a safetensors file: eight bytes with the length of the header, the header as JSON, and the codec's tensors one
after the other, those with wider elements first. Tensors are named by their place among the codes and by what they are:
`0.rows` has a part for every row, `1.table` is shared by all rows. The header's metadata holds `format`
("gossamer.features.1"), `codec` (its settings as JSON), `shape` ([rows, features]), `source_dtype` (name and bytes of
the features' dtype before compression), `dtype` (in which rows are decoded), `block` (how many rows a checksum covers),
`checksums` (CRC-32 of each block of rows: the bytes of every `rows` tensor in turn, eight hexadecimal digits each) and
`tables_checksum`. Nothing in it is executed when it is read. The length of the header follows from the shape alone, so
rows can be written before their checksums are known; an unfinished file begins with zeros, which no reader accepts.
"""

from __future__ import annotations

import json
import math
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ..codecs import Codec
from .layout import Layout, Part, from_plain, layout_of, to_plain

SUFFIX = ".gsf"
KIND, VERSION = "gossamer.features.", 1
ALIGNMENT = 64
DTYPES = {
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.int16: "I16",
    torch.int32: "I32",
    torch.int64: "I64",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float32: "F32",
    torch.float64: "F64",
    torch.bool: "BOOL",
}
OUTPUT_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class BadFeatureFile(ValueError):
    """A file that is not a whole feature store of a version that is known here."""


class Header(NamedTuple):
    """What a file says of itself, and where its tensors lie."""

    codec: Codec
    layout: Layout
    num_rows: int
    num_features: int
    source_dtype: str
    source_itemsize: int
    dtype: torch.dtype
    block: int

    @property
    def num_blocks(self) -> int:
        return -(-self.num_rows // self.block)

    def names(self) -> list[str]:
        return [f"{k}.{'rows' if part.per_row else 'table'}" for k, part in enumerate(self.layout.parts)]

    def order(self) -> list[int]:
        """The places of the tensors in the file: wide elements first, so that all are aligned."""
        return sorted(range(len(self.layout.parts)), key=lambda k: -self.layout.parts[k].dtype.itemsize)

    def offsets(self) -> list[int]:
        """The first byte of each tensor behind the header."""
        found, at = [0] * len(self.layout.parts), 0
        for k in self.order():
            found[k] = at
            at += self.layout.parts[k].nbytes(self.num_rows)
        return found

    def spans(self, low: int, high: int) -> Iterator[tuple[int, int]]:
        """(first byte behind the header, number of bytes) of what belongs to the rows low .. high."""
        for part, at in zip(self.layout.parts, self.offsets(), strict=True):
            row_bytes = part.per_row * part.dtype.itemsize
            if row_bytes:
                yield at + low * row_bytes, (high - low) * row_bytes

    def to_bytes(self, checksums: list[int], tables_checksum: int) -> bytes:
        """The head of the file; of the same length whatever the checksums are."""
        metadata = {
            "format": f"{KIND}{VERSION}",
            "codec": json.dumps(to_plain(self.codec)),
            "shape": json.dumps([self.num_rows, self.num_features]),
            "source_dtype": json.dumps([self.source_dtype, self.source_itemsize]),
            "dtype": str(self.dtype).removeprefix("torch."),
            "block": str(self.block),
            "checksums": "".join(f"{crc:08x}" for crc in checksums),
            "tables_checksum": f"{tables_checksum:08x}",
        }
        fields: dict[str, Any] = {"__metadata__": metadata}
        names, offsets = self.names(), self.offsets()
        for k in self.order():
            part = self.layout.parts[k]
            fields[names[k]] = {
                "dtype": DTYPES[part.dtype],
                "shape": list(part.shape_of(self.num_rows)),
                "data_offsets": [offsets[k], offsets[k] + part.nbytes(self.num_rows)],
            }
        text = json.dumps(fields, separators=(",", ":")).encode()
        text += b" " * (-(8 + len(text)) % ALIGNMENT)
        return len(text).to_bytes(8, "little") + text

    @property
    def nbytes(self) -> int:
        """Of the head of the file."""
        return len(self.to_bytes([0] * self.num_blocks, 0))


def header_of(
    codec: Codec,
    num_rows: int,
    num_features: int,
    source_dtype: str,
    source_itemsize: int,
    dtype: torch.dtype,
    block: int,
) -> Header:
    layout = layout_of(codec, num_features)
    return Header(codec, layout, num_rows, num_features, source_dtype, source_itemsize, dtype, block)


# Reading ----------------------------------------------------------------------------------------------------------


class Contents(NamedTuple):
    header: Header
    tensors: tuple[Tensor, ...]
    checksums: list[int]
    tables_checksum: int


def read(path: str | os.PathLike[str]) -> Contents:
    """Header and mapped tensors of a file, after checking that they fit each other. Rows are not read."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"`path` must be a file written by gs.compress (there is no file {path})")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            _check_version(path, metadata)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except SafetensorError as error:
        raise BadFeatureFile(
            f"`path` must be a file written by gs.compress; {path} is truncated, unfinished or of another kind "
            f"({error}); compress the features again"
        ) from None
    try:
        return _understood(metadata, tensors)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadFeatureFile(
            f"`path` must be a file written by gs.compress; the header of {path} does not fit its contents ({error}); "
            "compress the features again"
        ) from None


def _check_version(path: Path, metadata: dict[str, str]) -> None:
    named = metadata.get("format", "")
    if not named.startswith(KIND) or not named.removeprefix(KIND).isdigit():
        raise BadFeatureFile(
            f"`path` must be a file written by gs.compress, of the format {KIND}{VERSION} ({path} has the format "
            f"{metadata.get('format')!r})"
        )
    if int(named.removeprefix(KIND)) > VERSION:
        raise BadFeatureFile(
            f"`path` must be of a format up to {KIND}{VERSION} ({path} has {named}, written by a newer gossamer); "
            "update gossamer, or compress the features again"
        )


def _understood(metadata: dict[str, str], tensors: dict[str, Tensor]) -> Contents:
    num_rows, num_features = _counts(metadata["shape"])
    source_dtype, itemsize = json.loads(metadata["source_dtype"])
    if not isinstance(source_dtype, str) or itemsize not in (1, 2, 4, 8, 16):
        raise ValueError(f"source dtype {source_dtype!r} of {itemsize!r} bytes")
    block = int(metadata["block"])
    if block < 1 or metadata["dtype"] not in OUTPUT_DTYPES:
        raise ValueError(f"blocks of {block} rows, decoded in {metadata['dtype']}")
    codec = from_plain(json.loads(metadata["codec"]))
    parts = []
    for k in range(len(tensors)):
        rows, table = tensors.get(f"{k}.rows"), tensors.get(f"{k}.table")
        tensor = table if rows is None else rows
        if tensor is None or (rows is not None and table is not None):
            raise ValueError(f"tensors {sorted(tensors)}")
        parts.append(_part(tensor, num_rows if rows is not None else 0))
    header = Header(
        codec,
        Layout(tuple(parts)),
        num_rows,
        num_features,
        source_dtype,
        itemsize,
        OUTPUT_DTYPES[metadata["dtype"]],
        block,
    )
    whole = tuple(tensors[name] for name in header.names())
    stored, expected = header.layout.nbytes(num_rows), _expected_bytes(codec, num_rows, num_features)
    if expected is not None and stored != expected:
        raise ValueError(f"{stored} bytes of codes, where {codec!r} has {expected} for {num_rows} x {num_features}")
    hexadecimal = metadata["checksums"]
    if len(hexadecimal) != 8 * header.num_blocks:
        raise ValueError(f"{len(hexadecimal) // 8} checksums for {header.num_blocks} blocks")
    checksums = [int(hexadecimal[k : k + 8], 16) for k in range(0, len(hexadecimal), 8)]
    return Contents(header, whole, checksums, int(metadata["tables_checksum"], 16))


def _expected_bytes(codec: Codec, num_rows: int, num_features: int) -> int | None:
    """None for a setting whose tables depend on what it was fitted to."""
    try:
        return codec.nbytes((num_rows, num_features))
    except ValueError:
        return None


def _counts(text: str) -> tuple[int, int]:
    shape = json.loads(text)
    if not (isinstance(shape, list) and len(shape) == 2 and all(type(n) is int and 1 <= n < 2**48 for n in shape)):
        raise ValueError(f"shape {text}")
    return shape[0], shape[1]


def _part(tensor: Tensor, num_rows: int) -> Part:
    if not num_rows:
        return Part(tensor.dtype, 0, tuple(tensor.shape))
    if tensor.dim() == 0 or tensor.numel() == 0 or tensor.size(0) % num_rows:
        raise ValueError(f"a tensor of the shape {tuple(tensor.shape)} for {num_rows} rows")
    shape = (tensor.size(0) // num_rows, *tensor.shape[1:])
    return Part(tensor.dtype, math.prod(shape), shape)


# Checksums --------------------------------------------------------------------------------------------------------


def checksum(tensors: list[Tensor], before: int = 0) -> int:
    """CRC-32 of the bytes of tensors, one after the other."""
    for each in tensors:
        before = zlib.crc32(as_bytes(each), before)
    return before


def as_bytes(tensor: Tensor) -> memoryview:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data


def verify(path: Path, contents: Contents) -> None:
    """Read everything and compare the checksums."""
    header = contents.header
    if checksum(header.layout.tables(contents.tensors)) != contents.tables_checksum:
        raise BadFeatureFile(f"{path} is damaged: its tables do not have their checksum; compress the features again")
    for k, expected in enumerate(contents.checksums):
        low, high = k * header.block, min((k + 1) * header.block, header.num_rows)
        if checksum(header.layout.rows(contents.tensors, low, high)) != expected:
            raise BadFeatureFile(
                f"{path} is damaged: its rows {low} to {high - 1} do not have their checksum; compress the features "
                "again"
            )
