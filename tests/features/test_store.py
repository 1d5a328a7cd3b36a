"""gs.FeatureStore: what is gathered is what the codec decodes, by any kind of ids, from memory and from a file."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader

import gossamer as gs
from gossamer.codecs import Codec


def decoded(codec: Codec, x: Tensor) -> Tensor:
    fitted = codec.fit(x)
    return fitted.decode(fitted.encode(x))


@pytest.fixture(params=["memory", "mapped", "copied"])
def store(request, codec, x, path) -> gs.FeatureStore:
    if request.param == "memory":
        return gs.compress(x, codec)
    gs.compress(x, codec, path)
    return gs.FeatureStore.open(path, mmap=request.param == "mapped")


def test_rows_are_those_that_the_codec_decodes(store, codec, x, threads):
    expected = decoded(codec, x)
    assert torch.equal(store.decode(), expected)
    mask = torch.arange(137) % 3 == 0
    for ids, rows in {
        "tensor": (torch.tensor([5, 0, 136, 5]), [5, 0, 136, 5]),
        "int32": (torch.tensor([7, 3], dtype=torch.int32), [7, 3]),
        "list": ([1, 2, 1], [1, 2, 1]),
        "array": (np.array([9, 8]), [9, 8]),
        "slice": (slice(3, 100, 7), list(range(3, 100, 7))),
        "backward": (slice(None, None, -1), list(range(136, -1, -1))),
        "beyond the end": (slice(130, 500), list(range(130, 137))),
        "mask": (mask, mask.nonzero().view(-1).tolist()),
        "nothing": ([], []),
        "strided": (torch.arange(20)[::3], list(range(0, 20, 3))),
    }.values():
        got = store[ids]
        assert got.dtype == torch.float32 and torch.equal(got, expected[rows])
    assert torch.equal(store[4], expected[4]) and torch.equal(store[np.int64(4)], expected[4])


def test_bfloat16_is_the_rounded_float32(store, codec, x):
    ids = torch.tensor([3, 136, 0])
    half = store.gather(ids, dtype=torch.bfloat16)
    assert half.dtype == torch.bfloat16 and torch.equal(half, store[ids].bfloat16())
    assert torch.equal(store.decode(torch.bfloat16), store.decode().bfloat16())
    lighter = gs.compress(x, codec, dtype_out=torch.bfloat16)
    assert lighter.dtype == torch.bfloat16 and torch.equal(lighter[ids], half)


def test_rows_into_a_given_tensor(store):
    ids = torch.tensor([3, 136, 0])
    for dtype in (torch.float32, torch.bfloat16):
        out = torch.empty(3, 21, dtype=dtype)
        assert store.gather(ids, out=out) is out
        assert torch.equal(out, store.gather(ids, dtype=dtype))
    wide = torch.zeros(3, 30)
    store.gather(ids, out=wide[:, :21])
    assert torch.equal(wide[:, :21], store[ids]) and not wide[:, 21:].any()


def test_facts(store, codec, x, path):
    assert store.codec == codec.fit(x) and store.shape == x.shape and len(store) == store.num_nodes == 137
    assert store.num_features == 21 and store.source_dtype == "float32" and store.dtype == torch.float32
    assert store.nbytes == codec.fit(x).nbytes(x.shape) == sum(t.nbytes for t in codec.fit(x).encode(x).tensors)
    assert store.ratio == store.ratio_on_disk == 137 * 21 * 4 / store.nbytes
    assert (store.path is None) == ("in /" not in repr(store))
    half = gs.compress(x.half(), codec)
    assert half.source_dtype == "float16" and half.ratio == 2 * half.ratio_on_disk
    assert half.ratio == pytest.approx(store.ratio)


def test_repr_says_codec_shape_size_and_ratio():
    store = gs.compress(torch.randn(1000, 256), gs.Uniform(bits=8))
    assert repr(store) == (
        "FeatureStore(Uniform(bits=8, per='row', meta='float32'), 1000 x 256, 0.3 MB, 3.9x smaller than float32)"
    )


@pytest.mark.parametrize("bad", [-1, 137, 2**40])
def test_ids_out_of_range(store, bad):
    for ids in (bad, [0, bad], torch.tensor([0, bad])):
        with pytest.raises(IndexError, match=rf"`ids` must hold ids from 0 to 136, one of 137 nodes \(got {bad} at"):
            store[ids]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda s: s[torch.tensor([1.0])], TypeError, r"`ids` must be node ids \[count\].*float32"),
        (lambda s: s[torch.tensor([[1]])], TypeError, r"`ids` must be node ids \[count\].*\(1, 1\)"),
        (lambda s: s[torch.tensor([True, False])], IndexError, r"`ids` must have the shape \[137\] as a mask.*\(2,\)"),
        (lambda s: s.gather([0], dtype=torch.float64), TypeError, "`dtype` must be torch.float32 or torch.bfloat16"),
        (lambda s: s.gather([0], out=torch.empty(2, 21)), ValueError, r"`out` must have the shape \[1, 21\]"),
        (
            lambda s: s.gather([0], out=torch.empty(1, 21), dtype=torch.bfloat16),
            ValueError,
            "`out` must have.*bfloat16",
        ),
        (lambda s: setattr(s, "codec", 3), AttributeError, "`codec` of a FeatureStore cannot be changed"),
    ],
)
def test_mistakes(x, call, error, message):
    with pytest.raises(error, match=message):
        call(gs.compress(x, gs.Uniform(bits=4)))


def test_save_and_open(store, x, path):
    for again in (path.with_name("other.gsf"), str(path)):
        expected = store.decode()
        store.save(again)
        opened = gs.FeatureStore.open(again, verify=True)
        assert torch.equal(opened.decode(), expected) and opened.codec == store.codec
        assert (opened.nbytes, opened.ratio_on_disk) == (store.nbytes, store.ratio_on_disk)


def test_a_saved_store_is_the_file_that_compress_writes(codec, x, path):
    gs.compress(x, codec, path, block=50)
    gs.compress(x, codec, block=50).save(path.with_name("saved.gsf"))
    assert path.read_bytes() == path.with_name("saved.gsf").read_bytes()


def test_pickling(store):
    again = pickle.loads(pickle.dumps(store))
    assert again.path == store.path and torch.equal(again.decode(), store.decode())
    if store.path is not None:
        assert len(pickle.dumps(store)) < 1000  # the name of the file, not its contents


def test_pickling_notices_another_file(x, path):
    data = pickle.dumps(gs.compress(x, gs.Uniform(bits=8), path))
    gs.compress(x[:100], gs.Uniform(bits=8), path)
    with pytest.raises(ValueError, match=r"must hold the features that were sent here, 137 x 21 .got \(100, 21\)"):
        pickle.loads(data)


class Batches(torch.utils.data.Dataset):
    def __init__(self, store: gs.FeatureStore) -> None:
        self.store = store

    def __len__(self) -> int:
        return 4

    def __getitem__(self, k: int) -> Tensor:
        return self.store[torch.arange(k, 137, 4)]


@pytest.mark.parametrize("out", [False, True])
def test_in_worker_processes(x, path, out):
    store = gs.compress(x, gs.Uniform(bits=4), path if out else None)
    batches = DataLoader(Batches(store), batch_size=None, num_workers=2)
    for k, batch in enumerate(batches):
        assert torch.equal(batch, store[k::4])
