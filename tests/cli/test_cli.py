"""The command line: what doctor and datasets print, as tables and as JSON."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import gossamer.atomic
from gossamer import native, ops
from gossamer.cli import app
from gossamer.cli.doctor import advice, examine
from gossamer.measurement import machine


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False, env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    return result.output


def test_doctor_names_every_op_and_what_it_runs_on() -> None:
    report = json.loads(run("doctor", "--json"))
    assert report["ops"].keys() == ops.OPS.keys()
    assert set(report["ops"].values()) <= {native.isa(), native.REFERENCE}
    assert report["isa"]["in_use"] == native.isa()
    assert report["versions"]["torch"].startswith("2.")
    assert report["cpu"]["threads"] >= 1


def test_doctor_prints_tables() -> None:
    text = run("doctor")
    for word in ("processor", "instruction set", native.isa(), "spmm_int8", "OpenMP", "local data"):
        assert word in text


def test_doctor_without_native_kernels_says_why_and_what_to_do() -> None:
    environment = os.environ | {"GOSSAMER_ISA": "reference"}
    command = [sys.executable, "-m", "gossamer", "doctor", "--json"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    report = json.loads(done.stdout)
    assert set(report["ops"].values()) == {"reference"}
    assert "GOSSAMER_ISA=reference" in report["advice"][0] and "pip install" in report["advice"][0]


def test_doctor_notices_an_empty_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOSSAMER_DATA", str(tmp_path))
    assert any(str(tmp_path) in line for line in advice(examine()))


@pytest.mark.parametrize(
    ("flags", "product", "broken"),
    [
        ("avx512f", "import os; os.abort()", False),
        ("amx_bf16", "pass", False),
        ("amx_bf16", "import os; os.abort()", True),
    ],
)
def test_doctor_notices_amx_that_is_only_announced(
    flags: str, product: str, broken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "_cpu_info", lambda: flags)
    monkeypatch.setattr(machine, "_PRODUCT", product)
    assert any("ONEDNN_MAX_CPU_ISA=" in line for line in advice(examine())) == broken


def test_datasets_lists_what_is_ready() -> None:
    rows = json.loads(run("datasets", "--json", "--ready"))
    names = {row["name"] for row in rows}
    assert {"digits", "arxiv-like"} <= names
    assert all(row["ready"] for row in rows)
    assert "digits" in run("datasets")


def test_datasets_names_a_damaged_file(tmp_path, monkeypatch) -> None:
    (tmp_path / "mine.npz").write_bytes(b"half of a fi")
    monkeypatch.setenv("GOSSAMER_DATA", str(tmp_path))
    assert re.search(r"mine is damaged: .*mine\.npz must be an \.npz archive.*Remedy: copy the file", run("datasets"))


def test_unknown_command_is_refused() -> None:
    result = CliRunner().invoke(app, ["doktor"])
    assert result.exit_code == 2


@pytest.mark.parametrize(
    "command",
    [
        ("train", "digits", "--width", "4", "--epochs", "1", "--out", "runs/1"),
        ("compare", "digits", "--width", "4", "--epochs", "1", "--out", "compared"),
        ("compress", "--dataset", "digits", "x.gsf", "--codec", "scalar:1"),
        ("predict", "no.model", "--dataset", "digits", "--out", "out.npz"),
    ],
    ids=lambda command: command[0],
)
def test_a_read_only_place_to_write_to(tmp_path, monkeypatch, command):
    """Said in one line, before anything is computed."""
    monkeypatch.chdir(tmp_path)
    access = os.access
    monkeypatch.setattr(gossamer.atomic.os, "access", lambda path, mode: not mode & os.W_OK and access(path, mode))
    result = CliRunner().invoke(app, list(command))
    assert result.exit_code == 2, result.output
    assert re.search(r"Error: `(--)?out` must be where files can be.*\(the folder \S+ is read-only", result.output)
    assert os.listdir() == []
