from __future__ import annotations

import pytest

import gossamer as gs


@pytest.mark.parametrize(
    "setting, message",
    [
        (lambda: gs.QAT(bits=2), r"`bits` must be 8 or 4.*got 2"),
        (
            lambda: gs.QAT(gradient="none"),
            r"`gradient` must be 'straight-through', 'clipped' or 'inclusive' \(got 'none'\)",
        ),
        (lambda: gs.QAT(observer="mean"), r"`observer` must be 'histogram'.*got 'mean'"),
        (lambda: gs.QAT(plan="edge"), r"`plan` must be 'fused' or 'published'"),
        (lambda: gs.QAT(tail=0.7), r"`tail` must be a share below 0.5"),
        (lambda: gs.QAT(skip="convs.0"), r"`skip` must be names of modules, as \('convs.0',\)"),
        (lambda: gs.DegreeQuant(low=0.5, high=0.1), r"`low` and `high` must be probabilities"),
        (lambda: gs.DegreeQuant(mask="node"), r"`mask` must be 'forward' or 'layer'"),
        (lambda: gs.Recipe(training=gs.QAT(), compute=gs.Int8()), r"`training` needs `compute` gs.Float32\(\)"),
        (lambda: gs.Recipe(training=gs.QAT(), activations=gs.Blockwise()), r"`training` needs `compute`"),
        (lambda: gs.Recipe(training=8), r"`training` must be gs.QAT\(\) or gs.DegreeQuant\(\) or None \(got 8\)"),
    ],
)
def test_bad_settings(setting, message):
    with pytest.raises(ValueError, match=message):
        setting()


def test_are_frozen_printable_and_go_to_json():
    for setting in (gs.QAT(4, skip=["a"]), gs.DegreeQuant(8, low=0.1, high=0.3), gs.QAT.published(4)):
        recipe = gs.Recipe(training=setting)
        assert gs.Recipe.from_json(recipe.to_json()) == recipe
        assert eval(repr(setting), vars(gs)) == setting


def test_presets():
    assert gs.QAT.published(8) == gs.QAT(8, "straight-through", "momentum", plan="published")
    assert gs.DegreeQuant.published(4).gradient == "inclusive" and gs.DegreeQuant.published(4).high == 0.2
    assert gs.recipes["degree-quant-int8"].training == gs.DegreeQuant(8)
    assert gs.recipes["degree-quant-int4"].training.bits == 4
