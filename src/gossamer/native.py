"""The native library: what was built, which instruction set is in use, and how to change it.

The only module that knows what is installed: `library` is the compiled module, or None. Everything else calls ops; an
op runs its native kernel when there is one for its device and dtype, and its PyTorch reference otherwise.
`GOSSAMER_ISA` chooses the level at start: `baseline`, `avx2`, `avx512`, `avx512vnni`, or `reference` for no native
kernel at all. Users know this module as `gs.kernels`.
"""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Iterator
from typing import Any

import torch  # first: its OpenMP runtime is the one that the native module shares

REFERENCE = "reference"


def _load() -> tuple[Any, str]:
    """The compiled module, or None and the reason why there is none."""
    if os.environ.get("GOSSAMER_ISA") == REFERENCE:
        return None, "GOSSAMER_ISA=reference"
    try:
        return importlib.import_module("gossamer._native"), ""
    except ImportError as error:
        return None, f"not built ({error})"


library, why_missing = _load()


def explain(error: Exception) -> None:
    """Raise what to do about an error of a native call, if the native module is of another version than this code."""
    told = str(error)
    lacks = "gossamer._native" in told and "has no attribute" in told
    if lacks or "incompatible function arguments" in told:
        raise RuntimeError(
            f"the native module {getattr(library, '__file__', '')} is of another version than gossamer's Python code: "
            f"build and install both together, as by `pip install .` in the source tree ({told.splitlines()[0]})"
        ) from error


def available_isas() -> list[str]:
    """Instruction sets that were built and that this processor has, slowest first."""
    return list(library.available_isas()) if library else []


def isa() -> str:
    """The instruction set that native kernels use now; `reference` where there are none."""
    return str(library.isa()) if library else REFERENCE


def use_isa(name: str) -> None:
    """Make native kernels use one instruction set, for instance to test or to measure a slower one."""
    if library is None:
        raise RuntimeError(f"`use_isa({name!r})` needs the native kernels, which are not in use: {why_missing}")
    if not library.use_isa(name):
        raise ValueError(f"`isa` must be one of {available_isas()} on this processor (got {name!r})")


@contextlib.contextmanager
def using_isa(name: str) -> Iterator[None]:
    """`use_isa` for the length of a `with` block."""
    before = isa()
    use_isa(name)
    try:
        yield
    finally:
        use_isa(before)


def num_threads() -> int:
    """Threads of every kernel: torch's own setting."""
    return torch.get_num_threads()


def _use_asked_isa() -> None:
    asked = os.environ.get("GOSSAMER_ISA")
    if library and asked and not library.use_isa(asked):
        known = ", ".join([REFERENCE, *available_isas()])
        raise ValueError(
            f"the environment variable GOSSAMER_ISA must be one of {known} on this processor (got {asked!r}); unset it "
            "to take the fastest"
        )


_use_asked_isa()
