"""The state of a training run in one safetensors file: what `resume` needs to continue bit for bit.

    model.<key>                  the weights and buffers after the last epoch
    best.<key>                   those of the best epoch so far
    optimizer.<index>.<name>     the optimizer's tensors, by the number of the parameter
    random.torch                 torch's generator
    metadata: format, checksum   CRC-32 of everything else
              state              JSON: history, measured precision, the other generators, settings, versions

Written to a temporary file, flushed and renamed: a process that is killed leaves the old file or the new one, whole.
There is no pickle in it, so a checkpoint from elsewhere cannot run code.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor, nn

from ..atomic import replacing
from ..checksums import of_tensors
from . import random_state
from .random_state import RandomState

FORMAT = "gossamer.checkpoint.1"


class BadCheckpoint(ValueError):
    """A checkpoint is truncated, damaged, or of another model."""


class NotWritten(OSError):
    """A file of a run could not be written; what was there before is still there."""


@dataclass(frozen=True)
class Checkpoint:
    """`state` is plain data that goes to JSON: at least the history."""

    model: dict[str, Tensor]
    best: dict[str, Tensor]
    optimizer: dict[int, dict[str, Any]]
    random: RandomState
    state: dict[str, Any]


def copy_of(state_dict: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors of a state dict, as they are now. Other values could only be written with pickle, and are refused."""
    strange = [key for key, value in state_dict.items() if not isinstance(value, Tensor)]
    if strange:
        raise TypeError(
            f"`model` must have tensors alone in its state_dict (got {type(state_dict[strange[0]]).__name__} at "
            f"{strange[0]!r}); keep other state in a registered buffer"
        )
    return {key: value.detach().clone(memory_format=torch.contiguous_format) for key, value in state_dict.items()}


def save(checkpoint: Checkpoint, path: str | os.PathLike[str]) -> None:
    """Write `path` whole, or leave it as it was and raise `NotWritten`."""
    tensors = {"random.torch": checkpoint.random.torch}
    for part, values in (("model", checkpoint.model), ("best", checkpoint.best)):
        tensors |= {f"{part}.{key}": value for key, value in values.items()}
    scalars: dict[str, dict[str, Any]] = {}
    for index, values in checkpoint.optimizer.items():
        tensors |= {f"optimizer.{index}.{name}": v for name, v in values.items() if isinstance(v, Tensor)}
        scalars[str(index)] = {name: v for name, v in values.items() if not isinstance(v, Tensor)}
    text = json.dumps(checkpoint.state | {"random": checkpoint.random.others, "optimizer": scalars})
    own = copy_of(tensors)  # safetensors refuses tensors that share memory, which tied weights do
    metadata = {"format": FORMAT, "state": text, "checksum": _checksum(own, text)}
    try:
        with replacing(path) as temporary:
            # save_file would write to a temporary name of its own, which a killed process leaves behind
            Path(temporary).write_bytes(to_bytes(own, metadata=metadata))
    except OSError as error:
        raise NotWritten(
            f"{path} could not be written ({error}); what was there before is intact. Remedy: free some disk space or "
            "fix the folder, then continue with resume"
        ) from error


def load(path: str | os.PathLike[str]) -> Checkpoint:
    """The checkpoint that `save` wrote; a damaged one is an error that says so."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"`path` must be a checkpoint (there is no file {path})")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except SafetensorError as error:
        raise _damaged(path, f"it is truncated or not safetensors: {error}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _damaged(path, f"it holds tensors of another kind: {error!r}") from error
    if metadata.get("format") != FORMAT:
        raise _damaged(path, f"its format is {metadata.get('format')!r} instead of {FORMAT!r}")
    text = metadata.get("state", "")
    if metadata.get("checksum") != _checksum(tensors, text):
        raise _damaged(path, "its checksum does not agree with what it holds")
    with believed(path):
        found = _parse(tensors, json.loads(text))
        random_state.check(found.random)
    return found


@contextlib.contextmanager
def believed(path: str | os.PathLike[str]) -> Iterator[None]:
    """Where the contents of a file are used whose checksum is right: they may still be anyone's."""
    try:
        yield
    except Exception as error:
        raise _damaged(Path(path), f"its contents do not fit each other: {type(error).__name__}: {error}") from error


