from __future__ import annotations

import pytest
import torch
from torch.autograd import gradcheck
from torch.library import opcheck

from gossamer import Graph
from gossamer.ops import OPS, edge_softmax
from support import graphs
from support.compare import UNIT, on_baseline, random_cotangent, same_bits, with_gradients
from support.tensors import rand

HEADS = (0, 1, 2, 4, 7, 8, 16)  # all that divide sixteen lanes, and others


def assert_agree(graph, logits):
    """p is off by the error of exp (2 units in the last place), of a sum of `degree` terms and of a division."""
    (p, (dz,)), (want, (want_dz,)) = (
        with_gradients(lambda z, op=op: op(graph.rowptr, z), [logits], random_cotangent)
        for op in (OPS["edge_softmax"], OPS["edge_softmax"].reference)
    )
    error = 2 * (graph.max_degree + 8) * UNIT
    torch.testing.assert_close(p, want, rtol=error, atol=1e-37)  # atol: below e^-87 the kernel flushes to zero
    size = (
        random_cotangent(p).abs().max() if p.numel() else 0.0
    )  # |dz| <= 2 p max|dp|, and each factor is off by `error`
    assert ((dz - want_dz).abs() <= 6 * error * want * size + 1e-37).all()


@pytest.mark.parametrize("name", graphs.GRAPHS)
def test_equals_the_reference(name, isa):
    graph = graphs.graph(name)
    for heads in HEADS:
        assert_agree(graph, 3 * rand(graph.num_edges, heads))


@pytest.mark.parametrize("heads", [1, 2, 3, 4])
@pytest.mark.parametrize("at", [0, 20, 35, 36])
def test_one_head_of_a_long_row_is_nan(at, heads, isa):
    """Wherever in the row the NaN stands: in a whole vector, or in what is left after them."""
    graph = Graph(torch.tensor([0, 37]), torch.zeros(37, dtype=torch.int32), 1)
    for bad in (torch.nan, torch.inf):
        logits = rand(37, heads)
        logits[at, -1] = bad
        p = edge_softmax(graph, logits)
        assert p[:, -1].isnan().all() and p[:, :-1].isfinite().all()


@pytest.mark.parametrize("degree", [1, 15, 16, 17, 70_000])
def test_any_degree(degree, isa):
    graph = Graph(torch.tensor([0, degree]), torch.zeros(degree, dtype=torch.int32), 1)
    for heads in (1, 3, 4):
        assert_agree(graph, 3 * rand(degree, heads))
    p = edge_softmax(graph, 3 * rand(degree))
    assert abs(p.double().sum() - 1) < (degree + 8) * UNIT


@pytest.mark.parametrize("heads", [1, 2, 3, 4, 8, 16])
def test_large_logits_and_masked_edges(heads, isa):
    """Nothing overflows; minus infinity switches an edge off, a row of them gives zeros; NaN stays in its row."""
    rows = [[1e38, 1e38, -1e38], [-torch.inf, 0.0, 0.0], [-torch.inf] * 3, [torch.nan, 0.0, 1.0], [torch.inf, 0.0, 1.0]]
    rows += [[-1e30, -1e30, -2e30], [0.0, -86.0, -88.0]]
    z = torch.tensor(rows)
    graph = Graph(torch.arange(0, 22, 3), torch.zeros(21, dtype=torch.int32), 1)
    p = edge_softmax(graph, z.view(-1, 1).expand(-1, heads))
    assert all(same_bits(p[:, h].clone(), p[:, 0].clone()) for h in range(heads))
    p = p[:, 0].view(7, 3)
    want = torch.tensor([[0.5, 0.5, 0.0], [0.0, 0.5, 0.5], [0.0] * 3])
    assert torch.equal(p[:3], want)
    assert p[3:5].isnan().all()
    assert torch.equal(p[5], torch.tensor([0.5, 0.5, 0.0]))
    torch.testing.assert_close(p[6], z[6].softmax(0), rtol=1e-6, atol=1e-37)


