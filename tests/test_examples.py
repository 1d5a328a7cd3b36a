"""The examples run as they stand, and end as they say."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[1] / "examples"

pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason="needs the source tree")


def run(name: str) -> str:
    done = subprocess.run([sys.executable, FOLDER / name], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_own_model() -> None:
    text = run("own_model.py")
    assert "gossamer SAGEConv" in text and "gossamer GATConv" in text
    found = re.search(r"test accuracy (0\.\d+)", text)
    assert found is not None and float(found[1]) > 0.8


def test_any_model() -> None:
    text = run("any_model.py")
    smaller = re.search(r"\((\d+\.\d) times less\)", text)
    assert smaller is not None and float(smaller[1]) > 7
    found = re.search(r"test accuracy (0\.\d+)", text)
    assert found is not None and float(found[1]) > 0.8


def test_integers() -> None:
    text = run("integers.py")
    assert "SQNR" in text and "Engine(4 bits" in text
    scores = [float(found) for found in re.findall(r"test accuracy (0\.\d+)", text)]
    assert len(scores) == 3 and min(scores) > 0.8


def test_eight_bits() -> None:
    text = run("eight_bits.py")
    assert "Int8(" in text and "float32: it feeds the loss" in text
    found = re.findall(r"^(tango|tango-auto): test accuracy (0\.\d+)$", text, flags=re.MULTILINE)
    assert [recipe for recipe, _ in found] == ["tango", "tango-auto"]
    assert all(float(accuracy) > 0.65 for _, accuracy in found)
    decided = re.findall(r"^(convs\.\d): int8, weight \d", text, flags=re.MULTILINE)
    assert decided == ["convs.0", "convs.1"]  # the last one feeds the loss and is not watched


def test_distributed() -> None:
    found = re.search(r"1 ranks, test accuracy (0\.\d+)", run("distributed.py"))
    assert found is not None and float(found[1]) > 0.85


def test_mini_batches() -> None:
    text = run("mini_batches.py")
    assert "x smaller than float32" in text
    found = re.findall(r"test accuracy (0\.\d+)", text)
    assert len(found) == 10 and float(found[-1]) > 0.85


def test_every_example_is_tested() -> None:
    found = {path.name for path in FOLDER.glob("*.py")}
    assert found == {
        "any_model.py",
        "distributed.py",
        "eight_bits.py",
        "integers.py",
        "mini_batches.py",
        "own_model.py",
        "train.py",
    }  # train.py: test_cli_train.py
