"""The file of a feature store, `.gsf`.

It is a safetensors file: eight bytes with the length of the header, the header as JSON, and the codec's tensors one
after the other, those with wider elements first. Tensors are named by their place among the codes and by what they are:
`0.rows` has a part for every row, `1.table` is shared by all rows; a two-level code has `0.important` and `1.others`.
The header's metadata holds `format` ("gossamer.features.1"), `codec` (its settings as JSON), `shape` ([rows, columns]),
`source_dtype` (name and bytes of the features' dtype before compression), `dtype` (in which rows are decoded), `block`
(how many rows a checksum covers), `checksums` (CRC-32 of each block of rows: the bytes of every such tensor in turn,
eight hexadecimal digits each) and `tables_checksum`. Nothing in it is executed when it is read. The header's length
follows from the shape alone, so rows can be written before their checksums are known; an unfinished file begins with
zeros, which no reader accepts.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ..checksums import of_tensors
from ..codecs import Codec
from ..codecs.two_level import TwoLevel
from .layout import IMPORTANT, OTHERS, ROWS, TABLE, Layout, Part, from_plain, tables, to_plain

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
KINDS = {ROWS, IMPORTANT, OTHERS, TABLE}
OUTPUT_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class BadFeatureFile(ValueError):
    """A file that is not a whole feature store of a version that is known here."""


class Header(NamedTuple):
    """What a file says of itself, and where its tensors lie.

    `important`: of a two-level code, how many important rows come before each block, and in all.
    """

    codec: Codec
    layout: Layout
    num_rows: int
    num_features: int
    source_dtype: str
    source_itemsize: int
    dtype: torch.dtype
    block: int
    important: tuple[int, ...] | None = None

    @property
    def num_blocks(self) -> int:
        return -(-self.num_rows // self.block)

    def before(self, part: Part, k: int) -> int:
        """How many rows of this tensor come before block k."""
        rows = min(k * self.block, self.num_rows)
        if part.of in (ROWS, TABLE) or self.important is None:
            return rows
        return self.important[k] if part.of == IMPORTANT else rows - self.important[k]

    def count(self, part: Part) -> int:
        """How many rows this tensor has."""
        return self.before(part, self.num_blocks)

    def rows(self, tensors: tuple[Tensor, ...], k: int) -> list[Tensor]:
        """What belongs to block k of each tensor of rows, as views."""
        pairs = [(part, tensor) for part, tensor in zip(self.layout, tensors, strict=True) if part.of != TABLE]
        return [part.slice(tensor, self.before(part, k), self.before(part, k + 1)) for part, tensor in pairs]

    @property
    def code_bytes(self) -> int:
        """Of all tensors."""
        return sum(part.nbytes(self.count(part)) for part in self.layout)

    def names(self) -> list[str]:
        return [f"{k}.{part.of}" for k, part in enumerate(self.layout)]

    def order(self) -> list[int]:
        """The places of the tensors in the file: wide elements first, so that all are aligned."""
        return sorted(range(len(self.layout)), key=lambda k: -self.layout[k].dtype.itemsize)

    def offsets(self) -> list[int]:
        """The first byte of each tensor behind the header."""
        found, at = [0] * len(self.layout), 0
        for k in self.order():
            found[k] = at
            at += self.layout[k].nbytes(self.count(self.layout[k]))
        return found

    def spans(self, k: int) -> Iterator[tuple[Part, int, int]]:
        """(tensor, first byte behind the header, number of rows) of what belongs to block k."""
        for part, at in zip(self.layout, self.offsets(), strict=True):
            if part.of != TABLE:
                low, high = self.before(part, k), self.before(part, k + 1)
                yield part, at + low * part.row_bytes, high - low

    def metadata(self) -> dict[str, str]:
        """All but the checksums."""
        return {
            "format": f"{KIND}{VERSION}",
            "codec": json.dumps(to_plain(self.codec)),
            "shape": json.dumps([self.num_rows, self.num_features]),
            "source_dtype": json.dumps([self.source_dtype, self.source_itemsize]),
            "dtype": str(self.dtype).removeprefix("torch."),
            "block": str(self.block),
        }

    def to_bytes(self, checksums: list[int], tables_checksum: int) -> bytes:
        """The head of the file; of the same length whatever the checksums are."""
        metadata = self.metadata() | {
            "checksums": "".join(f"{crc:08x}" for crc in checksums),
            "tables_checksum": f"{tables_checksum:08x}",
        }
        fields: dict[str, Any] = {"__metadata__": metadata}
        names, offsets = self.names(), self.offsets()
        for k in self.order():
            part, count = self.layout[k], self.count(self.layout[k])
            fields[names[k]] = {
                "dtype": DTYPES[part.dtype],
                "shape": list(part.shape_of(count)),
                "data_offsets": [offsets[k], offsets[k] + part.nbytes(count)],
            }
        text = json.dumps(fields, separators=(",", ":")).encode()
        text += b" " * (-(8 + len(text)) % ALIGNMENT)
        return len(text).to_bytes(8, "little") + text

    @property
    def head_bytes(self) -> int:
        """Of the file, before its tensors."""
        return len(self.to_bytes([0] * self.num_blocks, 0))


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
    header, whole = header_of(metadata, tensors)
    hexadecimal = metadata["checksums"]
    if len(hexadecimal) != 8 * header.num_blocks:
        raise ValueError(f"{len(hexadecimal) // 8} checksums for {header.num_blocks} blocks")
    checksums = [int(hexadecimal[k : k + 8], 16) for k in range(0, len(hexadecimal), 8)]
    return Contents(header, whole, checksums, int(metadata["tables_checksum"], 16))


def header_of(metadata: dict[str, str], tensors: dict[str, Tensor]) -> tuple[Header, tuple[Tensor, ...]]:
    """What `Header.metadata` wrote, and the tensors of these names in the codec's order."""
    num_rows, num_features = _counts(metadata["shape"])
    source_dtype, itemsize = json.loads(metadata["source_dtype"])
    if not isinstance(source_dtype, str) or itemsize not in (1, 2, 4, 8, 16):
        raise ValueError(f"source dtype {source_dtype!r} of {itemsize!r} bytes")
    block = int(metadata["block"])
    if block < 1 or metadata["dtype"] not in OUTPUT_DTYPES:
        raise ValueError(f"blocks of {block} rows, decoded in {metadata['dtype']}")
    codec = from_plain(json.loads(metadata["codec"]))
    kinds = dict(name.split(".") for name in tensors)
    if sorted(kinds) != sorted(map(str, range(len(tensors)))) or not set(kinds.values()) <= KINDS:
        raise ValueError(f"tensors {sorted(tensors)}")
    whole = tuple(tensors[f"{k}.{kinds[str(k)]}"] for k in range(len(tensors)))
    important = _important_before(codec, whole, num_rows, block)
    counts = {ROWS: num_rows}
    if important is not None:
        counts = {IMPORTANT: important[-1], OTHERS: num_rows - important[-1]}
    parts = tuple(_part(tensor, kinds[str(k)], counts) for k, tensor in enumerate(whole))
    dtype = OUTPUT_DTYPES[metadata["dtype"]]
    header = Header(codec, parts, num_rows, num_features, source_dtype, itemsize, dtype, block, important)
    stored, expected = header.code_bytes, _expected_bytes(codec, num_rows, num_features)
    if expected is not None and stored != expected:
        raise ValueError(f"{stored} bytes of codes, where {codec!r} has {expected} for {num_rows} x {num_features}")
    return header, whole


