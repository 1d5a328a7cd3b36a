"""Where features come from: rows that are read in blocks, and never all at once.

    tensor, array      a torch tensor on any device, a NumPy array or memmap; also a SciPy or torch sparse matrix
    .npy               a path; mapped, so that only what is read is loaded
    Parquet            one or more paths; every column a feature, or one column of vectors; read by record batches
    chunks             2-D arrays of any number of rows, as something that can be iterated again and again (a list, an
                       object with `__iter__`), or a function that returns a new iterator each time

Values may be float16, bfloat16, float32, float64, integers or booleans; a block is float32. Chunks are read up to three
times: to count the rows (a list need not be), to take the sample, and to encode. A generator is refused: it can be read
once, and constants fitted to its beginning could be wrong for the rest.
"""

from __future__ import annotations

import mmap
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..codecs.rows import NotFinite

PARQUET = (".parquet", ".pq")
MOST_ROWS = 2**40  # more than any machine holds; a larger number is a damaged header


class Source(ABC):
    """`num_rows` x `num_features` numbers of type `dtype`, as NumPy or torch spells it."""

    num_rows: int
    num_features: int
    dtype: str
    itemsize: int
    origin: str
    """What tells this source from another one when an encoding is resumed."""

    @abstractmethod
    def pieces(self, start: int, block: int) -> Iterator[np.ndarray]:
        """The rows from `start` on, in order, in pieces of any number of rows up to `block`."""

    def blocks(self, block: int, start: int = 0) -> Iterator[Tensor]:
        """The rows from `start` on as float32, `block` at a time; raises for the first row that is not finite."""
        held: list[np.ndarray] = []
        count, at = 0, start
        for piece in self.pieces(start, block):
            piece = self._checked(piece, at)
            at += len(piece)
            while len(piece):
                part, piece = piece[: block - count], piece[block - count :]
                held.append(part)
                count += len(part)
                if count == block:
                    yield _joined(held)
                    held, count = [], 0
        if held:
            yield _joined(held)
        if at != self.num_rows:
            raise ValueError(
                f"`x` must give the same rows each time it is read ({self.num_rows} at first, {at} now); pass a "
                "function that starts from the beginning"
            )

    def rows(self, ids: np.ndarray) -> Tensor:
        """The rows of ascending ids, float32. Reads everything; sources that can find a row do better."""
        out = np.empty((len(ids), self.num_features), np.float32)
        at = 0
        for piece in self.pieces(0, 2**16):
            low, high = np.searchsorted(ids, [at, at + len(piece)])
            out[low:high] = as_float32(piece[ids[low:high] - at])
            at += len(piece)
        self._refuse_non_finite(out, ids)
        return torch.from_numpy(out)

    def _checked(self, piece: np.ndarray, at: int) -> np.ndarray:
        if piece.ndim != 2 or piece.shape[1] != self.num_features:
            raise ValueError(
                f"`x` must have {self.num_features} columns throughout (got the shape {piece.shape} from row {at} on)"
            )
        block = as_float32(piece)
        self._refuse_non_finite(block, np.arange(at, at + len(block)))
        return block

    def _refuse_non_finite(self, block: np.ndarray, ids: np.ndarray) -> None:
        if not block.size or np.isfinite([block.min(), block.max()]).all():  # NaN is the minimum of what holds one
            return
        bad = ~np.isfinite(block).all(1)
        row = int(ids[bad.argmax()])
        column = int((~np.isfinite(block[bad.argmax()])).argmax())
        raise NotFinite(
            f"`x` must be finite and within the range of float32 (got {block[bad.argmax(), column]} in row {row}, "
            f"column {column}); clean it, for instance with np.nan_to_num",
            row,
        )


def as_float32(piece: np.ndarray) -> np.ndarray:
    """A contiguous float32 copy, or the piece itself; what float32 cannot hold becomes infinite."""
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(piece, np.float32)


def _joined(held: list[np.ndarray]) -> Tensor:
    block = held[0] if len(held) == 1 else np.concatenate(held)
    if not block.flags.writeable:  # torch warns of memory that it may not write, though nobody does
        block = block.copy()
    return torch.from_numpy(block)


# Arrays ---------------------------------------------------------------------------------------------------------


class _Array(Source):
    """Anything with rows that can be sliced, and turned into an array by `take`."""

    def __init__(
        self, x: Any, take: Callable[[Any], np.ndarray], shape: Sequence[int], dtype: str, itemsize: int, origin: str
    ) -> None:
        self.x, self.take, self.origin = x, take, origin
        self.num_rows, self.num_features = int(shape[0]), int(shape[1])
        self.dtype, self.itemsize = dtype, itemsize

    def pieces(self, start: int, block: int) -> Iterator[np.ndarray]:
        for low in range(start, self.num_rows, block):
            yield _unmapped(self.x, self.take(self.x[low : low + block]))

    def rows(self, ids: np.ndarray) -> Tensor:
        out = np.empty((len(ids), self.num_features), np.float32)
        for low in range(0, len(ids), 2**14):  # in order, so that a disk reads ahead
            out[low : low + 2**14] = as_float32(_unmapped(self.x, self.take(self.x[ids[low : low + 2**14]])))
        self._refuse_non_finite(out, ids)
        return torch.from_numpy(out)


