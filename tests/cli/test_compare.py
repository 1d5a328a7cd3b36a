"""`gossamer compare`: the table, the files, JSON alone on standard output, and errors in one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gossamer.cli import app
from gossamer.cli.compare import names
from gossamer.comparison import inference_worker, worker
from gossamer.comparison.worker import Job
from gossamer.measurement import fresh_process

FORM = {"test": 0.5, "count": 1797, "seconds": 0.1, "per_second": 17970.0, "peak_bytes": 10, "file_bytes": 5}
QUICK = ("--epochs", "2", "--seeds", "1", "--width", "8")


def pretend(function: Any, args: tuple[Any, ...], kwargs: Any, on_message: Any) -> fresh_process.Fresh[Any]:
    if function is not worker.run:
        return fresh_process.Fresh(0.5 if function is inference_worker.train_weights else dict(FORM), 0, 0.0)
    job: Job = args[0]
    curve = {name: [0.5, 0.6] for name in ("loss", "val", "test", "seconds")}
    figures = {"test": 0.6, "val": 0.5, "best_epoch": 2, "seconds_per_epoch": 0.5, "peak_bytes": 10, "kept_bytes": 5}
    return fresh_process.Fresh({"seed": job.seed, **figures, "curve": curve, "error": None}, 0, 0.0)


@pytest.fixture(autouse=True)
def _in_an_empty_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(fresh_process, "listen", pretend)


def run(*arguments: str, code: int = 0) -> Any:
    result = CliRunner().invoke(app, ["compare", *arguments], env={"COLUMNS": "120"})
    assert result.exit_code == code, result.output
    return result


def test_table_and_files() -> None:
    shown = run("digits", *QUICK).stdout
    for words in (
        "PyG edge_index",
        "PyG CSR",
        "Gossamer float32",
        "Gossamer tango",
        "Gossamer exact-int2",
        "Gossamer feather",
        "compare/digits/comparison.json",
    ):
        assert words in shown
    assert Path("compare/digits/comparison.html").stat().st_size > 1000
    assert json.loads(Path("compare/digits/comparison.json").read_text())["settings"]["epochs"] == 2


def test_a_set_with_many_labels() -> None:
    shown = run("yelp-like", "--scale", "0.001", *QUICK).stdout
    assert "micro-F1" in shown.split("variant")[0], "unbroken in the head of the table"
    assert "at the same micro-F1 (60.0 against 60.0, one seed)" in shown
    assert "Micro-F1 against memory" in Path("compare/yelp-like/comparison.html").read_text()


def test_json_and_nothing_else() -> None:
    result = run("digits", *QUICK, "--json", "--out", "here", "--baselines", "csr", "--threads", "1")
    found = json.loads(result.stdout)
    assert found == json.loads(Path("here/comparison.json").read_text())
    ours = ["float32", "tango", "exact-int2", "feather"]
    assert [row["name"] for row in found["variants"]] == ["pyg-csr", *ours] and found["settings"]["threads"] == 1
    assert result.stderr == ""


def test_what_is_left_out_is_said() -> None:
    assert "pyg-csr is left out: PyG's GATConv" in run("digits", *QUICK, "--model", "gat").stdout


def test_inference() -> None:
    shown = run("digits", *QUICK, "--recipes", "float32", "--inference", "--model", "gat").stdout
    first, second = shown.split("Inference: one call over 1,797 nodes")
    assert "Gossamer float32" in first and "engine int8, calibrated" not in first
    for words in ("PyG compiled", "engine int8, calibrated", "18.0 k", "0.100 s", "5.00 B"):
        assert words in second
    assert "pyg-csr is left out of the inference table: PyG's GATConv" in second
    assert "--inference" in run("digits", *QUICK, "--recipes", "float32", "--model", "gat", "--resume", code=2).stderr
    again = run("digits", *QUICK, "--recipes", "float32", "--inference", "--model", "gat", "--resume", "--json").stdout
    assert len(json.loads(again)["inference"]["rows"]) >= 6


def test_resume_and_refusal() -> None:
    run("digits", *QUICK)
    refused = run("digits", *QUICK, code=2)
    assert "--resume" in refused.stderr and "Traceback" not in refused.output
    run("digits", *QUICK, "--resume")
    assert "epochs is 2 there and 3 here" in run("digits", *QUICK, "--epochs", "3", "--resume", code=2).stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("digit",), "Nearest: digits"),
        (("digits", "--model", "gcnn"), "Did you mean 'gcn'"),
        (("digits", "--recipes", "float23"), "Did you mean 'float32'"),
        (("digits", "--baselines", "edge"), "Did you mean 'edge-index'"),
        (("digits", "--seeds", "0"), "`seeds` must be at least 1"),
        (("digits", "--split", "3"), "takes no option 'split'"),
    ],
)
def test_errors_are_one_line(arguments: tuple[str, ...], words: str) -> None:
    result = run(*arguments, code=2)
    assert words in result.stderr and result.stderr.count("\n") == 1 and result.stdout == ""
    assert not Path("compare").exists()


def test_an_interrupted_comparison_says_how_to_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*args: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(fresh_process, "listen", interrupt)
    assert "--resume" in run("digits", *QUICK, code=130).stderr


def test_names() -> None:
    assert names("float32, tango,,") == ["float32", "tango"] and names("") == []


def test_mini_batches() -> None:
    """Features in few bits stand beside PyG; the command that repeats it names the fan-outs."""
    found = json.loads(run("digits", *QUICK, "--model", "sage", "--layers", "2", "--minibatch", "--json").stdout)
    names_of = [variant["name"] for variant in found["variants"]]
    assert names_of == ["pyg-edge-index", "float32", "tango", "bifeat-1bit", "bifeat-vq"]
    assert "no CSR adjacency" in found["left_out"]["pyg-csr"]
    assert found["settings"]["fanouts"] == [10, 10] and found["settings"]["batch_size"] == 1024
    assert "--fanouts 10,10" in found["command"]
    shown = run("digits", *QUICK, "--fanouts", "10,x", code=2).output
    assert "`--fanouts` must be whole numbers separated by commas, as 10,10 (got '10,x')" in shown
