"""What torch asks of the ops of GAT on int8 rows, and what they refuse."""

from __future__ import annotations

import pytest
import torch
from torch.library import opcheck

from gossamer.ops import OPS, gat_backward_int8
from gossamer.ops.int8_linear import MAX_COLUMNS
from support import graphs
from support.compare import tensors_of
from support.gat_int8 import FLOATS, backward_arguments, calls, dots_arguments, sum_arguments
from support.tensors import codes_of, rand


@pytest.mark.parametrize("name", calls())
def test_opcheck(name):
    for args in (calls()[name], calls("no edges", 1, 4, False)[name], calls("no nodes", 3, 1)[name]):
        opcheck(OPS[name].overload, args, test_utils=("test_schema", "test_faketensor"))


@pytest.mark.parametrize("name", calls())
def test_no_gradient_of_its_own(name):
    """Of none of its results that are floats."""
    given = calls()[name]
    for at, result in enumerate(tensors_of(OPS[name](*given))):
        args = [a.requires_grad_() if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in given]
        if result.is_floating_point():
            with pytest.raises(RuntimeError, match=f"`{name}` has no gradient"):
                tensors_of(OPS[name](*args))[at].sum().backward()


ATTENTION = [  # 6 nodes, 8 edges, 2 heads of 3
    (0, torch.tensor([0, 2, 3, 9, 8, 8, 8]), ValueError, "`rowptr` must ascend from 0 to the number of edges, 8"),
    (0, torch.zeros(7), TypeError, "`rowptr` must be int64.*float32"),
    (1, torch.full((8,), 6, dtype=torch.int32), IndexError, "`col` must hold ids from 0 to 5.*got 6"),
    (1, torch.zeros(8, dtype=torch.int64), TypeError, "`col` must be int32.*int64"),
    (2, rand(6, 2).double(), TypeError, "`a_src` must be float32.*float64"),
    (2, rand(6), ValueError, r"`a_src`.*\[num_src, heads\] \(got \(6,\)\)"),
    (3, rand(5, 2), ValueError, r"`a_dst`.*\[6, 2\] \(got \(5, 2\)\)"),
    (3, rand(6, 2).double(), TypeError, "`a_dst` must be float32.*float64"),
    (4, rand(8, 1), ValueError, r"`a_edge`.*\[8, 2\] \(got \(8, 1\)\)"),
    (5, torch.inf, ValueError, "`slope`.*finite.*got inf"),
    (6, 1.5, ValueError, r"`drop` must be a probability between 0 and 1 \(got 1.5\)"),
    (6, -0.1, ValueError, r"`drop` must be a probability .*got -0.1"),
    (8, rand(6, 6), TypeError, "`h` must be int8.*float32"),
    (8, codes_of(5, 6), ValueError, r"`h`.*\[6, columns\] \(got \(5, 6\)\)"),
    (8, codes_of(6, 6)[0], ValueError, r"`h`.*\[6, columns\] \(got \(6,\)\)"),
    (8, codes_of(6, 5), ValueError, r"`a_src` must have heads that divide the 5 columns of `h` \(got 2\)"),
    (9, rand(5), ValueError, r"`h_scale`.*\[6\], one number per row \(got \(5,\)\)"),
    (9, rand(6).double(), TypeError, "`h_scale` must be float32.*float64"),
]
BAD = {
    "int8_linear_heads": [  # x [6, 6], w [6, 6], 2 heads
        (0, rand(6, 6), TypeError, "`x` must be int8.*float32"),
        (0, codes_of(6, 6)[0], ValueError, r"`x`.*\[rows, columns\] \(got \(6,\)\)"),
        (1, rand(5), ValueError, r"`x_scale`.*\[6\] \(got \(5,\)\)"),
        (2, codes_of(6, 5), ValueError, r"`w`.*\[outputs, 6\], the columns of `x` \(got \(6, 5\)\)"),
        (3, rand(6).double(), TypeError, "`w_scale` must be float32.*float64"),
        (4, rand(2, 6).double(), TypeError, "`att` must be float32.*float64"),
        (4, rand(2, 5), ValueError, r"`att`.*\[terms, 6\], the outputs of `w` \(got \(2, 5\)\)"),
        (4, rand(6), ValueError, r"`att`.*\[terms, 6\], the outputs of `w` \(got \(6,\)\)"),
        (5, 0, ValueError, r"`heads` must divide the number of columns, 6 \(got 0\)"),
        (5, -2, ValueError, r"`heads` must divide .*got -2"),
        (5, 4, ValueError, r"`heads` must divide .*got 4"),
    ],
    "gat_sum_int8": [
        *ATTENTION,
        (10, rand(6).double(), TypeError, "`bias` must be float32.*float64"),
        (10, rand(5), ValueError, r"`bias`.*\[6\], one number per column \(got \(5,\)\)"),
        (10, rand(1, 6), ValueError, r"`bias`.*\[6\], one number per column \(got \(1, 6\)\)"),
    ],
    "gat_dots_int8": [
        *ATTENTION,
        (10, rand(6, 6), TypeError, "`g` must be int8.*float32"),
        (10, codes_of(5, 6), ValueError, r"`g`.*\[num_dst, columns\] with num_dst = 6 \(got \(5, 6\)\)"),
        (10, codes_of(6, 6)[0], ValueError, r"`g`.*\[num_dst, columns\] with num_dst = 6 \(got \(6,\)\)"),
        (10, codes_of(6, 4), ValueError, r"`h`.*\[num_src, columns\] with 4 columns, those of `g` \(got \(6, 6\)\)"),
        (11, rand(5), ValueError, r"`g_scale`.*\[6\], one number per row \(got \(5,\)\)"),
        (11, rand(6).double(), TypeError, "`g_scale` must be float32.*float64"),
    ],
    "gat_backward_int8": [
        (0, torch.tensor([0, 2, 3, 9, 8, 8, 8]), ValueError, "`t_rowptr` must ascend .* edges, 8 .*at position 4"),
        (0, torch.zeros(7), TypeError, "`t_rowptr` must be int64.*float32"),
        (0, torch.zeros((), dtype=torch.int64), ValueError, r"`t_rowptr`.*\[num_dst \+ 1\]"),
        (0, torch.tensor([0, 8]), ValueError, r"`t_rowptr`.*\[7\], as `a_src` has 6 rows \(got \(2,\)\)"),
        (1, torch.full((8,), 6, dtype=torch.int32), IndexError, "`t_col` must hold ids from 0 to 5.*got 6"),
        (1, torch.zeros(8, dtype=torch.int64), TypeError, "`t_col` must be int32.*int64"),
        (2, torch.arange(8, dtype=torch.int32), TypeError, "`t_perm` must be int64.*int32"),
        (2, torch.arange(7), ValueError, r"`t_perm`.*\[8\], one position per edge \(got \(7,\)\)"),
        (2, torch.arange(1, 9), IndexError, "`t_perm` must hold ids from 0 to 7.*got 8 at position 7"),
        (2, torch.arange(8) // 2, ValueError, r"`t_perm` must hold each position once \(got none at 4\)"),
        (3, rand(6, 2).double(), TypeError, "`a_src` must be float32.*float64"),
        (3, rand(6), ValueError, r"`a_src`.*\[num_src, heads\] \(got \(6,\)\)"),
        (3, rand(5, 2), ValueError, r"`t_rowptr`.*\[6\], as `a_src` has 5 rows \(got \(7,\)\)"),
        (4, rand(5, 2), ValueError, r"`a_dst`.*\[6, 2\] \(got \(5, 2\)\)"),
        (4, rand(6, 2).double(), TypeError, "`a_dst` must be float32.*float64"),
        (5, rand(8, 1), ValueError, r"`a_edge`.*\[8, 2\] \(got \(8, 1\)\)"),
        (5, rand(8, 2).bfloat16(), TypeError, "`a_edge` must be float32.*bfloat16"),
        (6, torch.inf, ValueError, "`slope`.*finite.*got inf"),
        (7, 1.5, ValueError, r"`drop` must be a probability between 0 and 1 \(got 1.5\)"),
        (7, -0.1, ValueError, r"`drop` must be a probability .*got -0.1"),
        (9, rand(6, 2).double(), TypeError, "`log_sums` must be float32.*float64"),
        (9, rand(5, 2), ValueError, r"`log_sums`.*\[6, 2\] \(got \(5, 2\)\)"),
        (10, rand(6, 2).double(), TypeError, "`dots` must be float32.*float64"),
        (10, rand(6), ValueError, r"`dots`.*\[6, 2\] \(got \(6,\)\)"),
        (11, rand(6, 6), TypeError, "`g` must be int8.*float32"),
        (11, codes_of(6, 6)[0], ValueError, r"`g`.*\[num_dst, columns\] \(got \(6,\)\)"),
        (11, codes_of(7, 6), ValueError, r"`a_dst`.*\[7, 2\] \(got \(6, 2\)\)"),
        (11, codes_of(6, 5), ValueError, r"`a_src` must have heads that divide the 5 columns of `g` \(got 2\)"),
        (11, codes_of(6, 4), ValueError, r"`g`.*\[num_dst, 6\], the columns of `h` \(got \(6, 4\)\)"),
        (12, rand(5), ValueError, r"`g_scale`.*\[6\], one number per row \(got \(5,\)\)"),
        (12, rand(6).double(), TypeError, "`g_scale` must be float32.*float64"),
        (13, codes_of(6, 6).to(torch.uint8), TypeError, "`h` must be int8.*uint8"),
        (13, codes_of(5, 6), ValueError, r"`h`.*\[6, columns\] \(got \(5, 6\)\)"),
        (13, codes_of(6, 5), ValueError, r"`a_src` must have heads that divide the 5 columns of `h` \(got 2\)"),
        (14, rand(6, 1), ValueError, r"`h_scale`.*\[6\], one number per row \(got \(6, 1\)\)"),
        (14, rand(6).double(), TypeError, "`h_scale` must be float32.*float64"),
        (16, rand(5), ValueError, r"`factor`.*\[6\], one number per column \(got \(5,\)\)"),
        (16, rand(6).double(), TypeError, "`factor` must be float32.*float64"),
    ],
}


@pytest.mark.parametrize("name, at, value, error, message", [(name, *case) for name in BAD for case in BAD[name]])
def test_bad_arguments(name, at, value, error, message):
    args = list(calls()[name])
    args[at] = value
    with pytest.raises(error, match=message):
        OPS[name](*args)


def test_no_heads_are_refused():
    graph, message = graphs.graph("self-loops"), r"`a_src` must have heads that divide the 6 columns of `h` \(got 0\)"
    for name, args, at in (
        ("gat_sum_int8", sum_arguments(graph, 2, 3), 2),
        ("gat_dots_int8", dots_arguments(graph, 2, 3), 2),
        ("gat_backward_int8", [*backward_arguments(graph, 2, 3), *FLOATS], 3),
    ):
        args[at : at + 3] = [rand(6, 0), None, None]
        if name == "gat_backward_int8":
            args[9:11] = [rand(6, 0)] * 2
        with pytest.raises(ValueError, match=message):
            OPS[name](*args)


def test_sums_that_could_overflow_are_refused():
    graph = graphs.graph("one node, one loop")
    wide = torch.zeros(1, MAX_COLUMNS + 1, dtype=torch.int8)
    args = backward_arguments(graph, 1, 1)
    args[11] = args[13] = wide
    with pytest.raises(ValueError, match=rf"`h` must have at most {MAX_COLUMNS} columns to a head.*; split it"):
        gat_backward_int8(*args, *FLOATS)
