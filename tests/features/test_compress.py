"""gs.compress: streamed equals in memory, memory does not grow with the rows, and mistakes are told."""

from __future__ import annotations

import os
import time
import tracemalloc

import numpy as np
import pytest
import torch

import gossamer as gs
from gossamer.codecs import product as product_module
from gossamer.codecs import rows as rows_module
from gossamer.codecs import scalar as scalar_module
from gossamer.features import progress as progress_module
from gossamer.features.source import source_of


@pytest.mark.parametrize("block", [1, 10, 137, 65536])
def test_streamed_equals_in_memory_to_the_bit(codec, x, path, tmp_path, block):
    np.save(tmp_path / "x.npy", x.numpy())
    whole = gs.compress(x, codec, sample=60)
    sources = {
        "memory": lambda: gs.compress(x, codec, sample=60, block=block),
        "file": lambda: gs.compress(tmp_path / "x.npy", codec, path, sample=60, block=block),
        "chunks": lambda: gs.compress(lambda: iter(x.split(29)), codec, path, sample=60, block=block),
    }
    for make in sources.values():
        store = make()
        for ours, expected in zip(store._tensors, whole._tensors, strict=True):
            assert torch.equal(ours, expected)
    assert sorted(os.listdir(tmp_path)) == sorted(["x.npy", path.name])


@pytest.mark.parametrize("dtype", [np.float16, np.float64, np.int32, np.uint8, bool])
def test_other_dtypes_are_encoded_as_float32(dtype, codec):
    x = np.random.default_rng(0).integers(0, 2, (50, 7)).astype(dtype)
    store = gs.compress(x, codec)
    assert torch.equal(store.decode(), gs.compress(x.astype(np.float32), codec).decode())
    assert store.source_dtype == np.dtype(dtype).name


def test_one_row_and_one_column(codec):
    for shape in ((1, 9), (9, 1), (1, 1)):
        x = torch.ones(shape)
        assert torch.equal(gs.compress(x, codec).decode(), x)


@pytest.mark.parametrize(
    "setting",
    [gs.Scalar(1), gs.Scalar(4, per="column"), gs.Product(8, 32), gs.Principal(), gs.Principal(2, gs.Product(8, 32))],
    ids=repr,
)
def test_the_store_holds_what_the_codec_encodes_by_itself(setting, monkeypatch, path):
    """With a sample of some rows, and tables that are means over all of them."""
    monkeypatch.setattr(rows_module, "SAMPLE_ROWS", 500)
    for module in (scalar_module, product_module):
        monkeypatch.setattr(module, "SAMPLE_ROWS", 500)
    monkeypatch.setattr(product_module, "ROWS_PER_CODE", 1)
    x = torch.randn(3000, 21, generator=torch.Generator().manual_seed(1))
    codes = setting.encode(x)
    for store in (gs.compress(x, setting, block=700), gs.compress(x.numpy(), setting, path, block=64)):
        for ours, expected in zip(store._tensors, codes.tensors, strict=True):
            assert torch.equal(ours, expected)
        assert store.codec == setting and torch.equal(store.decode(), setting.decode(codes))


def test_refined_levels_are_means_over_all_rows(path):
    x = torch.cat([torch.zeros(10, 3), torch.arange(1.0, 91).unsqueeze(1).expand(90, 3)])
    for out in (None, path):
        store = gs.compress(x, gs.Scalar(1, zeros="fold"), out, sample=torch.tensor([0, 1, 10]), block=7)
        assert torch.equal(store[[0, 50]], torch.tensor([[0.0], [45.5]]).expand(2, 3))
        rough = gs.compress(x, gs.Scalar(1, zeros="fold", refine=False), out, sample=torch.tensor([0, 1, 10]), block=7)
        assert torch.equal(rough[[0, 50]], torch.tensor([[0.0], [1.0]]).expand(2, 3))


