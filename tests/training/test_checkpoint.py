"""Checkpoints: nothing is lost on the way to disk and back, and damage is noticed."""

from __future__ import annotations

import errno
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from torch import nn

from gossamer.training import checkpoint as files
from gossamer.training import random_state
from gossamer.training.checkpoint import BadCheckpoint, Checkpoint, NotWritten


def trained() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2, bias=False))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.rand(5, 3)).sum().backward()
    optimizer.step()
    return model, optimizer


def checkpoint_of(model: nn.Module, optimizer: torch.optim.Optimizer, **state: Any) -> Checkpoint:
    state_dict, moments = dict(model.state_dict()), optimizer.state_dict()["state"]
    return Checkpoint(state_dict, files.copy_of(state_dict), moments, random_state.capture(), state)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    files.save(checkpoint_of(*trained(), history={"loss": [1 / 3]}), tmp_path / "checkpoint.safetensors")
    return tmp_path / "checkpoint.safetensors"


def test_weights_moments_generators_and_state_come_back(path: Path) -> None:
    model, optimizer = trained()
    found = files.load(path)
    assert found.state == {"history": {"loss": [1 / 3]}}
    fresh, untrained = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2, bias=False)), None
    untrained = torch.optim.Adam(fresh.parameters())
    files.check_fits(found, fresh, path)
    files.restore(found, fresh, untrained)
    for key, value in model.state_dict().items():
        assert torch.equal(fresh.state_dict()[key], value) and torch.equal(found.best[key], value)
    before, after = optimizer.state_dict()["state"], untrained.state_dict()["state"]
    assert before.keys() == after.keys()
    for index, moments in before.items():
        assert all(torch.equal(after[index][name], value) for name, value in moments.items())


def test_all_three_generators_continue(path: Path) -> None:
    random_state.seed_all(5)
    random.gauss(0, 1), np.random.standard_normal()  # both keep a spare value, which must come back too
    model, optimizer = trained()
    files.save(checkpoint_of(model, optimizer), path)
    expected = (torch.rand(3).tolist(), random.gauss(0, 1), np.random.standard_normal(), random.random())
    random_state.seed_all(6)
    random_state.restore(files.load(path).random)
    assert (torch.rand(3).tolist(), random.gauss(0, 1), np.random.standard_normal(), random.random()) == expected


def test_optimizer_values_that_are_no_tensors_come_back(path: Path) -> None:
    model, _ = trained()
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
    given = checkpoint_of(model, optimizer)
    given.optimizer[0] = {"momentum_buffer": torch.ones(4, 3), "calls": 3}
    files.save(given, path)
    found = files.load(path).optimizer[0]
    assert found["calls"] == 3 and torch.equal(found["momentum_buffer"], torch.ones(4, 3))


def test_tied_and_strided_weights_are_written(path: Path) -> None:
    model = nn.Linear(3, 3, bias=False)
    tied = nn.ModuleDict({"a": model, "b": model, "c": nn.Linear(3, 3)})
    tied.c.weight = nn.Parameter(torch.rand(3, 3).T)
    files.save(checkpoint_of(tied, torch.optim.Adam(tied.parameters())), path)
    found = files.load(path).model
    assert torch.equal(found["a.weight"], found["b.weight"]) and torch.equal(found["c.weight"], tied.c.weight)


def test_a_model_with_state_that_is_no_tensor_is_refused() -> None:
    with pytest.raises(TypeError, match=r"tensors alone in its state_dict \(got dict at 'extra'\)"):
        files.copy_of({"extra": {}})


def test_the_file_is_plain_safetensors_with_json(path: Path) -> None:
    with safe_open(path, framework="pt") as file:
        assert "model.0.weight" in file.keys()  # noqa: SIM118 (not a dict)
        assert json.loads(file.metadata()["state"])["history"] == {"loss": [1 / 3]}


def test_everybody_may_read_it_who_may_read_other_files(path: Path) -> None:
    (path.parent / "other").touch()
    assert path.stat().st_mode == (path.parent / "other").stat().st_mode


@pytest.mark.parametrize("share", [0.0, 0.0001, 0.1, 0.5, 0.9, 0.9999])
def test_a_truncated_file_is_noticed(path: Path, share: float) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(
        BadCheckpoint, match=r"is damaged \(it is truncated or not safetensors.*Remedy: delete this file"
    ):
        files.load(path)


def test_a_flipped_bit_is_noticed_wherever_it_is(path: Path) -> None:
    whole, generator = path.read_bytes(), random.Random(0)
    for _ in range(300):
        position, bit = generator.randrange(len(whole)), generator.randrange(8)
        flipped = bytearray(whole)
        flipped[position] ^= 1 << bit
        path.write_bytes(flipped)
        with pytest.raises(BadCheckpoint, match="is damaged"):
            files.load(path)


def test_a_safetensors_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    save_file({"weight": torch.ones(2)}, tmp_path / "other.safetensors")
    with pytest.raises(BadCheckpoint, match=r"its format is None instead of 'gossamer.checkpoint.1'"):
        files.load(tmp_path / "other.safetensors")


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="there is no file"):
        files.load(tmp_path / "none.safetensors")


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (nn.Sequential(nn.Linear(3, 9), nn.BatchNorm1d(9)), r"0.weight is \[4, 3\], the model has \[9, 3\]"),
        (nn.Sequential(nn.Linear(3, 4)), r"1.bias is not in the model.*and 3 more"),
        (nn.ModuleDict({"a": nn.Linear(3, 4)}), r"a.weight is missing; a.bias is missing"),
    ],
)
def test_the_checkpoint_of_another_model_is_refused(path: Path, other: nn.Module, message: str) -> None:
    with pytest.raises(BadCheckpoint, match=message):
        files.check_fits(files.load(path), other, path)


def test_a_full_disk_leaves_the_previous_checkpoint(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = path.read_bytes()

    def full(self: Path, content: bytes) -> int:
        with open(self, "wb") as file:
            file.write(content[: len(content) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(NotWritten, match=r"No space left on device.*is intact. Remedy: free some disk space"):
        files.save(checkpoint_of(*trained()), path)
    assert path.read_bytes() == before
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]