def _parse(tensors: dict[str, Tensor], state: dict[str, Any]) -> Checkpoint:
    scalars = state.pop("optimizer")
    optimizer: dict[int, dict[str, Any]] = {int(index): dict(values) for index, values in scalars.items()}
    parts: dict[str, dict[str, Tensor]] = {"model": {}, "best": {}, "random": {}}
    for name, tensor in tensors.items():
        part, _, key = name.partition(".")
        if part == "optimizer":
            index, _, entry = key.partition(".")
            optimizer[int(index)][entry] = tensor
        else:
            parts[part][key] = tensor
    random = RandomState(parts["random"]["torch"], state.pop("random"))
    return Checkpoint(parts["model"], parts["best"], optimizer, random, state)


def check_fits(checkpoint: Checkpoint, model: nn.Module, path: str | os.PathLike[str]) -> None:
    """Names, shapes and dtypes must be those of `model`, of the best weights, too."""
    want = {key: _kind(value) for key, value in model.state_dict().items()}
    for found in (checkpoint.model, checkpoint.best):
        _check_same(path, {key: _kind(value) for key, value in found.items()}, want)


def check_moments(checkpoint: Checkpoint, optimizer: torch.optim.Optimizer, path: str | os.PathLike[str]) -> None:
    """What Adam remembers of a parameter must be all that it will look for, in the shape of the parameter."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    with believed(path):
        for index, values in checkpoint.optimizer.items():
            want = {"step": [], "exp_avg": (shape := list(parameters[index].shape)), "exp_avg_sq": shape}
            have = {name: list(value.shape) for name, value in values.items()}
            if index < 0 or have != want:
                raise ValueError(f"the optimizer's moments {have} of parameter {index} are not {want}")
            if not all(value.dtype.is_floating_point and not bool(value.isnan().any()) for value in values.values()):
                raise ValueError(f"the optimizer's moments of parameter {index} are not numbers")
            if not 0 <= float(values["step"]) < math.inf or bool((values["exp_avg_sq"] < 0).any()):
                raise ValueError(f"the optimizer's moments of parameter {index} are negative")


def _kind(value: Tensor) -> str:
    return f"{list(value.shape)}" if value.dtype == torch.float32 else f"{list(value.shape)} {value.dtype}"


def _check_same(path: str | os.PathLike[str], have: dict[str, str], want: dict[str, str]) -> None:
    if have == want:
        return
    told = [f"{key} is missing" for key in want if key not in have]
    told += [f"{key} is not in the model" for key in have if key not in want]
    told += [
        f"{key} is {have[key]}, the model has {want[key]}" for key in want if have.get(key, want[key]) != want[key]
    ]
    more = f", and {len(told) - 3} more" if len(told) > 3 else ""
    raise BadCheckpoint(
        f"`model` must be the one that {path} was written by; they differ: {'; '.join(told[:3])}{more}. "
        "Remedy: build the model with the settings in run.json, or choose another folder"
    )


def restore(checkpoint: Checkpoint, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Weights, buffers and the optimizer's moments back in place; the groups of the optimizer stay as they are."""
    model.load_state_dict(checkpoint.model)
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": checkpoint.optimizer, "param_groups": groups})


def _checksum(tensors: Mapping[str, Tensor], text: str) -> str:
    total = zlib.crc32(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        total = zlib.crc32(f"{name} {tensor.dtype} {list(tensor.shape)}".encode(), total)
        total = of_tensors([tensor.cpu()], total)
    return f"{total:08x}"


def _damaged(path: Path, why: str) -> BadCheckpoint:
    return BadCheckpoint(
        f"`path` must be a whole checkpoint; {path} is damaged ({why}). Remedy: delete this file and resume, which "
        "starts this run from its first epoch, or take a copy of the file from elsewhere"
    )
