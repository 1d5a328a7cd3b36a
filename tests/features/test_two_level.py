"""Stores of gs.TwoLevel: two matrices of rows, written in blocks, and a row found in the one that has it."""

from __future__ import annotations

import os

import pytest
import torch
from torch import Tensor

import gossamer as gs
from gossamer.features.source import source_of
from support.interrupted import Stop, stopping

CODEC = gs.TwoLevel(gs.Scalar(bits=4), gs.Product(width=8, length=16))


def mask(share: float, num_rows: int = 1300) -> Tensor:
    return torch.rand(num_rows, generator=torch.Generator().manual_seed(7)) < share


@pytest.fixture
def x() -> Tensor:
    return torch.randn(1300, 21, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("share", [0.0, 0.02, 0.5, 1.0])
@pytest.mark.parametrize("block", [7, 512, 65536])
def test_rows_are_those_that_the_codec_decodes(x, path, share, block):
    important = mask(share)
    fitted = CODEC.fit(x, important)
    codes = fitted.encode(x, important=important)
    refining = fitted.start_refining()
    fitted.accumulate(refining, x, codes)
    whole = fitted.refined(refining).joined([codes])
    in_memory = gs.compress(x, CODEC, important=important, block=block)
    in_file = gs.compress(source_of(x.numpy()), CODEC, path, important=important.nonzero().view(-1), block=block)
    opened = gs.FeatureStore.open(path, verify=True, mmap=False)
    for store in (in_memory, in_file, opened):
        for ours, expected in zip(store._tensors, whole.tensors, strict=True):
            assert ours.numel() == expected.numel() and torch.equal(ours.flatten(), expected.flatten())
        assert torch.equal(store.decode(), CODEC.decode(whole)) and store.codec == CODEC
        assert torch.equal(store[[5, 0, 1299]], CODEC.decode(whole)[[5, 0, 1299]])
        assert store.nbytes == whole.nbytes
    head = 8 + int.from_bytes(path.read_bytes()[:8], "little")
    assert path.stat().st_size - head == in_file.nbytes
    in_memory.save(path.with_name("saved.gsf"))
    assert path.with_name("saved.gsf").read_bytes() == path.read_bytes()


def test_an_interrupted_encoding_is_continued(x, path):
    important = mask(0.3)
    whole = path.with_name("whole.gsf")
    gs.compress(x, CODEC, whole, important=important, block=100)
    with pytest.raises(Stop):
        gs.compress(stopping(x, 700), CODEC, path, important=important, block=100)
    with pytest.raises(ValueError, match="`resume` needs the source, codec and sample"):
        gs.compress(x, CODEC, path, important=~important, block=100, resume=True)
    gs.compress(x, CODEC, path, important=important, block=100, resume=True)
    assert path.read_bytes() == whole.read_bytes() and sorted(os.listdir(path.parent)) == [path.name, whole.name]


def test_a_level_that_is_not_refined_stays_as_fitted(x):
    important, few = mask(0.5), torch.arange(200)
    kept = gs.TwoLevel(gs.Scalar(bits=2, refine=False), gs.Scalar(bits=1))
    store = gs.compress(x, kept, important=important, sample=few)
    fitted = kept.fit(x[:200], important[:200])
    assert torch.equal(store._tensors[4], fitted.mild.tables()[0])
    assert not torch.equal(store._tensors[5], fitted.aggressive.tables()[0])


def test_it_feeds_pyg_as_a_feature_store_alone(x):
    store = gs.compress(x, CODEC, important=mask(0.5))
    assert torch.equal(store.as_pyg()[None, "x", torch.tensor([3, 4])], store[[3, 4]])
    for ask in (lambda: store.codes, store.transform):
        with pytest.raises(TypeError, match=r"gs\.TwoLevel has two; hand `store\.as_pyg\(\)` to the loader"):
            ask()


@pytest.mark.parametrize(
    ("important", "error", "message"),
    [
        (None, ValueError, r"`important` must be given for gs\.TwoLevel"),
        (
            torch.ones(3, dtype=torch.bool),
            ValueError,
            r"`important` must be a truth value for each of 1300 rows.*\(3,\)",
        ),
        (torch.ones(1300), ValueError, r"`important` must be a truth value for each of 1300 rows.*float32"),
        (torch.tensor([1300]), IndexError, r"`important` must hold ids from 0 to 1299"),
    ],
)
def test_mistakes(x, important, error, message):
    with pytest.raises(error, match=message):
        gs.compress(x, CODEC, important=important)


def test_other_codecs_have_no_important_rows(x):
    with pytest.raises(ValueError, match=r"`important` is for gs\.TwoLevel.*Scalar"):
        gs.compress(x, gs.Scalar(1), important=mask(0.5))


def test_a_damaged_file(x, path):
    gs.compress(x, CODEC, path, important=mask(0.5))
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b'"[1300, 21]"', b'"[1200, 21]"'))
    with pytest.raises(gs.BadFeatureFile, match="a bit for each of 1200 rows"):
        gs.FeatureStore.open(path)
    level = gs.compress(x, CODEC, important=mask(0.5))._tensors[2].numpy().tobytes()
    path.write_bytes(whole.replace(level, bytes([level[0] ^ 1]) + level[1:]))
    with pytest.raises(gs.BadFeatureFile, match="a tensor of important of the shape"):
        gs.FeatureStore.open(path)
