"""The weight gradient in integers: its definition to the bit, unbiased, and as noisy as predicted."""

from __future__ import annotations

import functools
from statistics import NormalDist

import pytest
import torch
from torch.library import opcheck

from gossamer import native
from gossamer.ops import OPS, int8_grad, quantize_rows
from gossamer.ops.int8_grad import CHUNK
from gossamer.ops.quantize_rows import CODE_MAX
from support.compare import UNIT, on_baseline, same, same_bits
from support.int8_grad import ROWS, exact
from support.paths import needs_native
from support.tensors import codes_of, rand

WIDTHS = (1, 7, 16, 64, 100, 256)  # of columns and of outputs


def operands(rows, columns, outputs):
    """g and its scales (None: g is float), codes, scale."""
    x = codes_of(rows, columns), rand(rows, seed=1).abs()
    yield rand(rows, outputs, seed=2), None, *x
    yield *quantize_rows(rand(rows, outputs, seed=2), 5), *x


@functools.cache
def by_reference(rows):
    """Arguments and results, for all instruction sets."""
    widths = [(columns, WIDTHS[(k + more) % 6]) for k, columns in enumerate(WIDTHS) for more in (0, rows, 3)]
    every = [args for columns, outputs in widths for args in operands(rows, columns, outputs)]
    return [(args, OPS["int8_grad"].reference(*args, 7)) for args in every]


@pytest.mark.parametrize("rows", ROWS)
def test_equals_the_reference(rows, isa):
    """A slab holds one chunk here, so also the sums have the reference's order."""
    for args, want in by_reference(rows):
        assert same(int8_grad(*args, 7), want), (args[0].shape, args[2].shape)


def test_every_width(isa):
    for width in range(1, 131):
        for args in operands(9, width, 131 - width):
            assert same(int8_grad(*args, 7), OPS["int8_grad"].reference(*args, 7)), width


def test_slabs_of_several_chunks(isa):
    assert_slabs(40_000, 7, 5)


def test_few_slabs_of_large_gradients():
    assert_slabs(4100, 1100, 1000)


