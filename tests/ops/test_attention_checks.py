"""What torch asks of the attention ops, and what they refuse."""

from __future__ import annotations

import pytest
import torch
from torch.library import opcheck

from gossamer.ops import OPS, gat_attention, gatv2_logits
from support import graphs
from support.tensors import rand

G = graphs.small()  # 5 sources, 4 destinations, 7 edges
S, D, E = rand(5, 2), rand(4, 2), rand(7, 2)


def test_opcheck():
    t = G.t()
    leaves = [a.clone().requires_grad_() for a in (S, D, E)]
    opcheck(OPS["gat_attention"].overload, (G.rowptr, G.col, *leaves, 0.2, t.rowptr, G.t_perm))
    opcheck(OPS["gat_attention"].overload, (G.rowptr, G.col, leaves[0], None, None, 0.2, None, None))
    opcheck(OPS["gat_attention_backward"].overload, (G.rowptr, G.col, S, D, None, 0.2, E, E.clone()))
    opcheck(OPS["edge_sums"].overload, (t.rowptr, G.t_perm, E))


def test_second_gradients():
    terms = [t.double().requires_grad_() for t in (S, D, E)]
    assert torch.autograd.gradgradcheck(lambda *t: gat_attention(G, *t), terms)


@pytest.mark.parametrize(
    "error, message, args",
    [
        (TypeError, "`a_src` must be float32 or float64.*bfloat16", (S.bfloat16(),)),
        (ValueError, r"`a_src`.*\[num_src, heads\].*\(5,\)", (rand(5),)),
        (IndexError, "`col`.*0 to 2", (rand(3, 2),)),
        (TypeError, "`a_dst` must be float32.*float64", (S, D.double())),
        (ValueError, r"`a_dst`.*\[4, 2\].*\(5, 2\)", (S, rand(5, 2))),
        (ValueError, r"`a_dst`.*\[4, 2\].*\(4, 1\)", (S, rand(4, 1))),
        (TypeError, "`a_edge`.*int64", (S, D, E.long())),
        (ValueError, r"`a_edge`.*\[7, 2\].*\(6, 2\)", (S, D, rand(6, 2))),
        (ValueError, "`slope`.*finite.*got inf", (S, D, E, float("inf"))),
    ],
)
def test_bad_arguments(error, message, args):
    with pytest.raises(error, match=message):
        gat_attention(G, *args)


@pytest.mark.parametrize(
    "error, message, p, dp",
    [
        (TypeError, "`p`.*float64", E.double(), E),
        (ValueError, r"`p`.*\[7, 2\].*\(7, 1\)", rand(7, 1), E),
        (TypeError, "`dp`.*bfloat16", E, E.bfloat16()),
        (ValueError, r"`dp`.*\[7, 2\].*\(2, 7\)", E, rand(2, 7)),
    ],
)
def test_bad_arguments_of_backward(error, message, p, dp):
    with pytest.raises(error, match=message):
        OPS["gat_attention_backward"](G.rowptr, G.col, S, D, None, 0.2, p, dp)


@pytest.mark.parametrize(
    "error, message, rowptr, perm, values",
    [
        (TypeError, "`values` must be float32 or float64.*int64", G.rowptr, None, E.long()),
        (ValueError, r"`values`.*\[nnz, heads\].*\(7,\)", G.rowptr, None, rand(7)),
        (ValueError, "`rowptr`.*number of edges, 6", G.rowptr, None, rand(6, 2)),
        (TypeError, "`perm` must be int64.*int32", G.rowptr, G.t_perm.int(), E),
        (ValueError, r"`perm`.*\[7\], one position per edge.*\(6,\)", G.rowptr, G.t_perm[:6], E),
        (IndexError, "`perm`.*0 to 6.*got 7 at position 0", G.rowptr, torch.arange(7, 0, -1), E),
        (IndexError, "`perm`.*got -1 at position 0", G.rowptr, torch.arange(-1, 6), E),
    ],
)
def test_bad_arguments_of_edge_sums(error, message, rowptr, perm, values):
    with pytest.raises(error, match=message):
        OPS["edge_sums"](rowptr, perm, values)


