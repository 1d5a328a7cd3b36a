"""Which machine this is."""

from __future__ import annotations

import platform
import re
from pathlib import Path


def cpu_name() -> str:
    """The processor, as it calls itself."""
    info = Path("/proc/cpuinfo")
    names = re.findall(r"model name\s*:\s*(.+)", info.read_text()) if info.exists() else []
    return names[0] if names else platform.processor() or platform.machine()