def _unmapped(x: Any, piece: np.ndarray) -> np.ndarray:
    """A copy of rows of a file that is mapped for reading, whose pages are then given back: else they would count as
    memory of this process until all of the file does.
    """
    if not isinstance(x, np.memmap) or x.mode != "r" or not hasattr(mmap, "MADV_DONTNEED"):
        return piece
    copied = np.array(piece)
    x._mmap.madvise(mmap.MADV_DONTNEED)  # type: ignore[attr-defined]
    return copied


def _of_tensor(x: Tensor) -> Source:
    if x.layout != torch.strided:
        return _of_torch_sparse(x)
    _check_matrix(x.shape)
    if x.is_complex() or x.is_quantized:
        raise _wrong_dtype(str(x.dtype))
    held = x.detach()

    def take(rows: Tensor) -> np.ndarray:
        return rows.to("cpu", torch.float32).numpy()

    class Rows:
        def __getitem__(self, key: Any) -> Tensor:
            return held[torch.from_numpy(key).to(held.device) if isinstance(key, np.ndarray) else key]

    name = str(x.dtype).removeprefix("torch.")
    return _Array(Rows(), take, x.shape, name, x.element_size(), "tensor")


def _of_array(x: np.ndarray, origin: str = "array") -> Source:
    _check_matrix(x.shape)
    if x.dtype.kind not in "fiub":
        raise _wrong_dtype(str(x.dtype))
    return _Array(x, np.asarray, x.shape, x.dtype.name, x.dtype.itemsize, origin)


def _of_scipy(x: Any) -> Source:
    _check_matrix(x.shape)
    if x.dtype.kind not in "fiub":
        raise _wrong_dtype(str(x.dtype))
    return _Array(x.tocsr(), lambda rows: rows.toarray(), x.shape, x.dtype.name, x.dtype.itemsize, "sparse")


def _of_torch_sparse(x: Tensor) -> Source:
    import scipy.sparse

    _check_matrix(x.shape)
    coo = x.detach().cpu().to_sparse_coo().coalesce()
    row, column = coo.indices().numpy()
    values = coo.values().to(torch.float32 if coo.dtype == torch.bfloat16 else coo.dtype).numpy()
    return _of_scipy(scipy.sparse.csr_matrix((values, (row, column)), shape=tuple(x.shape)))


# Files ----------------------------------------------------------------------------------------------------------


def _of_paths(paths: Sequence[Path]) -> Source:
    for path in paths:
        if not path.is_file():
            raise FileNotFoundError(f"`x` must be an existing .npy or Parquet file (there is no file {path})")
    if all(path.suffix.lower() in PARQUET for path in paths):
        return _Parquet(paths)
    if len(paths) == 1 and paths[0].suffix.lower() == ".npy":
        return _of_npy(paths[0])
    names = ", ".join(map(str, paths))
    raise ValueError(f"`x` must be one .npy file, or Parquet files ({' or '.join(PARQUET)}) alone (got {names})")


def _of_npy(path: Path) -> Source:
    try:
        x = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise ValueError(
            f"`x` must be a .npy file of numbers ({path} is damaged or of another kind: {error})"
        ) from None
    if not isinstance(x, np.ndarray):
        raise ValueError(f"`x` must be a .npy file of numbers ({path} holds several arrays; save one with np.save)")
    return _of_array(x, _stamp([path]))


def _stamp(paths: Sequence[Path]) -> str:
    """Sizes and times of files: a file that was changed has another stamp."""
    return "; ".join(f"{path.name} {(s := path.stat()).st_size} {s.st_mtime_ns}" for path in paths)


