"""Runs on disk: whatever stops one, resuming it ends with the same bits; and no folder is taken from another run."""

from __future__ import annotations

import errno
import itertools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn
from torch_geometric.data import Data

import gossamer as gs
from gossamer.training import TrainingDiverged
from gossamer.training import checkpoint as files
from gossamer.training.checkpoint import BadCheckpoint, NotWritten
from gossamer.training.history import Epoch, TrainResult
from gossamer.training.models import build

DIGITS = gs.datasets.load("digits")


def model_of(width: int = 8, seed: int = 0, layers: int = 2) -> nn.Module:
    torch.manual_seed(seed)
    return build("gcn", DIGITS, layers=layers, width=width)


def run(out: Path, model: nn.Module | None = None, **options: Any) -> TrainResult:
    settings = {"epochs": 8, "checkpoint_seconds": 0, "progress": False} | options
    return gs.train(model or model_of(), DIGITS, out=out, **settings)


class Stop(Exception):
    """What a test raises to end a run."""


def stop_at(number: int) -> Callable[[Epoch], None]:
    def stop(epoch: Epoch) -> None:
        if epoch.number == number:
            raise Stop

    return stop


def same_weights(one: nn.Module, other: nn.Module) -> bool:
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("checkpoint_seconds", [0, 1e9])
@pytest.mark.parametrize("stopped", [1, 5, 8])
def test_a_stopped_run_ends_like_one_that_was_not(tmp_path: Path, stopped: int, checkpoint_seconds: float) -> None:
    whole, resumed = model_of(), model_of()
    expected = run(tmp_path / "whole", whole)
    with pytest.raises(Stop):
        run(tmp_path / "stopped", resumed, on_epoch=stop_at(stopped), checkpoint_seconds=checkpoint_seconds)
    resumed = model_of(seed=1)  # other weights at first: those of the checkpoint count
    result = run(tmp_path / "stopped", resumed, resume=True)
    assert same_weights(whole, resumed)
    assert result.history["loss"] == expected.history["loss"] and result.history["test"] == expected.history["test"]
    assert result.best_epoch == expected.best_epoch


