"""A checkpoint whose checksum is right and whose contents are anyone's: `BadCheckpoint`, or a run that goes on."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import random
import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

import gossamer as gs
from gossamer.training import TrainingDiverged, checkpoint
from gossamer.training.checkpoint import BadCheckpoint
from gossamer.training.models import build
from gossamer.training.run import Run

DATA = gs.datasets.load("powerlaw", num_nodes=100, num_edges=400, num_features=16, num_classes=3)
RECIPES: dict[str, Any] = {
    "plain": None,
    "precision": "tango-auto",
    "rows": gs.Recipe(backward=gs.TopRows(warmup=1, refresh=3, reallocate=1)),
    "greedy": gs.Recipe(backward=gs.TopRows(sample=False, allocation="greedy", warmup=1, refresh=3, reallocate=1)),
}
EPOCHS, FORGERIES = 3, int(os.environ.get("FORGERIES", "20"))


@pytest.fixture(autouse=True)
def no_board(monkeypatch):
    monkeypatch.setattr(Run, "_open_board", lambda run, history: None)


@pytest.fixture(params=RECIPES)
def recipe(request) -> Any:
    return RECIPES[request.param]


@pytest.fixture(scope="module")
def trained() -> dict[str, Path]:
    """Runs by recipe, made when they are asked for."""
    return {}


@pytest.fixture
def out(tmp_path, tmp_path_factory, trained, recipe) -> Path:
    """A finished run of that recipe, the test's own."""
    if repr(recipe) not in trained:
        trained[repr(recipe)] = tmp_path_factory.mktemp("trained") / "run"
        train(trained[repr(recipe)], recipe, EPOCHS, False)
    return shutil.copytree(trained[repr(recipe)], tmp_path / "run")


def train(out: Path, recipe: Any, epochs: int, resume: bool) -> None:
    torch.manual_seed(0)
    model = build("gcn", DATA, width=16, layers=3)
    gs.train(model, DATA, recipe, epochs=epochs, out=out, resume=resume, checkpoint_seconds=1e9, progress=False)


def go_on(out: Path, recipe: Any) -> bool:
    """Whether the checkpoint is believed; then an epoch is trained, and every generator is asked for numbers."""
    shutil.copytree(out, out.parent / "again")
    try:
        with contextlib.suppress(TrainingDiverged):  # other weights are other weights
            train(out.parent / "again", recipe, EPOCHS + 1, True)
        torch.rand(700), np.random.rand(700), [random.gauss(0, 1) for _ in range(400)]
    except BadCheckpoint as error:
        assert "checkpoint.safetensors" in str(error)
        return False
    finally:
        shutil.rmtree(out.parent / "again")
    return True


def read(out: Path) -> tuple[dict[str, Tensor], Any]:
    with safe_open(out / "checkpoint.safetensors", framework="pt") as file:
        tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118 (not a dict)
        return tensors, json.loads(file.metadata()["state"])


def write(out: Path, tensors: dict[str, Tensor], state: Any) -> None:
    text = json.dumps(state)
    metadata = {"format": checkpoint.FORMAT, "state": text, "checksum": checkpoint._checksum(tensors, text)}
    save_file(tensors, out / "checkpoint.safetensors", metadata=metadata)


def test_what_is_written_back_unchanged_is_believed(out, recipe):
    write(out, *read(out))
    assert go_on(out, recipe)


# Values -----------------------------------------------------------------------------------------------------------

JUNK: tuple[Any, ...] = (
    None, True, -1, 0, 10**9, 2**70, -0.5, 1e300, float("nan"), float("inf"), "", "text", "9" * 30, [], [1, 2], {},
    {"a": 1},
)  # fmt: skip


