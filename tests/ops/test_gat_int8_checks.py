"""What torch asks of the ops of GAT on int8 rows, and what they refuse."""

from __future__ import annotations

import pytest
import torch
from torch.library import opcheck

from gossamer.ops import OPS, gat_backward_int8

from . import graphs
from .compare import tensors_of
from .test_gat_int8 import backward_arguments, calls
from .test_spmm import rand
from .test_spmm_int8 import codes_of


@pytest.mark.parametrize("name", calls())
def test_opcheck(name):
    for args in (calls()[name], calls("no edges", 1, 4, False)[name], calls("no nodes", 3, 1)[name]):
        opcheck(OPS[name].overload, args, test_utils=("test_schema", "test_faketensor"))


@pytest.mark.parametrize("name", calls())
def test_no_gradient_of_its_own(name):
    """Neither of floats nor of scales."""
    for at in (1, -1):
        args = [
            a.requires_grad_() if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in calls()[name]
        ]
        with pytest.raises(RuntimeError, match=f"`{name}` has no gradient"):
            tensors_of(OPS[name](*args))[at].sum().backward()


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
    "gat_backward_int8": [  # 6 nodes, 8 edges, 2 heads of 3
        (0, torch.tensor([0, 2, 3, 9, 8, 8, 8]), ValueError, "`rowptr` must ascend from 0 to the number of edges, 8"),
        (1, torch.full((8,), 6, dtype=torch.int32), IndexError, "`col` must hold ids from 0 to 5.*got 6"),
        (1, torch.zeros(8, dtype=torch.int64), TypeError, "`col` must be int32.*int64"),
        (2, rand(6, 2).double(), TypeError, "`a_src` must be float32.*float64"),
        (2, rand(6), ValueError, r"`a_src`.*\[num_src, heads\] \(got \(6,\)\)"),
        (3, rand(5, 2), ValueError, r"`a_dst`.*\[6, 2\] \(got \(5, 2\)\)"),
        (3, rand(6, 2).double(), TypeError, "`a_dst` must be float32.*float64"),
        (4, rand(8, 1), ValueError, r"`a_edge`.*\[8, 2\] \(got \(8, 1\)\)"),
        (5, torch.inf, ValueError, "`slope`.*finite.*got inf"),
        (6, rand(8, 2).double(), TypeError, "`p` must be float32.*float64"),
        (6, rand(7, 2), ValueError, r"`p`.*\[8, 2\] \(got \(7, 2\)\)"),
        (7, 1.5, ValueError, r"`drop` must be a probability between 0 and 1 \(got 1.5\)"),
        (7, -0.1, ValueError, r"`drop` must be a probability .*got -0.1"),
        (9, rand(6, 6), TypeError, "`g` must be int8.*float32"),
        (9, codes_of(5, 6), ValueError, r"`g`.*\[num_dst, columns\] with num_dst = 6 \(got \(5, 6\)\)"),
        (9, codes_of(6, 6)[0], ValueError, r"`g`.*\[num_dst, columns\] \(got \(6,\)\)"),
        (9, codes_of(6, 5), ValueError, r"`a_src` must have heads that divide the 5 columns of `g` \(got 2\)"),
        (10, rand(5), ValueError, r"`g_scale`.*\[6\], one number per row \(got \(5,\)\)"),
        (10, rand(6).double(), TypeError, "`g_scale` must be float32.*float64"),
        (11, codes_of(6, 6).to(torch.uint8), TypeError, "`h` must be int8.*uint8"),
        (11, codes_of(6, 4), ValueError, r"`h`.*\[num_src, columns\] with 6 columns, those of `g` \(got \(6, 4\)\)"),
        (12, rand(6, 1), ValueError, r"`h_scale`.*\[6\], one number per row \(got \(6, 1\)\)"),
    ],
    "gat_sources_int8": [
        (
            0,
            torch.tensor([0, 2, 3, 9, 8, 8, 8]),
            ValueError,
            "`t_rowptr` must ascend .* number of edges, 8 .*at position 4",
        ),
        (0, torch.zeros(7), TypeError, "`t_rowptr` must be int64.*float32"),
        (0, torch.zeros((), dtype=torch.int64), ValueError, r"`t_rowptr`.*\[num_dst \+ 1\]"),
        (1, torch.full((8,), 6, dtype=torch.int32), IndexError, "`t_col` must hold ids from 0 to 5.*got 6"),
        (1, torch.zeros(8, dtype=torch.int64), TypeError, "`t_col` must be int32.*int64"),
        (2, torch.arange(8, dtype=torch.int32), TypeError, "`t_perm` must be int64.*int32"),
        (2, torch.arange(7), ValueError, r"`t_perm`.*\[8\], one position per edge \(got \(7,\)\)"),
        (2, torch.arange(1, 9), IndexError, "`t_perm` must hold ids from 0 to 7.*got 8 at position 7"),
        (3, rand(8, 4).double(), TypeError, "`pairs` must be float32.*float64"),
        (3, rand(7, 4), ValueError, r"`pairs`.*\[8, 2 \* heads\] \(got \(7, 4\)\)"),
        (3, rand(8, 5), ValueError, r"`pairs` must have two columns for each head, .* 6 columns of `g` \(got 5\)"),
        (3, rand(8, 0), ValueError, r"`pairs` must have two columns for each head, .*got 0"),
        (3, rand(8, 8), ValueError, r"`pairs` .* heads divide the 6 columns of `g` \(got 8\)"),
        (4, rand(6, 6), TypeError, "`g` must be int8.*float32"),
        (4, codes_of(6, 6)[0], ValueError, r"`g`.*\[num_dst, columns\] \(got \(6,\)\)"),
        (5, rand(5), ValueError, r"`g_scale`.*\[6\], one number per row \(got \(5,\)\)"),
        (5, rand(6).double(), TypeError, "`g_scale` must be float32.*float64"),
        (6, rand(5), ValueError, r"`att_src`.*\[6\] \(got \(5,\)\)"),
        (6, rand(6).double(), TypeError, "`att_src` must be float32.*float64"),
        (7, rand(1, 6), ValueError, r"`att_dst`.*\[6\] \(got \(1, 6\)\)"),
        (7, None, ValueError, "`att_dst` and `da_dst` must be given together, or neither"),
        (8, None, ValueError, "`att_dst` and `da_dst` must be given together, or neither"),
        (8, rand(5, 2), ValueError, r"`da_dst`.*\[6, 2\] \(got \(5, 2\)\)"),
        (8, rand(6, 2).bfloat16(), TypeError, "`da_dst` must be float32.*bfloat16"),
        (10, rand(5), ValueError, r"`factor`.*\[6\], one number per column \(got \(5,\)\)"),
        (10, rand(6).double(), TypeError, "`factor` must be float32.*float64"),
    ],
}


@pytest.mark.parametrize("name, at, value, error, message", [(name, *case) for name in BAD for case in BAD[name]])
def test_bad_arguments(name, at, value, error, message):
    args = list(calls()[name])
    args[at] = value
    with pytest.raises(error, match=message):
        OPS[name](*args)


def test_no_heads_are_refused():
    args = backward_arguments(graphs.graph("self-loops"), 2, 3)
    args[2:5], args[6] = [rand(6, 0), None, None], rand(8, 0)
    with pytest.raises(ValueError, match=r"`a_src` must have heads that divide the 6 columns of `g` \(got 0\)"):
        gat_backward_int8(*args)
