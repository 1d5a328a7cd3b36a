"""What every codec promises, tested for every codec there is."""

from __future__ import annotations

import dataclasses
import gc
import inspect
import weakref

import pytest
import torch

import gossamer.codecs
from gossamer.codecs import Blockwise, Codec, Codes, NotFinite, RowCodec, Scalar, Uniform, sample_ids

SHAPES = [(), (1,), (7,), (8,), (255,), (256,), (257,), (3, 5), (16, 16), (2, 3, 7), (33, 1), (1, 130), (70, 33)]
EMPTY = [(0,), (0, 5), (5, 0), (2, 0, 3)]


def equal(a: Codes, b: Codes) -> bool:
    return (a.shape, a.dtype) == (b.shape, b.dtype) and all(map(torch.equal, a.tensors, b.tensors))


def test_every_codec_is_tested(settings):
    exported = [getattr(gossamer.codecs, name) for name in gossamer.codecs.__all__]
    codecs = [c for c in exported if isinstance(c, type) and issubclass(c, Codec) and not inspect.isabstract(c)]
    missing = {c.__name__ for c in codecs} - settings.keys()
    assert len(codecs) >= 3
    assert not missing, f"add settings of {missing} to SETTINGS in tests/codecs/conftest.py"


def test_is_a_frozen_printable_setting(codec, settings):
    assert codec.__class__.__mro__[1:] == Codec.__mro__, "a codec is final: it derives from Codec alone"
    assert eval(repr(codec), vars(gossamer.codecs)) == codec
    twin = dataclasses.replace(codec)
    assert twin is not codec and twin == codec and hash(twin) == hash(codec)
    with pytest.raises(dataclasses.FrozenInstanceError):
        codec.bits = 4
    everything = [c for codecs in settings.values() for c in codecs]
    assert len(set(everything)) == len(everything) == len(set(map(repr, everything)))


@pytest.mark.parametrize("seed", [None, 5])
def test_shape_comes_back_and_bytes_are_counted(codec, seed, sample):
    for shape in SHAPES + EMPTY:
        x = sample(*shape)
        fitted = codec.fit(x) if x.numel() else codec  # bytes of tables may depend on data
        codes = codec.encode(x, seed)
        assert isinstance(codes, Codes)
        assert (codes.shape, codes.dtype) == (shape, torch.float32)
        decoded = codec.decode(codes)
        assert decoded.shape == shape
        assert codec.error_bound(codes).broadcast_to(shape).shape == shape
        stored = sum(t.untyped_storage().nbytes() for t in codes.tensors)
        assert fitted.nbytes(shape) == fitted.nbytes(torch.Size(shape)) == codes.nbytes == stored
        assert all(t.is_contiguous() for t in codes.tensors)  # can be saved as they are


def test_nothing_takes_no_bytes(codec):
    assert all(codec.nbytes(shape) == 0 for shape in EMPTY)


@pytest.mark.parametrize("seed", [None, 0])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_floats(codec, dtype, seed, sample):
    x = sample(20, 13).to(dtype)
    codes, of_float = codec.encode(x, seed), codec.encode(x.float(), seed)
    assert codes.dtype == dtype
    assert equal(codes._replace(dtype=torch.float32), of_float)
    assert torch.equal(codec.decode(codes), codec.decode(of_float).to(dtype))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_largest_numbers_stay_finite(codec, dtype):
    largest = torch.finfo(dtype).max / (1 if dtype == torch.float16 else 4)
    x = torch.tensor([[0.0, largest], [-largest, 0.0], [largest, largest], [-largest, largest]]).to(dtype)
    for seed in (None, *range(8)):
        assert codec.decode(codec.encode(x, seed)).isfinite().all()


def test_too_wide_for_the_metadata(codec):
    """Either it comes back as always, or it is refused; never other numbers."""
    largest = torch.finfo(torch.float32).max
    wide = [[-largest, largest], [1e38, largest], [-largest, -1e38], [-largest] * 3, [largest] * 3, [-3.4e38, -3.3e38]]
    for x in map(torch.tensor, wide):
        try:
            codes = codec.encode(x)
        except ValueError as error:
            assert "`x` must span less than" in str(error) and "scale it down" in str(error)
        else:
            decoded, bound = codec.decode(codes), codec.error_bound(codes).max()
            assert decoded.isfinite().all()
            if bound < torch.inf:
                torch.testing.assert_close(decoded, x, rtol=1e-6, atol=0.501 * bound)
    with pytest.raises(ValueError, match=r"`x` must lie within the range of float32.*scale it down"):
        codec.encode(torch.tensor([1.0, 1e300], dtype=torch.float64))


