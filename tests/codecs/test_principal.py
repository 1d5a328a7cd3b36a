"""Principal components of features: directions, what they leave out, columns of other scales, bytes, mistakes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gossamer import Principal, Product, Scalar
from gossamer.codecs import RowCodec

FINE = Scalar(8)


def round_trip(codec, x):
    return codec.decode(codec.encode(x))


def rand(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def factors(rows: int, columns: int, rank: int, noise: float, seed: int = 0) -> Tensor:
    """Columns of variance 1 that have `rank` factors in common, and noise."""
    mix = torch.nn.functional.normalize(rand(rank, columns, seed=seed + 1), dim=0)
    return rand(rows, rank, seed=seed) @ mix + noise * rand(rows, columns, seed=seed + 2)


def lost(codec, x) -> Tensor:
    """The share of its variance that each column loses."""
    error = (round_trip(codec, x) - x).double().square().mean(0)
    return error / x.double().var(0, correction=0)


def reconstructed(x: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """What `count` principal components leave of x, in float64, and the columns' standard deviations."""
    mean, scale = x.double().mean(0), x.double().std(0, correction=0)
    z = (x.double() - mean) / scale
    directions = torch.linalg.svd(z, full_matrices=False).Vh[:count]
    return mean + z @ directions.t() @ directions * scale, scale


