"""Features kept as codes, in memory or in a mapped file, and decoded when they are gathered.

    store = gs.compress(x, gs.Scalar(bits=1))               in memory
    store = gs.FeatureStore.open("x.gsf")                   mapped: nothing is read until it is needed
    store[ids], store.gather(ids, dtype=torch.bfloat16)     rows, decoded in one multi-threaded pass

A gather reads the bytes of the codes and no others. `nbytes` counts codes and tables: the size of the file without its
header. With PyG's own loaders either hand over codes and decode batches,

    data.x = store.codes;  NeighborLoader(data, ..., transform=store.transform())

or pass `(store.as_pyg(), graph_store)` in place of the data.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import numpy as np
import torch
from torch import Tensor

from ..codecs import Codec, CodedRows, Codes, Scalar
from ..ops import _checks
from ..ops.gather_rows import gather_rows
from . import file, writer
from .file import OUTPUT_DTYPES, Header
from .layout import TABLE, check_codec, decode_rows, row_tensors, tables
from .mapped import Watched

if TYPE_CHECKING:
    from .pyg_store import PyGFeatureStore

Ids = int | slice | Tensor | np.ndarray | Sequence[int] | Sequence[bool]
DECODED_AT_ONCE = 2**16
"""Rows that `decode` hands to the codec at a time."""


@final
class FeatureStore:
    """Made by `gs.compress` and `FeatureStore.open`; does not change."""

    __slots__ = ("__weakref__", "_file", "_header", "_tensors")
    _header: Header
    _tensors: tuple[Tensor, ...]
    _file: Watched | None

    def __init__(self, header: Header, tensors: tuple[Tensor, ...], watched: Watched | None = None) -> None:
        check_codec(header.codec)
        for name, field in (("_header", header), ("_tensors", tensors), ("_file", watched)):
            object.__setattr__(self, name, field)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"`{name}` of a FeatureStore cannot be changed; compress the features again")

    # Files ------------------------------------------------------------------------------------------------------

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, mmap: bool = True, verify: bool = False) -> FeatureStore:
        """What `gs.compress(..., out=path)` or `save` wrote.

        With `mmap` rows stay in the file until they are gathered; it must not be written to meanwhile (replacing it by
        renaming is fine), and a change that is noticed raises `FeatureFileChanged`. Without, everything is copied into
        memory. The header, its version and all sizes are always checked; `verify` reads the whole file to compare its
        checksums, too. Raises `BadFeatureFile` for a file that is damaged, unfinished, of another kind or too new.
        """
        path = Path(path).absolute()
        watched = Watched(path) if path.is_file() else None
        contents = file.read(path)
        if watched is not None:
            watched.check()  # that both looked at one file
        _check_decodes(path, contents)
        if verify:
            file.verify(path, contents)
        if not mmap:
            return cls(contents.header, tuple(tensor.clone() for tensor in contents.tensors))
        return cls(contents.header, contents.tensors, watched)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write as a file that `open` reads: beside its place first, then renamed."""
        self._check_file()
        writer.write_whole(Path(path), self._header, self._tensors)

    def unpacked(self) -> tuple[dict[str, str], dict[str, Tensor]]:
        """Metadata and tensors by name, for a file that holds more than features; `packed` is the inverse."""
        self._check_file()
        return self._header.metadata(), dict(zip(self._header.names(), self._tensors, strict=True))

    @classmethod
    def packed(cls, metadata: dict[str, str], tensors: dict[str, Tensor]) -> FeatureStore:
        return cls(*file.header_of(metadata, tensors))

    @property
    def path(self) -> Path | None:
        """The mapped file; None if the codes are in memory."""
        return None if self._file is None else self._file.path

    # Facts ------------------------------------------------------------------------------------------------------

    @property
    def codec(self) -> Codec:
        return self._header.codec

    @property
    def shape(self) -> torch.Size:
        return torch.Size((self._header.num_rows, self._header.num_features))

    @property
    def num_nodes(self) -> int:
        return self._header.num_rows

    @property
    def num_features(self) -> int:
        return self._header.num_features

    @property
    def dtype(self) -> torch.dtype:
        """In which `store[ids]` decodes."""
        return self._header.dtype

    @property
    def source_dtype(self) -> str:
        """Of the features before compression."""
        return self._header.source_dtype

    @property
    def nbytes(self) -> int:
        """Bytes of codes and tables, exactly: the size of the file without its header."""
        return self._header.code_bytes

    @property
    def row_bytes(self) -> float:
        """Bytes of one row's codes, tables aside."""
        return sum(t.nbytes for t in row_tensors(self._header.layout, self._tensors)) / self.num_nodes

    @property
    def ratio(self) -> float:
        """How many times smaller than float32."""
        return self.shape.numel() * torch.float32.itemsize / self.nbytes

    @property
    def ratio_on_disk(self) -> float:
        """How many times smaller than in the dtype of the source: half of `ratio` for float16."""
        return self.shape.numel() * self._header.source_itemsize / self.nbytes

    def __len__(self) -> int:
        return self.num_nodes

    def __repr__(self) -> str:
        megabytes = f"{self.nbytes / 1e6:,.1f} MB, {self.ratio:.1f}x smaller than float32"
        where = "" if self.path is None else f", in {self.path}"
        return f"FeatureStore({self.codec!r}, {self.num_nodes} x {self.num_features}, {megabytes}{where})"

    # Rows -------------------------------------------------------------------------------------------------------

    def __getitem__(self, ids: Ids) -> Tensor:
        """Rows by number (int, which gives one row without the first dimension), slice, list, int64 tensor or mask."""
        if isinstance(ids, (int, np.integer)) and not isinstance(ids, bool):
            return self.gather(torch.tensor([int(ids)]))[0]
        return self.gather(ids)

    def gather(self, ids: Ids, out: Tensor | None = None, dtype: torch.dtype | None = None) -> Tensor:
        """The rows `ids`, decoded, [count, features] in float32 or bfloat16; written into `out` if it is given."""
        dtype = (self.dtype if out is None else out.dtype) if dtype is None else dtype
        if dtype not in OUTPUT_DTYPES.values():
            raise TypeError(f"`dtype` must be torch.float32 or torch.bfloat16 (got {dtype})")
        index = self._ids(ids)
        if out is not None:
            self._check_out(out, (len(index), self.num_features), dtype)
        self._check_file()
        _checks.ids_within("ids", index, self.num_nodes, "nodes")  # for kernels a negative id is a row to leave out
        return decode_rows(self.codec, self._codes, index, dtype, out)

    def coded(self, ids: Ids, dtype: torch.dtype | None = None) -> CodedRows | Tensor:
        """The rows `ids` as codes, where layers can sum them as such: of gs.Scalar. Others as by `gather`."""
        if not isinstance(self.codec, Scalar):
            return self.gather(ids, dtype=dtype)
        index = self._ids(ids)
        self._check_file()
        rows, *tables = self._tensors
        shape = torch.Size((len(index), self.num_features))
        return CodedRows(self.codec, Codes((gather_rows(rows, index), *tables), shape, dtype or self.dtype))

    def decode(self, dtype: torch.dtype | None = None) -> Tensor:
        """All rows. Takes 4 bytes per number in float32: as much as the features took before."""
        dtype = self.dtype if dtype is None else dtype
        out = torch.empty(self.shape, dtype=dtype)
        for low in range(0, self.num_nodes, DECODED_AT_ONCE):
            part = out[low : low + DECODED_AT_ONCE]
            self.gather(slice(low, low + len(part)), out=part)
        return out

    def select(self, ids: Ids) -> FeatureStore:
        """The rows `ids` as a store of their own, in memory: their codes, and the same tables."""
        index = self._ids(ids)
        self._check_plain("select")
        self._check_file()
        layout, count = self._header.layout, len(index)
        chosen = [
            t if part.of == TABLE else gather_rows(t.reshape(self.num_nodes, -1), index).reshape(part.shape_of(count))
            for part, t in zip(layout, self._tensors, strict=True)
        ]
        return FeatureStore(self._header._replace(num_rows=count), tuple(chosen))

    @classmethod
    def joined(cls, stores: Sequence[FeatureStore]) -> FeatureStore:
        """The rows of several stores of one code, one below the other, in memory."""
        first = stores[0]
        for other in stores:
            other._check_plain("joined")
            other._check_file()
            if not first._same_code(other):
                raise ValueError(f"`stores` must have one codec and its tables (got {first!r} and {other!r})")
        whole = [
            tensors[0] if part.of == TABLE else torch.cat(tensors)
            for part, *tensors in zip(first._header.layout, *(each._tensors for each in stores), strict=True)
        ]
        return cls(first._header._replace(num_rows=sum(map(len, stores))), tuple(whole))

    def _same_code(self, other: FeatureStore) -> bool:
        a, b = self._header, other._header
        if (repr(a.codec), a.num_features, a.dtype, a.layout) != (repr(b.codec), b.num_features, b.dtype, b.layout):
            return False
        pairs = zip(tables(a.layout, self._tensors), tables(b.layout, other._tensors), strict=True)
        return all(torch.equal(mine, others) for mine, others in pairs)

    # PyG --------------------------------------------------------------------------------------------------------

    @property
    def codes(self) -> Tensor:
        """Codes as uint8 [nodes, bytes], what PyG's loaders can index like any feature; `transform` decodes them.

        The stored tensor itself where the codec has one tensor of rows, else a copy with a row's parts side by side.
        """
        self._check_file()
        self._check_plain("codes")
        rows = [tensor.reshape(self.num_nodes, -1) for tensor in row_tensors(self._header.layout, self._tensors)]
        as_bytes = [tensor.view(torch.uint8) for tensor in rows]
        return as_bytes[0] if len(as_bytes) == 1 else torch.cat(as_bytes, 1)

    def transform(self, name: str = "x", dtype: torch.dtype | None = None) -> Callable[[Any], Any]:
        """For PyG's loaders: decodes `batch.x`, rows of `codes`, into features. It holds the tables, not the codes."""
        from .transform import Decode

        self._check_plain("transform")
        return Decode(self._header, tuple(tables(self._header.layout, self._tensors)), name, dtype or self.dtype)

    def as_pyg(self, group_name: str | None = None, attr_name: str = "x") -> PyGFeatureStore:
        """A `torch_geometric.data.FeatureStore` with this one attribute, for loaders that take (features, graph).

        `group_name` is the node type of a heterogeneous graph, None if there is one type.
        """
        from .pyg_store import PyGFeatureStore

        return PyGFeatureStore(self, group_name, attr_name)

    # ------------------------------------------------------------------------------------------------------------

    def __reduce__(self) -> tuple[Any, ...]:
        """A mapped store travels as the name of its file, so that workers map it too."""
        if self.path is not None:
            return _reopened, (self.path, self._header.num_rows, self._header.num_features)
        return FeatureStore, (self._header, self._tensors)

    @property
    def _codes(self) -> Codes:
        return Codes(self._tensors, self.shape, self.dtype)

    def _check_plain(self, name: str) -> None:
        if self._header.important is not None:
            raise TypeError(
                f"`{name}` needs a code with one matrix of rows, and gs.TwoLevel has two; hand `store.as_pyg()` to the "
                "loader, or gather the rows of a batch"
            )

    def _check_file(self) -> None:
        if self._file is not None:
            self._file.check()

    def _ids(self, ids: Ids) -> Tensor:
        if isinstance(ids, slice):
            return torch.arange(*ids.indices(self.num_nodes))
        index = torch.as_tensor(ids)
        if index.numel() == 0 and not isinstance(ids, Tensor):
            index = index.to(torch.int64)  # an empty list has no type of its own
        if index.dtype == torch.bool:
            if index.shape != (self.num_nodes,):
                raise IndexError(
                    f"`ids` must have the shape [{self.num_nodes}] as a mask, one entry per node "
                    f"(got {tuple(index.shape)})"
                )
            index = index.nonzero().view(-1)
        if index.dtype not in (torch.int64, torch.int32) or index.dim() != 1:
            raise TypeError(
                f"`ids` must be node ids [count], a mask or a slice (got {index.dtype} of the shape "
                f"{tuple(index.shape)}); convert ids with `.long()`"
            )
        return index.to("cpu", torch.int64).contiguous()

    @staticmethod
    def _check_out(out: Tensor, shape: tuple[int, int], dtype: torch.dtype) -> None:
        if tuple(out.shape) != shape or out.dtype != dtype:
            raise ValueError(
                f"`out` must have the shape {list(shape)} and the dtype {dtype} (got {list(out.shape)} and {out.dtype})"
            )


def _check_decodes(path: Path, contents: file.Contents) -> None:
    """The last row can be decoded: shapes and dtypes are what the codec expects."""
    header = contents.header
    codes = Codes(contents.tensors, torch.Size((header.num_rows, header.num_features)), header.dtype)
    try:
        decode_rows(check_codec(header.codec), codes, torch.tensor([header.num_rows - 1]), header.dtype)
    except (ValueError, TypeError, IndexError, RuntimeError) as error:
        raise file.BadFeatureFile(
            f"`path` must be a file written by gs.compress; the header of {path} does not fit its contents ({error}); "
            "compress the features again"
        ) from None


def _reopened(path: Path, num_rows: int, num_features: int) -> FeatureStore:
    store = FeatureStore.open(path)
    if store.shape != (num_rows, num_features):
        raise ValueError(
            f"{path} must hold the features that were sent here, {num_rows} x {num_features} "
            f"(got {tuple(store.shape)}): it was replaced meanwhile"
        )
    return store
