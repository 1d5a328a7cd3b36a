"""A recipe: one setting for each place of a model's computation.

    features      how node features are kept                None (as they come), a codec: Scalar(), Product() ...
    compute       in which arithmetic products run          Float32(), Int8()
    activations   how tensors are saved for backward        Keep(), a codec
    backward      which sparse products backward computes   NonzeroRows(), Exact(), TopRows()
    training      what the model is trained for             None, QAT(), DegreeQuant(): integer inference
    messages      how rows travel between machines          Messages(bits=32 | 8 | 4 | 2)

`features` is for what loads data: gs.train, gs.compress. `lighten_` lowers the other places.

Every value is a frozen dataclass: its `repr` is the experiment log, equal settings are equal objects, and a recipe goes
to JSON and back. `recipes` maps names to recipes; the command line takes the same names. `Recipe()` alone is plain
float32 on our kernels.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from .aggregate.messages import Messages
from .aggregate.policy import Exact, NonzeroRows, TopRows
from .codecs import Blockwise, Codec, Principal, Product, Projected, RowInt8, Scalar, TwoLevel, Uniform
from .engine.fake_quant.settings import QAT, DegreeQuant
from .engine.settings import Float32, Int8, Keep, Published

PLACES: dict[str, dict[str, type]] = {
    "features": {kind.__name__: kind for kind in (Scalar, Product, Principal, TwoLevel)},
    "compute": {"Float32": Float32, "Int8": Int8},
    "activations": {kind.__name__: kind for kind in (Keep, Blockwise, Uniform, Projected, RowInt8, Published)},
    "backward": {kind.__name__: kind for kind in (NonzeroRows, Exact, TopRows)},
    "training": {"QAT": QAT, "DegreeQuant": DegreeQuant},
    "messages": {"Messages": Messages},
}
"""The settings that each place takes, by name."""


class UnknownRecipe(ValueError, KeyError):
    """No recipe has this name. A KeyError too, so that `recipes` is a mapping like any other."""

    def __str__(self) -> str:
        return str(self.args[0])  # a KeyError would show it in quotes


@dataclass(frozen=True)
class Recipe:
    compute: Float32 | Int8 = field(default_factory=Float32)
    activations: Keep | Codec | Published = field(default_factory=Keep)
    backward: NonzeroRows | Exact | TopRows = field(default_factory=NonzeroRows)
    training: QAT | DegreeQuant | None = None
    features: Codec | None = None
    messages: Messages = field(default_factory=Messages)

    def __post_init__(self) -> None:
        for place, offered in PLACES.items():
            _check_setting(place, getattr(self, place), offered)
        if self.training is not None and (self.compute != Float32() or self.activations != Keep()):
            raise ValueError(
                "`training` needs `compute` gs.Float32() and `activations` gs.Keep(), as it rounds in float32 what "
                f"inference will round (got {self.compute!r} and {self.activations!r}); leave those two out"
            )

    def __repr__(self) -> str:
        """Only what differs from the default: `Recipe()` is plain float32."""
        default = {f.name: f.default_factory() if callable(f.default_factory) else f.default for f in _fields(self)}
        told = [f"{name}={getattr(self, name)!r}" for name, usual in default.items() if getattr(self, name) != usual]
        return f"Recipe({', '.join(told)})"

    def to_json(self) -> str:
        """One line: for each place the name of its setting and the setting's own fields."""
        return json.dumps({place: _to_plain(getattr(self, place)) for place in PLACES})

    @classmethod
    def from_json(cls, text: str) -> Recipe:
        """The recipe that `to_json` wrote."""
        try:
            places = json.loads(text)
        except ValueError as error:
            raise ValueError(f"`text` must be what Recipe.to_json wrote (got {text[:80]!r}: {error})") from None
        if not isinstance(places, dict) or not places.keys() <= PLACES.keys():
            raise ValueError(f"`text` must be an object with the places {', '.join(PLACES)} (got {text[:80]!r})")
        return cls(**{place: _from_plain(place, setting) for place, setting in places.items()})


def _fields(setting: Any) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(setting)


