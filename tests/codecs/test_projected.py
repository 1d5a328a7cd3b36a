"""Projection: its matrix, its noise, the products that need no full rows, and bad input."""

from __future__ import annotations

import math
from statistics import NormalDist

import pytest
import torch

from gossamer.codecs import Blockwise, Codec, Projected, Uniform
from gossamer.ops.random import words

DRAWS, COLUMNS, WIDTH = 10_000, 32, 8  # a ratio of 4


def rows():
    """Rows of several kinds: normal, offset, a single number, zeros."""
    x = torch.randn(4, COLUMNS, generator=torch.Generator().manual_seed(0))
    x[1] += 2
    x[2, 1:] = 0
    x[3] = 0
    return x


@pytest.mark.parametrize(("columns", "ratio", "width"), [(32, 4, 8), (33, 4, 9), (7, 8, 1), (1, 2, 1), (100, 2.5, 40)])
def test_the_matrix_is_a_hash_of_seed_and_entry(columns, ratio, width, threads):
    codec = Projected(ratio=ratio)
    for seed in (0, 5, -1, 2**63 - 1):
        s = codec.matrix(columns, seed)
        negative = words(seed, torch.arange(columns * width)).view(columns, width) >= 2**31
        assert s.dtype == torch.float32
        assert torch.equal(s, torch.where(negative, -1.0, 1.0) * torch.tensor(1 / math.sqrt(width)))
        assert torch.equal(s, codec.matrix(columns, seed))
    if columns * width > 100:
        assert not torch.equal(codec.matrix(columns, 1), codec.matrix(columns, 2))


def test_what_is_encoded_is_the_product_with_that_matrix():
    x = torch.randn(50, 40, generator=torch.Generator().manual_seed(1))
    codec = Projected(ratio=5, then=Blockwise(bits=8, block=16, meta="float32"))
    for seed in (None, 3, -7):
        codes = codec.encode(x, seed)
        s = codec.matrix(40, seed or 0)
        assert s.shape == (40, 8) and int(codes.tensors[-1]) == (seed or 0)
        projected = codec.project(x, seed or 0)
        torch.testing.assert_close(projected, x @ s)
        share = 0.5 if seed is None else 1.0
        then = codec.then.encode(projected, seed)
        bound = codec.then.error_bound(then)
        assert ((codec.decode_projected(codes) - projected).abs() <= share * bound * 1.001 + 1e-6).all()
        torch.testing.assert_close(codec.decode(codes), codec.decode_projected(codes) @ s.t())
        # the noise of rounding has words of its own: those of S would make it depend on S
        assert torch.equal(then.tensors[0], codes.tensors[0]) == (seed is None)


def test_errors_have_no_bound():
    """A row may lie across S entirely: then the codes are those of zero."""
    codec, x = Projected(ratio=2), torch.zeros(2, 64)
    _, _, v = torch.linalg.svd(codec.matrix(64, 0).t().double())
    x[0] = 1000 * v[-1]
    codes = codec.encode(x)
    assert (codec.decode(codes) - x).abs().max() > 100
    assert codec.error_bound(codes).shape == x.shape and codec.error_bound(codes).isinf().all()


def test_noise_of_the_projection_alone():
    """E[x S S^T] = x and Var = (||x||^2 - x_i^2) / R; over a row (D - 1) / R ||x||^2."""
    codec, x = Projected(ratio=COLUMNS / WIDTH), rows().double()
    s = torch.stack([codec.matrix(COLUMNS, seed) for seed in range(DRAWS)]).double()
    decoded = (x @ s) @ s.transpose(1, 2)  # [draws, rows, columns]
    energy = x.square().sum(1, keepdim=True)
    variance = (energy - x.square()) / WIDTH
    measured = (decoded - x).square().mean(0)
    assert ((measured.sum(1) / (energy.squeeze(1) * (COLUMNS - 1) / WIDTH) - 1).abs()[:3] < 0.02).all()
    assert ((measured / variance - 1).abs()[:2] < 0.1).all()  # of single elements: 1.4 % and more for one deviation
    assert decoded[:, 3].abs().max() == 0
    known = variance > 0
    z = ((decoded.mean(0) - x) / (variance / DRAWS).sqrt())[known]
    assert abs(z.square().mean() - 1) < 4 * math.sqrt(2 / z.numel())
    assert z.abs().max() < NormalDist().inv_cdf(1 - 1e-6 / (2 * z.numel()))


@pytest.mark.parametrize("bins", ["uniform", "optimal"])
def test_noise_of_both(bins):
    """((D - 1) / R) ||x||^2 + (D / R) times the variance of rounding; and rounding has mean 0 whatever S is."""
    codec = Projected(ratio=COLUMNS / WIDTH, then=Blockwise(bits=2, block=WIDTH, meta="float32", bins=bins))
    x, draws = rows()[:2], DRAWS // 2
    encoded = [codec.encode(x, seed) for seed in range(draws)]
    s = torch.stack([codec.matrix(COLUMNS, seed) for seed in range(draws)])
    rounded = torch.stack([codec.decode_projected(codes) for codes in encoded])
    projected, zero, spread = x @ s, *(torch.stack([codes.tensors[k] for codes in encoded]) for k in (1, 2))
    total = (rounded @ s.transpose(1, 2) - x).square().sum(2).mean(0)
    rounding = (rounded - projected) @ s.transpose(1, 2)  # [draws, rows, columns]
    of_theory = COLUMNS / WIDTH * rounding_variance(codec.then, zero, spread, projected).sum(2).mean(0)
    assert ((total / ((COLUMNS - 1) / WIDTH * x.square().sum(1) + of_theory) - 1).abs() < 0.02).all()
    assert ((rounding.square().sum(2).mean(0) / of_theory - 1).abs() < 0.02).all()
    z = rounding.mean(0) / (rounding.var(0) / draws).sqrt()
    assert abs(z.square().mean() - 1) < 4 * math.sqrt(2 / z.numel())
    assert z.abs().max() < NormalDist().inv_cdf(1 - 1e-6 / (2 * z.numel()))


