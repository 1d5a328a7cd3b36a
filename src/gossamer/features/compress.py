"""`gs.compress`: features in few bits, encoded once, whatever their size.

    sample    sorted random rows, read in order; the codec is fitted to them
    encode    a block of rows at a time: read and cast, check that it is finite, encode, write; gs.Scalar and gs.Product
              add up the rows of each code meanwhile, and their levels become means over all rows
    finish    tables and head are written, the file is flushed and renamed

The source is never loaded whole: the peak is that of the sample, or of three blocks (one is read while the one before
is encoded and written), whatever the number of rows. A file and a store in memory hold the same bits, for the same
sample and block.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..codecs import Codec, Codes
from ..codecs.rows import SAMPLE_ROWS, NotFinite, RowCodec, sample_ids
from .file import OUTPUT_DTYPES, Header, checksum, header_of
from .layout import check_codec, to_plain
from .progress import Bar
from .source import Source, source_of
from .store import FeatureStore
from .writer import Partial

BLOCK = 65536


def compress(
    x: Any,
    codec: Codec,
    out: str | os.PathLike[str] | None = None,
    *,
    sample: int | Tensor | None = None,
    block: int = BLOCK,
    progress: bool = True,
    resume: bool = False,
    dtype_out: torch.dtype = torch.float32,
    seed: int = 0,
) -> FeatureStore:
    """Encode features [nodes, features] with `codec`, in memory or into the file `out` (usually *.gsf).

    x: a tensor, array, memmap or sparse matrix; a path to .npy or Parquet; or chunks that can be read again, such as a
    list, or a function that returns a new iterator (see features/source.py). Floating-point numbers or integers.
    sample: how many rows the codec is fitted to, drawn with `seed`, or their ids; by default 100,000, and at least 64
    for each entry of a codebook. block: rows that are encoded at a time. dtype_out: in which `store[ids]` decodes,
    float32 or bfloat16. progress: a bar on standard error if it takes more than a moment.

    A file appears under its name when it is complete. After an interruption `resume=True` continues behind the last
    whole block; it starts from the beginning if there is nothing to continue, and refuses to continue with another
    source, codec or sample. The codec is fitted again, which gives the same tables; and where tables are means over
    all rows, the rows that are encoded already are read again, too, but not encoded.
    """
    check_codec(codec)
    if not isinstance(block, int) or block < 1:
        raise ValueError(f"`block` must be a whole number of rows of at least 1 (got {block!r})")
    if dtype_out not in OUTPUT_DTYPES.values():
        raise TypeError(f"`dtype_out` must be torch.float32 or torch.bfloat16 (got {dtype_out})")
    if resume and out is None:
        raise ValueError("`resume` needs `out`, the file whose encoding was interrupted")
    source = source_of(x)
    if source.num_rows == 0:
        raise ValueError("`x` must have at least one row (got none)")
    with Bar(source.num_rows, progress) as bar, torch.no_grad():
        bar.say("fitting")
        ids = _sample_ids(source, codec, sample, seed)
        rows = _sample_rows(source, ids)
        fitted = codec.fit(rows)
        header = header_of(
            fitted, source.num_rows, source.num_features, source.dtype, source.itemsize, dtype_out, block
        )
        if out is None:
            del rows
            return _in_memory(source, header, bar)
        identity = _identity(source, codec, header, rows)
        del rows
        path = Path(out).absolute()
        _to_file(source, header, Partial(path, header, identity, resume), bar)
    return FeatureStore.open(path)


class _Encoder:
    """A fitted codec at work: rows in, codes out; where the codec wants it, its tables become means over all rows."""

    def __init__(self, header: Header) -> None:
        self.header, self.codec = header, header.codec
        refines = isinstance(self.codec, RowCodec) and getattr(self.codec, "refine", True)
        self.refining = self.codec.start_refining() if refines else None  # type: ignore[attr-defined]

    def encode(self, x: Tensor) -> list[Tensor]:
        """The codes of these rows."""
        codes = self.codec.encode(x)
        self._add(x, codes)
        return self.header.layout.rows(codes.tensors, 0, len(x))

    def recall(self, x: Tensor, rows: list[Tensor]) -> None:
        """Rows that were encoded in an earlier run."""
        self._add(x, Codes((*rows, *self.header.layout.tables(_encoded_zeros(self.header))), x.shape, x.dtype))

    def tables(self) -> list[Tensor]:
        """Of the codec that has seen all rows."""
        if self.refining is None:
            return self.header.layout.tables(_encoded_zeros(self.header))
        return list(self.codec.refined(self.refining).tables())  # type: ignore[attr-defined]

    def _add(self, x: Tensor, codes: Codes) -> None:
        if self.refining is not None:
            self.codec.accumulate(self.refining, x, codes)  # type: ignore[attr-defined]


def _encoded_zeros(header: Header) -> tuple[Tensor, ...]:
    return header.codec.encode(torch.zeros(1, header.num_features)).tensors


def _in_memory(source: Source, header: Header, bar: Bar) -> FeatureStore:
    tensors = tuple(torch.empty(part.shape_of(header.num_rows), dtype=part.dtype) for part in header.layout.parts)
    encoder, low = _Encoder(header), 0
    for x in _ahead(source.blocks(header.block)):
        _copy(encoder.encode(x), header.layout.rows(tensors, low, low + len(x)))
        low += len(x)
        bar.show(low)
    _copy(encoder.tables(), header.layout.tables(tensors))
    return FeatureStore(header, tensors)


def _copy(made: list[Tensor], into: list[Tensor]) -> None:
    for part, place in zip(made, into, strict=True):
        place.copy_(part)


def _to_file(source: Source, header: Header, partial: Partial, bar: Bar) -> None:
    try:
        encoder, done = _Encoder(header), partial.done
        if encoder.refining is not None:  # means are over all rows: those that are encoded are read again
            for k, x in enumerate(_ahead(source.blocks(header.block), done)):
                encoder.recall(x, partial.rows(k))
        bar.show(done * header.block)
        for x in _ahead(source.blocks(header.block, done * header.block)):
            partial.write(encoder.encode(x))
            bar.show(partial.done * header.block)
        partial.finish(encoder.tables())
    except BaseException as error:
        # What was interrupted, or found no space, can go on; an error in the data would only come again.
        partial.leave(discard=isinstance(error, Exception) and not isinstance(error, (OSError, MemoryError)))
        raise


def _ahead(blocks: Iterator[Tensor], count: int | None = None) -> Iterator[Tensor]:
    """The blocks, or the first `count`, each read by another thread while the one before is in use."""
    blocks = itertools.islice(blocks, count)
    with ThreadPoolExecutor(1, "gossamer-read") as reader:
        upcoming = reader.submit(next, blocks, None)
        while (block := upcoming.result()) is not None:
            upcoming = reader.submit(next, blocks, None)
            yield block


def _sample_ids(source: Source, codec: Codec, sample: int | Tensor | None, seed: int) -> np.ndarray:
    if sample is None:
        sample = codec.sample_rows if isinstance(codec, RowCodec) else SAMPLE_ROWS
    if isinstance(sample, int) and not isinstance(sample, bool):
        if sample < 1:
            raise ValueError(f"`sample` must be at least 1 row, or ids of rows (got {sample})")
        return sample_ids(source.num_rows, sample, seed).numpy()
    ids = torch.as_tensor(sample)
    if ids.dtype not in (torch.int32, torch.int64) or ids.dim() != 1 or not len(ids):
        raise TypeError(f"`sample` must be a number of rows, or their ids [count] (got {ids.dtype} {tuple(ids.shape)})")
    ids = ids.long().cpu().unique()
    if int(ids[0]) < 0 or int(ids[-1]) >= source.num_rows:
        bad = int(ids[0] if int(ids[0]) < 0 else ids[-1])
        raise IndexError(f"`sample` must hold ids from 0 to {source.num_rows - 1} (got {bad})")
    return ids.numpy()


def _sample_rows(source: Source, ids: np.ndarray) -> Tensor:
    try:
        return source.rows(ids)
    except NotFinite as error:
        for _ in source.blocks(BLOCK):  # raises for the first such row, which may not be in the sample
            pass
        raise error


def _identity(source: Source, codec: Codec, header: Header, rows: Tensor) -> dict[str, Any]:
    """What must be the same for an encoding to be continued."""
    return {
        "source": f"{source.origin}, {source.num_rows} x {source.num_features} {source.dtype}",
        "codec": to_plain(codec),
        "block": header.block,
        "dtype": str(header.dtype),
        "sample": f"{len(rows)} rows {checksum([rows]):08x}",
        "tables": f"{checksum(header.layout.tables(_encoded_zeros(header))):08x}",
    }
