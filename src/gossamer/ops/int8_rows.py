"""Ops whose results leave as int8 rows: the float row is rounded while it is in registers and never reaches memory.

    quantize_times       rows of  x * factor
    int8_linear_rows     rows of  int8_linear(x, w) * factor                                  (ops/int8_linear.py)
    spmm_rows            rows of  spmm_int8(graph, x) * factor                                (ops/spmm_int8.py)
    epilogue_rows        rows of  dropout(act(norm(x)))                                       (ops/norm_act.py)
    save_epilogue_rows   the same, beside what backward needs of it in few bits               (ops/save_epilogue.py)
    saved_codes          rows of  what those few bits decode to                               (ops/saved_epilogue.py)

`factor` is a number per column: a scale that a later product cannot take out of its sum is folded in before rounding.
Codes and scales are those of quantize_rows (ops/quantize_rows.py) on the float rows, bit for bit.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from . import _checks
from ._library import define
from ._structure import structure
from .csr import Sparse
from .int8_linear import check_product, int8_linear_op
from .norm_act import Epilogue, check_epilogue, fake_norm_act, norm_act
from .quantize_rows import QRows, quantize_rows_op
from .save_epilogue import Packed, Packing, check_packing, fake_packed, pack_epilogue
from .saved_epilogue import check_rows, rows_of
from .spmm_int8 import check_sum, int8_sum


def head_products(codes: Tensor, scale: Tensor, x: Tensor, heads: int) -> Tensor:
    """<scale * codes, x> over the columns of each head."""
    products = (codes.float() * x).view(codes.size(0), heads, codes.size(1) // heads)
    return products.sum(2) * scale.unsqueeze(1)


def check_factor(factor: Tensor | None, columns: int, name: str = "factor") -> None:
    """One number per column, or none."""
    if factor is not None:
        _checks.dtype_of(name, factor, (torch.float32,))
        _checks.shape_of(name, factor, (columns,), f"[{columns}], one number per column")


def rounded(x: Tensor, factor: Tensor | None, seed: int | None) -> QRows:
    """Codes and scales of x * factor, by the definition."""
    return quantize_rows_op.reference(x if factor is None else x * factor, seed)


def _empty(rows: int, columns: int, like: Tensor) -> QRows:
    return QRows(like.new_empty(rows, columns, dtype=torch.int8), like.new_empty(rows, dtype=torch.float32))


def empty_rows(x: Tensor) -> QRows:
    """Codes and scales for rows of the shape of x."""
    return _empty(x.size(0), x.size(1), x)


def _check_times(x: Tensor, factor: Tensor | None, seed: int | None) -> None:
    _checks.dtype_of("x", x, (torch.float32,))
    _checks.shape_of("x", x, (None, None), "[rows, columns]")
    check_factor(factor, x.size(1))


quantize_times = define(
    "quantize_times(Tensor x, Tensor? factor, int? seed) -> QRows",
    check=_check_times,
    reference=rounded,
    fake=lambda x, factor, seed: empty_rows(x),
)


def _check_linear(x: QRows, w: QRows, bias: Tensor | None, factor: Tensor | None, seed: int | None) -> None:
    check_product(x, w, bias)
    check_factor(factor, w.codes.size(0))


def _linear(x: QRows, w: QRows, bias: Tensor | None, factor: Tensor | None, seed: int | None) -> QRows:
    return rounded(int8_linear_op.reference(x, w, bias), factor, seed)


int8_linear_rows = define(
    "int8_linear_rows(QRows x, QRows w, Tensor? bias, Tensor? factor, int? seed) -> QRows",
    check=_check_linear,
    reference=_linear,
    fake=lambda x, w, bias, factor, seed: _empty(x.codes.size(0), w.codes.size(0), x.scale),
)


def _check_spmm(
    a: Sparse, x: QRows, bias: Tensor | None, diagonal: Tensor | None, rows: Tensor | None, factor: Tensor | None,
    seed: int | None, keep: Tensor | None = None,
) -> None:  # fmt: skip
    check_sum(a, x, bias, diagonal, rows, keep)
    check_factor(factor, x.codes.size(1))


def _spmm(
    a: Sparse, x: QRows, bias: Tensor | None, diagonal: Tensor | None, rows: Tensor | None, factor: Tensor | None,
    seed: int | None, keep: Tensor | None = None,
) -> QRows:  # fmt: skip
    return rounded(int8_sum(a, x, bias, diagonal, rows, keep), factor, seed)


spmm_rows = define(
    "spmm_rows(Sparse, QRows, Tensor? bias, Tensor? diagonal, Tensor? rows, Tensor? factor, int? seed, "
    "Tensor? keep=None) -> QRows",
    check=_check_spmm,
    reference=_spmm,
    fake=lambda a, x, *rest: _empty(a.num_dst, x.codes.size(1), x.scale),
)


@structure
class EpilogueRows(NamedTuple):
    """The result as int8 rows, and the statistics of x."""

    codes: Tensor
    scale: Tensor
    mean: Tensor
    var: Tensor

    @property
    def rows(self) -> QRows:
        return QRows(self.codes, self.scale)


def _check_epilogue(x: Tensor, e: Epilogue, noise: int | None) -> None:
    check_epilogue(x, e)
    _checks.dtype_of("x", x, (torch.float32,))


def _epilogue(x: Tensor, e: Epilogue, noise: int | None) -> EpilogueRows:
    out, mean, var = norm_act.reference(x, e)
    return EpilogueRows(*rounded(out, None, noise), mean, var)


def _epilogue_fake(x: Tensor, e: Epilogue, noise: int | None) -> EpilogueRows:
    _, mean, var = fake_norm_act(x, e)
    return EpilogueRows(*empty_rows(x), mean, var)


epilogue_rows = define(
    "epilogue_rows(Tensor x, Epilogue, int? noise) -> EpilogueRows",
    check=_check_epilogue,
    reference=_epilogue,
    fake=_epilogue_fake,
)


@structure
class SavingRows(NamedTuple):
    """The result as int8 rows, the statistics of x, and what is saved."""

    codes: Tensor
    scale: Tensor
    mean: Tensor
    var: Tensor
    saved_codes: Tensor
    zero: Tensor
    spread: Tensor
    marks: Tensor

    @property
    def rows(self) -> QRows:
        return QRows(self.codes, self.scale)

    @property
    def packed(self) -> Packed:
        return Packed(self.saved_codes, self.zero, self.spread, self.marks)


def _check_save(x: Tensor, e: Epilogue, packing: Packing, rounding: int | None) -> None:
    check_packing(x, e, packing)


def _save(x: Tensor, e: Epilogue, packing: Packing, rounding: int | None) -> SavingRows:
    (out, mean, var), packed = pack_epilogue(x, e, packing)
    return SavingRows(*rounded(out, None, rounding), mean, var, *packed)


def _save_fake(x: Tensor, e: Epilogue, packing: Packing, rounding: int | None) -> SavingRows:
    _, mean, var = fake_norm_act(x, e)
    return SavingRows(*empty_rows(x), mean, var, *fake_packed(x, e, packing))


save_epilogue_rows = define(
    "save_epilogue_rows(Tensor x, Epilogue, Packing, int? rounding) -> SavingRows",
    check=_check_save,
    reference=_save,
    fake=_save_fake,
)

saved_codes = define(
    "saved_codes(SavedEpilogue, Tensor? weight, Tensor? bias, bool result) -> QRows",
    check=check_rows,
    reference=lambda k, weight, bias, result: rounded(rows_of(k, weight, bias, result), None, None),
    fake=lambda k, weight, bias, result: _empty(k.rows, k.columns, k.codes),
)
