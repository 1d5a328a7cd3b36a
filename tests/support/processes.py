"""A Python process of its own."""

from __future__ import annotations

import os
import subprocess
import sys


def run_python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """`code` in a fresh interpreter with only these of our variables set."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GOSSAMER_")}
    return subprocess.run(
        [sys.executable, "-c", code], env=kept | environment, capture_output=True, text=True, timeout=120, check=False
    )
