"""Product codes of features: k-means, ids, codebooks, bytes."""

from __future__ import annotations

import itertools

import pytest
import torch

from gossamer import Product
from gossamer.codecs import kmeans
from gossamer.ops.gather_codes import entries_of_parts
from gossamer.ops.pack_ids import unpack_ids


def ids_of(codec, codes):
    parts = -(-codes.shape[-1] // codec.width)
    return unpack_ids(codes.tensors[0], parts, (codec.length - 1).bit_length()).long()


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_distortion_never_rises(metric, sample):
    x = sample(3000, 5) * torch.tensor([1.0, 2, 0.1, 3, 1])
    centres, distortions = kmeans.kmeans(x, 40, metric, 0)
    assert len(centres) == 40 and len(distortions) > 3
    for before, after in itertools.pairwise(distortions):
        assert after <= before * (1 + 1e-6)  # scores are float32 sums of five terms
    assert distortions[-1] < distortions[0]


def test_no_cell_is_empty():
    """Rows in few places and many far away ones: what k-means++ draws from a subsample misses most of them."""
    rng = torch.Generator().manual_seed(0)
    x = torch.cat(
        [
            torch.zeros(5000, 2) + 1,
            5 + 1e-3 * torch.randn(5000, 2, generator=rng),
            50 * torch.randn(60, 2, generator=rng),
        ]
    )
    centres, _ = kmeans.kmeans(x, 63, "euclidean", 0)
    ids, _, sizes = kmeans._assign(x, centres, "euclidean")
    assert len(centres) == 63 and (sizes > 0).all() and int(sizes.sum()) == len(x)
    assert torch.equal(torch.bincount(ids, minlength=63), sizes)


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_ids_equal_brute_force(metric, sample):
    x = sample(700, 11)
    codec = Product(4, 13, metric).fit(x)
    codes = codec.encode(x)
    books = entries_of_parts(codec.fitted.books, 11, 4, 13)
    for p, book in enumerate(books):
        part, entries = x[:, 4 * p : 4 * p + 4].double(), book.double() * codec.fitted.scale[p].double()
        if metric == "cosine":
            near = torch.nn.functional.normalize(part) @ torch.nn.functional.normalize(entries[1:]).t()
        else:
            near = -torch.cdist(part, entries[1:])
        found = ids_of(codec, codes)[:, p] - 1
        best, chosen = near.max(1).values, near.gather(1, found.unsqueeze(1)).squeeze(1)
        assert (found >= 0).all() and (best - chosen <= 1e-5).all()  # float32 scores may tie
        assert (near.argmax(1) == found).float().mean() > 0.999


@pytest.mark.parametrize("columns", [3, 4, 10])
def test_few_different_rows_lose_nothing(columns, sample):
    x = sample(30, columns)[torch.arange(600) % 30] * 3
    x[::7] = 0
    codec = Product(4, 64)
    decoded = codec.decode(codec.encode(x))
    torch.testing.assert_close(decoded, x, rtol=0, atol=float(x.abs().max()) * 2.0**-11)  # float16 of the largest
    assert torch.equal(decoded[::7], torch.zeros_like(decoded[::7]))
    unused = codec.fit(x).fitted.books.view(-1)
    assert unused.isfinite().all()


@pytest.mark.parametrize("scale", [1e-30, 1e-6, 1.0, 1e6, 1e36])
def test_any_scale(scale, sample):
    x = sample(50, 6)
    codec = Product(3, 64)
    error = (codec.decode(codec.encode(x * scale)) / scale - x).abs().max()
    assert error < 2.0**-10 * x.abs().max()


def test_zero_parts_have_code_zero(sample):
    x = sample(200, 8)
    x[5], x[6, :4], x[7, 4:] = 0, 0, -0.0
    codec = Product(4, 16)
    codes = codec.encode(x)
    ids, decoded = ids_of(codec, codes), codec.decode(codes)
    is_zero = (x.view(200, 2, 4) == 0).all(2)
    assert torch.equal(ids == 0, is_zero)
    assert torch.equal(decoded.view(200, 2, 4)[is_zero], torch.zeros(4, 4))
    nothing = Product(4, 16).fit(torch.zeros(9, 8))
    assert torch.equal(nothing.decode(nothing.encode(torch.zeros(9, 8))), torch.zeros(9, 8))
    assert torch.equal(nothing.decode(nothing.encode(x)), torch.zeros_like(x))  # nothing was learned


def test_cosine_does_not_see_the_scale_of_rows(sample):
    x, factor = sample(400, 12), 2.0 ** torch.randint(-8, 9, (400, 1))
    fitted = Product(4, 16, "cosine").fit(x)
    assert torch.equal(fitted.encode(x).tensors[0], fitted.encode(x * factor).tensors[0])
    euclidean = Product(4, 16).fit(x)
    assert not torch.equal(euclidean.encode(x).tensors[0], euclidean.encode(x * factor).tensors[0])


def test_codebooks_are_means(sample):
    x = sample(500, 7)
    codec = Product(3, 8)
    codes = codec.encode(x)
    ids, decoded = ids_of(codec, codes), codec.decode(codes)
    for p in range(3):
        part = slice(3 * p, 3 * p + 3)
        for code in ids[:, p].unique():
            rows = ids[:, p] == code
            mean = x[rows, part].double().mean(0).float()
            torch.testing.assert_close(decoded[rows, part][0], mean, rtol=0, atol=2.0**-10)


def test_seeds_of_kmeans(sample):
    x = sample(900, 8)
    assert all(map(torch.equal, Product(4, 32, seed=3).encode(x).tensors, Product(4, 32, seed=3).encode(x).tensors))
    assert not torch.equal(Product(4, 32, seed=3).encode(x).tensors[1], Product(4, 32, seed=4).encode(x).tensors[1])


@pytest.mark.parametrize(
    "rows, columns, width, length, nominal, whole_bytes, packed, stored",
    [
        (121_751_666, 768, 16, 2048, 46.5, 32, 46.5, 46.5),
        (111_059_956, 128, 16, 2048, 46.5, 32, 46.5, 46.5),
        (100_000_000, 128, 16, 256, 64, 64, 64, 64),
        (232_965, 602, 51, 1024, 163.2, 100.3, 160.5, 119),
        (232_965, 602, 37, 256, 148, 141.6, 141.6, 131),
        (232_965, 602, 100, 16384, 228.6, 172, 185.2, 25),
    ],
)
def test_stored_ratios(rows, columns, width, length, nominal, whole_bytes, packed, stored):
    """MAG240M, Papers100M, any, and three settings on Reddit: what is stored is less than the nominal ratio says."""
    codec, bits, parts = Product(width, length), (length - 1).bit_length(), -(-columns // width)
    float32 = 4 * rows * columns
    of_row = -(-parts * bits // 8)
    assert codec.nbytes((rows, columns)) == rows * of_row + 2 * columns * length + 4 * parts
    assert abs(32 * width / bits - nominal) < 0.1
    assert abs(4 * columns / (parts * -(-bits // 8)) - whole_bytes) < 0.1
    assert abs(4 * columns / of_row - packed) < 0.1
    ratio = float32 / codec.nbytes((rows, columns))
    assert abs(ratio - stored) < 0.1 or round(ratio) == stored  # some are known as whole numbers


@pytest.mark.parametrize(
    "settings, said",
    [
        ({"width": 0}, r"`width` must be a positive number of columns \(got 0\)"),
        ({"width": 2.5}, r"`width` must be a positive number of columns \(got 2.5\)"),
        ({"length": 1}, r"`length` must be from 2 to 65536, vectors of a codebook \(got 1\)"),
        ({"length": 65537}, r"`length` must be from 2 to 65536"),
        ({"metric": "dot"}, r"`metric` must be 'euclidean' or 'cosine' \(got 'dot'\)"),
        ({"seed": None}, r"`seed` must be a whole number \(got None\)"),
    ],
)
def test_bad_settings(settings, said):
    with pytest.raises(ValueError, match=said):
        Product(**settings)
