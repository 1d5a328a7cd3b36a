"""Counts and sums of rows by code, from which the levels of codes are refined to means.

    counts_pc += #{ i : code_ip = c }        sums_pc += sum of x_i,part p over those i        [parts, length, width]

x has parts of `width` columns (the last may be narrower: the rest of its sums stays as it is), codes are packed as by
`pack_ids`, with ceil(log2 length) bits. Sums are float64 and run over rows in order: those of several calls, one for
each chunk of rows, have the bits of one call for all. A code beyond the sums counts as the last.
"""

from __future__ import annotations

import torch
from torch import Tensor

from . import _checks
from ._library import define
from .gather_codes import check_columns, check_length, id_bits
from .pack_ids import row_bytes, unpack_ids


def _check(sums: Tensor, counts: Tensor, x: Tensor, codes: Tensor) -> None:
    _checks.dtype_of("x", x, (torch.float32,))
    _checks.shape_of("x", x, (None, None), "[rows, columns]")
    check_columns(x.size(1), "columns of `x`")
    _checks.dtype_of("sums", sums, (torch.float64,))
    _checks.shape_of("sums", sums, (None, None, None), "[parts, length, width]")
    parts, length, width = sums.shape
    check_length(length, "length of `sums`")
    if width < 1 or parts != -(-x.size(1) // width):
        raise ValueError(f"`sums` must have a part for each `width` of {x.size(1)} columns (got {tuple(sums.shape)})")
    _checks.dtype_of("counts", counts, (torch.int64,))
    _checks.shape_of("counts", counts, (parts, length), f"[{parts}, {length}]")
    _checks.dtype_of("codes", codes, (torch.uint8,))
    count = row_bytes(parts, id_bits(length))
    _checks.shape_of("codes", codes, (x.size(0), count), f"[{x.size(0)}, {count}] bytes, a row for each of `x`")
    for name, tensor in (("sums", sums), ("counts", counts)):
        if not tensor.is_contiguous():
            raise ValueError(f"`{name}` must be contiguous (got strides {tensor.stride()}); begin with torch.zeros")


def _reference(sums: Tensor, counts: Tensor, x: Tensor, codes: Tensor) -> None:
    parts, length, width = sums.shape
    ids = unpack_ids.reference(codes, parts, id_bits(length)).clamp(max=length - 1).long()
    codes_first = torch.cat([torch.arange(length, device=x.device).unsqueeze(1).expand(-1, parts), ids])
    for p in range(parts):
        counts[p] += torch.bincount(ids[:, p], minlength=length)
        for k, column in enumerate(x[:, p * width : (p + 1) * width].unbind(1)):
            terms = torch.cat([sums[p, :, k], column.double()])  # what is there already, then rows in their order
            sums[p, :, k] = torch.bincount(codes_first[:, p], terms, minlength=length)


code_sums = define(
    "code_sums(Tensor(a!) sums, Tensor(b!) counts, Tensor x, Tensor codes) -> ()",
    check=_check,
    reference=_reference,
    fake=lambda sums, counts, x, codes: None,
)
