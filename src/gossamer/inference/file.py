"""The file of an integer model: safetensors, with the program as JSON in its metadata.

The metadata holds `format` ("gossamer.model.1"), `program` (inference/program.py, JSON), `recipe` (what the model was
trained by, JSON) and `checksum` (CRC-32 of all tensors' bytes by name, and of the two texts, eight hexadecimal digits).
Tensors are weights (int8 [outputs, inputs], or uint8 with two codes of four bits, each plus eight, to a byte), factors
and shifts (float32), and the parameters of what stays in float32. Nothing in it is executed when it is read.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from .. import checksums
from ..atomic import replacing
from .engine import Engine
from .program import BadProgram, Program

KIND, VERSION = "gossamer.model.", 1


class BadModelFile(ValueError):
    """A file that is not a whole integer model of a version that is known here."""


def write(path: str | os.PathLike[str], program: Program, tensors: dict[str, Tensor], recipe: str) -> None:
    """The file appears whole or not at all; one that was there stays until then."""
    text = json.dumps(program.to_plain(), separators=(",", ":"))
    plain = {name: tensor.detach().contiguous() for name, tensor in sorted(tensors.items())}
    metadata = {
        "format": f"{KIND}{VERSION}",
        "program": text,
        "recipe": recipe,
        "checksum": checksums.of_contents(plain, text, recipe),
    }
    with replacing(path) as temporary:
        save_file(plain, temporary, metadata=metadata)


def load(path: str | os.PathLike[str]) -> Engine:
    """The engine of a model that `gs.export` wrote."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"`path` must be a file written by gs.export (there is no file {path})")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            _check_version(path, metadata)
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118 (not a dict)
    except SafetensorError as error:
        raise BadModelFile(
            f"`path` must be a file written by gs.export; {path} is truncated or of another kind ({error}); export the "
            "model again"
        ) from None
    try:
        text, recipe = metadata["program"], metadata["recipe"]
        if metadata["checksum"] != checksums.of_contents(tensors, text, recipe):
            raise BadModelFile(f"{path} is damaged: its contents do not have their checksum; export the model again")
        program = Program.from_plain(json.loads(text))
        return Engine(program, tensors, {"path": str(path), "recipe": json.loads(recipe)})
    except BadModelFile:
        raise
    except (BadProgram, KeyError, ValueError, TypeError, RecursionError, OverflowError) as error:
        raise BadModelFile(
            f"`path` must be a file written by gs.export; the contents of {path} do not fit each other ({error}); "
            "export the model again"
        ) from None


def _check_version(path: Path, metadata: dict[str, str]) -> None:
    named = metadata.get("format", "")
    number = named.removeprefix(KIND)
    if not named.startswith(KIND) or not number.isdigit() or int(number) < 1:
        raise BadModelFile(
            f"`path` must be a file written by gs.export, of the format {KIND}{VERSION} ({path} has the format "
            f"{metadata.get('format')!r})"
        )
    if int(number) > VERSION:
        raise BadModelFile(
            f"`path` must be of a format up to {KIND}{VERSION} ({path} has {named}, written by a newer gossamer); "
            "update gossamer, or export the model again"
        )
