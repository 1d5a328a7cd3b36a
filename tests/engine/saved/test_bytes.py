"""What models save between forward and backward, to the byte: the tables of the technique's specification.

The structure of a graph lives with the graph and is not saved.
"""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch_geometric import nn as pyg

import gossamer as gs
from gossamer import measure, native

ARXIV = 169_343  # nodes
NODES, WIDTH, CLASSES = 1_693, 128, 40
MB = 2**20


def num_bytes(numel, bits, block):
    """Codes and metadata of one tensor, by the specification's formula."""
    return numel // block * -(-block * bits // 8) + -(-(numel % block) * bits // 8) + 4 * -(-numel // block)


def shared_bytes(nodes, bits, hidden=2, width=WIDTH, block=256):
    """Codes and one bit per element for each hidden layer; the first layer's input is saved by reference."""
    return hidden * (num_bytes(nodes * width, bits, block) + nodes * width // 8)


def published_bytes(nodes, m, bits=2):
    """Three layers: two projected operands each, and in the first two a norm's input and two bits per element."""
    operand = num_bytes(nodes * 16, bits, min(16 * m, 1024))
    norm = num_bytes(nodes * WIDTH, bits, min(WIDTH * m, 1024)) + 2 * nodes * WIDTH // 8
    return 3 * 2 * operand + 2 * norm


TABLE = {
    1: 31_159_112,
    2: 28_449_640,
    4: 27_094_888,
    8: 26_417_512,
    16: 26_163_496,
    32: 26_036_488,
    64: 25_972_984,
}
"""ogbn-arxiv, SAGE 3 x 128, 2 bits, projected to an eighth, m rows to a block: bytes of the packed tensors."""
SHARED = {4: 27_772_256, 2: 16_934_304}


def codecs(m):
    """The published layout of operands and of a norm's input."""
    if m == 1:
        rows = gs.Uniform(bits=2, meta="bfloat16")
        return gs.Projected(8, rows), rows
    operand = gs.Projected(8, gs.Blockwise(bits=2, block=min(16 * m, 1024)))
    return operand, gs.Blockwise(bits=2, block=min(WIDTH * m, 1024))


SEED = 8
"""Bytes that stay with each projected tensor, which the table leaves out."""


# Tables ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("m", TABLE)
def test_published_layouts_of_arxiv(m):
    assert published_bytes(ARXIV, m) == TABLE[m]
    operand, norm = codecs(m)
    shape = (ARXIV, WIDTH)
    each = operand.nbytes(shape) - SEED
    assert 6 * each + 2 * (norm.nbytes(shape) + 2 * ARXIV * WIDTH // 8) == TABLE[m]


@pytest.mark.parametrize("bits", SHARED)
def test_shared_layouts_of_arxiv(bits):
    assert shared_bytes(ARXIV, bits) == SHARED[bits]
    codec = gs.recipes[f"exact-int{bits}"].activations
    assert 2 * (codec.nbytes((ARXIV, WIDTH)) + ARXIV * WIDTH // 8) == SHARED[bits]


def test_real_tensors_of_arxivs_size():
    """What `nbytes` tells is what `encode` stores."""
    x = torch.zeros(ARXIV, WIDTH)
    operand, norm = codecs(1)
    assert 6 * (operand.encode(x, 0).nbytes - SEED) + 2 * (norm.encode(x, 0).nbytes + ARXIV * WIDTH // 4) == TABLE[1]
    assert 2 * (gs.Blockwise(bits=4).encode(x, 0).nbytes + ARXIV * WIDTH // 8) == SHARED[4]


SETS = {  # nodes, features, hidden width, hidden layers; MB: published, shared with 4 and with 2 bits
    "Flickr": (89_250, 500, 256, 1, 16.6, 14.0, 8.5),
    "Reddit2": (232_965, 602, 256, 1, 44.9, 36.4, 22.2),
    "Yelp": (716_847, 300, 512, 1, 224, 224, 137),
    "ogbn-arxiv": (169_343, 128, 128, 2, 29.7, 26.5, 16.1),
    "ogbn-products": (2_449_029, 100, 256, 2, None, 766, 467),
}


@pytest.mark.parametrize("name", SETS)
def test_datasets(name):
    nodes, features, width, hidden, published, *shared = SETS[name]
    for bits, want in zip((4, 2), shared, strict=True):
        assert shared_bytes(nodes, bits, hidden, width) / MB == pytest.approx(want, rel=0.005, abs=0.05)
    if published is not None:
        operand, norm = codecs(1)
        operands = sum(2 * operand.nbytes((nodes, w)) for w in (features, *[width] * hidden))
        norms = hidden * (norm.nbytes((nodes, width)) + 2 * nodes * width // 8)
        assert (operands + norms) / MB == pytest.approx(published, rel=0.005, abs=0.05)


# Models ---------------------------------------------------------------------------------------------------------


def inputs():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(NODES, WIDTH, generator=generator), torch.randint(0, NODES, (2, 4 * NODES), generator=generator)


def saved_by(model, recipe, given=None):
    """The account of one forward; the logits are made before any loss."""
    given = inputs() if given is None else given
    gs.lighten_(model, recipe)
    with measure.kept(exclude=[model, given]) as account:
        out = model(*given)
    assert out.requires_grad
    return account


def packed(account):
    """Bytes of codes, their metadata and bits; statistics of columns, seeds and tables of levels are apart."""
    few = [t for t in account.tensors if t.dtype in (torch.uint8, torch.bfloat16)]
    apart = [t for t in account.tensors if t not in few]
    assert all(t.bytes <= 4 * WIDTH for t in apart), account
    return sum(t.bytes for t in few)


def sum_bytes(bits):
    """Of a neighbour sum of input that needs no gradient: four bits at least."""
    return gs.Blockwise(bits=max(4, bits)).nbytes((NODES, WIDTH))


def sage(norm="batch_norm", **named):
    return pyg.GraphSAGE(WIDTH, WIDTH, 3, CLASSES, dropout=0.5, norm=norm, **named)


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("norm", ["batch_norm", None])
@pytest.mark.parametrize("kind", [pyg.GCN, pyg.GraphSAGE])
def test_shared_codes(kind, norm, bits):
    """Codes once per hidden layer, with or without a norm; of GCN, those of the first neighbour sum too."""
    model = kind(WIDTH, WIDTH, 3, CLASSES, dropout=0.5, norm=norm)
    of_sum = sum_bytes(bits) if kind is pyg.GCN else 0
    assert packed(saved_by(model, f"exact-int{bits}")) == shared_bytes(NODES, bits) + of_sum


def test_published_layout():
    account = saved_by(sage(), "exact-int2-published")
    assert packed(account) == published_bytes(NODES, 1)
    assert sum(t.dtype == torch.int64 for t in account.tensors) == 6  # seeds of projections


def test_published_layout_of_longest_blocks():
    """m = 64 rows of 16 columns, where operands and norms have the same block."""
    recipe = gs.Recipe(activations=gs.Published(gs.Projected(8, gs.Blockwise(bits=2, block=1024))))
    assert packed(saved_by(sage(), recipe)) == published_bytes(NODES, 64)


def test_float32_saves_far_more():
    whole = saved_by(sage(), "float32").bytes
    assert whole >= 4 * 4 * NODES * WIDTH  # an epilogue's input and result, twice, at least
    assert whole / saved_by(sage(), "exact-int2").bytes > 15


@pytest.mark.parametrize("norm", ["batch_norm", "layer_norm", None])
@pytest.mark.parametrize("act", ["relu", "leaky_relu", "elu", "gelu"])
@pytest.mark.parametrize("kind", [pyg.GCN, pyg.GraphSAGE, pyg.GIN])
def test_no_tensor_of_rows_is_saved_in_floats(kind, norm, act):
    """Of floats at most a number per row or column."""
    model = kind(WIDTH, WIDTH, 3, CLASSES, dropout=0.5, norm=norm, act=act)
    account = saved_by(model, "exact-int4")
    floats = [t for t in account.tensors if t.dtype in (torch.float32, torch.float64)]
    assert all(t.bytes <= 4 * WIDTH for t in floats), account
    assert not any(t.dtype == torch.bool for t in account.tensors)


class HandWritten(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = pyg.SAGEConv(WIDTH, WIDTH), pyg.SAGEConv(WIDTH, CLASSES)
        self.norm = nn.BatchNorm1d(WIDTH)

    def forward(self, x, edge_index):
        x = functional.dropout(x, 0.5, self.training)
        x = functional.relu(self.norm(self.first(x, edge_index)))
        return self.second(functional.dropout(x, 0.5, self.training), edge_index)


@pytest.mark.skipif(native.library is None, reason="without kernels dropout is torch's own, which saves a mask")
def test_a_forward_by_hand_shares_too():
    """Separate calls; dropout of the input, the first layer and the last save nothing of their own."""
    assert packed(saved_by(HandWritten(), "exact-int2")) == shared_bytes(NODES, 2, hidden=1)


LAYERS = {
    "gcn": pyg.GCNConv,
    "sage": pyg.SAGEConv,
    "sage, no root": partial(pyg.SAGEConv, root_weight=False),
    "graph conv": pyg.GraphConv,
}


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("out", [WIDTH, CLASSES])
def test_a_layer_on_input_that_needs_no_gradient_saves_at_most_codes_of_its_sum(kind, out):
    """Without a product of the rows themselves; a sum that is wider than the result comes after the product."""
    of_sum = sum_bytes(2) if kind in ("gcn", "sage, no root") and out == WIDTH else 0
    assert saved_by(LAYERS[kind](WIDTH, out), "exact-int2").bytes == of_sum


def test_a_sequence_shares():
    model = nn.Sequential(
        nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.ReLU(), nn.Dropout(), nn.Linear(WIDTH, CLASSES)
    )
    assert packed(saved_by(model, "exact-int4", inputs()[:1])) == shared_bytes(NODES, 4, hidden=1)
