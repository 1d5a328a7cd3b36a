"""Imports point downwards: a package imports those below it, so it can be read and tested without those above."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import gossamer

ROOT = Path(gossamer.__file__).parent

# From the top to the bottom: each imports only what comes after it. A new package or root module gets its place here.
ORDER = [
    "cli",
    "compare",
    "comparing",
    "train",
    "training",
    "checkpoint",
    "models",
    "tasks",
    "measure",
    "measuring",
    "report",
    "pyg",
    "recipe",
    "layers",
    "compute",
    "activations",
    "datasets",
    "codecs",
    "graph",
    "graph_file",
    "graph_build",
    "backends",
    "ops",
    "memory",
    "native",
    "atomic",
]

# Some packages may import less than the order allows.
ONLY: dict[str, set[str]] = {"memory": {"native"}, "ops": {"native"}, "native": set(), "atomic": set()}

# What still points upwards. To be removed, never added to.
KNOWN = {
    ("checkpoint", "training"),  # the state of random generators
    ("graph_file", "graph"),  # for annotations alone
    ("ops", "graph"),  # for annotations alone
}


def imports() -> Iterator[tuple[str, str, str]]:
    """(importer, imported, place) by package or root module; imports in functions and for annotations count too."""
    for file in sorted(ROOT.rglob("*.py")):
        path = ["gossamer", *file.relative_to(ROOT).with_suffix("").parts]
        for node in ast.walk(ast.parse(file.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
            if isinstance(node, ast.ImportFrom):
                base = path[: -node.level] if node.level else []
                names = [".".join([*base, *filter(None, [node.module]), name]) for name in names]
            for name in names:
                package, *rest = name.split(".")
                if package == "gossamer" and rest[:1] != path[1:2]:
                    yield path[1], ".".join(rest[:1]) or package, f"{file.relative_to(ROOT)}:{node.lineno}"


def points_upwards(importer: str, imported: str) -> bool:
    if importer in ONLY:
        return imported not in ONLY[importer]
    return imported not in ORDER[ORDER.index(importer) + 1 :]


def test_every_package_has_its_place():
    packages = {path.stem for path in ROOT.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()}
    assert sorted(ORDER) == sorted(packages - {"__init__", "__main__"})


def test_imports_point_downwards():
    found = [(a, b, place) for a, b, place in imports() if not a.startswith("__") and points_upwards(a, b)]
    new = [f"{place}: {a} must not import {b}" for a, b, place in found if (a, b) not in KNOWN]
    assert not new, "\n".join(new)
    assert {(a, b) for a, b, _ in found} == KNOWN, "an import that is gone must leave KNOWN too"