class _Parquet(Source):
    """Record batches of one or more files: every column a feature, or one column of vectors."""

    def __init__(self, paths: Sequence[Path]) -> None:
        try:
            import pyarrow.parquet
        except ImportError:
            raise ImportError(
                "`x` is a Parquet file, which needs pyarrow: pip install 'gossamer-gnn[parquet]' (or pyarrow itself)"
            ) from None
        import pyarrow

        self.paths, self.open = list(paths), pyarrow.parquet.ParquetFile
        try:
            files = [self.open(path) for path in paths]
        except pyarrow.ArrowInvalid as error:
            raise ValueError(f"`x` must be Parquet files (one is damaged or of another kind: {error})") from None
        schema = files[0].schema_arrow
        self.vectors = len(schema.types) == 1 and pyarrow.types.is_fixed_size_list(schema.types[0])
        for path, file in zip(paths, files, strict=True):
            if file.schema_arrow.names != schema.names:
                raise ValueError(
                    f"`x` must be Parquet files with the same columns ({path} has {file.schema_arrow.names[:5]}, the "
                    f"first has {schema.names[:5]})"
                )
        types = [schema.types[0].value_type] if self.vectors else schema.types
        for name, kind in zip(schema.names, types, strict=True):
            if not (
                pyarrow.types.is_floating(kind) or pyarrow.types.is_integer(kind) or pyarrow.types.is_boolean(kind)
            ):
                raise TypeError(
                    f"`x` must have columns of numbers (column {name!r} of {paths[0]} is {kind}); write the features "
                    "to a file of their own: one column each, or a single column of vectors (fixed_size_list)"
                )
        kinds = [np.dtype(kind.to_pandas_dtype()) for kind in types]
        widest = max(kinds, key=lambda kind: kind.itemsize, default=np.dtype(np.float32))
        self.dtype, self.itemsize = widest.name, widest.itemsize
        self.num_rows = sum(file.metadata.num_rows for file in files)
        self.num_features = schema.types[0].list_size if self.vectors else len(schema.names)
        self.origin = _stamp(paths)
        for file in files:
            file.close()
        _check_matrix((self.num_rows, self.num_features))

    def pieces(self, start: int, block: int) -> Iterator[np.ndarray]:
        skipped = 0
        for path in self.paths:
            with self.open(path) as file:
                if skipped + file.metadata.num_rows <= start:  # the whole file lies before `start`
                    skipped += file.metadata.num_rows
                    continue
                for batch in file.iter_batches(batch_size=block):
                    skip = min(max(start - skipped, 0), batch.num_rows)
                    skipped += batch.num_rows
                    if skip < batch.num_rows:
                        yield self._numbers(batch.slice(skip))

    def _numbers(self, batch: Any) -> np.ndarray:
        if self.vectors:
            column = batch.column(0)
            if column.null_count:
                raise ValueError(f"`x` must have a vector in every row ({column.null_count} of a batch are missing)")
            return column.flatten().to_numpy(zero_copy_only=False).reshape(batch.num_rows, self.num_features)
        return _columns(batch)


def _columns(batch: Any) -> np.ndarray:
    out = np.empty((batch.num_rows, batch.num_columns), np.float32)
    for k, column in enumerate(batch.columns):
        with np.errstate(over="ignore"):
            out[:, k] = column.to_numpy(zero_copy_only=False)  # a missing number becomes NaN, which is refused
    return out


# Chunks ---------------------------------------------------------------------------------------------------------


class _Chunks(Source):
    """Arrays one after the other, from `restart()`."""

    origin = "chunks"

    def __init__(self, restart: Callable[[], Iterator[Any]]) -> None:
        self.restart = restart
        self.num_rows, self.num_features = 0, -1
        for chunk in restart():
            part = source_of(chunk)
            if self.num_features < 0:
                self.num_features, self.dtype, self.itemsize = part.num_features, part.dtype, part.itemsize
            if part.num_features != self.num_features:
                raise ValueError(
                    f"`x` must have {self.num_features} columns throughout (got {part.num_features} from row "
                    f"{self.num_rows} on)"
                )
            self.num_rows += part.num_rows
        if self.num_features < 0:
            raise ValueError("`x` must have at least one chunk (got none)")

    def pieces(self, start: int, block: int) -> Iterator[np.ndarray]:
        at = 0
        for chunk in self.restart():
            part = source_of(chunk)
            skip = min(max(start - at, 0), part.num_rows)
            at += part.num_rows
            if skip < part.num_rows:
                yield from part.pieces(skip, block)


def _of_chunks(x: Any) -> Source:
    if callable(x):
        return _Chunks(lambda: iter(x()))
    if iter(x) is x:
        raise TypeError(
            "`x` must be chunks that can be read again, once to fit the codec and once to encode (got an iterator, "
            f"{type(x).__name__}, which can be read once); pass a function that returns a new one, or a list"
        )
    return _Chunks(lambda: iter(x))


# ----------------------------------------------------------------------------------------------------------------


def source_of(x: Any) -> Source:
    """Features in any of the forms that this module describes."""
    if isinstance(x, Source):
        return x
    if isinstance(x, Tensor):
        return _of_tensor(x)
    if isinstance(x, np.ndarray):
        return _of_array(x)
    if isinstance(x, (str, os.PathLike)):
        return _of_paths([Path(x)])
    if hasattr(x, "tocsr"):
        return _of_scipy(x)
    if isinstance(x, (list, tuple)) and x and all(isinstance(each, (str, os.PathLike)) for each in x):
        return _of_paths([Path(each) for each in x])
    if isinstance(x, (list, tuple)) and x and not all(hasattr(each, "shape") for each in x):
        raise TypeError("`x` must be an array, not nested lists of numbers; convert it with np.asarray or torch.tensor")
    if callable(x) or isinstance(x, Iterable):
        return _of_chunks(x)
    raise TypeError(
        "`x` must be a tensor, an array, a path to .npy or Parquet, or chunks that can be read again "
        f"(got {type(x).__name__})"
    )


def _check_matrix(shape: Sequence[int]) -> None:
    if len(shape) != 2 or shape[1] < 1 or shape[0] > MOST_ROWS:
        raise ValueError(
            f"`x` must be a matrix [nodes, features] with at least one feature (got the shape {tuple(shape)})"
        )


def _wrong_dtype(name: str) -> TypeError:
    return TypeError(f"`x` must hold floating-point numbers or integers (got {name}); convert it, e.g. to float32")