@pytest.mark.parametrize("seed", [None, 3])
def test_not_contiguous(codec, seed, sample):
    x = sample(24, 30)
    for view in (
        x.t(),
        x[::2, ::3],
        x[:, 5:17],
        x.flip(0)[:, :1],
        x[0].expand(9, 30),
        x.view(4, 6, 30).transpose(0, 2),
    ):
        assert equal(codec.encode(view, seed), codec.encode(view.contiguous(), seed))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
@pytest.mark.parametrize("seed", [None, 1])
def test_nan_and_infinity_are_counted(codec, dtype, seed, sample):
    cases = [((1,), 1, 0), ((1,), 0, 1), ((60,), 3, 2), ((6, 10), 0, 2), ((2, 3, 300), 1, 0), ((2, 3, 300), 5, 2)]
    for shape, nans, infinities in cases:
        x = sample(*shape).to(dtype)
        flat = x.view(-1)
        flat[flat.numel() - nans :] = torch.nan
        flat[:infinities] = torch.tensor([torch.inf, -torch.inf], dtype=dtype)[:infinities]
        message = rf"`x` must be finite.*got {nans} NaN and {infinities} infinite of {x.numel()} elements\); clean it"
        with pytest.raises(ValueError, match=message):
            codec.encode(x, seed)


@pytest.mark.parametrize("x", [torch.arange(4), torch.ones(3).bool(), torch.ones(3) * 1j, [1.0, 2.0]], ids=str)
def test_not_floating_point(codec, x):
    kind = str(x.dtype) if isinstance(x, torch.Tensor) else "list"
    with pytest.raises(TypeError, match=rf"`x` must be a floating-point tensor \(got {kind}\); convert it"):
        codec.encode(x)


def test_seeds(codec, sample):
    x = sample(50, 40)
    if isinstance(codec, RowCodec):  # rounds to nearest always
        assert all(equal(codec.encode(x), codec.encode(x, seed)) for seed in (0, -1, 2**63 - 1))
        return
    for seed in (0, -1, 7, 2**40, 2**63 - 1):
        assert equal(codec.encode(x, seed), codec.encode(x, seed))
    different = [codec.encode(x, seed) for seed in (None, 0, 1, -1, 2**32, 2**40)]
    if codec != Blockwise(bits=2, block=1):  # single numbers lie on a level, give or take the metadata's rounding
        assert not any(equal(a, b) for i, a in enumerate(different) for b in different[:i])


def test_nothing_is_changed_or_held(codec, sample):
    gc.disable()
    try:
        x = sample(30, 11).requires_grad_()
        before = x.detach().clone()
        codes = codec.encode(x, 1)
        kept = [t.clone() for t in codes.tensors]
        first, second = codec.decode(codes), codec.decode(codes)
        assert torch.equal(x.detach(), before)
        assert all(map(torch.equal, codes.tensors, kept))
        assert torch.equal(first, second) and first.data_ptr() != second.data_ptr()
        assert not first.requires_grad and not any(t.requires_grad for t in codes.tensors)
        places = {t.untyped_storage().data_ptr() for t in codes.tensors}
        assert x.untyped_storage().data_ptr() not in places
        alive = weakref.ref(x)
        del x
        assert alive() is None
    finally:
        gc.enable()


def test_fit_gives_a_codec_of_the_same_kind(codec, sample):
    x = sample(20, 6)
    fitted = codec.fit(x)
    assert type(fitted) is type(codec)
    assert fitted.decode(fitted.encode(x)).shape == x.shape


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_single_rows(row_codec, dtype, sample):
    for columns in (1, 3, 8, 33):
        codes = row_codec.encode(sample(20, columns).to(dtype), 4)
        for ids in ([0], [19, 3, 3, 0], [], list(range(20))):
            ids = torch.tensor(ids, dtype=torch.int64)
            assert torch.equal(row_codec.decode_rows(codes, ids).to(dtype), row_codec.decode(codes)[ids])
    for bad in (20, -1):
        with pytest.raises(IndexError, match=rf"`ids` must hold ids from 0 to 19.*got {bad} at position 1"):
            row_codec.decode_rows(codes, torch.tensor([0, bad]))


def test_which_codecs_are_fitted(codec, settings):
    fits = codec in [*settings["Scalar"], *settings["Product"], *settings["Principal"], *settings["TwoLevel"]]
    assert isinstance(codec, RowCodec) == fits
    assert (codec.fit(torch.ones(3, 2)) is codec) != fits


