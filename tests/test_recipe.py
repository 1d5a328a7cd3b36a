"""Recipes: printable, comparable values that go to JSON and back; errors that name what was meant."""

from __future__ import annotations

import dataclasses
import json

import pytest

import gossamer as gs
from gossamer.recipe import PLACES, Recipe, UnknownRecipe, recipe_of


def test_a_recipe_is_a_value():
    usual = {"compute": gs.Float32(), "activations": gs.Keep(), "backward": gs.NonzeroRows(), "training": None}
    assert gs.Recipe() == gs.Recipe(**usual) != gs.Recipe(backward=gs.Exact())
    assert hash(gs.Recipe()) == hash(gs.Recipe())
    assert repr(gs.Recipe()) == "Recipe()"
    with pytest.raises(dataclasses.FrozenInstanceError):
        gs.Recipe().compute = gs.Float32()


def test_every_place_takes_what_it_lists():
    for place, offered in PLACES.items():
        for setting in offered.values():
            assert getattr(gs.Recipe(**{place: setting()}), place) == setting()


@pytest.mark.parametrize(
    "place,setting,message",
    [
        ("compute", gs.Keep(), r"`compute` must be gs.Float32\(\).*got Keep\(\)\); it belongs to `activations`"),
        ("activations", gs.Exact(), r"`activations` must be gs.Keep\(\).*it belongs to `backward`"),
        (
            "backward",
            gs.Float32(),
            r"`backward` must be gs.NonzeroRows\(\) or gs.Exact\(\) or gs.TopRows\(\).*to `compute`",
        ),
        ("training", gs.Keep(), r"`training` must be .*None.*it belongs to `activations`"),
        ("compute", None, r"`compute` must be gs.Float32\(\).*got None"),
        ("compute", "float32", r"`compute` must be gs.Float32\(\).*got 'float32'"),
        ("activations", gs.Keep, r"`activations` must be gs.Keep\(\).*got <class"),
        ("training", 8, r"`training` must be .*None.*got 8"),
        ("activations", "exact-int2", r"`activations` must be gs.Keep\(\) or .*gs.Blockwise\(\).*got 'exact-int2'"),
        ("activations", 2, r"`activations` must be .*gs.Published\(\).*got 2\)"),
        ("activations", None, r"`activations` must be .*gs.Keep\(\).*got None"),
        ("compute", gs.Blockwise(), r"`compute` must be .*got Blockwise.*it belongs to `activations`"),
        ("backward", gs.Published(), r"`backward` must be .*it belongs to `activations`"),
    ],
)
def test_a_setting_in_the_wrong_place(place, setting, message):
    with pytest.raises(ValueError, match=message):
        gs.Recipe(**{place: setting})


@pytest.mark.parametrize(
    "setting,told",
    [
        (gs.Blockwise(bits=4, block=128), "Blockwise(bits=4, block=128, meta='bfloat16', bins='uniform')"),
        (gs.Projected(4, gs.RowInt8()), "Projected(ratio=4, then=RowInt8())"),
        (gs.Published(gs.Blockwise()), f"Published(codec={gs.Blockwise()!r})"),
    ],
)
def test_repr_is_the_experiment_log(setting, told):
    recipe = gs.Recipe(activations=setting)
    assert repr(recipe) == f"Recipe(activations={told})"
    assert eval(repr(recipe), vars(gs)) == recipe
    assert (
        recipe == gs.Recipe(activations=setting) != gs.Recipe() and len({recipe, gs.Recipe(activations=setting)}) == 1
    )


# JSON -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", gs.recipes)
def test_json_and_back(name):
    recipe = gs.recipes[name]
    text = recipe.to_json()
    assert "\n" not in text and json.loads(text).keys() == PLACES.keys()
    assert Recipe.from_json(text) == recipe


@pytest.mark.parametrize(
    "setting",
    [
        gs.Blockwise(bits=4, block=100, meta="float32", bins="optimal"),
        gs.Uniform(bits=2, meta="bfloat16"),
        gs.RowInt8(),
        gs.Projected(ratio=2.5, then=gs.Uniform(bits=4)),
        gs.Published(gs.Blockwise(bits=8)),
        gs.Published(gs.Projected(ratio=8, then=gs.Blockwise(bits=2, block=1024))),
    ],
    ids=repr,
)
def test_settings_inside_of_settings_go_to_json_and_back(setting):
    recipe = gs.Recipe(activations=setting)
    plain = json.loads(recipe.to_json())["activations"]
    assert plain["name"] == type(setting).__name__
    again = Recipe.from_json(recipe.to_json())
    assert again == recipe and type(again.activations) is type(setting) and hash(again) == hash(recipe)


def test_codecs_of_features_go_to_json_and_back():
    for codec in (
        gs.Scalar(2, "optimal"),
        gs.TwoLevel(),
        gs.Principal(2.5, gs.Scalar(2)),
        gs.Principal(4, gs.Product()),
    ):
        recipe = gs.Recipe(features=codec)
        assert Recipe.from_json(recipe.to_json()) == recipe and eval(repr(recipe), vars(gs)) == recipe


