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

from ..checksums import of_tensors
from ..codecs import Codec, Codes
from ..codecs.rows import SAMPLE_ROWS, NotFinite, RowCodec, sample_ids
from ..codecs.two_level import TwoLevel
from ..ops._checks import ids_within
from .file import OUTPUT_DTYPES, Header, important_before
from .layout import check_codec, fitted_tables, layout_of, refined, refines, row_tensors, tables, to_plain
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
    important: Tensor | None = None,
) -> FeatureStore:
    """Encode features [nodes, features] with `codec`, in memory or into the file `out` (usually *.gsf).

    x: a tensor, array, memmap or sparse matrix; a path to .npy or Parquet; or chunks that can be read again, such as a
    list, or a function that returns a new iterator (see features/source.py). Floating-point numbers or integers.
    sample: how many rows the codec is fitted to, drawn with `seed`, or their ids; by default 100,000, and at least 64
    for each entry of a codebook. block: rows that are encoded at a time. dtype_out: in which `store[ids]` decodes,
    float32 or bfloat16. progress: a bar on standard error if it takes more than a moment. important: for gs.TwoLevel, a
    truth value per row (or ids): those that get the mild code.

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
    mask = _mask(codec, important, source.num_rows)
    with Bar(source.num_rows, progress) as bar, torch.no_grad():
        bar.say("fitting")
        ids = _sample_ids(source, codec, sample, seed)
        rows = _sample_rows(source, ids)
        fitted = codec.fit(rows) if mask is None else codec.fit(rows, mask[torch.from_numpy(ids)])  # type: ignore[call-arg]
        header = Header(
            fitted,
            layout_of(fitted, source.num_features, mask),
            source.num_rows,
            source.num_features,
            source.dtype,
            source.itemsize,
            dtype_out,
            block,
            None if mask is None else important_before(mask, block),
        )
        identity = _identity(source, codec, header, rows, mask) if out is not None else {}
        del rows
        if out is None:
            return _in_memory(source, header, mask, bar)
        path = Path(out).absolute()
        _to_file(source, header, mask, Partial(path, header, identity, resume), bar)
    return FeatureStore.open(path)


class _Encoder:
    """A fitted codec at work: rows in, codes out; where the codec wants it, its tables become means over all rows."""

    def __init__(self, header: Header, important: Tensor | None) -> None:
        self.header, self.codec, self.important = header, header.codec, important
        self.refining = self.codec.start_refining() if refines(self.codec) else None  # type: ignore[attr-defined]

    def encode(self, x: Tensor, k: int) -> list[Tensor]:
        """The codes of block k."""
        mask = self._mask(k)
        codes = self.codec.encode(x) if mask is None else self.codec.encode(x, important=mask)  # type: ignore[call-arg]
        self._add(x, codes)
        return row_tensors(self.header.layout, codes.tensors)

    def recall(self, x: Tensor, k: int, rows: list[Tensor]) -> None:
        """Rows of block k that were encoded in an earlier run."""
        self._add(x, Codes((*rows, *fitted_tables(self.codec, x.size(1), self._mask(k))), x.shape, x.dtype))

    def tables(self) -> list[Tensor]:
        """Of the codec that has seen all rows."""
        codec = self.codec if self.refining is None else refined(self.codec, self.refining)
        return fitted_tables(codec, self.header.num_features, self.important)

    def _mask(self, k: int) -> Tensor | None:
        block = self.header.block
        return None if self.important is None else self.important[k * block : (k + 1) * block]

    def _add(self, x: Tensor, codes: Codes) -> None:
        if self.refining is not None:
            self.codec.accumulate(self.refining, x, codes)  # type: ignore[attr-defined]


def _in_memory(source: Source, header: Header, important: Tensor | None, bar: Bar) -> FeatureStore:
    tensors = tuple(torch.empty(part.shape_of(header.count(part)), dtype=part.dtype) for part in header.layout)
    encoder = _Encoder(header, important)
    for k, x in enumerate(_ahead(source.blocks(header.block))):
        _copy(encoder.encode(x, k), header.rows(tensors, k))
        bar.show((k + 1) * header.block)
    _copy(encoder.tables(), tables(header.layout, tensors))
    return FeatureStore(header, tensors)


def _copy(made: list[Tensor], into: list[Tensor]) -> None:
    for part, place in zip(made, into, strict=True):
        if place.numel():  # a level of a two-level code may have no rows in a block
            place.copy_(part)


def _to_file(source: Source, header: Header, important: Tensor | None, partial: Partial, bar: Bar) -> None:
    try:
        encoder, done = _Encoder(header, important), partial.done
        if encoder.refining is not None:  # means are over all rows: those that are encoded are read again
            for k, x in enumerate(_ahead(source.blocks(header.block), done)):
                encoder.recall(x, k, partial.rows(k))
        bar.show(done * header.block)
        for x in _ahead(source.blocks(header.block, done * header.block)):
            partial.write(encoder.encode(x, partial.done))
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


def _mask(codec: Codec, important: Tensor | None, num_rows: int) -> Tensor | None:
    """Which rows are important, for a codec that asks for it."""
    if not isinstance(codec, TwoLevel):
        if important is not None:
            raise ValueError(f"`important` is for gs.TwoLevel, which treats such rows apart (got it with {codec!r})")
        return None
    if important is None:
        raise ValueError(
            "`important` must be given for gs.TwoLevel: which rows get the mild code, such as the nodes that are "
            "trained and tested on"
        )
    given = torch.as_tensor(important).cpu()
    if given.dtype in (torch.int32, torch.int64) and given.dim() == 1:
        ids_within("important", given, num_rows, "rows")
        return torch.zeros(num_rows, dtype=torch.bool).index_fill_(0, given.long(), True)
    if given.dtype != torch.bool or given.shape != (num_rows,):
        raise ValueError(
            f"`important` must be a truth value for each of {num_rows} rows, or their ids (got {given.dtype} of the "
            f"shape {tuple(given.shape)})"
        )
    return given


def _identity(source: Source, codec: Codec, header: Header, rows: Tensor, mask: Tensor | None) -> dict[str, Any]:
    """What must be the same for an encoding to be continued."""
    return {
        "source": f"{source.origin}, {source.num_rows} x {source.num_features} {source.dtype}",
        "codec": to_plain(codec),
        "block": header.block,
        "dtype": str(header.dtype),
        "sample": f"{len(rows)} rows {of_tensors([rows]):08x}",
        "tables": f"{of_tensors(fitted_tables(header.codec, source.num_features, mask)):08x}",
    }
