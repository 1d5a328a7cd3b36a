"""How many bytes codes take, against the formula and the published tables."""

from __future__ import annotations

import math

import pytest
import torch

from gossamer import Blockwise, Projected, Uniform

ARXIV, HIDDEN = 169_343, 128
SEED = 8  # bytes that a projection keeps to make its matrix again


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
@pytest.mark.parametrize("block", [1, 3, 7, 16, 100, 256, 1024])
def test_bytes_formula(bits, block):
    """floor(n/L) ceil(L b/8) + ceil((n mod L) b/8) + 4 ceil(n/L)"""
    for n in (0, 1, 2, 99, 100, 101, 255, 256, 257, 4097, ARXIV * HIDDEN):
        codes = n // block * math.ceil(block * bits / 8) + math.ceil(n % block * bits / 8)
        assert Blockwise(bits, block).nbytes((n,)) == codes + 4 * math.ceil(n / block)
        assert Blockwise(bits, block, "float32").nbytes((n,)) == codes + 8 * math.ceil(n / block)
        assert Blockwise(bits, block, bins="optimal").nbytes((n,)) == Blockwise(bits, block).nbytes((n,))
        assert Uniform(bits, meta="bfloat16").nbytes((n, block)) == n * (math.ceil(block * bits / 8) + 4)


@pytest.mark.parametrize(
    ("m", "expected"),
    [
        (1, 31_159_112),
        (2, 28_449_640),
        (4, 27_094_888),
        (8, 26_417_512),
        (16, 26_163_496),
        (32, 26_036_488),
        (64, 25_972_984),
    ],
)
def test_bytes_of_the_published_arxiv_model(m, expected):
    """GraphSAGE 128-128-128-40 in 2 bits: every layer keeps two tensors projected to 16 columns, every hidden one also
    its normalised tensor and two masks. Blocks are m rows long, at most 1024 numbers."""
    of_rows = Projected(ratio=8, then=Blockwise(2, min(m * HIDDEN // 8, 1024)))
    projected = of_rows.nbytes((ARXIV, HIDDEN)) - SEED
    normalised = Blockwise(2, min(m * HIDDEN, 1024)).nbytes((ARXIV, HIDDEN))
    mask = ARXIV * HIDDEN // 8
    assert 3 * 2 * projected + 2 * (normalised + 2 * mask) == expected
    if m == 1:  # EXACT: one range per row
        by_row = Uniform(bits=2, per="row", meta="bfloat16")
        assert Projected(ratio=8, then=by_row).nbytes((ARXIV, HIDDEN)) - SEED == projected
        assert by_row.nbytes((ARXIV, HIDDEN)) == normalised


PUBLISHED = {  # nodes, columns into each layer, hidden ones; MB at 8, 4, 2 bits, 2 and projected, so with L/R = 64
    "Flickr": (89_250, (500, 256), 256, (158, 82, 44.8, 16.6, 15.1)),
    "Reddit2": (232_965, (602, 256), 256, (457, 238, 128, 44.9, 40.9)),
    "Yelp": (716_847, (300, 512), 512, (1561, 831, 466, 224, 212)),
    "arxiv": (ARXIV, (128, 128, 128), 128, (181, 98, 56.8, 29.7, 24.8)),
    "products": (2_449_029, (100, 256, 256), 256, (3214, 1784, 1070, 445, 390)),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_bytes_of_published_graphsage(name):
    """Two kept tensors a layer; a normalised one (but for products) and two masks between layers."""
    nodes, widths, hidden, published = PUBLISHED[name]
    exact = [Uniform(bits, meta="bfloat16") for bits in (8, 4, 2)]
    between = (len(widths) - 1) * 2 * nodes * hidden // 8
    norms = 0 if name == "products" else len(widths) - 1

    def total(rows, values):
        return between + sum(2 * rows(d).nbytes((nodes, d)) for d in widths) + norms * values.nbytes((nodes, hidden))

    kept = [total(lambda d, codec=codec: codec, codec) for codec in exact]
    kept.append(total(lambda d: Projected(8, exact[2]), exact[2]))
    kept.append(total(lambda d: Projected(8, Blockwise(2, min(64 * math.ceil(d / 8), 1024))), Blockwise(2, 1024)))
    if name == "products":  # a row of 13 codes takes 4 bytes here, and 3.25 in the table
        kept[3] -= 2 * nodes * 3 // 4
    for bytes_kept, expected in zip(kept, published, strict=True):
        assert abs(bytes_kept / 2**20 / expected - 1) < 0.005


SHARED_EPILOGUES = [  # nodes, width, hidden layers, MB in 4 bits, MB in 2 bits
    (ARXIV, 128, 2, 26.49, 16.15),
    (89_250, 256, 1, 14.0, 8.5),
    (232_965, 256, 1, 36.4, 22.2),
    (716_847, 512, 1, 224, 137),
    (2_449_029, 256, 2, 766, 467),
]


@pytest.mark.parametrize(("nodes", "width", "layers", "four", "two"), SHARED_EPILOGUES)
def test_bytes_of_shared_epilogues(nodes, width, layers, four, two):
    """One tensor and one bit per hidden layer, on arxiv, Flickr, Reddit2, Yelp and products."""
    for bits, published in ((4, four), (2, two)):
        kept = layers * (Blockwise(bits, 256).nbytes((nodes, width)) + nodes * width // 8)
        assert abs(kept / 2**20 / published - 1) < 0.005
        if nodes == ARXIV:
            assert kept == {4: 27_772_256, 2: 16_934_304}[bits]


@pytest.mark.parametrize(
    "codec",
    [
        Blockwise(2, 256),
        Blockwise(4, 256, bins="optimal"),
        Blockwise(2, 1024),
        Uniform(2, meta="bfloat16"),
        Projected(2, Blockwise(2, 256)),
    ],
    ids=repr,
)
def test_bytes_are_those_of_real_tensors(codec):
    codes = codec.encode(torch.full((ARXIV, 16), 1.0), 0)
    stored = sum(t.untyped_storage().nbytes() for t in codes.tensors)
    assert stored == codes.nbytes == codec.nbytes((ARXIV, 16))
