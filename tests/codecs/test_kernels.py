"""Codes are the same bits on every instruction set, with any number of threads, and by the pure references."""

from __future__ import annotations

import pytest
import torch

from gossamer.codecs import Codec, Principal, Product, Projected, RowCodec, Scalar, TwoLevel

SEEDS = (None, -7, 2**40 + 3)
EXPECTED: dict[Codec, list[list[torch.Tensor]]] = {}  # by the references, computed once


@pytest.fixture
def cases(request, sample):
    """Large enough for several threads to share it, and odd, so that vectors have tails; also few columns, few rows."""
    wide = sample(171, 203)
    wide[5] = 0.3
    wide[6:9].relu_()
    wide[40] *= 1e-30
    codec = request.getfixturevalue("codec") if "codec" in request.fixturenames else None
    if isinstance(codec, (Product, TwoLevel)):  # k-means per part: fewer of them
        return [
            wide[:, :21].contiguous(),
            sample(300, 1),
            sample(203, 16),
            sample(1, 3),
            sample(0, 4),
            wide[:9, :5].bfloat16(),
        ]
    by_column = isinstance(codec, (Principal, Projected, Scalar))  # a row that is projected, or has tables, is shorter
    long = sample(7, 1001) if by_column else sample(70_001)
    return [wide, long, sample(1001, 1), sample(503, 16), sample(1, 3), sample(0, 4), wide[:9].bfloat16()]


def run(codec, x, seed) -> list[torch.Tensor]:
    """Everything that a kernel computes for a codec."""
    codes = codec.encode(x, seed)
    results = [*codes.tensors, codec.decode(codes)]
    if hasattr(codec, "decode_rows") and x.dim() == 2 and len(x):
        results.append(codec.decode_rows(codes, torch.arange(len(x) - 1, -1, -3)))
    return results


def assert_same_bits(results: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    for result, other in zip(results, expected, strict=True):
        assert result.dtype == other.dtype
        assert torch.equal(result.view(torch.uint8), other.view(torch.uint8))  # -0.0 is not 0.0 here


def test_every_instruction_set_equals_the_reference(codec, isa, cases, references):
    seeds = (None,) if isinstance(codec, RowCodec) else SEEDS
    if codec not in EXPECTED:
        with references() as called:
            EXPECTED[codec] = [run(codec, x, seed) for x in cases for seed in seeds]
        assert called, "the references did not run, so nothing would be compared"
    results = [run(codec, x, seed) for x in cases for seed in seeds]
    for result, other in zip(results, EXPECTED[codec], strict=True):
        assert_same_bits(result, other)


def test_any_number_of_threads(rounding_codec, threads, cases):
    """Of kernels. Projection is torch's product, which may split a sum by threads; it is tested apart."""
    results = [run(rounding_codec, x, seed) for x in cases for seed in (None, 11)]
    torch.set_num_threads(1)
    expected = [run(rounding_codec, x, seed) for x in cases for seed in (None, 11)]
    for result, other in zip(results, expected, strict=True):
        assert_same_bits(result, other)


def test_fitted_codecs_on_any_number_of_threads(fitted_codec, threads, sample):
    """k-means and percentiles included."""
    x = sample(1500, 18)
    results = run(fitted_codec, x, None)
    torch.set_num_threads(1)
    assert_same_bits(results, run(fitted_codec, x, None))