def _expected_bytes(codec: Codec, num_rows: int, num_features: int) -> int | None:
    """None for a setting whose tables depend on what it was fitted to."""
    if isinstance(codec, TwoLevel):
        return None
    try:
        return codec.nbytes((num_rows, num_features))
    except ValueError:
        return None


def _important_before(codec: Codec, tensors: tuple[Tensor, ...], num_rows: int, block: int) -> tuple[int, ...] | None:
    if not isinstance(codec, TwoLevel):
        return None
    level = tensors[2]
    if level.dtype != torch.uint8 or level.shape != (-(-num_rows // 8),):
        raise ValueError(f"a bit for each of {num_rows} rows in {level.dtype} {tuple(level.shape)}")
    bits = np.unpackbits(level.numpy(), bitorder="little", count=num_rows)
    return important_before(torch.from_numpy(bits), block)


def important_before(important: Tensor, block: int) -> tuple[int, ...]:
    """How many important rows come before each block, and in all."""
    counts = [int(each.sum()) for each in important.split(block)]
    return (0, *itertools.accumulate(counts))


def _counts(text: str) -> tuple[int, int]:
    shape = json.loads(text)
    if not (isinstance(shape, list) and len(shape) == 2 and all(type(n) is int and 1 <= n < 2**48 for n in shape)):
        raise ValueError(f"shape {text}")
    return shape[0], shape[1]


def _part(tensor: Tensor, of: str, counts: dict[str, int]) -> Part:
    if of == TABLE:
        return Part(tensor.dtype, TABLE, tuple(tensor.shape))
    count = counts.get(of)
    if count is None or tensor.dim() == 0 or (tensor.size(0) % count if count else tensor.numel()):
        raise ValueError(f"a tensor of {of} of the shape {tuple(tensor.shape)} for {count} of them")
    return Part(tensor.dtype, of, (tensor.size(0) // count if count else 1, *tensor.shape[1:]))


def verify(path: Path, contents: Contents) -> None:
    """Read everything and compare the checksums."""
    header = contents.header
    if of_tensors(tables(header.layout, contents.tensors)) != contents.tables_checksum:
        raise BadFeatureFile(f"{path} is damaged: its tables do not have their checksum; compress the features again")
    for k, expected in enumerate(contents.checksums):
        low, high = k * header.block, min((k + 1) * header.block, header.num_rows)
        if of_tensors(header.rows(contents.tensors, k)) != expected:
            raise BadFeatureFile(
                f"{path} is damaged: its rows {low} to {high - 1} do not have their checksum; compress the features "
                "again"
            )