def places(state: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path to every value; of a list its first, second and last."""
    if path:
        yield path
    keys = list(state) if isinstance(state, dict) else []
    if isinstance(state, list):
        keys = sorted({0, min(1, len(state) - 1), len(state) - 1}) if state else []
    for key in keys:
        yield from places(state[key], (*path, key))


def test_other_values_in_the_state(out, recipe):
    tensors, state = read(out)
    draw = random.Random(0)
    known = list(places({name: part for name, part in state.items() if name not in ("settings", "versions")}))
    for path in draw.sample(known, min(FORGERIES, len(known))):
        spoiled = copy.deepcopy(state)
        at = spoiled
        for key in path[:-1]:
            at = at[key]
        if draw.random() < 0.2:
            del at[path[-1]]
        else:
            at[path[-1]] = draw.choice(JUNK)
        write(out, tensors, spoiled)
        go_on(out, recipe)


@pytest.mark.parametrize("state", [None, [], {}, "state", 3, {"history": []}])
@pytest.mark.parametrize("recipe", [None])
def test_another_state(out, recipe, state):
    write(out, read(out)[0], state)
    assert not go_on(out, recipe)


def set_numpys_position(tensors: dict[str, Tensor], state: Any) -> None:
    state["random"]["numpy"]["position"] = 10**9


def set_pythons_position(tensors: dict[str, Tensor], state: Any) -> None:
    state["random"]["python"]["words"][-1] = 10**9


def set_torchs_position(tensors: dict[str, Tensor], state: Any) -> None:
    raw = bytearray(tensors["random.torch"].numpy().tobytes())
    struct.pack_into("<QiiQ", raw, 0, 1, 300, 1, 624)
    tensors["random.torch"] = torch.frombuffer(raw, dtype=torch.uint8)


@pytest.mark.parametrize("recipe", [None])
@pytest.mark.parametrize("forge", [set_numpys_position, set_pythons_position, set_torchs_position])
def test_positions_outside_of_a_generators_state(out, recipe, forge):
    """numpy believes any, and the next number that is drawn ends the process."""
    tensors, state = read(out)
    forge(tensors, state)
    write(out, tensors, state)
    assert not go_on(out, recipe)


# Tensors ----------------------------------------------------------------------------------------------------------

SPOILS: dict[str, Callable[[Tensor], Tensor | None]] = {
    "missing": lambda x: None,
    "another dtype": lambda x: x.to(torch.float64 if x.dtype != torch.float64 else torch.int8),
    "half": lambda x: x.to(torch.bfloat16),
    "longer": lambda x: torch.cat([x.reshape(-1), x.reshape(-1), torch.ones(1, dtype=x.dtype)]),
    "no dimension": lambda x: x.reshape(-1)[:1].sum(dtype=x.dtype),
    "empty": lambda x: x.reshape(-1)[:0].clone(),
    "negative": lambda x: -1 - x,
}


@pytest.mark.parametrize("recipe", [None])
@pytest.mark.parametrize("kind", SPOILS)
def test_other_tensors(out, recipe, kind):
    tensors, state = read(out)
    believed = []
    for name in random.Random(0).sample(sorted(tensors), 8):
        made = SPOILS[kind](tensors[name])
        write(out, {k: v for k, v in tensors.items() if k != name} | ({} if made is None else {name: made}), state)
        if go_on(out, recipe):
            believed.append(name)
    if kind == "missing":
        assert not believed
    elif kind == "negative":
        assert not [name for name in believed if name.endswith(("step", "exp_avg_sq", "random.torch"))]
    else:  # torch converts an optimizer's moments
        assert all(name.startswith("optimizer.") or name.endswith("num_batches_tracked") for name in believed)


@pytest.mark.parametrize("recipe", [None])
@pytest.mark.parametrize(
    "name", ["other", "model", "optimizer.x.step", "optimizer.99.step", "optimizer.-1.step", "a.b"]
)
def test_a_tensor_more(out, recipe, name):
    tensors, state = read(out)
    write(out, tensors | {name: torch.ones(())}, state)
    assert not go_on(out, recipe)
