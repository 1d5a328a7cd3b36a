"""The wheel: built in isolation without torch, nothing bundled, one OpenMP runtime, and complete without SIMD files."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

pytestmark = pytest.mark.skipif(not (ROOT / "csrc").is_dir(), reason="needs the source tree")


def build_wheel(folder: Path, *settings: str) -> Path:
    options = [argument for setting in settings for argument in ("-C", setting)]
    command = [sys.executable, "-m", "pip", "wheel", "--disable-pip-version-check", "--quiet", "--no-deps"]
    command += ["--wheel-dir", str(folder), "-C", f"build-dir={folder / 'cmake'}", *options, str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def baseline_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Without any instruction-set specific file: what another architecture would get."""
    return build_wheel(tmp_path_factory.mktemp("wheel"), "cmake.define.GOSSAMER_BASELINE_ONLY=ON")


def test_wheel_holds_the_package_and_nothing_bundled(baseline_wheel: Path) -> None:
    names = zipfile.ZipFile(baseline_wheel).namelist()
    libraries = [name for name in names if ".so" in name]
    assert len(libraries) == 1 and libraries[0].startswith("gossamer/_native")
    assert "gossamer/__init__.py" in names
    assert not [name for name in names if name.endswith((".npz", ".cpp", ".h"))]


def test_wheel_links_openmp_dynamically_and_not_torch(baseline_wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(baseline_wheel) as archive:
        (library,) = [name for name in archive.namelist() if ".so" in name]
        path = archive.extract(library, tmp_path)
    needed = subprocess.run(["readelf", "-d", path], capture_output=True, text=True, check=True).stdout
    assert "libgomp.so.1" in needed
    assert "torch" not in needed and "RUNPATH" not in needed


def test_baseline_alone_passes(baseline_wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(baseline_wheel) as archive:
        archive.extractall(tmp_path)
    environment = os.environ | {
        "PYTHONPATH": str(ROOT / "tests" / "plugins"),
        "GOSSAMER_TEST_NATIVE": str(tmp_path / "gossamer"),
    }
    environment.pop("GOSSAMER_ISA", None)
    tests = [str(ROOT / "tests" / "ops" / f"test_{op}.py") for op in ("spmm", "pack", "quantize_rows", "int8_linear")]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "native_from", "-p", "no:cacheprovider", *tests]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:]
    assert "passed" in done.stdout


def test_torch_is_no_build_requirement() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    requires = text.split("[build-system]")[1].split("]")[0]
    assert '"torch' not in requires
