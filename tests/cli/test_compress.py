"""`gossamer compress`: what it prints, what it writes, and how it tells mistakes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import gossamer as gs
from gossamer.cli import app


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """With features of 40 nodes and their graph."""
    monkeypatch.chdir(tmp_path)
    draw = torch.Generator().manual_seed(0)
    np.save("x.npy", torch.randn(40, 12, generator=draw).half().numpy())
    edges = torch.randint(0, 40, (2, 200), generator=draw)
    gs.Graph.from_edge_index(torch.cat([edges, edges.flip(0)], 1), 40).save("graph.gsg")
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["compress", *arguments], catch_exceptions=False, env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    return result.stdout


def refused(*arguments: str) -> str:
    """The message of a command that must fail; nothing may be on standard output."""
    result = CliRunner().invoke(app, ["compress", *arguments], catch_exceptions=False, env={"COLUMNS": "200"})
    assert result.exit_code == 2 and result.stdout == "", result.output
    assert "Traceback" not in result.stderr
    return result.stderr


def test_a_file_becomes_a_store() -> None:
    text = run("x.npy", "x.gsf", "--codec", "scalar:8")
    store = gs.FeatureStore.open("x.gsf", verify=True)
    assert text.startswith(f"{store.path}: 40 x 12 as Scalar(bits=8")
    assert f"{store.ratio:.1f}x smaller than float32, {store.ratio / 2:.1f}x than float16" in text
    assert torch.equal(store.decode(), gs.compress("x.npy", gs.Scalar(bits=8)).decode())


def test_principal_components() -> None:
    text = run("x.npy", "x.gsf", "--codec", "principal:2:scalar:8")
    store = gs.FeatureStore.open("x.gsf", verify=True)
    assert "40 x 12 as Principal(ratio=2, then=Scalar(bits=8" in text
    assert torch.equal(store.decode(), gs.compress("x.npy", gs.Principal(2, gs.Scalar(8))).decode())


def test_settings_and_json() -> None:
    told = json.loads(
        run("x.npy", "x.gsf", "--codec", "scalar:2", "--json", "--dtype", "bfloat16", "--block", "7", "--sample", "9",
            "--threads", "1")
    )  # fmt: skip
    store = gs.FeatureStore.open("x.gsf")
    assert store.dtype == torch.bfloat16 and told["nbytes"] == store.nbytes and told["shape"] == [40, 12]
    assert told["out"] == str(store.path) and told["source_dtype"] == "float16" and told["report"] is None
    assert (told["ratio"], told["ratio_on_disk"]) == (store.ratio, store.ratio_on_disk) and told["seconds"] > 0


def test_reports() -> None:
    text = run("x.npy", "x.gsf", "--codec", "scalar:4", "--report", "--graph", "graph.gsg")
    assert "Khat for 1, 2, 3 layers" in text and "eta_3" in text and "x.gsf: 40 x 12" in text
    told = json.loads(run("x.npy", "x.gsf", "--codec", "scalar:4", "--report", "--graph", "graph.gsg", "--json"))
    again = gs.feature_report("x.npy", gs.FeatureStore.open("x.gsf"), gs.Graph.load("graph.gsg"))
    assert told["report"] == json.loads(again.to_json())
    assert "Pass a graph" in run("x.npy", "x.gsf", "--codec", "scalar:4", "--report")


def test_features_of_a_dataset() -> None:
    told = json.loads(run("digits.gsf", "--dataset", "digits", "--codec", "scalar:4", "--report", "--json"))
    data = gs.datasets.load("digits")
    assert torch.equal(gs.FeatureStore.open("digits.gsf").decode(), gs.compress(data.x, gs.Scalar(bits=4)).decode())
    assert len(told["report"]["khat"]) == 3


def test_several_parquet_files() -> None:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    x = np.load("x.npy").astype(np.float32)
    for name, part in (("a", x[:11]), ("b", x[11:])):
        parquet.write_table(pa.table({f"f{k}": part[:, k] for k in range(12)}), f"{name}.parquet")
    run("a.parquet", "b.parquet", "x.gsf", "--codec", "scalar:8")
    assert torch.equal(gs.FeatureStore.open("x.gsf").decode(), gs.compress(x, gs.Scalar(bits=8)).decode())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("x.npy", "x.gsf", "--codec", "sclar:4"), "`codec` must be 'scalar:BITS'"),
        (("x.npy", "y.npy", "--codec", "scalar:4"), "OUT must end in .gsf, which is what it will be (got y.npy)"),
        (("x.gsf", "--codec", "scalar:4"), "IN is missing: give a .npy or Parquet file before OUT, or `--dataset`"),
        (("z.npy", "x.gsf", "--codec", "scalar:4"), "there is no file z.npy"),
        (("graph.gsg", "x.gsf", "--codec", "scalar:4"), "`x` must be one .npy file, or Parquet files"),
        (("x.npy", "no/x.gsf", "--codec", "scalar:4"), "`out` must lie in an existing folder"),
        (("x.npy", "x.gsf", "--codec", "scalar:4", "--block", "0"), "`block` must be a whole number of rows"),
        (("x.npy", "x.gsf", "--codec", "scalar:4", "--sample", "0"), "`sample` must be at least 1 row"),
        (("x.npy", "x.gsf", "--codec", "scalar:4", "--dtype", "half"), "`--dtype` must be float32 or bfloat16"),
        (("x.npy", "x.gsf", "--codec", "scalar:4", "--threads", "0"), "`--threads` must be at least 1 (got 0)"),
        (("x.npy", "x.gsf", "--codec", "scalar:4", "--graph", "x.npy"), "`path` must be a file written by Graph.save"),
        (("x.gsf", "--codec", "scalar:4", "--dataset", "digts"), "there is no dataset 'digts'. Nearest: digits"),
        (("x.gsf", "--codec", "scalar:4", "--dataset", "digits", "--graph", "graph.gsg"), "exclude each other"),
    ],
)
def test_mistakes_are_told_in_one_message(arguments: tuple[str, ...], message: str) -> None:
    before = sorted(os.listdir())
    told = refused(*arguments)
    assert told.startswith("Error: ") and message in told and len(told.splitlines()) == 1
    assert sorted(os.listdir()) == before


def test_a_bad_row_is_told() -> None:
    x = np.ones((40, 12), np.float32)
    x[33, 2] = np.nan
    np.save("x.npy", x)
    assert "nan in row 33, column 2" in refused("x.npy", "x.gsf", "--codec", "scalar:4", "--block", "8")
    assert sorted(os.listdir()) == ["graph.gsg", "x.npy"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_command_is_resumed(number: signal.Signals, code: int) -> None:
    np.save("x.npy", np.random.default_rng(0).standard_normal((300_000, 16), np.float32))
    command = [sys.executable, "-m", "gossamer", "compress", "x.npy", "x.gsf", "--codec", "scalar:4", "--block", "64"]
    heard = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)  # noqa: E731 (a shell's background jobs ignore it)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=heard)
    journal = Path(".x.gsf.journal")
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not (journal.exists() and journal.read_text().count("\n") > 20):
        time.sleep(0.01)
    process.send_signal(number)
    out, told = process.communicate(timeout=60)
    assert process.returncode == code and out == "" and "Add --resume to continue" in told
    assert not Path("x.gsf").exists() and journal.exists()
    run(*command[4:], "--resume")
    assert not journal.exists()
    assert torch.equal(gs.FeatureStore.open("x.gsf").decode(), gs.compress("x.npy", gs.Scalar(bits=4)).decode())