@pytest.mark.parametrize(
    ("num_nodes", "num_features", "codec", "ratio"),
    [
        (121_751_666, 768, gs.Product(16, 2048), 46.5),
        (111_059_956, 128, gs.Product(16, 2048), 46.5),
        (10**9, 128, gs.Product(16, 256), 64),
        (232_965, 602, gs.Product(51, 1024), 119),
        (232_965, 602, gs.Product(37, 256), 131),
        (232_965, 602, gs.Product(100, 16384), 25),
        (10**9, 128, gs.Scalar(1, per="tensor"), 32),
        (10**9, 128, gs.Scalar(8, per="tensor"), 4),
    ],
)
def test_ratios_count_what_is_stored(num_nodes, num_features, codec, ratio):
    """Ids in whole bytes per row, and the codebooks: less than the 32 width / log2 length that is often quoted."""
    found = 4 * num_nodes * num_features / codec.nbytes((num_nodes, num_features))
    assert found == pytest.approx(ratio, abs=0.1 if ratio % 1 else 0.5)  # as many digits as the table has


def test_the_ratio_of_a_store_is_that_of_its_bytes(path):
    num_nodes, num_features, width, length, beta = 300, 37, 8, 32, 5
    x = torch.randn(num_nodes, num_features)
    store = gs.compress(x, gs.Product(width, length), path)
    parts = -(-num_features // width)
    stored = num_nodes * -(-parts * beta // 8) + 2 * num_features * length + 4 * parts
    assert store.nbytes == stored and store.ratio == 4 * num_nodes * num_features / stored


class Reads:
    """Chunks that are allocated when they are read."""

    def __init__(self, num_rows: int, columns: int) -> None:
        self.num_rows, self.columns = num_rows, columns

    def __call__(self):
        for low in range(0, self.num_rows, 1000):
            yield np.full((1000, self.columns), low / self.num_rows, np.float32)


def peak_of(num_rows: int, path) -> int:
    """Bytes that NumPy and Python hold at most while rows are encoded to a file."""
    tracemalloc.start()
    try:
        gs.compress(Reads(num_rows, 64), gs.Uniform(bits=4), path, block=1000, sample=2000)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_twice_the_rows_take_no_more_memory(path):
    peak_of(4000, path)  # what is imported and cached the first time
    small, large = peak_of(20_000, path), peak_of(80_000, path)
    block_bytes = 1000 * 64 * 4
    assert large < small + block_bytes  # 60,000 rows more are 60 blocks
    assert large < 80_000 * 64 * 4 / 4


def test_resident_memory_does_not_grow_with_the_rows(tmp_path):
    """A mapped source of 64 MB, encoded by blocks of 1 MB in a process of its own; its own pages are not counted."""
    peaks = []
    for num_rows in (2**16, 2**18):
        x = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", np.float32, (num_rows, 64))
        x[:] = 1
        x.flush()
        del x
        peaks.append(gs.measure.in_fresh_process(anonymous_peak, tmp_path / "x.npy", tmp_path / "x.gsf").value)
    assert peaks[1] < peaks[0] + 16e6  # 48 MB more of source


def anonymous_peak(source, out) -> int:
    """The most anonymous memory (not of files) seen while `source` is encoded, above that before."""

    def anonymous_bytes() -> int:
        with open("/proc/self/statm") as statm:
            _, resident, shared, *_ = map(int, statm.read().split())
        return (resident - shared) * os.sysconf("SC_PAGE_SIZE")

    gs.compress(np.ones((100, 64)), gs.Uniform(bits=4), out)
    before, most = anonymous_bytes(), 0
    encode = gs.Uniform.encode

    def watched(self, x, seed=None):
        nonlocal most
        codes = encode(self, x, seed)
        most = max(most, anonymous_bytes() - before)
        return codes

    gs.Uniform.encode = watched
    gs.compress(source, gs.Uniform(bits=4), out, block=4096, sample=4096)
    return most


def test_a_bad_row_is_named_and_nothing_is_left(x, path):
    x[90, 3] = torch.nan
    x[120, 0] = torch.inf
    for out in (None, path):
        for sample in (5, torch.tensor([120])):  # the first bad row, whether it is in the sample or not
            with pytest.raises(ValueError, match=r"`x` must be finite.*nan in row 90, column 3"):
                gs.compress(x, gs.Uniform(bits=4), out, sample=sample, block=10)
    assert os.listdir(path.parent) == []


def test_the_sample_is_read_in_order_and_handed_to_fit(x):
    source, seen = source_of(x), []
    read = source.rows
    source.rows = lambda ids: seen.append(ids) or read(ids)
    gs.compress(source, gs.Uniform(bits=4), sample=torch.tensor([9, 3, 100, 3]))
    gs.compress(source, gs.Uniform(bits=4), sample=20, seed=1)
    gs.compress(source, gs.Uniform(bits=4), sample=20, seed=2)
    assert seen[0].tolist() == [3, 9, 100]
    assert len(seen[1]) == 20 and seen[1].tolist() != seen[2].tolist()


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        (
            {"codec": gs.Blockwise()},
            TypeError,
            r"`codec` must be one that decodes single rows, .*gs\.Uniform\(\.\.\.\)",
        ),
        ({"codec": "uniform"}, TypeError, r"`codec` must be one that decodes single rows.*got str"),
        ({"block": 0}, ValueError, r"`block` must be a whole number of rows of at least 1 \(got 0\)"),
        ({"block": 2.5}, ValueError, r"`block` must be a whole number"),
        ({"dtype_out": torch.float16}, TypeError, r"`dtype_out` must be torch.float32 or torch.bfloat16"),
        ({"sample": 0}, ValueError, "`sample` must be at least 1 row"),
        ({"sample": torch.tensor([137])}, IndexError, r"`sample` must hold ids from 0 to 136 \(got 137\)"),
        ({"sample": torch.tensor([-1, 3])}, IndexError, r"`sample` must hold ids from 0 to 136 \(got -1\)"),
        ({"sample": torch.tensor([0.5])}, TypeError, "`sample` must be a number of rows, or their ids"),
        ({"resume": True}, ValueError, "`resume` needs `out`"),
        ({"out": "missing/x.gsf"}, FileNotFoundError, "`out` must lie in an existing folder"),
        ({"out": "."}, IsADirectoryError, "`out` must be a file"),
        ({"x": torch.zeros(0, 3)}, ValueError, "`x` must have at least one row"),
    ],
)
def test_mistakes(x, settings, error, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments = {"x": x, "codec": gs.Uniform(bits=4)} | settings
    with pytest.raises(error, match=message):
        gs.compress(arguments.pop("x"), arguments.pop("codec"), **arguments)
    assert os.listdir(tmp_path) == []


def test_a_bar_appears_only_after_a_moment(x, capfd, monkeypatch):
    gs.compress(x, gs.Uniform(bits=4), block=10)
    assert capfd.readouterr().err == ""
    monkeypatch.setattr(progress_module, "MOMENT_SECONDS", -1.0)
    gs.compress(x, gs.Uniform(bits=4), block=10, progress=False)
    assert capfd.readouterr() == ("", "")
    gs.compress(x, gs.Uniform(bits=4), block=10)
    out, err = capfd.readouterr()
    assert out == "" and "137 of 137 rows" in err and "100%" in err


def test_the_bar_appears_while_a_codec_is_fitted(capfd, monkeypatch):
    monkeypatch.setattr(progress_module, "MOMENT_SECONDS", 0.01)
    with pytest.raises(TypeError, match="stopped"), progress_module.Bar(10, True) as bar:
        bar.say("fitting")
        time.sleep(0.3)
        raise TypeError("stopped")
    assert "fitting" in capfd.readouterr().err


def test_the_default_sample():
    source, seen = source_of(np.zeros((120_000, 1), np.int8)), []
    read = source.rows
    source.rows = lambda ids: seen.append(len(ids)) or read(ids)
    gs.compress(source, gs.Uniform(bits=1))
    gs.compress(source, gs.Scalar(bits=1))
    assert seen == [100_000, 100_000]
    wide = source_of(np.zeros((70_000, 1), np.int8))
    wide.rows = lambda ids: seen.append(len(ids)) or read(ids[:9])
    gs.compress(wide, gs.Product(1, 2048))
    assert seen[2] == 70_000 and gs.Product(1, 2048).sample_rows == 64 * 2048