@pytest.mark.parametrize("ratio", [1, 2, 2.5, 7, 100])
def test_directions(ratio):
    """As many as the ratio says, orthonormal up to float16, each with its largest entry positive."""
    x = factors(500, 33, 5, 0.3)
    found = Principal(ratio).fit(x).fitted
    assert found.directions.shape == (-(-33 // ratio), 33) and found.directions.dtype == torch.float16
    b = found.directions.double()
    assert (b @ b.t() - torch.eye(len(b))).abs().max() < 2.0**-10
    assert (b.gather(1, b.abs().argmax(1, keepdim=True)) > 0).all()
    torch.testing.assert_close(found.mean, x.mean(0))
    torch.testing.assert_close(found.scale, x.std(0, correction=0))
    components = ((x - found.mean) / found.scale).double() @ b.t()
    assert (components.var(0).diff() < 1e-3).all()  # the first varies most


def test_the_same_rows_have_the_same_directions(threads):
    x = factors(3000, 150, 20, 0.5)
    found = Principal().fit(x).fitted.directions
    assert torch.get_num_threads() == threads
    torch.set_num_threads(1)
    assert torch.equal(Principal().fit(x).fitted.directions, found)


@pytest.mark.parametrize("then", [Scalar(8), Scalar(4), Scalar(2, "optimal"), Product(4, 64)], ids=repr)
def test_the_error_is_what_directions_leave_out_and_that_of_the_code(then):
    """In units of the columns' standard deviations; directions in float16 make it a thousandth larger, at most."""
    x = factors(2000, 40, 12, 0.4) * torch.logspace(-1, 1, 40)
    codec = Principal(2, then)
    exact, scale = reconstructed(x, 20)
    fitted = codec.fit(x)
    error = ((round_trip(codec, x) - x) / scale).square().sum()
    left_out = ((exact - x) / scale).square().sum()
    z = ((x - fitted.fitted.mean) / fitted.fitted.scale) @ fitted.fitted.directions.float().t()
    of_code = (round_trip(fitted.fitted.then, z) - z).double().square().sum()
    assert error == pytest.approx(float(left_out + of_code), rel=1e-3) and of_code > 0


def test_all_components_in_8_bits_are_nearly_exact():
    x = factors(3000, 24, 8, 0.5) * torch.logspace(-3, 3, 24) + 100
    assert lost(Principal(1, FINE), x).max() < 5e-3  # clipping the 1 % of components at both ends
    optimal = Principal(1, Scalar(8, "optimal"))
    assert lost(optimal, x).max() < 2e-3


def test_few_factors_and_noise_are_kept_better_than_by_a_scalar_code_of_the_same_bytes():
    signal = factors(4000, 64, 6, 0.0)
    x = signal + 0.3 * rand(4000, 64, seed=9)
    principal, scalar = Principal(2, Scalar(4)), Scalar(2)
    codes = [codec.encode(x).tensors[0].nbytes for codec in (principal, scalar)]
    assert codes[0] == codes[1]
    errors = [float((round_trip(codec, x) - x).square().mean()) for codec in (principal, scalar)]
    assert errors[0] < 0.3 * errors[1]
    of_signal = [float((round_trip(codec, x) - signal).square().mean()) for codec in (Principal(8), principal)]
    assert of_signal[0] < 0.5 * of_signal[1] < 0.5 * 0.3**2  # dropped components were noise


def test_a_price_among_other_columns():
    """All columns count alike, whatever their unit: the price is kept, and so are the others."""
    price = 1000 * torch.rand(5000, 1, generator=torch.Generator().manual_seed(5))
    x = torch.cat([factors(5000, 40, 10, 0.3), price], 1)
    share = lost(Principal(2), x)
    assert share[-1] < 0.01 and share[:-1].max() < 0.08
    assert lost(Scalar(4, per="tensor"), x)[:-1].min() > 0.9  # levels that the price alone fits


def test_large_columns_do_not_push_out_small_ones():
    x = torch.cat([100 * rand(5000, 25), factors(5000, 16, 3, 0.06, seed=3)], 1)
    assert lost(Principal(2, FINE), x)[25:].max() < 0.02
    small = lost(Principal(2, FINE), x[:, :25]).mean()
    assert 0.4 < small < 0.5  # noise alone has nothing in common: half of it is left out


def test_each_component_has_levels_of_its_own():
    """One factor that is much larger than all others leaves them their bits."""
    x = factors(3000, 40, 40, 0.0) + 20 * rand(3000, 1, seed=7)
    assert Principal(1, Scalar(4)).fit(x).fitted.then.fitted.table.shape == (16, 40)
    deviation = x - x.mean(1, keepdim=True)
    error = {per: (round_trip(Principal(1, Scalar(4, per=per)), x) - x) for per in ("auto", "tensor")}
    beside = {per: float((e - e.mean(1, keepdim=True)).norm() / deviation.norm()) for per, e in error.items()}
    assert beside["auto"] < 0.15 < 0.7 < beside["tensor"]


@pytest.mark.parametrize("then", [Scalar(4), Scalar(1), Scalar(2, "optimal"), Product(4, 16)], ids=repr)
def test_constant_columns_come_back(then):
    x = factors(300, 12, 3, 0.1)
    x[:, 3], x[:, 7], x[:, 11] = 0.1, -1e6, 0
    decoded = round_trip(Principal(2, then), x)
    torch.testing.assert_close(decoded[:, [3, 7, 11]], x[:, [3, 7, 11]], rtol=1e-5, atol=1e-5)
    same = torch.tensor([3.5, -0.1, 0.0, 1e-3]).expand(7, 4)
    for rows in (1, 2, 7):
        assert torch.equal(round_trip(Principal(2, then), same[:rows]), same[:rows])


def test_fewer_rows_than_columns():
    for rows in (1, 2, 5):
        x = rand(rows, 64)
        torch.testing.assert_close(round_trip(Principal(2, FINE), x), x, rtol=0, atol=0.02)


@pytest.mark.parametrize("scale", [1e-30, 1e-6, 1e6, 1e36])
def test_any_scale(scale):
    x = factors(200, 10, 3, 0.2)
    decoded = round_trip(Principal(), x * scale) / scale
    torch.testing.assert_close(decoded, round_trip(Principal(), x), rtol=0, atol=0.05)


def test_rows_are_functions_of_the_row_alone():
    """Encoded and decoded among others or alone, with zeros around them or not."""
    x = factors(500, 70, 9, 0.4)
    x[100:300] *= rand(200, 70) > 1
    for codec in (Principal(2), Principal(3, Product(4, 16))):
        fitted = codec.fit(x)
        codes = fitted.encode(x)
        whole = fitted.decode(codes)
        for ids in ([0], [499, 100, 101], list(range(100, 300)), list(range(0, 500, 7))):
            alone = fitted.encode(x[ids])
            assert torch.equal(alone.tensors[0], codes.tensors[0][ids])
            assert torch.equal(fitted.decode(alone), whole[ids])
            assert torch.equal(fitted.decode_rows(codes, torch.tensor(ids)), whole[ids])


def test_rows_are_left_out():
    x, ids = factors(50, 18, 4, 0.2), torch.tensor([4, -1, 0, -1, 49])
    codes = Principal().encode(x)
    for dtype in (torch.float32, torch.bfloat16):
        out = torch.full((5, 18), 7.0, dtype=dtype)
        assert Principal().decode_rows(codes, ids, out=out) is out
        assert (out[[1, 3]] == 7).all() and torch.equal(out[::2], Principal().decode(codes)[[4, 0, 49]].to(dtype))
        assert (Principal().decode_rows(codes, torch.full((5,), -1), out=out.fill_(7)) == 7).all()
    with pytest.raises(IndexError, match="`ids` must hold ids from 0 to 49, or -1 for rows to leave out"):
        Principal().decode_rows(codes, ids - 1, out=out)


def test_levels_are_refined_and_directions_stay():
    x = factors(1000, 20, 5, 0.3)
    fitted = Principal(2, Scalar(2)).fit(x[:100])
    refining = fitted.start_refining()
    fitted.accumulate(refining, x, fitted.encode(x))
    refined = fitted.refined(refining)
    assert isinstance(refined, RowCodec) and torch.equal(refined.fitted.directions, fitted.fitted.directions)
    before, after = (float((codec.decode(codec.encode(x)) - x).square().sum()) for codec in (fitted, refined))
    assert after < before
    assert Principal(2, Scalar(2, refine=False)).refine is False and Principal(2, Product()).refine is True


def test_bytes():
    """Known without a fit: each component has levels of its own unless `per` says otherwise."""
    rows, columns, k = 1_000_000, 128, 64
    tables = 2 * k * columns + 8 * columns
    assert Principal().nbytes((rows, columns)) == rows * 32 + 4 * 16 * k + tables
    assert Principal(2, Scalar(2, per="tensor")).nbytes((rows, columns)) == rows * 16 + 16 + tables
    product = Product(16, 256)
    assert Principal(2, product).nbytes((rows, columns)) == product.nbytes((rows, k)) + tables
    assert 4 * rows * columns / Principal().nbytes((rows, columns)) > 15.9
    assert 4 * rows * columns / Principal(2, Scalar(2)).nbytes((rows, columns)) > 31.8


@pytest.mark.parametrize(
    "settings, said",
    [
        ({"ratio": 0.99}, r"`ratio` must be a number of at least 1, columns to principal components \(got 0.99\)"),
        ({"ratio": torch.inf}, r"`ratio` must be a number of at least 1.*got inf"),
        ({"ratio": torch.nan}, r"`ratio` must be a number of at least 1.*got nan"),
        ({"ratio": True}, r"`ratio` must be a number of at least 1.*got True"),
        ({"ratio": "2"}, r"`ratio` must be a number of at least 1.*got '2'"),
        ({"then": None}, r"`then` must be a Scalar or a Product codec \(got None\)"),
        ({"then": Principal()}, r"`then` must be a Scalar or a Product codec \(got Principal"),
    ],
)
def test_bad_settings(settings, said):
    with pytest.raises(ValueError, match=said):
        Principal(**settings)


def test_bad_rows():
    with pytest.raises(ValueError, match=r"`x` must have at most 8192 columns to find.*got 8193\); use Scalar.*alone"):
        Principal().fit(torch.zeros(1, 8193))
    large = torch.full((10, 2), -3e38)
    large[0] = 3e38
    for encode in (Principal().encode, Principal().fit, Principal().fit(rand(9, 2)).encode):
        with pytest.raises(ValueError, match=r"`x` must span less than .*scale it down"):
            encode(large)