def _check_setting(place: str, setting: Any, offered: dict[str, type]) -> None:
    optional = Recipe.__dataclass_fields__[place].default is None
    if type(setting) in offered.values() or (optional and setting is None):
        return
    names = [f"gs.{name}()" for name in offered] + (["None"] if optional else [])
    belongs = [other for other, taken in PLACES.items() if type(setting) in taken.values()]
    hint = f"; it belongs to `{belongs[0]}`" if belongs else ""
    raise ValueError(f"`{place}` must be {' or '.join(names)} (got {setting!r}){hint}")


def _to_plain(setting: Any) -> Any:
    """A setting as plain values; settings inside of settings too."""
    if not dataclasses.is_dataclass(setting):
        return setting
    own = {f.name: _to_plain(getattr(setting, f.name)) for f in _fields(setting) if f.repr}  # not fitted tables
    return {"name": type(setting).__name__} | own


def _from_plain(place: str, plain: Any) -> Any:
    if plain is None:
        return None
    named = dict(plain) if isinstance(plain, dict) else {}
    name = named.pop("name", None)
    if not isinstance(name, str) or name not in PLACES[place]:
        raise ValueError(f"`{place}` must name one of {', '.join(PLACES[place]) or 'nothing yet'} (got {plain!r})")
    inner = {key: _from_plain(place, value) if isinstance(value, dict) else value for key, value in named.items()}
    try:
        return PLACES[place][name](**inner)
    except TypeError:
        known = ", ".join(f.name for f in _fields(PLACES[place][name])) or "none"
        raise ValueError(f"`{place}`: {name} has the settings {known} (got {', '.join(named)})") from None


class _Recipes(Mapping[str, Recipe]):
    """Names to recipes; an unknown name is an error that suggests the nearest."""

    def __init__(self, named: dict[str, Recipe]) -> None:
        self._named = named

    def __getitem__(self, name: str) -> Recipe:
        if name in self._named:
            return self._named[name]
        near = difflib.get_close_matches(str(name).lower(), self._named, n=1, cutoff=0.4)
        nearest = f" Did you mean {near[0]!r}?" if near else ""
        raise UnknownRecipe(f"there is no recipe {name!r}.{nearest} Recipes: {', '.join(self._named)}.")

    def __contains__(self, name: object) -> bool:
        return name in self._named

    def __iter__(self) -> Iterator[str]:
        return iter(self._named)

    def __len__(self) -> int:
        return len(self._named)

    def __repr__(self) -> str:
        return "\n".join(f"{name}: {recipe!r}" for name, recipe in self._named.items())


recipes: Mapping[str, Recipe] = _Recipes(
    {
        "float32": Recipe(),
        "exact-int2": Recipe(activations=Blockwise(bits=2, bins="optimal")),
        "exact-int2-published": Recipe(activations=Published()),
        "exact-int4": Recipe(activations=Blockwise(bits=4, bins="optimal")),
        "exact-int8": Recipe(activations=Blockwise(bits=8)),
        "tango": Recipe(compute=Int8()),
        "tango-auto": Recipe(compute=Int8(auto=True)),
        "rsc": Recipe(backward=TopRows()),
        "tango-rsc": Recipe(compute=Int8(), backward=TopRows()),
        "bifeat-1bit": Recipe(features=Scalar(bits=1)),
        "bifeat-vq": Recipe(features=Product(width=16, length=2048)),
        "degree-quant-int8": Recipe(training=DegreeQuant(bits=8)),
        "degree-quant-int4": Recipe(training=DegreeQuant(bits=4, low=0.1, high=0.2)),
        "feather": Recipe(compute=Int8(), activations=Blockwise(bits=2, bins="optimal")),
    }
)


def recipe_of(recipe: Recipe | str) -> Recipe:
    """A recipe, or the one of that name."""
    if isinstance(recipe, str):
        return recipes[recipe]
    if not isinstance(recipe, Recipe):
        raise TypeError(f"`recipe` must be a gs.Recipe or one of {', '.join(recipes)} (got {type(recipe).__name__})")
    return recipe