@pytest.mark.parametrize("recipe", ["float32", "exact-int2", "tango", "rsc", "tango-rsc", "feather"])
def test_a_lightened_run_is_resumed_too(tmp_path: Path, recipe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped in the middle of epoch 5, with its gradients made and its weights not yet; noise goes on as it would."""
    whole, model = model_of(width=16, layers=3), model_of(width=16, layers=3)
    expected = run(tmp_path / "whole", whole, recipe=recipe)
    steps = itertools.count(1)
    step = torch.optim.Adam.step

    def step_or_stop(self: torch.optim.Adam, closure: Any = None) -> Any:
        if next(steps) == 5:
            raise Stop
        return step(self, closure)

    with monkeypatch.context() as patch, pytest.raises(Stop):
        patch.setattr(torch.optim.Adam, "step", step_or_stop)
        run(tmp_path / "stopped", model, recipe=recipe)
    assert files.load(tmp_path / "stopped" / "checkpoint.safetensors").state["epoch"] == 4
    resumed = model_of(width=16, seed=1, layers=3)
    result = run(tmp_path / "stopped", resumed, recipe=recipe, resume=True)
    assert same_weights(whole, resumed) and result.history["loss"] == expected.history["loss"]


ALIVE: dict[str, Any] = {"warmup": 1, "refresh": 3, "reallocate": 2}
SELECTING = {
    "rsc": gs.Recipe(backward=gs.TopRows(sample=False, **ALIVE)),
    "tango-rsc": gs.Recipe(compute=gs.Int8(), backward=gs.TopRows(**ALIVE)),
    "greedy": gs.Recipe(backward=gs.TopRows(sample=False, allocation="greedy", rank="score", **ALIVE)),
    "at random": gs.Recipe(backward=gs.TopRows(**ALIVE)),
}


@pytest.mark.parametrize("stopped", [2, 4, 7])
@pytest.mark.parametrize("recipe", SELECTING)
def test_a_selection_of_rows_is_resumed_too(tmp_path: Path, recipe: str, stopped: int) -> None:
    """With its rows, their age, the shares of the layers and the averages behind them; all in the checkpoint."""
    models = [model_of(width=16, seed=seed, layers=3) for seed in (0, 0, 1)]
    expected = run(tmp_path / "whole", models[0], recipe=SELECTING[recipe])
    with pytest.raises(Stop):
        run(tmp_path / "stopped", models[1], recipe=SELECTING[recipe], on_epoch=stop_at(stopped))
    result = run(tmp_path / "stopped", models[2], recipe=SELECTING[recipe], resume=True)
    assert same_weights(models[0], models[2]) and result.history["loss"] == expected.history["loss"]
    assert gs.selection(models[2]).passes == 8 and max(x.draws for x in gs.selection(models[2]).layers.values()) >= 2
    kinds = {path.name.split(".")[0] for path in (tmp_path / "stopped").iterdir()}
    assert kinds == {"run", "result", "checkpoint", "events"}


def test_a_selection_leaves_the_optimizer_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One Adam in all, which counts every step."""
    made: list[torch.optim.Adam] = []
    init = torch.optim.Adam.__init__

    def noted(self: torch.optim.Adam, *args: Any, **options: Any) -> None:
        made.append(self)
        init(self, *args, **options)

    monkeypatch.setattr(torch.optim.Adam, "__init__", noted)
    run(tmp_path, model_of(layers=3), recipe=SELECTING["rsc"])
    assert len(made) == 1 and all(int(moments["step"]) == 8 for moments in made[0].state.values())


def test_the_last_epochs_are_exact(tmp_path: Path) -> None:
    """From int(0.8 * 10) = 8 epochs on."""
    phases: list[str] = []
    model = model_of(width=16, layers=3)

    def note(epoch: Epoch) -> None:
        phases.append(gs.selection(model).phase)

    run(tmp_path, model, recipe=SELECTING["rsc"], epochs=10, on_epoch=note)
    assert phases == ["warm-up", *["selected"] * 7, *["exact"] * 2]


def test_early_stopping_is_resumed_too(tmp_path: Path) -> None:
    whole = model_of()
    expected = run(tmp_path / "whole", whole, epochs=300, patience=3, lr=0.05)
    with pytest.raises(Stop):
        run(tmp_path / "stopped", epochs=300, patience=3, lr=0.05, on_epoch=stop_at(expected.epochs_run - 2))
    result = run(tmp_path / "stopped", resumed := model_of(), epochs=300, patience=3, lr=0.05, resume=True)
    assert result.epochs_run == expected.epochs_run < 300 and same_weights(whole, resumed)
    again = run(tmp_path / "stopped", model_of(), epochs=300, patience=3, lr=0.05, resume=True)
    assert again == result, "a finished run stays finished"


def test_a_finished_run_can_go_further(tmp_path: Path) -> None:
    whole, longer = model_of(), model_of()
    expected = run(tmp_path / "whole", whole, epochs=15)
    run(tmp_path / "longer", longer, epochs=6)
    result = run(tmp_path / "longer", longer := model_of(), epochs=15, resume=True)
    assert result.history["loss"] == expected.history["loss"] and same_weights(whole, longer)
    assert json.loads((tmp_path / "longer" / "run.json").read_text())["settings"]["epochs"] == 15
    with pytest.raises(ValueError, match=r"`epochs` must be at least 15.*got 3"):
        run(tmp_path / "longer", epochs=3, resume=True)


def test_what_the_folder_holds(tmp_path: Path) -> None:
    result = run(tmp_path / "a" / "b", settings={"model": "gcn"}, recipe="float32")
    told = json.loads((tmp_path / "a" / "b" / "run.json").read_text())
    assert told["settings"]["model"] == "gcn" and told["settings"]["lr"] == 0.01
    assert told["settings"]["recipe"] == json.loads(gs.Recipe().to_json())
    assert told["environment"]["torch"] == torch.__version__
    assert json.loads((tmp_path / "a" / "b" / "result.json").read_text()) == json.loads(result.to_json())
    state = files.load(tmp_path / "a" / "b" / "checkpoint.safetensors").state
    assert state["epoch"] == 8 and state["settings"] == told["settings"] and "torch" in state["versions"]


def test_tensorboard_has_every_epoch_once(tmp_path: Path) -> None:
    for stopped in (3, 6):
        with pytest.raises(Stop):
            run(tmp_path / "run", resume=(tmp_path / "run").exists(), on_epoch=stop_at(stopped))
    result = run(tmp_path / "run", resume=True)
    events = EventAccumulator(str(tmp_path / "run")).Reload()
    assert set(events.Tags()["scalars"]) == {"loss", "val", "test", "seconds"}
    points = events.Scalars("loss")
    assert [point.step for point in points] == list(range(1, 9))
    assert [point.value for point in points] == pytest.approx(result.history["loss"])  # kept as float32


KILLER = """
import json, multiprocessing, random, sys, time
from pathlib import Path
import torch
torch.set_num_threads(1)  # a process that used OpenMP threads cannot be forked
import gossamer as gs
from gossamer.training import checkpoint
from gossamer.training.models import build
from torch.utils.tensorboard import SummaryWriter
from torch_geometric.data import Data
from torch_geometric.utils import subgraph

digits = gs.datasets.load("digits")
graphs = []
for part in torch.randperm(1797, generator=torch.Generator().manual_seed(0)).split(30):
    edges, _ = subgraph(part, digits.edge_index, relabel_nodes=True, num_nodes=1797)
    graphs.append(Data(x=digits.x[part], edge_index=edges, y=(digits.y[part] < 5).sum()[None] % 2))

def child(data, folder, resume):
    torch.manual_seed(0)
    model = build("gcn", data, layers=2, width=16, dropout=0.5)
    gs.train(model, data, epochs=30, out=folder, resume=resume, checkpoint_seconds=0, batch_size=16, progress=False)

def epochs_done(folder):
    path = folder / "checkpoint.safetensors"
    return checkpoint.load(path).state["epoch"] if path.exists() else 0

def run(data, folder, kills, longest):
    killed_at = []
    while True:
        process = multiprocessing.get_context("fork").Process(
            target=child, args=(data, folder, (folder / "run.json").exists())
        )
        process.start()
        if len(killed_at) < kills:
            time.sleep(moments.uniform(0, longest))
            process.kill()
        process.join()
        if process.exitcode == 0:
            return killed_at
        assert process.exitcode == -9, process.exitcode
        killed_at.append(epochs_done(folder))

moments = random.Random(0)
for level, data in (("node", digits), ("graph", graphs)):
    folder, start = Path(sys.argv[1]) / level, time.monotonic()
    run(data, folder / "whole", 0, 0)
    quarter = (time.monotonic() - start) / 4  # so that no attempt before the last can reach the end
    print(level, *run(data, folder / "killed", 12, quarter))
"""


@pytest.fixture(scope="module")
def killed_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a node-level and a graph-level run, each once whole and once killed again and again."""
    folder = tmp_path_factory.mktemp("killed")
    command = [sys.executable, "-c", KILLER, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    (folder / "log").write_text(done.stdout)
    return folder


@pytest.mark.parametrize("level", ["node", "graph"])
def test_kill_9_at_random_moments(killed_runs: Path, level: str) -> None:
    lines = [line.split() for line in (killed_runs / "log").read_text().splitlines()]
    killed_at = next(epochs for name, *epochs in lines if name == level)
    assert len(killed_at) >= 3
    folders = [killed_runs / level / name for name in ("whole", "killed")]
    whole, killed = (files.load(folder / "checkpoint.safetensors") for folder in folders)
    for part in ("model", "best"):
        expected, found = getattr(whole, part), getattr(killed, part)
        assert expected.keys() == found.keys() and all(torch.equal(expected[key], found[key]) for key in expected)
    assert torch.equal(whole.random.torch, killed.random.torch)
    assert whole.state["history"]["loss"] == killed.state["history"]["loss"]
    results = [json.loads((folder / "result.json").read_text()) for folder in folders]
    assert results[0]["test"] == results[1]["test"] and results[0]["epochs_run"] == 30
    assert not list(folders[1].glob(".*")), "temporary files of killed processes are removed"


def test_a_folder_with_another_run_is_left_alone(tmp_path: Path) -> None:
    run(tmp_path / "run")
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    for resume in (False, True):
        with pytest.raises(
            ValueError, match=r"holds another run: lr is 0.01 there and 0.5 here; seed is 0 there and 7 here"
        ):
            run(tmp_path / "run", lr=0.5, seed=7, resume=resume)
    with pytest.raises(ValueError, match=r"holds another run: epochs is 8 there and 13 here"):
        run(tmp_path / "run", epochs=13)
    with pytest.raises(
        FileExistsError, match=r"holds this very run, finished\); add --resume .*or choose another folder"
    ):
        run(tmp_path / "run")
    assert before == {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}


def test_folders_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"`out` must hold a run to resume .*leave out --resume"):
        run(tmp_path / "none", resume=True)
    assert not (tmp_path / "none").exists()
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError, match=r"`out` must be a folder .*is a file"):
        run(tmp_path / "file")
    (tmp_path / "result.json").touch()
    with pytest.raises(FileExistsError, match=r"holds result.json but no run.json"):
        run(tmp_path)
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(ValueError, match=r"run.json is damaged"):
        run(tmp_path)
    with pytest.raises(TypeError, match=r"`settings` must hold numbers, strings"):
        run(tmp_path / "new", settings={"model": nn.Identity()})


@pytest.mark.parametrize("length", [0, 100, 3000])
def test_a_truncated_checkpoint_is_told_and_the_remedy_works(tmp_path: Path, length: int) -> None:
    whole, again = model_of(), model_of()
    run(tmp_path / "run", whole)
    path = tmp_path / "run" / "checkpoint.safetensors"
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(BadCheckpoint, match=r"damaged.*Remedy: delete this file and resume"):
        run(tmp_path / "run", resume=True)
    path.unlink()
    run(tmp_path / "run", again, resume=True)
    assert same_weights(whole, again)


def test_the_checkpoint_of_another_model_is_told(tmp_path: Path) -> None:
    run(tmp_path / "small")
    run(tmp_path / "large", model_of(width=16))
    shutil.copy(tmp_path / "large" / "checkpoint.safetensors", tmp_path / "small")
    with pytest.raises(BadCheckpoint, match=r"they differ: convs.0.bias is \[16\], the model has \[8\]"):
        run(tmp_path / "small", resume=True)


def test_a_diverging_run_keeps_its_last_checkpoint(tmp_path: Path) -> None:
    data = DIGITS.clone()

    def spoil(epoch: Epoch) -> None:
        if epoch.number == 3:
            data.x[0, 0] = float("inf")

    with pytest.raises(TrainingDiverged, match=r"in epoch 4, .*keeps the checkpoint of epoch 3"):
        gs.train(model_of(), data, epochs=9, out=tmp_path, checkpoint_seconds=0, progress=False, on_epoch=spoil)
    assert files.load(tmp_path / "checkpoint.safetensors").state["epoch"] == 3


def test_a_full_disk_stops_the_run_and_keeps_what_was_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, resumed = model_of(), model_of()
    run(tmp_path / "whole", whole)

    def fill_disk(epoch: Epoch) -> None:
        def full(*_: Any) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

        if epoch.number == 5:
            monkeypatch.setattr(Path, "write_bytes", full)

    with pytest.raises(NotWritten, match=r"No space left on device.*what was there before is intact. Remedy: free"):
        run(tmp_path / "run", resumed, on_epoch=fill_disk)
    monkeypatch.undo()
    assert files.load(tmp_path / "run" / "checkpoint.safetensors").state["epoch"] == 4
    run(tmp_path / "run", resumed := model_of(), resume=True)
    assert same_weights(whole, resumed)


TINY_DISK = 'mount -t tmpfs -o size={size} tmpfs "$1" && shift && "$@"; code=$?; ls -A "{folder}"; exit $code'


def test_a_disk_that_is_really_full(tmp_path: Path) -> None:
    prefix = ["unshare", "--map-root-user", "--mount"]
    if shutil.which("unshare") is None or subprocess.run([*prefix, "true"], capture_output=True).returncode:
        pytest.skip("needs user namespaces, to mount a tiny file system")
    script = TINY_DISK.format(size="48k", folder=tmp_path / "run")
    train = [sys.executable, "-m", "gossamer", "train", "digits", "--width", "32", "--epochs", "3"]
    command = [*prefix, "sh", "-c", script, "sh", str(tmp_path), *train, "--out", str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert done.returncode == 2, done.stderr
    assert "No space left on device" in done.stderr and "Traceback" not in done.stderr
    assert "run.json" in done.stdout and ".checkpoint" not in done.stdout


def test_lists_of_graphs_resume_with_the_same_order_of_batches(tmp_path: Path) -> None:
    edges = torch.tensor([[0, 1, 2], [1, 2, 0]])
    generator = torch.Generator().manual_seed(0)
    graphs = [
        Data(x=torch.rand(3, 4, generator=generator), edge_index=edges, y=torch.tensor([i % 2])) for i in range(40)
    ]
    models = []
    for stopped in (None, 3):
        out = tmp_path / str(stopped)
        options: dict[str, Any] = {"epochs": 6, "batch_size": 8, "out": out, "progress": False}
        torch.manual_seed(0)
        models.append(build("gin", graphs, width=8, layers=2))
        if stopped:
            with pytest.raises(Stop):
                gs.train(models[-1], graphs, **options, checkpoint_seconds=0, on_epoch=stop_at(stopped))
            models[-1] = build("gin", graphs, width=8, layers=2)
        gs.train(models[-1], graphs, **options, resume=stopped is not None)
    assert same_weights(*models)


def test_a_state_of_another_recipe_is_refused(tmp_path: Path) -> None:
    """What a checkpoint says of selected rows may be anyone's; the model is not touched."""
    recipe = SELECTING["rsc"]
    with pytest.raises(Stop):
        run(tmp_path, model_of(layers=3), recipe=recipe, on_epoch=stop_at(4))
    path = tmp_path / "checkpoint.safetensors"
    found = files.load(path)
    found.state["model"]["backward"]["layers"]["convs.1"]["keep"] = "12:not bits"
    files.save(found, path)
    model = model_of(layers=3, seed=5)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(BadCheckpoint, match=r"checkpoint.safetensors is not that of this recipe.*start again"):
        run(tmp_path, model, recipe=recipe, resume=True)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