def rounding_variance(then, zero, spread, projected):
    """(h - l)(u - h) for the levels next to each number of P, one block a row."""
    step = spread.unsqueeze(-1) / (2**then.bits - 1)
    units = torch.arange(2.0**then.bits) if then.bins == "uniform" else then.table(projected.device)
    h = (projected - zero.unsqueeze(-1)) / step
    above = torch.searchsorted(units, h).clamp(1, len(units) - 1)
    return step.square() * ((h - units[above - 1]) * (units[above] - h)).clamp(min=0)


@pytest.mark.parametrize("nodes", [1, 300])
def test_relative_noise_of_a_weight_gradient(nodes):
    """(D - 1) / R, however many rows there are: all share S. The squared norm grows by as much."""
    rng = torch.Generator().manual_seed(nodes)
    x, dout = torch.randn(nodes, COLUMNS, generator=rng), torch.randn(nodes, 5, generator=rng)
    codec = Projected(ratio=COLUMNS / WIDTH, then=Blockwise(bits=8, block=WIDTH, meta="float32"))
    exact = dout.t() @ x
    estimates = torch.stack([codec.grad_weight(dout, codec.encode(x, seed)) for seed in range(1000)])
    noise = (estimates - exact).square().sum((1, 2)).mean() / exact.square().sum()
    assert abs(noise / ((COLUMNS - 1) / WIDTH) - 1) < 0.05
    growth = estimates.square().sum((1, 2)).mean() / exact.square().sum()
    assert abs(growth / (1 + (COLUMNS - 1) / WIDTH) - 1) < 0.05


@pytest.mark.parametrize("shape", [(200, 64), (3, 7, 20), (30,), (5, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_both_orders_of_the_product_agree(shape, dtype, sample):
    codec, x, dout = Projected(ratio=4, then=Uniform(4)), sample(*shape).to(dtype), sample(*shape[:-1], 9).to(dtype)
    codes = codec.encode(x, 2)
    dense = dout.reshape(-1, 9).float().t() @ codec.decode(codes._replace(dtype=torch.float32)).view(-1, shape[-1])
    found = codec.grad_weight(dout, codes)
    assert found.dtype == dtype and found.shape == (9, shape[-1])
    # sums of 200 numbers in float32; then the dtype's own rounding
    tolerance = {torch.bfloat16: 2.0**-8}.get(dtype, 1e-5)
    torch.testing.assert_close(found.float(), dense, rtol=tolerance, atol=1e-5 * float(dense.abs().max()))


def test_no_rows():
    codec, x = Projected(), torch.empty(0, 40)
    codes = codec.encode(x, 1)
    assert codes.nbytes == 0 and torch.equal(codec.grad_weight(torch.empty(0, 3), codes), torch.zeros(3, 40))


def test_bytes_are_those_of_fewer_columns_and_the_seed():
    for shape in ((100, 64), (7, 3, 65), (5,), ()):
        for then in (Blockwise(), Blockwise(4, 50, "float32"), Uniform(2, meta="bfloat16")):
            narrow = (*shape[:-1], math.ceil(shape[-1] / 8)) if shape else (1,)
            codec = Projected(ratio=8, then=then)
            assert codec.nbytes(shape) == then.nbytes(narrow) + 8 == codec.encode(torch.ones(shape), 3).nbytes


@pytest.mark.parametrize("ratio", [1, 1.0, 0.5, 0, -8, math.nan, math.inf, "8", None, True])
def test_bad_ratio(ratio):
    message = rf"`ratio` must be a number greater than 1.*\(got {ratio!r}\); to keep all columns use Blockwise\(bits=2"
    with pytest.raises(ValueError, match=message):
        Projected(ratio=ratio)


@pytest.mark.parametrize("then", [None, 2, "blockwise", Blockwise])
def test_bad_codec(then):
    with pytest.raises(ValueError, match=r"`then` must be a codec such as Blockwise\(\) \(got "):
        Projected(then=then)
    assert isinstance(Projected().then, Codec)


def test_bad_gradient(sample):
    codec = Projected()
    codes = codec.encode(sample(6, 5, 32), 1)
    for shape in ((6, 5), (5, 6, 9), (30, 9), (), (6, 5, 1, 9)):
        with pytest.raises(ValueError, match=r"`dout` must have the shape \[6, 5, out\], as many rows as x \(got \("):
            codec.grad_weight(torch.ones(shape), codes)


def test_a_long_vector_is_no_row():
    message = r"`x` must have rows short enough.*got 100000 columns.*4\.7 GB\); give it as a matrix of rows, or use"
    with pytest.raises(ValueError, match=message):
        Projected(ratio=8).encode(torch.ones(100_000))
