"""Structures as arguments and results of ops: PyTorch's schemas know only tensors and numbers.

A structure is a NamedTuple of tensors and numbers. In a schema it stands for its fields, in order:

    norm_act(Tensor x, Epilogue)      Tensor x, Tensor? weight, Tensor? bias, ...       fields keep their names
    int8_linear(QRows x, QRows w)     Tensor x, Tensor x_scale, Tensor w, Tensor w_scale
                                      with a name, that of the first field; the others are prefixed by it
    quantize_rows(..) -> QRows        (Tensor, Tensor)
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

TYPES = {
    "Tensor": "Tensor",
    "Tensor | None": "Tensor?",
    "list[Tensor]": "Tensor[]",
    "int": "int",
    "int | None": "int?",
    "float": "float",
    "bool": "bool",
}
"""What an annotation of a field is in a schema."""
STRUCTURES: dict[str, Any] = {}
Structure = TypeVar("Structure", bound=Any)


def structure(kind: type[Structure]) -> type[Structure]:
    """Let schemas name this NamedTuple."""
    STRUCTURES[kind.__name__] = kind
    return kind


def _fields(kind: Any) -> dict[str, str]:
    """The fields of a structure, with their types in schemas."""
    return {name: TYPES[annotation] for name, annotation in _annotations(kind).items()}


def _annotations(kind: Any) -> dict[str, str]:
    return {name: kind.__annotations__[name].__forward_arg__ for name in kind._fields}


# Saving for backward ----------------------------------------------------------------------------------------------


@functools.cache
def _tensor_fields(kind: Any) -> tuple[str, ...]:
    return tuple(name for name, annotation in _annotations(kind).items() if annotation in ("Tensor", "Tensor | None"))


def tensors_of(given: Any) -> tuple[Any, ...]:
    """The tensors of a structure, which autograd is to save apart."""
    return tuple(getattr(given, name) for name in _tensor_fields(given.__class__))


def without_tensors(given: Structure) -> Structure:
    """The rest of a structure, each tensor replaced by None."""
    return given._replace(**dict.fromkeys(_tensor_fields(given.__class__)))


def with_tensors(rest: Structure, tensors: Sequence[Any]) -> Structure:
    """The structure again, from `without_tensors` and `tensors_of`."""
    return rest._replace(**dict(zip(_tensor_fields(rest.__class__), tensors, strict=True)))


def take(tensors: Sequence[Any], *rests: Any) -> list[Any]:
    """`with_tensors` for several structures whose tensors follow each other; last, the tensors that are left."""
    taken: list[Any] = []
    for rest in rests:
        count = len(_tensor_fields(rest.__class__))
        taken.append(with_tensors(rest, tensors[:count]))
        tensors = tensors[count:]
    return [*taken, tensors]


# Signatures -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Signature:
    """A schema in PyTorch's terms, and where its structures are."""

    name: str
    schema: str
    kinds: tuple[Any, ...]
    """The structures among the arguments."""
    places: tuple[tuple[Any, int, int], ...]
    """For each argument its structure or None, and the first and last flat argument it stands for."""
    count: int
    result: Any
    """The structure of the results, or None."""

    @classmethod
    def of(cls, schema: str) -> Signature:
        head, result = schema.rsplit(" -> ", 1)
        name, given = head[:-1].split("(", 1)
        flat: list[str] = []
        places: list[tuple[Any, int, int]] = []
        for argument in given.split(", "):
            kind, *named = argument.split(" ")
            made = [argument]
            if kind in STRUCTURES:
                made = [f"{type_} {_named(field, k, *named)}" for k, (field, type_) in _enumerated(STRUCTURES[kind])]
            places.append((STRUCTURES.get(kind), len(flat), len(flat) + len(made)))
            flat += made
        kinds = tuple(dict.fromkeys(kind for kind, _, _ in places if kind is not None))
        returned = f"({', '.join(_fields(STRUCTURES[result]).values())})" if result in STRUCTURES else result
        text = f"{name}({', '.join(flat)}) -> {returned}"
        return cls(name, text, kinds, tuple(places), len(flat), STRUCTURES.get(result))

    def flatten(self, args: Sequence[Any]) -> Sequence[Any]:
        """Arguments of which some may be structures, as PyTorch takes them."""
        if not self.kinds:
            return args
        flat: list[Any] = []
        for argument in args:
            if isinstance(argument, self.kinds):
                flat.extend(argument)
            else:
                flat.append(argument)
        return flat

    def group(self, flat: Sequence[Any]) -> Sequence[Any]:
        """Flat arguments as structures; last arguments that have a default may be left out."""
        if not self.kinds:
            return flat
        given = len(flat)
        return [
            flat[start] if kind is None else kind(*flat[start:end]) for kind, start, end in self.places if start < given
        ]

    def flatten_gradients(self, grads: Any) -> Any:
        """A gradient for each flat argument; None in place of a structure is None for each of its fields."""
        if not self.kinds:
            return grads
        flat: list[Any] = []
        for (kind, start, end), grad in zip(self.places, grads, strict=True):
            if kind is None:
                flat.append(grad)
            else:
                flat.extend([None] * (end - start) if grad is None else grad)
        return tuple(flat)


def _enumerated(kind: Any) -> Any:
    return enumerate(_fields(kind).items())


def _named(field: str, position: int, argument: str = "") -> str:
    if not argument:
        return field
    return argument if position == 0 else f"{argument}_{field}"
