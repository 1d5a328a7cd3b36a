"""Where features come from: every form gives the same rows, in blocks of any size, and says what is wrong with it."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import pytest
import scipy.sparse
import torch

from gossamer.codecs.rows import NotFinite
from gossamer.features.source import source_of


def numbers(rows: int = 23, columns: int = 5) -> np.ndarray:
    return np.random.default_rng(0).integers(-3, 4, (rows, columns)).astype(np.float32)


class Chunks:
    """Pieces of an array, again and again."""

    def __init__(self, x: np.ndarray, sizes: tuple[int, ...]) -> None:
        self.pieces = np.split(x, np.cumsum(sizes))

    def __iter__(self) -> Iterator[np.ndarray]:
        return iter(self.pieces)


def forms(x: np.ndarray, folder) -> dict[str, object]:
    np.save(folder / "x.npy", x)
    np.save(folder / "half.npy", x.astype(np.float16))
    return {
        "array": x,
        "float64": x.astype(np.float64),
        "float16": x.astype(np.float16),
        "int8": x.astype(np.int8),
        "columns first": np.asfortranarray(x),
        "strided": np.repeat(x, 2, 0)[::2],
        "tensor": torch.from_numpy(x),
        "bfloat16": torch.from_numpy(x).bfloat16(),
        "requires grad": torch.from_numpy(x.copy()).requires_grad_(),
        "memmap": np.load(folder / "x.npy", mmap_mode="r"),
        "path": folder / "x.npy",
        "name": str(folder / "half.npy"),
        "scipy": scipy.sparse.coo_matrix(x),
        "torch sparse": torch.from_numpy(x).to_sparse(),
        "torch csr": torch.from_numpy(x).to_sparse_csr(),
        "list": [x[:1], torch.from_numpy(x[1:20]), x[20:]],
        "function": lambda: iter(np.split(x, [3, 3, 17])),
        "iterable": Chunks(x, (7, 9)),
    }


NAMES = [
    "array", "float64", "float16", "int8", "columns first", "strided", "tensor", "bfloat16", "requires grad", "memmap",
    "path", "name", "scipy", "torch sparse", "torch csr", "list", "function", "iterable",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_every_form_gives_the_same_rows(name, tmp_path):
    x = numbers()
    source = source_of(forms(x, tmp_path)[name])
    assert (source.num_rows, source.num_features) == x.shape
    for block in (1, 4, 23, 100):
        blocks = list(source.blocks(block))
        assert all(b.dtype == torch.float32 and b.is_contiguous() for b in blocks)
        assert [len(b) for b in blocks[:-1]] == [block] * (len(blocks) - 1)
        assert np.array_equal(torch.cat(blocks).numpy(), x)
    assert np.array_equal(torch.cat(list(source.blocks(6, start=12))).numpy(), x[12:])
    ids = np.array([0, 1, 7, 21, 22])
    assert np.array_equal(source.rows(ids).numpy(), x[ids])


def test_the_dtype_of_the_source_is_remembered(tmp_path):
    found = {name: (s.dtype, s.itemsize) for name, x in forms(numbers(), tmp_path).items() for s in [source_of(x)]}
    assert found["float16"] == found["name"] == ("float16", 2)
    assert found["bfloat16"] == ("bfloat16", 2)
    assert found["int8"] == ("int8", 1)
    assert found["float64"] == ("float64", 8)
    assert found["list"] == found["tensor"] == found["path"] == ("float32", 4)


@pytest.mark.parametrize("vectors", [False, True])
def test_parquet(tmp_path, vectors):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    x = numbers()
    if vectors:
        column = pa.FixedSizeListArray.from_arrays(pa.array(x.ravel().astype(np.float16)), x.shape[1])
        table, dtype = pa.table({"embedding": column}), "float16"
    else:
        table, dtype = pa.table({f"f{k}": x[:, k].astype([np.float32, np.int16][k % 2]) for k in range(5)}), "float32"
    parquet.write_table(table, tmp_path / "all.parquet", row_group_size=4)
    parquet.write_table(table.slice(0, 9), tmp_path / "a.parquet")
    parquet.write_table(table.slice(9), tmp_path / "b.pq", row_group_size=5)
    for paths in (tmp_path / "all.parquet", [tmp_path / "a.parquet", str(tmp_path / "b.pq")]):
        source = source_of(paths)
        assert (source.num_rows, source.num_features, source.dtype) == (*x.shape, dtype)
        for block, start in ((4, 0), (100, 0), (4, 8), (4, 12)):
            assert np.array_equal(torch.cat(list(source.blocks(block, start))).numpy(), x[start:])
        assert np.array_equal(source.rows(np.array([2, 8, 9, 22])).numpy(), x[[2, 8, 9, 22]])


def test_parquet_that_is_no_matrix(tmp_path):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pa.table({"a": [1.0, 2.0], "b": ["x", "y"]}), tmp_path / "text.parquet")
    with pytest.raises(TypeError, match=r"columns of numbers \(column 'b' of .*text\.parquet is string\)"):
        source_of(tmp_path / "text.parquet")
    parquet.write_table(pa.table({"a": [1.0, None]}), tmp_path / "missing.parquet")
    with pytest.raises(NotFinite, match="nan in row 1, column 0"):
        list(source_of(tmp_path / "missing.parquet").blocks(4))
    parquet.write_table(pa.table({"c": [1.0]}), tmp_path / "other.parquet")
    with pytest.raises(ValueError, match="Parquet files with the same columns"):
        source_of([tmp_path / "missing.parquet", tmp_path / "other.parquet"])
    (tmp_path / "bad.parquet").write_bytes(b"no Parquet")
    with pytest.raises(ValueError, match="`x` must be Parquet files"):
        source_of(tmp_path / "bad.parquet")


def test_without_pyarrow(tmp_path, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "x.parquet").write_bytes(b"")
    with pytest.raises(ImportError, match=r"needs pyarrow: pip install 'gossamer-gnn\[parquet\]'"):
        source_of(tmp_path / "x.parquet")


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("form", ["array", "list", "tensor"])
def test_the_first_row_that_is_not_finite_is_named(bad, form):
    x = numbers()
    x[[11, 19], 3] = bad
    made = {"array": x, "list": [x[:8], x[8:]], "tensor": torch.from_numpy(x)}[form]
    for block in (1, 4, 100):
        with pytest.raises(NotFinite, match=re.escape(f"(got {bad} in row 11, column 3)")) as caught:
            list(source_of(made).blocks(block))
        assert caught.value.row == 11
    with pytest.raises(NotFinite, match="row 19"):
        source_of(made).rows(np.array([0, 12, 19]))
    list(source_of(made).blocks(4, start=20))


def test_numbers_beyond_float32_are_not_finite():
    with pytest.raises(NotFinite, match=r"within the range of float32.*row 1"):
        list(source_of(np.array([[1.0], [1e39]])).blocks(8))


def test_a_generator_is_refused():
    with pytest.raises(TypeError, match=r"chunks that can be read again.*generator.*pass a function"):
        source_of(chunk for chunk in [numbers()])
    with pytest.raises(TypeError, match="can be read once"):
        source_of(iter([numbers()]))


def test_chunks_that_differ_from_one_reading_to_the_next():
    pieces = [[numbers(4), numbers(3)], [numbers(4)], [numbers(4), numbers(3, 6)]]
    source = source_of(lambda: iter(pieces.pop(0)))
    with pytest.raises(ValueError, match=r"the same rows each time it is read \(7 at first, 4 now\)"):
        list(source.blocks(8))
    with pytest.raises(ValueError, match="5 columns throughout"):
        list(source.blocks(8))


@pytest.mark.parametrize(
    ("x", "error", "message"),
    [
        (numbers()[0], ValueError, r"a matrix \[nodes, features\].*\(5,\)"),
        (numbers()[:, :0], ValueError, r"at least one feature \(got the shape \(23, 0\)\)"),
        (torch.zeros(2, 3, 4), ValueError, r"a matrix.*\(2, 3, 4\)"),
        (numbers().astype(np.complex64), TypeError, "floating-point numbers or integers .got complex64"),
        (torch.zeros(2, 2, dtype=torch.complex64), TypeError, "floating-point numbers or integers"),
        (np.array([["a"]]), TypeError, "floating-point numbers or integers"),
        ([[1.0, 2.0]], TypeError, "not nested lists of numbers"),
        ([], ValueError, "at least one chunk"),
        ([numbers(), numbers(3, 4)], ValueError, r"5 columns throughout \(got 4 from row 23 on\)"),
        (3, TypeError, "`x` must be a tensor, an array, a path.*got int"),
        ("missing.npy", FileNotFoundError, "there is no file missing.npy"),
        (__file__, ValueError, "`x` must be one .npy file, or Parquet files"),
    ],
)
def test_what_is_no_source(x, error, message):
    with pytest.raises(error, match=message):
        source_of(x)


@pytest.mark.parametrize("content", [b"", b"no array", b"\x93NUMPY\x01\x00"])
def test_a_damaged_npy(content, tmp_path):
    (tmp_path / "x.npy").write_bytes(content)
    with pytest.raises(ValueError, match=r"`x` must be a \.npy file of numbers"):
        source_of(tmp_path / "x.npy")


@pytest.mark.parametrize("mode", ["r", "c", "r+"])
def test_pages_of_a_mapped_file_are_given_back(tmp_path, mode):
    """Rows are copied out of a file that is mapped for reading; what others may have written to stays as it is."""
    x = np.arange(4000, dtype=np.float32).reshape(1000, 4)
    np.save(tmp_path / "x.npy", x)
    mapped = np.load(tmp_path / "x.npy", mmap_mode=mode)
    if mode != "r":
        mapped[7] = -1
        x[7] = -1
    source = source_of(mapped)
    found = np.concatenate([block.numpy() for block in source.blocks(300)])
    assert np.array_equal(found, x) and np.array_equal(source.rows(np.array([2, 7, 999])).numpy(), x[[2, 7, 999]])
    assert np.array_equal(mapped, x)
    piece = next(iter(source.pieces(0, 10)))
    assert np.shares_memory(piece, mapped) == (mode != "r")
