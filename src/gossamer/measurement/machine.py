"""The name of the processor, and whether the AMX instructions that it announces work."""

from __future__ import annotations

import platform
import re
import subprocess
import sys
from pathlib import Path

WITHOUT_AMX = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}
"""The environment in which torch leaves AMX alone; it is read at the first product of a process."""
_PRODUCT = "import torch; torch.ones(64, 64, dtype=torch.bfloat16) @ torch.ones(64, 64, dtype=torch.bfloat16)"


def cpu_name() -> str:
    """The processor, as it calls itself."""
    names = re.findall(r"model name\s*:\s*(.+)", _cpu_info())
    return names[0] if names else platform.processor() or platform.machine()


def amx_is_broken() -> bool:
    """Whether torch's bfloat16 products end the process: some virtual machines announce AMX and refuse to run it."""
    if "amx_bf16" not in _cpu_info():
        return False
    return subprocess.run([sys.executable, "-c", _PRODUCT], capture_output=True).returncode < 0


def _cpu_info() -> str:
    info = Path("/proc/cpuinfo")
    return info.read_text() if info.exists() else ""
