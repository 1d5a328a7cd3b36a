"""Bytes on the wire and memory of a rank, against numbers worked out by hand."""

from __future__ import annotations

import pytest

from gossamer.distributed.costs import (
    Model,
    RankCounts,
    epoch_bytes,
    every_layer_bytes,
    load_bytes,
    memory_bytes,
    message_bytes,
)

GCN = Model("gcn", (100, 256, 256, 47))
RANKS = [RankCounts(nodes=10, edges=50, halo=3, t_halo=3, sent=2, t_sent=2), RankCounts(20, 40, 2, 2, 3, 3)]


def test_a_gcn_sends_the_narrower_side_and_its_inputs_once():
    """2 (256 + 47) floats for each halo row; inputs of every layer in every epoch would be 100 + 4 * 256."""
    assert GCN.sent_widths == [256, 47]
    assert epoch_bytes(RANKS, GCN, 32) == 5 * 4 * 606
    assert every_layer_bytes(RANKS, GCN) == 5 * 4 * 1124
    assert load_bytes(RANKS, 12.5) == 62


def test_codes_have_four_bytes_beside_them():
    assert [message_bytes(47, bits) for bits in (32, 8, 4, 2)] == [188, 51, 28, 16]
    assert epoch_bytes(RANKS, GCN, 2) == 5 * 2 * (64 + 4 + 12 + 4)
    with pytest.raises(ValueError, match=r"`bits` must be one of \(32, 8, 4, 2\) \(got 3\)"):
        message_bytes(47, 3)


def test_forward_and_backward_have_halos_of_their_own():
    ranks = [RankCounts(nodes=10, edges=50, halo=3, t_halo=7, sent=0, t_sent=0)]
    assert epoch_bytes(ranks, GCN, 32) == (3 + 7) * 4 * 303
    assert every_layer_bytes(ranks, GCN) == 4 * (3 * (100 + 512) + 7 * 512)


@pytest.mark.parametrize(
    ("kind", "heads", "widths", "bytes_of_int8"),
    [("sage", 1, [256, 47], 256 + 47 + 8), ("gin", 1, [256, 256], 520), ("gat", 4, [256, 47], 256 + 47 + 8 + 2 * 16)],
)
def test_what_each_model_sends(kind, heads, widths, bytes_of_int8):
    model = Model(kind, GCN.widths, heads)
    assert model.sent_widths == widths
    assert model.row_bytes(8) == (bytes_of_int8, bytes_of_int8)


def test_one_layer_sends_nothing():
    assert epoch_bytes(RANKS, Model("gcn", (100, 47)), 32) == 0


def test_memory_by_the_formula():
    assert memory_bytes(RANKS[0], GCN, 400, weighted=True, saved=1.0, computed=1, bits=8) == {
        "graph": 2 * (8 * 11 + 4 * 50) + 8 * 50,
        "features": 13 * 400,
        "saved": 10 * 512,
        "working": 3 * 13 * 256 + 4 * 10 * 256,
        "exchange": 2 * 5 * 260,
        "parameters": 16 * (100 * 256 + 256 + 256 * 256 + 256 + 256 * 47 + 47),
    }


@pytest.mark.parametrize(
    ("change", "message"), [({"kind": "mlp"}, "`model` must be one of gcn, sage"), ({"widths": (5,)}, "`widths`")]
)
def test_wrong_models_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        Model(**({"kind": "gcn", "widths": (5, 3)} | change))
