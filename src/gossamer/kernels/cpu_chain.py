"""Native kernels of chains that keep few bits. Where products or int8 rows follow, few rows at a time are float."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import memory
from ..ops._library import OPS
from ..ops.chain_keep import kept_of, sizes
from ..ops.kept_chain import Kept, is_smooth, slope_range
from ..ops.norm_act import Over, rstd_of
from . import native, num_threads
from ._arguments import F32, MASK64, at, contiguous, noise, row_sums_scratch
from .cpu_dense import WeightGrads, column_affine, correction, moments

TILE_ELEMENTS = 2**20
"""Small beside the results; large enough that waiting for all threads twice a tile does not show on a busy machine."""
LARGEST_GROUP = 2**22
"""Elements of the rows that fill whole blocks together; beyond it scratch would be as large as what it saves."""


def _native_chain(k: Kept) -> Any:
    """The object that kernels take; k's tensors must be alive and contiguous while it is used."""
    low, high = slope_range(k.act, k.slope) if is_smooth(k.act) else (0.0, 1.0)
    bits, slopes = (0, at(k.marks)) if is_smooth(k.act) else (at(k.marks), 0)
    bf16_meta = k.zero is not None and k.zero.dtype == torch.bfloat16
    layout = (k.rows * k.columns, _span(k.rows * k.columns, k.block), k.bits, bf16_meta, at(k.levels))
    passing = 1.0 / (1.0 - k.merged) if k.merged < 1 else 0.0
    tail = (bits, slopes, k.slope_bits, low, high - low, passing, k.slope, k.p, k.seed & MASK64)
    return native.KeptChain(at(k.codes), at(k.zero), at(k.spread), *layout, *tail)


def _span(numel: int, block: int) -> int:
    return max(1, min(block, numel))


