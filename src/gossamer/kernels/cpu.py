"""Native kernels for the ops on the CPU: allocate the result, pass addresses, return it.

Arguments have been checked by the op. A dtype that no kernel handles (float64) goes to the op's reference.
"""

from __future__ import annotations

from ..ops._library import OPS, implement_on_cpu
from . import cpu_attention, cpu_chain, cpu_codes, cpu_dense, cpu_gat, cpu_int8, cpu_sparse


def bind() -> None:
    """Give every op its native kernel."""
    for family in (cpu_sparse, cpu_attention, cpu_dense, cpu_codes, cpu_int8, cpu_gat, cpu_chain):
        for name, kernel in family.KERNELS.items():
            implement_on_cpu(OPS[name], kernel)
