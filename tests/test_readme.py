"""The README and docs tell the truth: their code runs, their tables come from the results beside them."""

from __future__ import annotations

import json
import os
import re
import subprocess
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
        ("distributed.md", "8 parts of 1,797 nodes"),
        ("features.md", "smaller than float32"),
        ("inference.md", "Engine(8 bits"),
        ("int8.md", "convs.1: int8"),
        ("recipes.md", "torch.Size"),
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


@pytest.mark.parametrize("name", sorted(path.name for path in (ROOT / "docs" / "notebooks").glob("*.ipynb")))
def test_notebooks_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    matplotlib = pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    backend = matplotlib.get_backend()
    matplotlib.use("Agg")
    try:
        cells = json.loads((ROOT / "docs" / "notebooks" / name).read_text())["cells"]
        scope: dict[str, object] = {}
        for cell in cells:
            if cell["cell_type"] == "code":
                exec(compile("".join(cell["source"]), f"{name}, {cell['id']}", "exec"), scope)
                assert cell["outputs"] or cell["execution_count"], "a notebook is stored with its results"
        matplotlib.pyplot.close("all")
    finally:
        matplotlib.use(backend)


def test_every_public_name_is_in_the_api_reference() -> None:
    page = (ROOT / "docs" / "api.md").read_text()
    headings = {match[1] or match[2] for match in re.finditer(r'::: gossamer\.(\w+)|heading: "gs\.(\w+)"', page)}
    assert set(gs.__all__) <= headings


def test_the_site_builds(tmp_path: Path) -> None:
    """Strictly: a page or an image that is linked and not there, or a name without a docstring, is an error."""
    pytest.importorskip("mkdocs")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    first = (tmp_path / "site" / "index.html").read_text()
    assert "lighten_" in first
    assert not re.findall(r'<(?:script|img|link)[^>]+(?:src|href)="?https?:', first), (
        "nothing is fetched from elsewhere"
    )
