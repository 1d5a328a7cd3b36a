"""The README and docs tell the truth: their code runs, their tables come from the results beside them."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

import gossamer as gs

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text() if (ROOT / "README.md").exists() else ""

pytestmark = pytest.mark.skipif(not README, reason="needs the source tree")


def test_code_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    load = gs.datasets.load
    smaller = {"arxiv-like": {"scale": 0.01}}  # the same graph, smaller
    monkeypatch.setattr(gs.datasets, "load", lambda name: load(name, **smaller.get(name, {})))
    blocks = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, "README.md", "exec"), {})
    assert "torch.Size" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("page", "shown"),
    [
        ("activations.md", "times less"),
        ("features.md", "smaller than float32"),
        ("inference.md", "Engine(8 bits"),
        ("int8.md", "convs.1: int8"),
        ("rsc.md", "work kept"),
    ],
)
def test_code_of_the_docs_runs(
    page: str, shown: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / page).read_text(), flags=re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, page, "exec"), {})
    assert shown in capsys.readouterr().out


def test_tables_are_those_of_the_results() -> None:
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        import tables
    finally:
        sys.path.pop(0)
    text = "".join(page.read_text() for page in tables.pages())
    found = re.findall(r"<!-- table: ([\w-]+) -->\n(.*?)\n<!-- end -->", text, flags=re.DOTALL)
    assert len(found) == text.count("<!-- table:") > 0
    for name, text in found:
        try:
            made = tables.table(name)
        except tables.NotMeasured:
            made = tables.NOT_MEASURED
        assert text == made, name


def test_nothing_is_left_to_fill_in() -> None:
    assert "@@" not in README


def test_links_lead_somewhere() -> None:
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            assert (page.parent / target).exists(), (page.name, target)
