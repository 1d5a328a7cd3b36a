"""The command line that repeats a comparison."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any


def command_line(
    dataset: str,
    model: Mapping[str, Any],
    settings: Mapping[str, Any],
    recipes: Sequence[str],
    baselines: Sequence[str],
    inference: bool = False,
) -> str:
    """`gossamer compare` with every option that has a value; `settings["seeds"]` is their number."""
    options: dict[str, Any] = {"model": model.get("name")} | {key: model[key] for key in model if key != "name"}
    options |= settings
    options["recipes"] = ",".join(recipes)
    options["baselines"] = ",".join(name.removeprefix("pyg-") for name in baselines)
    told = {f"--{key.replace('_', '-')}": _said(value) for key, value in options.items() if value is not None}
    words = [word for option in told.items() for word in option] + (["--inference"] if inference else [])
    return shlex.join(["gossamer", "compare", dataset, *words])


def _said(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)
