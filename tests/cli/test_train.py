"""`gossamer train`: what it prints, what it leaves on disk, and how it tells mistakes."""

from __future__ import annotations

import json
import os
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import typer
from typer.testing import CliRunner

from gossamer.cli import app
from gossamer.cli.errors import told_plainly
from gossamer.training import checkpoint as files
from gossamer.training.checkpoint import NotWritten

SMALL = ("--width", "8", "--layers", "2", "--epochs", "4")
EXAMPLE = Path(__file__).parents[2] / "examples" / "train.py"


@pytest.fixture(autouse=True)
def _same_threads_after() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["train", *arguments], catch_exceptions=False, env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    return result.stdout


def refused(*arguments: str) -> str:
    """The message of a command that must fail; nothing may be on standard output."""
    result = CliRunner().invoke(app, ["train", *arguments], catch_exceptions=False, env={"COLUMNS": "200"})
    assert result.exit_code == 2 and result.stdout == "", result.output
    assert "Traceback" not in result.stderr
    return result.stderr


@pytest.mark.parametrize("model", ["gcn", "sage", "gin", "gat"])
def test_the_last_lines_say_score_time_and_place(model: str, tmp_path: Path) -> None:
    text = run("digits", "--model", model, *SMALL, "--recipe", "none", "--out", str(tmp_path / "run"))
    assert text.startswith("digits: test accuracy 0.") and "s per epoch" in text and str(tmp_path / "run") in text
    assert {"run.json", "result.json", "checkpoint.safetensors"} <= {path.name for path in (tmp_path / "run").iterdir()}


def test_json_is_one_object_and_nothing_else(tmp_path: Path) -> None:
    told = json.loads(run("digits", *SMALL, "--norm", "layer", "--json", "--recipe", "pyg", "--threads", "1"))
    assert told["metric"] == "accuracy" and told["epochs_run"] == 4 and len(told["history"]["loss"]) == 4
    assert told["settings"]["norm"] == "layer" and told["recipe"] == "pyg" and told["out"] is None


