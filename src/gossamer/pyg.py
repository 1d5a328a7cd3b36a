"""`lighten_` and `restore_`: convert a PyG model to our kernels and back, in place.

A module that has a counterpart in `layers` changes its class to it, a subclass of its own: parameters stay the same
objects, `state_dict` keys, hooks and `isinstance` stay as they are, and an optimizer made before stays valid. A module
that the user wrote gets a generated subclass that runs the user's forward with `F.relu`, `F.dropout` and similar
functions replaced (forward/functional.py). `restore_` changes the classes back; nothing else was changed.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
from dataclasses import asdict, dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from .engine.noise import stream
from .quiet_pyg import importing_pyg
from .recipe import Recipe, recipe_of
from .state.layer import ATTRIBUTE, MADE

if TYPE_CHECKING:
    from .layers.roles import Role

OURS = "gossamer.layers."
SITES = "quantisers"
"""The child in which a module has the quantisers of a recipe's place `training`."""


def _layers() -> ModuleType:
    """Our layers, imported when the first model is converted: importing PyG takes a second or two."""
    with importing_pyg():
        from . import forward, layers  # noqa: F401 (wraps them)

    return layers


def _choice() -> ModuleType:
    """The module that chooses an engine for each layer; it needs PyG, too."""
    with importing_pyg():
        from .engine import choice

    return choice


class NothingToLighten(ValueError):
    """No module of the model could be converted."""


@dataclass(frozen=True)
class Row:
    """One module: its name in the model, its class, what it became (None: left alone), and why.

    `role`: "convolution", "norm", "other", or "part" of what another row tells.
    """

    name: str
    kind: str
    became: str | None
    note: str = ""
    role: Role = "other"


@dataclass(frozen=True)
class Report:
    """What `lighten_` did with each module. Printed, it leaves out parts, which have no arithmetic of their own."""

    recipe: Recipe
    rows: tuple[Row, ...]

    @property
    def converted(self) -> tuple[Row, ...]:
        return tuple(row for row in self.rows if row.became is not None)

    def to_json(self) -> str:
        return json.dumps({"recipe": json.loads(self.recipe.to_json()), "modules": [asdict(row) for row in self.rows]})

    def __rich__(self) -> Table:
        table = Table("module", "class", "became", "note", title=f"{self.recipe!r}", title_justify="left")
        shown = [self._with_its_part(row) for row in self.rows if row.role != "part"]
        for group in ("convolution", "norm"):
            _add_section(table, [row for row in shown if row.role == group])
        _add_section(table, [row for row in shown if row.role == "other" and not row.became])
        _add_section(table, [row for row in shown if row.role == "other" and row.became])
        if len(shown) < len(self.rows):
            table.caption = f"and {len(self.rows) - len(shown)} modules that hold these or belong to them"
            table.caption_justify = "left"
        return table

    def _with_its_part(self, row: Row) -> Row:
        """A norm of PyG's that holds torch's, which does its work: what became of that."""
        inner = next((part for part in self.rows if part.name == f"{row.name}.module".lstrip(".")), None)
        if row.role != "norm" or row.became or inner is None or inner.role != "part" or not inner.became:
            return row
        return dataclasses.replace(row, became=inner.became, note=inner.note)

    def __str__(self) -> str:
        console = Console(width=110, file=None, color_system=None)
        with console.capture() as captured:
            console.print(self)
        return captured.get().rstrip()


def _add_section(table: Table, rows: list[Row]) -> None:
    for row in rows:
        style = None if row.became else "yellow"
        table.add_row(row.name or "(model)", row.kind, row.became or "left alone", row.note, style=style)
    table.add_section()


def lighten_(model: nn.Module, recipe: Recipe | str = "float32") -> Report:
    """Convert `model` in place by `recipe`; the report says what became of each module.

    The model is called as before, with PyG's `edge_index` (or an `EdgeIndex`, a `torch.sparse` adjacency, a `Graph`).
    Raises NothingToLighten, and changes nothing, if no layer of it is known. A lightened model is restored first.
    """
    recipe, layers = recipe_of(recipe), _layers()
    restore_(model)
    plan = [(name, module, *_fate(module, module is model)) for name, module in model.named_modules()]
    modules: dict[str, nn.Module | None] = {name: module for name, module, _, _ in plan}
    rows = tuple(
        Row(name, type(module).__name__, None if to is None else _called(to), note, layers.role_of(module, holder))
        for name, module, to, note in plan
        for holder in [modules.get(name.rpartition(".")[0]) if name else None]
    )
    made_lighter = [m for _, m, to, _ in plan if to is not None and type(m) in layers.CONVERTED]
    if not any(not isinstance(m, layers.CONTAINERS) for m in made_lighter):
        known = ", ".join(sorted({kind.__name__ for kind in layers.CONVERTED}))
        left = (
            "; ".join(f"{row.name or '(model)'}: {row.note}" for row in rows if row.note) or "none is of a known class"
        )
        raise NothingToLighten(
            f"`model` must hold at least one module that has a counterpart ({known}), of exactly that class "
            f"(got {type(model).__name__} with {len(rows)} modules: {left[:300]})"
        )
    choice = _choice()
    exceptions = choice.exceptions_of(model, recipe)
    rows = tuple(
        dataclasses.replace(row, note=exceptions[row.name]) if row.became and row.name in exceptions else row
        for row in rows
    )
    stream.reset()
    for _, module, to, _ in plan:
        if to is not None:
            module.__class__ = to
    choice.attach(model, recipe, [row.name for row in rows if row.became], exceptions)
    return Report(recipe, rows)


