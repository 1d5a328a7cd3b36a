"""pytest plugin: test another build of the native module, the one in the folder that GOSSAMER_TEST_NATIVE names."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import torch  # noqa: F401 (first, for its OpenMP runtime)

(module_path,) = Path(os.environ["GOSSAMER_TEST_NATIVE"]).glob("_native*.so")
spec = importlib.util.spec_from_file_location("gossamer._native", module_path)
assert spec is not None and spec.loader is not None
module = importlib.util.module_from_spec(spec)
sys.modules["gossamer._native"] = module
spec.loader.exec_module(module)
print(f"native module under test: {module_path}", file=sys.stderr)
