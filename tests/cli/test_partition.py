"""`gossamer partition`: what it prints, what it writes, and how it tells mistakes."""

from __future__ import annotations

import json
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
    """With a graph of 60 nodes, and what its nodes have."""
    monkeypatch.chdir(tmp_path)
    draw = torch.Generator().manual_seed(0)
    np.save("x.npy", torch.randn(60, 12, generator=draw).numpy())
    np.save("y.npy", torch.randint(0, 3, (60,), generator=draw).numpy())
    np.save("train.npy", np.arange(20))
    np.save("test.npy", np.arange(60) >= 40)
    edges = torch.randint(0, 60, (2, 200), generator=draw)
    gs.Graph.from_edge_index(torch.cat([edges, edges.flip(0)], 1), 60).save("graph.gsg")
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


FILES = ["--graph", "graph.gsg", "--x", "x.npy", "--y", "y.npy", "--train", "train.npy", "--test", "test.npy"]


def invoke(*arguments: str, columns: int = 200) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["partition", *arguments], catch_exceptions=False, env={"COLUMNS": str(columns)})
    return result.exit_code, result.stdout, result.stderr


def run(*arguments: str, columns: int = 200) -> str:
    code, out, err = invoke(*arguments, columns=columns)
    assert code == 0, err
    return out


def test_a_dataset():
    out = run("digits", "--parts", "6", "--ranks", "3", "--out", "parts")
    assert "6 parts of 1,797 nodes" in out and "edges cut" in out and "halo rows per own row" in out
    assert "3 ranks; memory in MB, gcn 64-256-256-10" in out
    for name in ("float32, every layer, layer 0 too", "8 bits (tango: the int8 rows)", "4 bits", "2 bits"):
        assert name in out
    part = gs.distributed.read("parts", 1, 3)
    data = gs.datasets.load("digits")
    assert torch.equal(part.x, data.x[part.node_ids]) and torch.equal(part.y, data.y[part.node_ids])
    assert part.num_train == int(data.train_mask.sum()) and part.num_classes == 10
    assert part.task == "node multiclass"


def test_files():
    run(*FILES, "--parts", "4", "--out", "parts")
    part = gs.distributed.read("parts", 0, 1)
    assert torch.equal(part.x, torch.from_numpy(np.load("x.npy")))
    assert torch.equal(part.y, torch.from_numpy(np.load("y.npy")))
    assert part.train_mask.nonzero().view(-1).tolist() == list(range(20)) and part.val_mask is None
    assert part.test_mask.nonzero().view(-1).tolist() == list(range(40, 60))
    assert torch.equal(part.col, gs.Graph.load("graph.gsg").col)


@pytest.mark.parametrize("how", ["--features", "--x", "--recipe"])
def test_features_in_few_bits(how):
    store = gs.compress("x.npy", gs.Scalar(bits=1), "x.gsf", progress=False)
    options = {
        "--features": ["--features", "scalar:1"],
        "--x": ["--x", "x.gsf"],
        "--recipe": ["--recipe", "bifeat-1bit"],
    }
    facts = json.loads(run(*FILES, *options[how], "--parts", "4", "--out", "parts", "--json"))
    part = gs.distributed.read("parts", 0, 1)
    assert isinstance(part.x, gs.FeatureStore) and torch.equal(part.x.decode(), store.decode())
    assert facts["data"]["codec"]["name"] == "Scalar" and facts["data"]["bytes_per_row"] == 2


def test_json():
    facts = json.loads(run(*FILES, "--parts", "4", "--ranks", "2", "--hidden", "32", "--out", "parts", "--json"))
    assert facts["model"]["widths"] == [12, 32, 32, 3] and len(facts["ranks"]) == len(facts["memory_bytes"]) == 2
    halo = sum(rank["halo"] for rank in facts["ranks"])
    assert facts["epoch_bytes"]["32"] == halo * 4 * 2 * (32 + 3)
    assert facts["epoch_bytes"]["2"] == halo * 2 * (8 + 4 + 1 + 4)
    assert facts["load_bytes"] == halo * 48 and 0 < facts["cut"] < 1


def test_a_recipe_in_few_bits_needs_less_memory():
    def saved(recipe: str) -> int:
        return json.loads(run(*FILES, "--recipe", recipe, "--parts", "2", "--out", "parts", "--json"))["memory_bytes"][
            0
        ]

    float32, tango, exact = saved("float32"), saved("tango"), saved("exact-int2")
    assert tango["saved"] == float32["saved"] / 4 and tango["exchange"] < 0.27 * float32["exchange"]
    assert 0.09 < exact["saved"] / float32["saved"] < 0.11 and exact["working"] == float32["working"]


def test_again_and_otherwise():
    assert run(*FILES, "--parts", "4", "--out", "parts") == run(*FILES, "--parts", "4", "--out", "parts")
    code, _, err = invoke(*FILES, "--parts", "4", "--method", "stream", "--out", "parts")
    assert code == 2 and "other method: method metis" in err and "nothing was overwritten" in err
    run(*FILES, "--parts", "4", "--method", "stream", "--overwrite", "--out", "parts")


def test_without_features_and_labels():
    assert "gcn 8-8" in run("--graph", "graph.gsg", "--parts", "2", "--out", "parts", "--layers", "1", "--width", "8")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--parts", "2", "--out", "p"], "Give either DATASET or `--graph` (got neither)"),
        (["digits", "--graph", "graph.gsg", "--out", "p"], "(got both)"),
        (["digits", "--x", "x.npy", "--out", "p"], "`--x` belongs to `--graph`"),
        (["digits"], "`--out` is missing"),
        (["digits", "--parts", "4", "--ranks", "5", "--out", "p"], "`--ranks` must lie between 1 and the number of"),
        (["digits", "--parts", "9999", "--out", "p"], "`parts` must lie between 1 and the number of nodes, 1797"),
        (["digits", "--model", "mlp", "--out", "p"], "`model` must be one of gcn, sage, gin, gat (got 'mlp')"),
        (["digits", "--layers", "0", "--out", "p"], "`--layers` must be at least 1 (got 0)"),
        (["digits", "--method", "random", "--out", "p"], "`method` must be one of metis, stream"),
        (["digits", "--recipe", "tnago", "--out", "p"], "there is no recipe 'tnago'"),
        (["digits", "--out", "x.npy"], "`out` must be a folder (got the file x.npy)"),
        ([*FILES, "--val", "x.npy", "--out", "p"], "`--val` must hold truth values or ids"),
        ([*FILES, "--val", "no.npy", "--out", "p"], "`--val` must be an existing .npy file"),
        ([*FILES, "--val", "graph.gsg", "--out", "p"], "`--val` must be a .npy file of numbers"),
        (["--graph", "graph.gsg", "--features", "scalar:1", "--out", "p"], "give `--x`"),
        (["--graph", "no.gsg", "--out", "p"], "there is no file no.gsg"),
    ],
)
def test_mistakes_are_told(arguments, message):
    code, out, err = invoke(*arguments)
    assert code == 2 and message in err and not out
    assert not Path("p").exists()