def assert_slabs(rows, columns, outputs):
    """The same numbers in another order: each of the chunks' sums rounds once more, or less."""
    args = next(operands(rows, columns, outputs))
    if native.library:
        assert native.library.grad_slabs(rows, outputs, columns) < -(-rows // CHUNK)
    got, want = int8_grad(*args, 7), OPS["int8_grad"].reference(*args, 7)
    g, _, codes, scale = args
    most = exact(g.abs(), None, codes.abs(), scale)
    assert ((got - want).abs() <= 2 * -(-rows // CHUNK) * UNIT * most).all()
    assert not torch.equal(want, torch.zeros_like(want))


@pytest.mark.parametrize("shape", [(0, 3, 4), (5, 0, 4), (5, 3, 0), (0, 0, 0)])
def test_nothing_to_sum(shape):
    for args in operands(*shape):
        got = int8_grad(*args, 7)
        assert got.shape == (shape[2], shape[1]) and got.dtype == torch.float32 and not got.any()
        assert same(got, OPS["int8_grad"].reference(*args, 7))


def test_sums_of_a_chunk_are_exact(isa):
    """Where G's columns are integers up to 127, rounding has nothing to do."""
    codes, g = codes_of(CHUNK, 33), codes_of(CHUNK, 20, seed=3).float()
    codes[:, 5], g[:, 4] = -CODE_MAX, -CODE_MAX  # the largest sum
    codes[3, 6], g[0] = -128, CODE_MAX  # a code that quantize_rows never gives; a step of 1 in each column
    got = int8_grad(g, None, codes, torch.ones(CHUNK), 3)
    assert torch.equal(got.double(), g.double().t() @ codes.double())  # below 2^24, which float32 holds
    assert got[4, 5] == (CHUNK - 2) * CODE_MAX**2


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_shows_in_its_row_alone(bad, isa):
    g, _, codes, scale = next(operands(1300, 33, 20))
    g[700, 17] = bad
    got = int8_grad(g, None, codes, scale, 3)
    assert torch.equal(got.isnan(), (torch.arange(20) == 17).unsqueeze(1).expand(20, 33))
    assert same(got, OPS["int8_grad"].reference(g, None, codes, scale, 3))


def test_a_row_without_a_number_for_scale_shows_everywhere(isa):
    for place in (1, 3):
        args = list(list(operands(600, 17, 5))[1])
        args[place][599] = torch.nan
        assert int8_grad(*args, 3).isnan().all()


def test_columns_too_small_for_a_step_are_zero(isa):
    g, _, codes, scale = next(operands(600, 17, 5))
    scale.fill_(1.0)
    g[:, 1], g[:, 2], g[:CHUNK, 3] = 0.0, 2.0**-101, 2.0**-101
    got = int8_grad(g, None, codes, scale, 3)
    assert not got[1:3].any() and got[0].all()
    g[:CHUNK, 3] = 0.0  # nothing of the chunk counted
    assert torch.equal(got[3], int8_grad(g, None, codes, scale, 3)[3])
    g.fill_(2.0**-100)
    assert torch.equal(int8_grad(g, None, codes, scale, 3), exact(g, None, codes, scale).float())


@pytest.mark.parametrize("k", [-20, -1, 20])
def test_scaling_an_operand_scales_the_result_exactly(k, isa):
    for g, g_scale, codes, scale in operands(1300, 33, 20):
        want = int8_grad(g, g_scale, codes, scale, 3) * 2.0**k
        assert torch.equal(int8_grad(g, g_scale, codes, scale * 2.0**k, 3), want)
        scaled = (g * 2.0**k, None) if g_scale is None else (g, g_scale * 2.0**k)
        assert torch.equal(int8_grad(*scaled, codes, scale, 3), want)


def test_same_bits_for_every_instruction_set_and_thread_count(isa, threads):
    def run():
        return [int8_grad(*args, 3) for shape in ((5000, 70, 33), (40_000, 3, 5)) for args in operands(*shape)]

    assert same_bits(run(), on_baseline(run))


@needs_native
def test_slabs_are_a_function_of_the_sizes():
    """Each has a matrix of sums: few of large ones, never more than chunks, and enough for many threads."""
    library = native.library
    assert library.GRAD_CHUNK == CHUNK
    for rows in (1, 512, 513, 5000, 10**7):
        for outputs, columns in ((1, 1), (256, 256), (1000, 1100), (10**4, 10**4)):
            slabs, chunks = library.grad_slabs(rows, outputs, columns), -(-rows // CHUNK)
            assert min(8, chunks) <= slabs <= min(64, chunks)
            assert slabs <= 8 or slabs * outputs * columns <= 2**23
    assert library.grad_slabs(10**7, 16, 16) == 64 and library.grad_slabs(10**7, 512, 1024) == 15


# Noise ----------------------------------------------------------------------------------------------------------

DRAWS = 3000


def rounded_chunks(g, codes, scale):
    """For each chunk the steps [outputs], the fraction of a step above a level [rows, outputs], and the codes."""
    h = g.double() * scale.double().unsqueeze(1)
    for start in range(0, len(h), CHUNK):
        part = h[start : start + CHUNK]
        step = part.abs().amax(0) / CODE_MAX
        t = part / step
        yield step, t - t.floor(), codes[start : start + CHUNK].double()


def variance_of(g, codes, scale):
    """sum over chunks of t^2 sum over rows of f (1 - f) codes^2: what stochastic rounding must have."""
    return sum(
        step.square().unsqueeze(1) * ((f * (1 - f)).t() @ q.square()) for step, f, q in rounded_chunks(g, codes, scale)
    )


def assert_normal(z):
    """No element's mean is off by more than chance, at 1e-6 for all of them together."""
    n = z.numel()
    assert z.abs().max() < NormalDist().inv_cdf(1 - 1e-6 / (2 * n))
    assert abs(z.square().mean() - 1) < 5 * (2 / n) ** 0.5  # nor all of them by a little


def test_unbiased_with_the_variance_of_stochastic_rounding():
    g, _, codes, scale = next(operands(600, 9, 8))
    draws = torch.stack([int8_grad(g, None, codes, scale, seed) for seed in range(DRAWS)]).double()
    variance = variance_of(g, codes, scale)
    assert_normal((draws.mean(0) - exact(g, None, codes, scale)) / (variance / DRAWS).sqrt())
    assert abs((draws.var(0) / variance).mean() - 1) < 0.02


def test_unbiased_after_two_stochastic_roundings():
    """G's rows are rounded, and what is made of their codes once more."""
    g, _, codes, scale = next(operands(600, 9, 8))
    both = [(quantize_rows(g, 2 * k), 2 * k + 1) for k in range(DRAWS)]
    draws = torch.stack([int8_grad(*rows, codes, scale, seed) for rows, seed in both]).double()
    assert_normal((draws.mean(0) - exact(g, None, codes, scale)) / (draws.var(0) / DRAWS).sqrt())


def nsr(found, truth):
    return float((found.double() - truth).square().sum() / truth.square().sum())


def test_noise_on_gaussian_data_is_as_predicted():
    """A rounded element is off by step^2 / 6 on average, whichever element it is."""
    g, (codes, scale) = rand(4096, 64), quantize_rows(rand(4096, 128, seed=1))
    truth = exact(g, None, codes, scale)
    noise = sum(float(step.square().sum() / 6 * q.square().sum()) for step, _, q in rounded_chunks(g, codes, scale))
    assert abs(nsr(int8_grad(g, None, codes, scale, 3), truth) / (noise / float(truth.square().sum())) - 1) < 0.1


def graph_like(coherent):
    """Rows of relu(normal) sqrt(degree), Pareto(1.5) degrees; gradients of log-normal size, their own or a map of x."""
    rng = torch.Generator().manual_seed(0)
    nodes, columns, outputs = 65_536, 128, 64
    degree = (1 - torch.rand(nodes, 1, generator=rng, dtype=torch.float64)).pow(-1 / 1.5).float()
    x = torch.randn(nodes, columns, generator=rng).relu()
    size = (torch.randn(nodes, 1, generator=rng) / 2).exp()
    g = x @ torch.randn(columns, outputs, generator=rng) if coherent else torch.randn(nodes, outputs, generator=rng)
    return x * degree.sqrt(), g * size


@pytest.mark.parametrize("coherent, table", [(False, 1.4e-3), (True, 4.1e-7)])
def test_noise_on_heavy_tailed_rows(coherent, table):
    """Against the product of the floats themselves, on data for which longer chunks are too noisy."""
    x, g = graph_like(coherent)
    truth = g.double().t() @ x.double()
    rows, seeds = quantize_rows(x), range(4)  # one draw is 6 % off: few rows carry most of the noise
    assert sum(nsr(int8_grad(g, None, *rows, seed), truth) for seed in seeds) / 4 < 1.2 * table
    assert sum(nsr(int8_grad(*quantize_rows(g, 9 + seed), *rows, seed), truth) for seed in seeds) / 4 < 1.2 * table


# The op ---------------------------------------------------------------------------------------------------------


def test_strides_and_alignment_change_nothing(isa):
    for args in operands(600, 17, 9):
        want = int8_grad(*args, 3)
        strided = [a if a is None else torch.stack([a, a], -1)[..., 0] for a in args]
        unaligned = [a if a is None else torch.cat([a.flatten()[:1], a.flatten()])[1:].view(a.shape) for a in args]
        for given in (strided, unaligned):
            assert torch.equal(int8_grad(*given, 3), want)


def test_seeds_matter_and_are_all_that_does():
    args = next(operands(600, 17, 9))
    assert torch.equal(int8_grad(*args, -1), int8_grad(*args, -1))
    assert not torch.equal(int8_grad(*args, -1), int8_grad(*args, 1))
    assert same(int8_grad(*args, -(2**63)), OPS["int8_grad"].reference(*args, -(2**63)))


def test_opcheck():
    for args in operands(5, 7, 3):
        opcheck(OPS["int8_grad"].overload, (*args, 3))


def test_no_gradient_of_its_own():
    g, _, codes, scale = next(operands(5, 7, 3))
    with pytest.raises(RuntimeError, match="`int8_grad` has no gradient"):
        int8_grad(g.requires_grad_(), None, codes, scale, 3).sum().backward()


@pytest.mark.parametrize(
    "change, error, message",
    [
        ({2: rand(5, 7)}, TypeError, "`codes` must be int8.*float32"),
        ({2: codes_of(5, 7)[0]}, ValueError, r"`codes` must have the shape \[rows, columns\] \(got \(7,\)\)"),
        ({0: rand(5, 3).double()}, TypeError, "`g` must be float32.*float64"),
        ({0: codes_of(5, 3)}, TypeError, "`g` must be float32.*int8"),  # without its scales
        ({1: rand(5)}, TypeError, "`g` must be int8.*float32"),
        ({0: rand(4, 3)}, ValueError, r"`g`.*\[5, outputs\], a row for each of `codes` \(got \(4, 3\)\)"),
        ({3: rand(4)}, ValueError, r"`scale`.*\[5\], one number per row \(got \(4,\)\)"),
        ({3: rand(5).double()}, TypeError, "`scale` must be float32"),
        ({0: codes_of(5, 3), 1: rand(5, 1)}, ValueError, r"`g_scale`.*\[5\], one number per row \(got \(5, 1\)\)"),
        ({0: codes_of(5, 3), 1: rand(5).bfloat16()}, TypeError, "`g_scale` must be float32"),
    ],
)
def test_bad_arguments(change, error, message):
    args = [*next(operands(5, 7, 3)), 3]
    for at, value in change.items():
        args[at] = value
    with pytest.raises(error, match=message):
        int8_grad(*args)