def test_json_on_standard_output_of_a_real_process() -> None:
    command = [sys.executable, "-m", "gossamer", "train", "arxiv-like", "--scale", "0.01", *SMALL, "--json"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    assert json.loads(done.stdout)["settings"]["scale"] == 0.01
    assert "4/4" in done.stderr


def test_a_set_with_many_labels() -> None:
    text = run("yelp-like", "--scale", "0.001", *SMALL)
    assert text.startswith("yelp-like: test micro-F1 0.")
    assert json.loads(run("yelp-like", "--scale", "0.001", *SMALL, "--json"))["metric"] == "micro_f1"


def test_resuming_goes_further_and_gives_the_same(tmp_path: Path) -> None:
    out = ("--out", str(tmp_path / "run"), "--json")
    run("digits", *SMALL, *out)
    longer = json.loads(run("digits", *SMALL[:-1], "7", *out, "--resume"))
    whole = json.loads(run("digits", *SMALL[:-1], "7", "--json"))
    assert longer["history"]["loss"] == whole["history"]["loss"]


def test_the_seed_is_of_the_weights_too() -> None:
    losses = [json.loads(run("digits", *SMALL, "--json", "--seed", seed))["history"]["loss"] for seed in "001"]
    assert losses[0] == losses[1] != losses[2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("digts",), "there is no dataset 'digts'. Nearest: digits"),
        (("digits", "--model", "gatt"), "there is no model 'gatt'. Did you mean 'gat'?"),
        (("digits", "--recipe", "flot32"), "there is no recipe 'flot32'. Did you mean 'float32'?"),
        (("digits", "--epochs", "0"), "`epochs` must be a whole number of at least 1 (got 0)"),
        (("digits", "--lr", "-1"), "`lr` must be a finite number above 0 (got -1.0)"),
        (("digits", "--dropout", "1"), "`dropout` must be at least 0 and below 1 (got 1.0)"),
        (("digits", "--norm", "bach"), "`norm` must be one of batch, layer, none (got 'bach')"),
        (("digits", "--seed", "-1"), "`seed` must be a whole number"),
        (("digits", "--threads", "0"), "`--threads` must be at least 1 (got 0)"),
        (("digits", "--scale", "0.5"), "dataset 'digits' takes no option 'scale'"),
        (("digits", "--split", "3"), "dataset 'digits' takes no option 'split'"),
        (("digits", "--resume"), "`resume` needs `out`"),
        (("digits", "--resume", "--out", "none"), "`out` must hold a run to resume"),
        (("papers-like", "--scale", "-1"), "scale"),
    ],
)
def test_mistakes_are_told_in_one_message(
    arguments: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    told = refused(*arguments)
    assert told.startswith("Error: ") and message in told and len(told.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_a_folder_that_holds_a_run(tmp_path: Path) -> None:
    out = ("--out", str(tmp_path / "run"))
    run("digits", *SMALL, *out)
    assert "add --resume" in refused("digits", *SMALL, *out)
    assert "dropout is 0.5 there and 0.1 here" in refused("digits", *SMALL, *out, "--dropout", "0.1")
    (tmp_path / "run" / "checkpoint.safetensors").write_bytes(b"")
    assert "is damaged" in refused("digits", *SMALL, *out, "--resume")


def test_only_what_was_written_for_the_user_loses_its_traceback() -> None:
    for error in (OSError("disk"), NotWritten("full"), PermissionError(13, "denied")):
        with pytest.raises(typer.Exit) as caught, told_plainly():
            raise error
        assert caught.value.exit_code == 2
    for bug in (RuntimeError("of torch"), KeyError("x"), ValueError("raised by a test, not by the library")):
        with pytest.raises(type(bug)), told_plainly():
            raise bug


def test_sigterm_ends_a_run_like_an_interruption(tmp_path: Path) -> None:
    """As a scheduler sends it before it kills: with a message, and a checkpoint that a resumed run goes on from."""
    command = ["digits", *SMALL, "--epochs", "100000", "--checkpoint-seconds", "0", "--out", str(tmp_path / "run")]
    process = subprocess.Popen(
        [sys.executable, "-m", "gossamer", "train", *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not list((tmp_path / "run").glob("checkpoint.safetensors")):
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    out, told = process.communicate(timeout=60)
    assert process.returncode == 143 and out == "" and "Traceback" not in told
    assert f"Stopped. Add --resume --out {tmp_path / 'run'} to continue." in told
    done = files.load(tmp_path / "run" / "checkpoint.safetensors").state["epoch"]
    run(*command, "--epochs", str(done + 1), "--resume")


def test_sigterm_is_as_before_after_a_command() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(typer.Exit) as stopped, told_plainly():
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)
    assert stopped.value.exit_code == 143 and signal.getsignal(signal.SIGTERM) is before


def test_an_interruption_says_how_to_go_on(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as caught, told_plainly("Go on with --resume."):
        raise KeyboardInterrupt
    assert caught.value.exit_code == 130
    assert capsys.readouterr().err == "Stopped. Go on with --resume.\n"


def test_the_example_runs_and_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), str(tmp_path / "run")])
    runpy.run_path(str(EXAMPLE))
    first = capsys.readouterr().out
    runpy.run_path(str(EXAMPLE))
    assert capsys.readouterr().out == first and first.startswith("test accuracy 0.9")


@pytest.mark.skipif("GOSSAMER_DATA" not in os.environ, reason="needs the graphs in GOSSAMER_DATA")
@pytest.mark.parametrize(
    ("name", "metric"), [("cora", "accuracy"), ("minesweeper", "roc_auc"), ("tu_mutag", "accuracy")]
)
def test_real_graphs(name: str, metric: str) -> None:
    told = json.loads(run(name, *SMALL, "--split", "0", "--json"))
    assert told["metric"] == metric and 0 < told["test"] <= 1


def test_mini_batches(tmp_path) -> None:
    options = ("--fanouts", "5,5", "--batch-size", "64", "--features", "scalar:1", "--model", "sage")
    found = json.loads(run("digits", *SMALL, *options, "--out", str(tmp_path / "run"), "--json"))
    assert found["test"] > 0.2
    written = json.loads((tmp_path / "run" / "run.json").read_text())["settings"]
    assert written["fanouts"] == [5, 5] and written["codec"].startswith("Scalar(bits=1")
    assert "`--features` needs a recipe" in refused("digits", *SMALL, "--features", "scalar:1", "--recipe", "none")
    assert "one number for each of the model's 2 layers" in refused("digits", *SMALL, "--fanouts", "5")
