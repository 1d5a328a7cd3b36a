"""Results too large for the caches are written past them, at other addresses and in other pieces: the same bits."""

from __future__ import annotations

import functools

import pytest
import torch

from gossamer import Graph
from gossamer.ops import (
    OPS,
    dequantize_rows,
    dropout_saving_mask,
    int8_linear,
    masked_scale,
    norm_act,
    pack,
    relu_dropout,
    save_epilogue,
    saved_epilogue_backward,
    spmm,
    spmm_int8,
    unpack,
)
from gossamer.ops.activation import ACTIVATIONS
from gossamer.ops.norm_act import Epilogue, Over
from gossamer.ops.save_epilogue import Packed, Packing
from support.compare import on_baseline, same_bits
from support.spmm import NO_TRANSPOSE
from support.tensors import codes_of, rand

NUMEL = 2**23 + 2**17  # more than 2^23 floats, and not a power of two
COLUMNS = 64
ROWS = NUMEL // COLUMNS


@functools.cache
def graph() -> Graph:
    """Five edges a node, and every thousandth node without any."""
    rng = torch.Generator().manual_seed(0)
    src, dst = torch.randint(0, ROWS, (2, 5 * ROWS), generator=rng)
    return Graph.from_edge_index(torch.stack([src % 1000, dst])[:, dst % 1000 != 0], (1000, ROWS))


@functools.cache
def masked() -> tuple[torch.Tensor, torch.Tensor]:
    return dropout_saving_mask(rand(NUMEL), 0.3, 1)


@functools.cache
def codes() -> torch.Tensor:
    return codes_of(ROWS, COLUMNS)


TAIL = (1e-5, ACTIVATIONS.index("leaky_relu"), 0.2, 0.3, 1)


def normalised(over: Over):
    affine = (None, None) if over == Over.NOTHING else (rand(COLUMNS), rand(COLUMNS, seed=1))
    return norm_act(rand(ROWS, COLUMNS), *affine, None, None, over, *TAIL)


def gradients_of(over: Over):
    x = rand(ROWS, COLUMNS)
    statistics = [rand(COLUMNS if over == Over.COLUMNS else ROWS, seed=s).abs() for s in (2, 3)]
    return x, x, rand(COLUMNS), rand(COLUMNS, seed=1), *statistics, over, *TAIL


def kept(over: Over, *products: torch.Tensor):
    outs, mean, var, *found = save_epilogue(
        rand(ROWS, COLUMNS),
        rand(COLUMNS),
        rand(COLUMNS, seed=1),
        None,
        None,
        over,
        *TAIL,
        2,
        200,
        True,
        None,
        5,
        4,
        list(products),
        [None for _ in products],
    )
    return *outs, mean, var, *found


def kept_gradients(over: Over):
    _, _, var, *found = kept(over)
    epilogue, packing = Epilogue(None, None, None, None, over, *TAIL), Packing(2, 200, slope_bits=4)
    k = Packed(*found).saved(torch.Size((ROWS, COLUMNS)), epilogue, packing)
    dx = torch.empty(ROWS, COLUMNS)
    return dx, *saved_epilogue_backward(dx, rand(ROWS, COLUMNS, seed=2), *k, rand(COLUMNS), var, over, TAIL[0])


CALLS = {
    "dropout_mask": lambda: dropout_saving_mask(rand(NUMEL + 5), 0.3, 1),  # with a tail
    "relu_dropout": lambda: relu_dropout(rand(NUMEL), 0.3, 1),
    "masked_scale": lambda: masked_scale(*masked(), 0.3),
    "dequantize_rows": lambda: dequantize_rows(codes(), rand(ROWS)),
    "unpack": lambda: unpack(*pack(rand(NUMEL), 4, 208), NUMEL, 4, 208),  # blocks with a tail of their own
    "int8_linear": lambda: int8_linear(codes(), rand(ROWS), codes()[:COLUMNS], rand(COLUMNS)),
    "spmm": lambda: spmm(graph(), rand(1000, COLUMNS)),
    "spmm, heads": lambda: spmm(graph(), rand(1000, 4, 16), value=rand(graph().num_edges, 4)),
    "spmm, ends": lambda: spmm(graph(), rand(1000, COLUMNS), bias=rand(COLUMNS), rows=rand(ROWS, COLUMNS)),
    "norm_act": lambda: normalised(Over.NOTHING),
    "norm_act, columns": lambda: normalised(Over.COLUMNS),
    "norm_act, rows": lambda: normalised(Over.ROWS),
    "norm_act_backward, columns": lambda: OPS["norm_act_backward"](*gradients_of(Over.COLUMNS)),
    "norm_act_backward, rows": lambda: OPS["norm_act_backward"](*gradients_of(Over.ROWS)),
    "spmm_int8": lambda: spmm_int8(graph(), codes()[:1000], rand(1000)),
    "save_epilogue, rows": lambda: kept(Over.ROWS),
    "save_epilogue, products": lambda: kept(Over.COLUMNS, rand(COLUMNS, COLUMNS), rand(20, COLUMNS)),
    "saved_epilogue_backward, columns": lambda: kept_gradients(Over.COLUMNS),
}


@functools.cache
def want(name: str):
    return on_baseline(CALLS[name])


@pytest.fixture(autouse=True, scope="module")
def _forget():
    """These tensors are worth a few hundred megabytes."""
    yield
    for function in (graph, masked, codes, want):
        function.cache_clear()


@pytest.mark.parametrize("name", CALLS)
def test_same_bits_on_every_instruction_set(name, isa):
    torch.set_num_threads(2)  # restored by the fixture of all op tests
    assert same_bits(CALLS[name](), want(name))


@pytest.mark.parametrize("name", ["spmm", "int8_linear", "dequantize_rows"])
def test_parts_equal_the_reference(name):
    """The whole is checked against a slower kernel above, some of its rows against the definition here."""
    rows = torch.arange(0, ROWS, 9973)
    out = CALLS[name]()[rows]
    if name == "spmm":
        edge = (rows.unsqueeze(1) == graph().edge_index[1]).nonzero()[:, 1]
        rowptr = torch.cat([torch.zeros(1, dtype=torch.int64), graph().degree[rows].cumsum(0)])
        args = (rowptr, graph().col[edge], None, None, None, rand(1000, COLUMNS), *NO_TRANSPOSE)
    elif name == "int8_linear":
        args = (codes()[rows], rand(ROWS)[rows], codes()[:COLUMNS], rand(COLUMNS), None)
    else:
        args = (codes()[rows], rand(ROWS)[rows])
    torch.testing.assert_close(out, OPS[name].reference(*args))
