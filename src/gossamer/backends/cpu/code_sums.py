"""Native kernel of ops/code_sums.py."""

from __future__ import annotations

from torch import Tensor

from ...native import library, num_threads
from ...ops._library import implement
from ...ops.code_sums import code_sums
from ...ops.gather_codes import id_bits
from ._arguments import at, contiguous


def _code_sums(sums: Tensor, counts: Tensor, x: Tensor, codes: Tensor) -> None:
    x, codes = contiguous(x, codes)
    _, length, width = sums.shape
    library.code_sums(
        at(x), at(codes), *x.shape, width, length, id_bits(length), at(sums), at(counts), num_threads()
    )  # fmt: skip


implement(code_sums, "cpu", _code_sums)
