"""What is installed: nothing bundled, one OpenMP runtime, and no torch to build it. `make check-wheel` builds one."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

import gossamer
from support.paths import needs_native

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = Path(gossamer.__file__).parent


def test_the_package_bundles_nothing() -> None:
    names = [path.name for path in PACKAGE.rglob("*") if path.is_file()]
    assert len([name for name in names if ".so" in name]) <= 1
    assert not [name for name in names if name.endswith((".npz", ".cpp", ".h"))]


@needs_native
def test_the_native_module_links_openmp_dynamically_and_not_torch() -> None:
    from gossamer import _native

    if shutil.which("readelf") is None:
        pytest.skip("needs readelf")
    needed = subprocess.run(["readelf", "-d", _native.__file__], capture_output=True, text=True, check=True).stdout
    assert "libgomp.so.1" in needed
    assert "torch" not in needed and "RUNPATH" not in needed


@pytest.mark.skipif(not (ROOT / "csrc").is_dir(), reason="needs the source tree")
def test_torch_is_no_build_requirement() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    requires = text.split("[build-system]")[1].split("]")[0]
    assert '"torch' not in requires