def test_fitted_codecs_are_equal_settings(fitted_codec, sample):
    fitted = fitted_codec.fit(sample(30, 6))
    assert fitted == fitted_codec and hash(fitted) == hash(fitted_codec) and repr(fitted) == repr(fitted_codec)
    assert fitted_codec.fit(torch.ones(1, 1)).sample_rows >= 100_000
    with pytest.raises(ValueError, match="must be fitted first"):
        fitted_codec.start_refining()
    with pytest.raises(
        ValueError, match=r"`x` must have 6 columns, as the rows that the codec was fitted to \(got 7\)"
    ):
        fitted.encode(sample(4, 7))
    with pytest.raises(
        ValueError, match=r"`x` must have at least one row and column to fit a codec to \(got \(0, 6\)\)"
    ):
        fitted_codec.fit(torch.ones(0, 6))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_chunks_give_the_same_rows_and_tables(fitted_codec, dtype, sample):
    """As codecs/rows.py says: for any cut into chunks, and as in memory."""
    x = sample(67, 11).to(dtype)
    x[3], x[:, 4] = 0, 0
    of_all = fitted_codec.encode(x)
    for cuts in ([67], [1, 66], [0, 16, 1, 50]):
        codec = fitted_codec.fit(x[sample_ids(67, fitted_codec.sample_rows)])
        refining, packed = codec.start_refining(), []
        for chunk in x.split(cuts):
            codes = codec.encode(chunk)
            codec.accumulate(refining, chunk, codes)
            packed.append(codes.tensors[0])
        refined = codec.refined(refining) if getattr(codec, "refine", True) else codec
        rows = torch.cat([rows for rows in packed if rows.numel()])
        assert torch.equal(rows, of_all.tensors[0])
        tables = of_all.tensors[-len(codec.tables()) :]
        if hasattr(codec, "mild"):  # in memory a level without rows is not fitted
            count = len(codec.mild.tables())
            assert all(map(torch.equal, refined.mild.tables(), of_all.tensors[4 : 4 + count]))
        else:
            assert all(map(torch.equal, refined.tables(), tables))


def test_rows_into_a_buffer(fitted_codec, sample):
    x, ids = sample(40, 19), torch.tensor([7, 7, 0, 39, 12])
    codes = fitted_codec.encode(x)
    rows = fitted_codec.decode_rows(codes, ids)
    assert rows.dtype == torch.float32 and torch.equal(rows, fitted_codec.decode(codes)[ids])
    half = fitted_codec.decode_rows(codes, ids, torch.bfloat16)
    assert torch.equal(half, rows.bfloat16())
    for expected in (rows, half):
        buffer = torch.full((7, 19), torch.nan, dtype=expected.dtype)
        assert fitted_codec.decode_rows(codes, ids, out=buffer[1:6]).data_ptr() == buffer[1].data_ptr()
        assert torch.equal(buffer[1:6], expected) and buffer[0].isnan().all() and buffer[6].isnan().all()
    with pytest.raises(ValueError, match=r"`out` must have the shape \[5, 19\]"):
        fitted_codec.decode_rows(codes, ids, out=torch.empty(4, 19))
    with pytest.raises(TypeError, match="`out` must be float32 or bfloat16"):
        fitted_codec.decode_rows(codes, ids, out=torch.empty(5, 19, dtype=torch.float64))
    empty = fitted_codec.encode(x[:0])
    assert fitted_codec.decode_rows(empty, ids[:0]).shape == (0, 19)
    with pytest.raises(IndexError, match="`ids`"):
        fitted_codec.decode_rows(empty, ids)


def test_bad_rows_are_named(fitted_codec, sample):
    for bad in (torch.nan, torch.inf, -torch.inf):
        x = sample(300, 5)
        fitted = fitted_codec.fit(x)
        x[[271, 290], 2] = bad
        for encode in (fitted.encode, fitted_codec.encode, fitted_codec.fit):
            with pytest.raises(NotFinite, match=r"`x` must be finite.*first bad row is 271") as caught:
                encode(x)
            assert caught.value.row == 271


@pytest.mark.parametrize("kind", [Blockwise, Scalar, Uniform])
@pytest.mark.parametrize("bits", [0, 3, 16, -1, None, "2"])
def test_bad_bits(kind, bits):
    with pytest.raises(ValueError, match=rf"`bits` must be 1, 2, 4 or 8 so that codes fill whole bytes \(got {bits}\)"):
        kind(bits=bits)


def test_other_bad_settings():
    for block in (0, -5, 2.5, None):
        with pytest.raises(ValueError, match=rf"`block` must be a positive number of elements \(got {block}\)"):
            Blockwise(block=block)
    with pytest.raises(ValueError, match=r"`meta` must be 'bfloat16' or 'float32' \(got 'x'\)"):
        Blockwise(meta="x")
    with pytest.raises(ValueError, match=r"`bins` must be 'uniform' or 'optimal' \(got 'x'\)"):
        Blockwise(bins="x")
    with pytest.raises(ValueError, match=r"`per` must be 'row' \(got 'column'\); for other ranges use Blockwise"):
        Uniform(per="column")
    with pytest.raises(ValueError, match=r"`meta` must be 'bfloat16' or 'float32' \(got None\)"):
        Uniform(meta=None)
    with pytest.raises(TypeError, match="abstract"):
        Codec()
