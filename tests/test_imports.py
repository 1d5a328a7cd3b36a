"""Imports point downwards: a package imports those below it, so it can be read and tested without those above."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

import gossamer
from support.processes import run_python

ROOT = Path(gossamer.__file__).parent

# From the top to the bottom: each imports only what comes after it. A new package or root module gets its place here.
ORDER = [
    "cli",
    "serving",
    "comparison",
    "training",
    "measurement",
    "report",
    "datasets",
    "conversion",
    "pyg",
    "recipe",
    "distributed",
    "features",
    "saved_tensors",
    "forward",
    "layers",
    "engine",
    "aggregate",
    "inference",
    "sampling",
    "codecs",
    "graph",
    "backends",
    "ranks",
    "ops",
    "memory",
    "state",
    "native",
    "quiet_pyg",
    "atomic",
    "checksums",
]

# Some packages may import less than the order allows. Kernels are bound once, where the package is imported: what
# computes calls ops, never a backend.
ONLY: dict[str, set[str]] = {
    "datasets": {"quiet_pyg"},
    "report": {"atomic"},
    "engine": {"aggregate", "codecs", "graph", "ranks", "ops", "memory", "state", "native"},
    "features": {"codecs", "graph", "ops", "memory", "state", "atomic", "checksums"},
    "aggregate": {"graph", "ranks", "ops", "memory", "state"},
    "inference": {"graph", "ops", "atomic", "checksums"},
    "distributed": {
        "features",
        "layers",
        "engine",
        "aggregate",
        "codecs",
        "graph",
        "ranks",
        "ops",
        "memory",
        "state",
        "atomic",
        "checksums",
    },
    "ranks": {"ops"},
    "serving": {"inference", "sampling", "graph", "ops"},
    "sampling": {"codecs", "graph", "ops", "memory", "state", "quiet_pyg"},
    "codecs": {"ops", "memory"},
    "graph": {"ops", "memory", "state", "atomic", "checksums"},
    "backends": {"ops", "memory", "native"},
    "ops": {"state", "native"},
    "memory": {"native"},
    "state": set(),
    "native": set(),
    "quiet_pyg": set(),
    "atomic": set(),
    "checksums": set(),
}


def statements(node: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """Imports that run, those in functions too; `if TYPE_CHECKING:` does not, and annotations may name any package."""
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        children: Iterable[ast.AST] = node.orelse
    else:
        children = ast.iter_child_nodes(node)
    if isinstance(node, ast.Import | ast.ImportFrom):
        yield node
    for child in children:
        yield from statements(child)


def imports() -> Iterator[tuple[str, str, str]]:
    """(importer, imported, place) by package or root module."""
    for file in sorted(ROOT.rglob("*.py")):
        path = ["gossamer", *file.relative_to(ROOT).with_suffix("").parts]
        for node in statements(ast.parse(file.read_text())):
            names = [alias.name for alias in node.names]
            if isinstance(node, ast.ImportFrom):
                base = path[: -node.level] if node.level else []
                names = [".".join([*base, *filter(None, [node.module]), name]) for name in names]
            for name in names:
                package, *rest = name.split(".")
                if package == "gossamer" and rest[:1] != path[1:2]:
                    yield path[1], ".".join(rest[:1]) or package, f"{file.relative_to(ROOT)}:{node.lineno}"


def points_downwards(importer: str, imported: str) -> bool:
    below = ORDER[ORDER.index(importer) + 1 :]
    return imported in below and imported in ONLY.get(importer, below)


def test_every_package_has_its_place():
    packages = {path.stem for path in ROOT.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()}
    assert sorted(ORDER) == sorted(packages - {"__init__", "__main__"})


def test_imports_point_downwards():
    found = [each for each in imports() if not each[0].startswith("__")]
    assert len({importer for importer, _, _ in found}) > len(ORDER) / 2, "imports are not found where they are"
    upwards = [f"{place}: {a} must not import {b}" for a, b, place in found if not points_downwards(a, b)]
    assert not upwards, "\n".join(upwards)


def test_what_counts_as_an_import():
    source = """
if TYPE_CHECKING:
    from .graph import Graph
else:
    from . import a
def function():
    import b
try:
    import c
finally:
    pass
"""
    assert [each.names[0].name for each in statements(ast.parse(source))] == ["a", "b", "c"]


def test_the_compiler_of_torch_is_not_imported():
    """It takes as long as torch itself. Nor is it by a block that refuses to be entered in compiled code."""
    code = """
import sys
import torch
by_torch = "torch._dynamo" in sys.modules
import gossamer as gs
print("torch._dynamo" in sys.modules and not by_torch)
with gs.compressed_activations(gs.Blockwise(bits=2)):
    pass
print("torch._dynamo" in sys.modules and not by_torch)
"""
    result = run_python(code)
    assert result.stdout.split() == ["False", "False"], result.stderr