def restore_(model: nn.Module) -> nn.Module:
    """Restore the original classes; weights stay as they are now. A model that is not lightened is left unchanged."""
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"`model` must be a torch.nn.Module (got {type(model).__name__}); pass the model itself, which "
            "lighten_ changes in place"
        )
    plan = [(name, module, _original(type(module))) for name, module in model.named_modules()]
    for name, module, original in plan:
        if original is None and any(base.__module__.startswith(OURS) for base in type(module).__mro__):
            raise RuntimeError(
                f"`model` must have the classes that lighten_ gave it ({name or 'it'} has become "
                f"{type(module).__name__}); remove what was put over it, such as parametrizations, first"
            )
    for _, module, original in plan:
        module.__dict__.pop(ATTRIBUTE, None)
        if SITES in module._modules:  # a ScriptModule's dictionary cannot pop
            del module._modules[SITES]
        if original is not None:  # by class, as a slice of a lightened Sequential has no mark
            module.__class__ = original
    return model


def _original(kind: type[nn.Module]) -> type[nn.Module] | None:
    """The class that a module had before it was converted; None if it never was."""
    if not _is_made(kind) and not kind.__module__.startswith(OURS):
        return None
    from .forward.as_pyg import own_class

    return own_class(kind)


def _fate(module: nn.Module, is_root: bool) -> tuple[type[nn.Module] | None, str]:
    """The class that a module changes to, if any, and a note."""
    kind, layers = type(module), _layers()
    if isinstance(module, torch.jit.ScriptModule):
        return None, "TorchScript runs without Python; lighten_ the model that it was made from"
    if kind in layers.CONVERTED:
        reason = layers.why_not(module)
        return (None, reason) if reason else (layers.CONVERTED[kind], "")
    if _is_user_written(kind) or is_root:
        if "__slots__" in kind.__dict__ or inspect.isbuiltin(kind.forward):
            return None, "its class cannot be changed"
        try:
            return _following(kind), "its own forward; F.relu, F.dropout, ... on our kernels"
        except Exception as error:  # whatever a user's __init_subclass__ raises
            return None, f"its class refuses a subclass ({type(error).__name__}: {error})"
    bases = [known.__name__ for known in layers.CONVERTED if issubclass(kind, known)]
    if bases:
        return None, f"a subclass of {bases[0]} may compute otherwise"
    held = [type(part).__name__ for part in module.children() if kind in layers.NORMS_THAT_HOLD]
    return None, f"its {held[0]} does its work" if held else "no counterpart; runs unchanged"


def _is_user_written(kind: type[nn.Module]) -> bool:
    return kind.__module__.split(".")[0] not in ("torch", "torch_geometric", "gossamer") and not any(
        issubclass(kind, known) for known in _layers().CONVERTED if known is not nn.Sequential
    )


FOLLOWING = "_gossamer_following"


def _following(kind: type[nn.Module]) -> type[nn.Module]:
    """The subclass of a user's class whose forward runs with torch's functions replaced; cached on that class."""
    if FOLLOWING not in kind.__dict__:
        setattr(kind, FOLLOWING, _make(kind))
    return kind.__dict__[FOLLOWING]


def _make(kind: type[nn.Module]) -> type[nn.Module]:
    from .forward import refuse_jit_script, replacing

    def forward(self: Any, *args: Any, **named: Any) -> Any:
        return replacing(self, kind.forward, args, named)

    functools.update_wrapper(forward, kind.forward)

    def reduce(self: Any, protocol: Any) -> Any:
        if kind.__reduce__ is not object.__reduce__:  # a class that cannot be pickled by its name, as a GraphModule
            return kind.__reduce__(self)
        # Python 3.10 has no __getstate__ of its own
        state = self.__getstate__() if hasattr(self, "__getstate__") else self.__dict__
        return _rebuild, (kind,), state

    members = {"forward": forward, "__reduce_ex__": reduce, "__module__": kind.__module__, MADE: True}
    members["__prepare_scriptable__"] = refuse_jit_script
    return type(kind.__name__, (kind,), members | {"__qualname__": kind.__qualname__})


def _is_made(kind: type) -> bool:
    return MADE in kind.__dict__


def _rebuild(kind: type[nn.Module]) -> nn.Module:
    """An empty module of the class generated for `kind`; used to copy and unpickle a lightened model."""
    made = _following(kind)
    return made.__new__(made)


def _called(kind: type[nn.Module]) -> str:
    if _is_made(kind):
        return f"{kind.__name__}, following"
    return f"gossamer {kind.__name__}"