def _group(columns: int, block: int, bits: int) -> int:
    """The least number of rows that fill whole blocks and whole bytes of bits."""
    bytes_full = 8 // math.gcd(8, columns)
    return math.lcm(block // math.gcd(block, columns), bytes_full) if bits else bytes_full


def _tiles(rows: int, columns: int, multiple: int) -> Iterator[tuple[int, int]]:
    step = max(1, TILE_ELEMENTS // max(1, columns) // multiple) * multiple
    return ((start, min(rows, start + step)) for start in range(0, rows, step))


def _enough(done: bool) -> None:
    if not done:
        raise MemoryError("no memory left for the scratch of a kept chain")


class _Keeping(NamedTuple):
    """A chain on its way: statistics, what is kept, and `run(start, end, out)`, which fills both for some rows.

    `multiply(outs, products, biases)` fills both for all rows, and the products of the result instead of it.
    """

    mean: Tensor
    var: Tensor
    kept: tuple[Tensor, ...]
    run: Callable[[int, int, Tensor], None]
    multiply: Callable[[list[Tensor], list[Tensor], list[Tensor | None]], None]
    group: int


def _keeping(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor | None, var: Tensor | None,
    over: int, eps: float, act: int, slope: float, p: float, seed: int, bits: int, block: int, bf16_meta: bool,
    levels: Tensor | None, seed_of_noise: int | None, slope_bits: int,
) -> _Keeping | None:  # fmt: skip
    """None where the rows that fill whole blocks are too many: the reference then computes all."""
    rows, columns = x.shape
    block = _span(x.numel(), block)
    group = _group(columns, block, bits) if x.numel() else 1
    if x.numel() == 0 or group * columns > LARGEST_GROUP:
        return None
    x, (weight, bias, levels) = x.contiguous(), contiguous(weight, bias, levels)
    code_bytes, blocks, mark_bytes = sizes(x.numel(), act, bits, block, slope_bits)
    meta = torch.bfloat16 if bf16_meta else F32
    codes, marks = memory.empty([code_bytes], torch.uint8), memory.empty([mark_bytes], torch.uint8)
    zero, spread = (memory.empty([blocks], meta) for _ in range(2))
    k = kept_of((codes, zero, spread, marks), x.shape, (bits, block, levels), act, slope, p, seed, slope_bits)
    if over == Over.ROWS:
        own_mean, own_var = x.new_empty(rows), x.new_empty(rows)
    else:
        own_mean, own_var = moments(x, over) if over in (Over.COLUMNS, Over.ALL) else (x.new_empty(0), x.new_empty(0))
    used = (own_mean, own_var) if mean is None or var is None else (mean, var)
    columns_of = column_affine(x, weight, bias, *used, over, eps) if over != Over.ROWS else (None,) * 4
    by_row = (at(own_mean), at(own_var)) if over == Over.ROWS else (0, 0)

    def call(start: int, end: int, out: Tensor | None, *products: list[int]) -> None:
        settings = (act, slope, p, seed & MASK64, _native_chain(k), *noise(seed_of_noise))  # holds k while it is read
        given = (*(at(t) for t in columns_of), at(weight), at(bias), eps, *by_row)
        place = x.data_ptr() + start * columns * 4
        ends = (start, end - start, columns)
        _enough(native.chain_keep(place, *given, *ends, *settings, at(out), *products, group, num_threads()))

    def run(start: int, end: int, out: Tensor) -> None:
        call(start, end, out, [], [], [], [])

    def multiply(outs: list[Tensor], products: list[Tensor], biases: list[Tensor | None]) -> None:
        operands = contiguous(*products), contiguous(*biases), outs
        call(0, rows, None, *([at(t) for t in tensors] for tensors in operands), [out.size(1) for out in outs])

    return _Keeping(own_mean, own_var, (codes, zero, spread, marks), run, multiply, group)


def _run_tiles(rows: int, columns: int, multiple: int, run: Callable[[int, int, Tensor], None]) -> Iterator[Any]:
    """(start, end, tile) for each tile of rows, run into one buffer that all of them share."""
    tile: Tensor | None = None
    for start, end in _tiles(rows, columns, multiple):
        tile = memory.empty([end - start, columns], F32) if tile is None else tile[: end - start]
        run(start, end, tile)
        yield start, end, tile


def _chain_keep(x: Tensor, *args: Any) -> Any:
    *settings, products, biases = args
    found = _keeping(x, *settings)
    if found is None:
        return OPS["chain_keep"].reference(x, *args)
    rows = x.size(0)
    outs = [memory.empty([rows, product.size(0)], F32) for product in products] or [memory.empty(x.shape, F32)]
    if products:
        found.multiply(outs, products, biases)
    else:
        found.run(0, rows, outs[0])
    return outs, found.mean, found.var, *found.kept


class _RowsTo:
    """Int8 rows that are written a tile at a time."""

    def __init__(self, rows: int, columns: int, seed: int | None) -> None:
        self.codes, self.scale = memory.empty([rows, columns], torch.int8), memory.empty([rows], F32)
        self._columns, self._noise = columns, noise(seed)

    def write(self, start: int, tile: Tensor) -> None:
        places = (self.codes.data_ptr() + start * self._columns, self.scale.data_ptr() + start * 4)
        _enough(native.quantize_times(at(tile), *places, 0, *self._noise, start, *tile.shape, num_threads()))


def _chain_keep_rows(x: Tensor, *args: Any) -> Any:
    *settings, rounding = args
    found = _keeping(x, *settings)
    if found is None:
        return OPS["chain_keep_rows"].reference(x, *args)
    rows, columns = x.shape
    to = _RowsTo(rows, columns, rounding)
    for start, _, tile in _run_tiles(rows, columns, found.group, found.run):
        to.write(start, tile)
    return to.codes, to.scale, found.mean, found.var, *found.kept


def _contiguous_kept(args: tuple[Any, ...]) -> Kept:
    codes, zero, spread, levels, marks = contiguous(*args[:5])
    return Kept(codes, zero, spread, levels, marks, *args[5:15])


def _decoder(k: Kept, weight: Tensor | None, bias: Tensor | None, result: bool) -> Callable[[int, int, Tensor], None]:
    kept, (weight, bias) = _native_chain(k), contiguous(weight, bias)

    def run(start: int, end: int, out: Tensor) -> None:
        affine = (at(weight), at(bias), result)
        _enough(native.chain_decode(kept, *affine, at(out), start, end - start, k.columns, num_threads()))

    return run


def _kept_rows(*args: Any) -> Tensor:
    k = _contiguous_kept(args)
    out = memory.empty([k.rows, k.columns], F32)
    _decoder(k, *args[15:])(0, k.rows, out)
    return out


def _kept_products(douts: list[Tensor], *args: Any) -> list[Tensor]:
    k, (weight, bias, result) = _contiguous_kept(args), args[15:]
    if k.rows * k.columns == 0 or not douts:
        return [dout.new_zeros(dout.size(1), k.columns) for dout in douts]
    wanted, (weight, bias) = WeightGrads(douts, k.rows, k.columns), contiguous(weight, bias)
    given = (_native_chain(k), at(weight), at(bias), result)
    _enough(native.kept_weight_grad(*given, *wanted.arguments, k.rows, k.columns, num_threads()))
    return wanted.dws


def _chain_products_backward(
    gs: list[Tensor], weights: list[Tensor], x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor,
    var: Tensor, over: int, eps: float, act: int, slope: float, p: float, seed: int,
) -> tuple[list[Tensor], Tensor]:  # fmt: skip
    (rows, columns), dz = x.shape, memory.empty(x.shape, F32)
    dws = [memory.empty([g.size(1), columns], F32) for g in gs]
    some = [k for k, g in enumerate(gs) if g.numel()]  # kernels get no empty tensors
    if x.numel() == 0 or not some:
        return [dw.zero_() for dw in dws], dz.zero_()
    x, gs, weights = x.contiguous(), [g.contiguous() for g in gs], [w.contiguous() for w in weights]
    scale, shift, _, _ = column_affine(x, weight, bias, mean, var, over, eps)
    outs = -(-sum(gs[k].size(1) for k in some) // 16) * 16
    partial = memory.empty([native.grad_slabs(rows, outs, columns), columns, outs], F32)
    products = ([at(tensors[k]) for k in some] for tensors in (gs, weights, dws))
    given = (at(x), at(scale), at(shift), act, slope, p, seed & MASK64, *products, [gs[k].size(1) for k in some])
    _enough(native.chain_products_backward(*given, at(partial), at(dz), rows, columns, num_threads()))
    return dws, dz


def _kept_codes(*args: Any) -> tuple[Tensor, Tensor]:
    k = _contiguous_kept(args)
    if k.rows * k.columns == 0:
        return OPS["kept_codes"].reference(*args)
    run, to = _decoder(k, *args[15:]), _RowsTo(k.rows, k.columns, None)
    for start, _, tile in _run_tiles(k.rows, k.columns, 1, run):
        to.write(start, tile)
    return to.codes, to.scale


def _chain_backward(dx: Tensor, dout: Tensor, *args: Any) -> tuple[Tensor, Tensor, Tensor]:
    k, (weight, var, over, eps) = _contiguous_kept(args), args[15:]
    dout, (weight, var) = dout.contiguous(), contiguous(weight, var)
    dweight, dbias = dout.new_zeros(k.columns), dout.new_zeros(k.columns)
    kept, ends = _native_chain(k), (k.rows, k.columns, num_threads())
    scratch, sums = row_sums_scratch(k.rows, k.columns, pairs=2), dout.new_empty(0)
    if over == Over.ROWS and var is not None:
        rstd = rstd_of(var, over, eps).contiguous()
        given = (at(dout), kept, at(weight), at(rstd), at(scratch))
        _enough(native.chain_row_backward(*given, at(dx), at(dweight), at(dbias), *ends))
        return dweight, dbias, sums
    scale = by_hat = constant = None
    if over != Over.NOTHING and var is not None:
        hats = dout.new_zeros(k.columns)
        _enough(native.chain_sums(at(dout), kept, at(scratch), at(dbias), at(dweight), at(hats), *ends))
        rstd = rstd_of(var, over, eps).expand(k.columns).contiguous()
        scale = rstd if weight is None else rstd * weight
        by_x, constant = correction(k.rows, weight, var, scale, rstd, over, eps, dweight, dbias)
        by_hat = None if by_x is None else by_x / rstd
        sums = scale * dbias
        if by_hat is not None and constant is not None:
            sums = by_hat * hats if over == Over.COLUMNS else sums + by_hat * hats + k.rows * constant
    extra = (at(scale), at(by_hat), at(constant))
    _enough(native.chain_backward(at(dout), kept, *extra, at(dx), *ends))
    return dweight, dbias, sums


KERNELS: dict[str, Callable[..., Any]] = {
    "chain_keep": _chain_keep,
    "chain_keep_rows": _chain_keep_rows,
    "kept_rows": _kept_rows,
    "kept_products": _kept_products,
    "chain_products_backward": _chain_products_backward,
    "kept_codes": _kept_codes,
    "chain_backward": _chain_backward,
}
