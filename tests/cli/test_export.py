"""`gossamer export`, `predict` and `serve`, from a trained run to an answer."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import gossamer as gs
from gossamer.cli import app

runner = CliRunner()


def run(*arguments: str):
    return runner.invoke(app, [*map(str, arguments)])


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> dict[str, Path]:
    """Runs on digits: one trained for integers, one in float32, one of plain PyG."""
    folder = tmp_path_factory.mktemp("runs")
    shape = ["--layers", "2", "--width", "32", "--epochs", "8", "--model", "gcn"]
    for name in ("degree-quant-int8", "float32", "none"):
        done = run("train", "digits", *shape, "--recipe", name, "--out", folder / name)
        assert done.exit_code == 0, done.output
    return {name: folder / name for name in ("degree-quant-int8", "float32", "none")}


@pytest.mark.parametrize("name", ["degree-quant-int8", "float32", "none"])
def test_from_a_run_to_predictions(trained, name, tmp_path):
    done = run("export", trained[name], tmp_path / "model.safetensors")
    assert done.exit_code == 0, done.output
    assert re.search(r"model.safetensors: [\d.]+ kB, [\d.]+x smaller than float32", done.output.replace("\n", ""))
    assert ("SQNR" in done.output) == (name != "degree-quant-int8")
    done = run("predict", tmp_path / "model.safetensors", "--dataset", "digits", "--out", tmp_path / "p.npz", "--json")
    facts = json.loads(done.stdout)
    result = json.loads((trained[name] / "result.json").read_text())
    assert facts["rows"] == 1797 and facts["score"]["accuracy"] == pytest.approx(result["test"], abs=0.02)
    with np.load(tmp_path / "p.npz") as found:
        assert found["outputs"].shape == (1797, 10) and (found["prediction"] == found["outputs"].argmax(1)).all()


def test_four_bits_and_float32_layers(trained, tmp_path):
    done = run("export", trained["float32"], tmp_path / "m", "--bits", "4", "--skip", "convs.0", "--json")
    facts = json.loads(done.stdout)
    assert facts["calibration"]["bits"] == 4 and facts["calibration"]["skipped"] == ["convs.0"]
    assert facts["nbytes"] == (tmp_path / "m").stat().st_size


def test_from_files(trained, tmp_path):
    digits = gs.datasets.load("digits")
    gs.Graph.from_data(digits).save(tmp_path / "graph.gsg")
    np.save(tmp_path / "x.npy", digits.x.numpy())
    gs.compress(digits.x, gs.Scalar(bits=8), tmp_path / "x.gsf", progress=False)
    run("export", trained["degree-quant-int8"], tmp_path / "m")
    engine = gs.load(tmp_path / "m")
    for name, x in (("x.npy", digits.x), ("x.gsf", gs.FeatureStore.open(tmp_path / "x.gsf").decode())):
        done = run(
            "predict", tmp_path / "m", "--graph", tmp_path / "graph.gsg", "--features", tmp_path / name, "--out",
            tmp_path / "p.npz",
        )  # fmt: skip
        assert done.exit_code == 0, done.output
        with np.load(tmp_path / "p.npz") as found:
            assert np.array_equal(found["outputs"], engine(x, digits.edge_index).numpy())


def test_graph_level(tmp_path):
    from torch_geometric.data import Data

    from gossamer.cli.export import example_of
    from gossamer.datasets.graph_list import GraphList

    graphs = [
        Data(x=torch.randn(n, 3), edge_index=torch.randint(n, (2, 2 * n)), y=torch.tensor([n % 2]))
        for n in range(4, 60)
    ]
    listed = GraphList(graphs, "made", "graph classification", 2, np.empty((0, len(graphs)), np.int8))
    x, edge_index, batch = example_of(listed)
    assert len(x) == len(batch) and int(batch.max()) + 1 <= 256 and edge_index.size(0) == 2


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("export", "nowhere", "m"), "`run` must be a folder of `gossamer train --out`"),
        (("predict", "nowhere", "--dataset", "digits"), "`path` must be a file written by gs.export"),
        (("serve", "nowhere"), "`path` must be a file written by gs.export"),
    ],
)
def test_bad_arguments(arguments, message, tmp_path):
    done = run(*arguments)
    assert done.exit_code == 2 and message in done.stderr.replace("\n", " ")


def test_bad_arguments_with_a_model(trained, tmp_path):
    run("export", trained["degree-quant-int8"], tmp_path / "m")
    (tmp_path / "x.txt").write_text("1")
    gs.Graph.from_data(gs.datasets.load("digits")).save(tmp_path / "g")
    for arguments, message in (
        (("predict", tmp_path / "m"), "Give `--dataset`, or `--graph` and `--features`"),
        (("predict", tmp_path / "m", "--dataset", "digits", "--graph", "g"), "exclude each other"),
        (
            ("predict", tmp_path / "m", "--graph", tmp_path / "g", "--features", tmp_path / "x.txt"),
            "a .npy or a .gsf file",
        ),
        (("serve", tmp_path / "m", "--graph", tmp_path / "g"), "`--graph` and `--features` go together"),
        (("export", trained["degree-quant-int8"], tmp_path / "n", "--skip", "convs.0"), "was trained for integers"),
        (("export", trained["float32"], tmp_path / "n", "--skip", "conv"), "there is no 'conv'"),
        (("export", trained["float32"], tmp_path / "n", "--bits", "3"), "`bits` must be 8 or 4"),
    ):
        done = run(*arguments)
        assert done.exit_code == 2 and message in done.stderr.replace("\n", " "), done.output


def test_a_server_answers_and_a_killed_one_the_same_again(trained, tmp_path):
    pytest.importorskip("uvicorn")
    digits = gs.datasets.load("digits")
    run("export", trained["degree-quant-int8"], tmp_path / "m")
    gs.Graph.from_data(digits).save(tmp_path / "g.gsg")
    gs.compress(digits.x, gs.Scalar(bits=8), tmp_path / "x.gsf", progress=False)
    answers = []
    for _ in range(2):
        port = _free_port()
        files = ["--graph", str(tmp_path / "g.gsg"), "--features", str(tmp_path / "x.gsf"), "--port", str(port)]
        command = [sys.executable, "-m", "gossamer", "serve", str(tmp_path / "m"), *files]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as server:
            try:
                answers.append(_ask(port, {"nodes": [1, 2, 3]}))
            finally:
                server.kill()
    assert answers[0] == answers[1] and len(answers[0]["outputs"]) == 3


def _free_port() -> int:
    import socket

    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def _ask(port: int, body: dict, seconds: float = 60.0) -> dict:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/predict/nodes", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    end = time.monotonic() + seconds
    while True:
        try:
            with urllib.request.urlopen(request, timeout=10) as reply:
                return json.loads(reply.read())
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.2)
