"""Which codec each kind of saved tensor gets."""

from __future__ import annotations

import gossamer as gs
from gossamer.engine.saved.policy import saving_of


def test_keep_saves_tensors_as_they_are():
    assert saving_of(gs.Keep()) is None


def test_optimal_bins_are_for_symmetric_values_and_derivatives_get_four_bits():
    saving = saving_of(gs.Blockwise(bits=2, bins="optimal"))
    assert saving.values.bins == "optimal" and saving.rows.bins == saving.sums.bins == "uniform"
    assert (saving.slopes, saving.sharp.bits, saving.sums.bits) == (4, 8, 4)
    assert saving_of(gs.Blockwise(bits=8)).slopes == 8


def test_only_operands_of_products_are_projected():
    projected = gs.Projected(ratio=4, then=gs.Blockwise(bits=2))
    saving = saving_of(projected)
    assert saving.rows == projected and saving.values == projected.then
    assert saving.sums == gs.Blockwise(bits=4) and saving.sharp == gs.Blockwise(bits=8)


def test_the_same_setting_is_the_same_object():
    """A model's layers share it, and layouts are looked up in every call."""
    assert saving_of(gs.Uniform(bits=4)) is saving_of(gs.Uniform(bits=4))