def test_places_left_out_of_json_are_the_usual():
    assert Recipe.from_json("{}") == gs.Recipe()
    assert Recipe.from_json('{"compute": {"name": "Float32"}}') == gs.Recipe()


@pytest.mark.parametrize(
    "text,message",
    [
        ("{", r"`text` must be what Recipe.to_json wrote \(got '\{'"),
        (
            "[]",
            r"`text` must be an object with the places features, compute, activations, backward, training, messages "
            r"\(got '\[\]'\)",
        ),
        ('{"speed": 1}', "`text` must be an object with the places features, compute"),
        ('{"compute": {"name": "Int3"}}', "`compute` must name one of .*Float32.*got .*Int3"),
        ('{"compute": {}}', "`compute` must name one of .*Float32"),
        ('{"compute": 3}', "`compute` must name one of .*Float32.*got 3"),
        ('{"compute": {"name": ["Float32"]}}', "`compute` must name one of .*Float32"),
        ('{"compute": {"name": "Keep"}}', "`compute` must name one of .*Float32.*Keep"),
        ('{"compute": {"name": "Float32", "bits": 3}}', r"`compute`: Float32 has the settings none \(got bits\)"),
        ('{"compute": null}', r"`compute` must be gs.Float32\(\).*got None"),
        ('{"activations": {"name": "Blockwise", "bits": 3}}', r"`bits` must be 1, 2, 4 or 8 .*got 3"),
        ('{"activations": {"name": "Blockwise", "size": 3}}', r"`activations`: Blockwise has the settings bits, block"),
        ('{"activations": {"name": "Projected", "then": {"name": "Int3"}}}', "`activations` must name one of .*Int3"),
        ('{"activations": {"name": "Projected", "then": {"name": "Keep"}}}', r"`then` must be a codec .*got Keep\(\)"),
        ('{"activations": {"name": "Published", "codec": 2}}', r"`codec` must be a codec .*got 2"),
    ],
)
def test_json_that_is_no_recipe(text, message):
    with pytest.raises(ValueError, match=message):
        Recipe.from_json(text)


# Names ----------------------------------------------------------------------------------------------------------


def test_recipes_of_activations():
    for bits in (2, 4, 8):
        setting = gs.recipes[f"exact-int{bits}"].activations
        assert isinstance(setting, gs.Blockwise) and (setting.bits, setting.block) == (bits, 256)
    assert gs.recipes["exact-int2-published"].activations == gs.Published()
    assert all(recipe.compute == gs.Float32() for name, recipe in gs.recipes.items() if name.startswith("exact"))
    assert gs.recipes["tango"] == gs.Recipe(compute=gs.Int8()) and gs.recipes["tango-auto"].compute.auto
    assert gs.recipes["feather"] == gs.Recipe(gs.Int8(), gs.recipes["exact-int2"].activations)
    with pytest.raises(UnknownRecipe, match="Did you mean 'exact-int2'"):
        gs.recipes["exact_int2"]


def test_names():
    assert gs.recipes["float32"] == gs.Recipe()
    assert "float32" in gs.recipes and "float31" not in gs.recipes
    assert len(gs.recipes) == len(list(gs.recipes)) >= 1
    assert "float32: Recipe()" in repr(gs.recipes)
    assert recipe_of("float32") is gs.recipes["float32"]
    own = gs.Recipe()
    assert recipe_of(own) is own


@pytest.mark.parametrize("name", ["float23", "Float32", "FLOAT 32"])
def test_an_unknown_name_suggests_the_nearest(name):
    with pytest.raises(
        UnknownRecipe, match=rf"there is no recipe '{name}'\. Did you mean 'float32'\? Recipes: .*float32"
    ):
        recipe_of(name)


def test_an_unknown_name_that_resembles_nothing():
    with pytest.raises(UnknownRecipe, match=r"there is no recipe 'zzz'\. Recipes: ") as error:
        gs.recipes["zzz"]
    assert "Did you mean" not in str(error.value)


@pytest.mark.parametrize("bad", [None, 3, gs.Float32()])
def test_what_is_neither_a_recipe_nor_a_name(bad):
    with pytest.raises(TypeError, match=rf"`recipe` must be a gs.Recipe or one of .*float32.*got {type(bad).__name__}"):
        recipe_of(bad)


def test_messages_go_to_json_and_back():
    recipe = gs.Recipe(messages=gs.Messages(bits=4))
    assert gs.Recipe.from_json(recipe.to_json()) == recipe
    assert repr(recipe) == "Recipe(messages=Messages(bits=4))"


@pytest.mark.parametrize("bits", [1, 3, 16, 0, "8", True])
def test_bits_that_no_message_has(bits):
    with pytest.raises(ValueError, match="`bits` must be 32"):
        gs.Messages(bits=bits)
