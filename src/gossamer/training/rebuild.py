"""The model of a run on disk, as it was when its best epoch ended."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from ..pyg import lighten_
from ..recipe import Recipe
from . import checkpoint as files
from .data import load
from .folder import CHECKPOINT, RUN
from .models import build

SHAPE = ("layers", "width", "dropout", "norm", "heads")


class Rebuilt(NamedTuple):
    """A trained model, lightened by its recipe (None: plain PyG), the dataset, and the settings of the run."""

    model: nn.Module
    data: Any
    recipe: Recipe | None
    settings: dict[str, Any]


def rebuild(folder: str | os.PathLike[str]) -> Rebuilt:
    """The model that `gossamer train --out` left in `folder`."""
    folder = Path(folder)
    if not (folder / RUN).is_file():
        raise FileNotFoundError(f"`run` must be a folder of `gossamer train --out` (there is no {folder / RUN})")
    try:
        settings = json.loads((folder / RUN).read_text())["settings"]
        name, shape = settings["model"], {key: settings[key] for key in SHAPE}
        told, dataset = settings["recipe"], settings["dataset"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"`run` must be a folder of `gossamer train --out` ({folder / RUN} does not say what was trained: "
            f"{error!r}); export a model of your own with gs.export"
        ) from None
    data = load(dataset, settings.get("split"), settings.get("scale"))
    model = build(name, data, **shape)
    recipe = None if told is None else Recipe.from_json(json.dumps(told))
    if recipe is not None:
        lighten_(model, recipe)
    found = files.load(folder / CHECKPOINT)
    files.check_fits(found, model, folder / CHECKPOINT)
    model.load_state_dict(found.best)
    return Rebuilt(model.eval(), data, recipe, settings)