def test_exponential_is_accurate_to_two_units_in_the_last_place(isa):
    """Pairs (0, z): the smaller weight is e^z / (1 + e^z)."""
    z = -torch.cat([torch.linspace(0, 87, 20_001), torch.logspace(-8, 0, 1001)])
    graph = Graph(torch.arange(0, 2 * len(z) + 1, 2), torch.zeros(2 * len(z), dtype=torch.int32), 1)
    p = edge_softmax(graph, torch.stack([torch.zeros_like(z), z], 1).view(-1)).view(-1, 2)[:, 1].double()
    want = z.double().sigmoid()
    units = (p - want).abs() / (2 * UNIT * want)
    assert units[z < -20].max() <= 2  # the sum is 1: this is exp alone
    assert units.max() <= 2 + 3 / 2  # and half a unit each for the sum, its reciprocal and the product


def test_same_bits_for_every_instruction_set_and_thread_count(isa, threads):
    graph = graphs.graph("power law")
    for shape in ((), *((heads,) for heads in HEADS[1:])):

        def run(shape=shape):
            logits = 3 * rand(graph.num_edges, *shape)
            out, grads = with_gradients(lambda z: edge_softmax(graph, z), [logits], random_cotangent)
            return out, *grads

        assert same_bits(run(), on_baseline(run))


def test_gradcheck():
    graph = graphs.small()
    logits = rand(graph.num_edges, 2, dtype=torch.float64).requires_grad_()
    assert gradcheck(lambda z: edge_softmax(graph, z), (logits,))


def test_masked_edges_get_no_gradient(isa):
    graph = Graph(torch.tensor([0, 3, 5]), torch.zeros(5, dtype=torch.int32), 1)
    logits = torch.tensor([-torch.inf, 0.5, 1.0, -torch.inf, -torch.inf])
    _, (dz,) = with_gradients(lambda z: edge_softmax(graph, z), [logits], random_cotangent)
    assert torch.equal(dz[[0, 3, 4]], torch.zeros(3))
    assert dz[1:3].abs().min() > 0


@pytest.mark.parametrize("heads", [3, 4])
def test_backward_op_equals_its_reference(heads, isa):
    graph = graphs.graph("star")
    p, dp = rand(graph.num_edges, heads), rand(graph.num_edges, heads, seed=1)
    out, want = (
        op(graph.rowptr, p, dp) for op in (OPS["edge_softmax_backward"], OPS["edge_softmax_backward"].reference)
    )
    total = (p * dp).abs().sum(0)
    assert ((out - want).abs() <= 2 * (graph.max_degree + 8) * UNIT * p.abs() * (dp.abs() + total)).all()


def test_opcheck():
    graph = graphs.small()
    opcheck(OPS["edge_softmax"].overload, (graph.rowptr, rand(7, 2).requires_grad_()))
    opcheck(OPS["edge_softmax_backward"].overload, (graph.rowptr, rand(7, 2), rand(7, 2)))


@pytest.mark.parametrize(
    "error, name, logits",
    [
        (ValueError, "`logits`.*nnz = 7", rand(6)),
        (ValueError, "`logits`.*nnz = 7", rand(7, 1, 1)),
        (ValueError, "`logits`", torch.tensor(1.0)),
        (TypeError, "`logits`.*bfloat16", rand(7).bfloat16()),
    ],
)
def test_bad_arguments(error, name, logits):
    with pytest.raises(error, match=name):
        edge_softmax(graphs.small(), logits)


@pytest.mark.parametrize(
    "error, name, args",
    [
        (ValueError, "`rowptr`", (torch.tensor([0, 2]), rand(3, 1))),
        (ValueError, "`logits`", (torch.tensor([0, 3]), rand(3))),
    ],
)
def test_bad_arguments_of_the_op(error, name, args):
    with pytest.raises(error, match=name):
        OPS["edge_softmax"](*args)


@pytest.mark.parametrize("error, dp", [(ValueError, rand(7, 1)), (TypeError, rand(7, 2).double())])
def test_bad_arguments_of_backward(error, dp):
    with pytest.raises(error, match="`dp`"):
        OPS["edge_softmax_backward"](graphs.small().rowptr, rand(7, 2), dp)