@pytest.mark.parametrize(
    "message, t_rowptr, t_perm",
    [
        ("`rowptr`", torch.tensor([0, 2, 4, 4, 4, 9]), G.t_perm),
        ("`perm`", G.t().rowptr, G.t_perm + 1),
        ("`perm`", G.t().rowptr, G.t_perm[:-1]),
    ],
)
def test_a_false_transpose_is_found_in_backward(message, t_rowptr, t_perm):
    p = OPS["gat_attention"](G.rowptr, G.col, S.clone().requires_grad_(), None, None, 0.2, t_rowptr, t_perm)
    with pytest.raises((ValueError, IndexError), match=message):
        p.sum().backward()


X, Y, A = rand(5, 4), rand(4, 4), rand(2, 2)
T = (G.t().rowptr, G.t().col, G.t_perm)


def test_opcheck_of_gatv2():
    leaves = [a.clone().requires_grad_() for a in (X, Y, A)]
    opcheck(OPS["gatv2_logits"].overload, (G.rowptr, G.col, *leaves, 0.2, *T))
    opcheck(OPS["gatv2_backward"].overload, (G.rowptr, G.col, X, Y, A, 0.2, *T, rand(7, 2)))


@pytest.mark.parametrize(
    "error, message, args",
    [
        (TypeError, "`x_src` must be float32 or float64.*bfloat16", (X.bfloat16(), Y, A)),
        (ValueError, r"`x_src`.*\[num_src, heads \* width\].*\(5, 2, 2\)", (rand(5, 2, 2), Y, A)),
        (IndexError, "`col`.*0 to 2", (rand(3, 4), Y, A)),
        (TypeError, "`x_dst` must be float32.*float64", (X, Y.double(), A)),
        (ValueError, r"`x_dst`.*\[4, 4\], as wide as x_src.*\(5, 4\)", (X, X, A)),
        (TypeError, "`att`.*float64", (X, Y, A.double())),
        (ValueError, r"`att`.*\[heads, width\].*\(1, 2, 2\)", (X, Y, rand(1, 2, 2))),
        (ValueError, "`att`.*as many elements as x_src has columns, 4 .got 3 heads and 6", (X, Y, rand(3, 2))),
        (ValueError, "`att`.*at least one head.*got 0 heads", (rand(5, 0), rand(4, 0), rand(0, 3))),
        (ValueError, "`slope`.*finite.*got nan", (X, Y, A, float("nan"))),
    ],
)
def test_bad_arguments_of_gatv2(error, message, args):
    with pytest.raises(error, match=message):
        gatv2_logits(G, *args)


@pytest.mark.parametrize(
    "error, message, t, dlogits",
    [
        (ValueError, r"`t_rowptr`.*\[6\]", (torch.tensor([0, 7]), *T[1:]), rand(7, 2)),
        (ValueError, r"`t_col`.*\[7\], as many edges as the graph has.*\(8,\)",
         (torch.tensor([0, 2, 4, 4, 7, 8]), torch.zeros(8, dtype=torch.int32), T[2]), rand(7, 2)),
        (IndexError, "`col`.*0 to 3", (T[0], T[1] + 3, T[2]), rand(7, 2)),
        (TypeError, "`t_perm` must be int64", (*T[:2], T[2].int()), rand(7, 2)),
        (ValueError, r"`t_perm`.*\[7\].*\(6,\)", (*T[:2], T[2][:6]), rand(7, 2)),
        (IndexError, "`t_perm`.*0 to 6.*got 7", (*T[:2], T[2] + 1), rand(7, 2)),
        (TypeError, "`dlogits`.*float64", T, rand(7, 2).double()),
        (ValueError, r"`dlogits`.*\[7, 2\].*\(7, 1\)", T, rand(7, 1)),
    ],
)  # fmt: skip
def test_bad_arguments_of_gatv2_backward(error, message, t, dlogits):
    with pytest.raises(error, match=message):
        OPS["gatv2_backward"](G.rowptr, G.col, X, Y, A, 0.2, *t, dlogits)
