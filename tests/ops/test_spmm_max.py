from __future__ import annotations

import pytest
import torch
from torch.autograd import gradcheck
from torch.library import opcheck

from gossamer import Graph
from gossamer.ops import OPS, spmm, spmm_max
from support import graphs
from support.compare import on_baseline, random_cotangent, same, same_bits, with_gradients
from support.tensors import rand


def on(graph, op):
    return lambda x, value=None: op(graph.rowptr, graph.col, value, x, graph.max_degree)


@pytest.mark.parametrize("name", graphs.GRAPHS)
def test_equals_the_reference(name, isa):
    """A maximum rounds nothing beyond its products: values and winners are equal, gradients are sums."""
    graph = graphs.graph(name)
    for turn, columns in enumerate(graphs.COLUMNS, start=graphs.GRAPHS.index(name)):
        weights = [rand(graph.num_edges, seed=1)] if turn % 2 else []
        native, reference = on(graph, OPS["spmm_max"]), on(graph, OPS["spmm_max"].reference)
        inputs = [rand(graph.num_src, columns), *weights]
        assert same(native(*inputs), reference(*inputs))
        if turn % 3 == 0:
            got, want = (with_gradients(f, inputs, random_cotangent)[1] for f in (native, reference))
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)  # at most 400 terms of size 1 in any order


@pytest.mark.parametrize("columns", [1, 17, 64])
def test_ties_go_to_the_first_edge_and_nan_wins(columns, isa):
    graph = Graph.from_edge_index(torch.tensor([[4, 1, 2, 3, 0, 0], [0, 0, 0, 1, 1, 2]]), (5, 4))
    x = torch.tensor([-torch.inf, 2.0, 2.0, torch.nan, 1.0]).repeat(columns, 1).t().contiguous()
    out, winner = on(graph, OPS["spmm_max"])(x)
    want = torch.tensor([2.0, torch.nan, -torch.inf, 0.0]).repeat(columns, 1).t()
    assert same(out, want)
    assert winner[:, 0].tolist() == [1, 0, 0, 0] and (winner == winner[:, :1]).all()
    assert same((out, winner), on(graph, OPS["spmm_max"].reference)(x))


def test_same_bits_for_every_instruction_set_and_thread_count(isa, threads):
    graph = graphs.graph("power law")
    inputs = [rand(400, 130), rand(graph.num_edges, seed=1)]

    def run():
        out, grads = with_gradients(on(graph, OPS["spmm_max"]), inputs, random_cotangent)
        return out, *grads

    assert same_bits(run(), on_baseline(run))


@pytest.mark.parametrize(
    "degree, dtype", [(256, torch.uint8), (257, torch.int16), (32768, torch.int16), (70_000, torch.int32)]
)
def test_winners_of_a_hub_are_kept_in_the_smallest_type(degree, dtype, isa):
    """The largest value sits on the last edge, so that the winner is the largest position there is."""
    rowptr, col = torch.tensor([0, degree]), torch.arange(degree, dtype=torch.int32)
    graph = Graph(rowptr, col, degree)
    x = torch.arange(degree, dtype=torch.float32).unsqueeze(1) * torch.ones(33)
    x[:, 32] *= -1  # this column's largest is the first
    out, winner = on(graph, OPS["spmm_max"])(x)
    assert winner.dtype == dtype
    assert (winner[0, :32].long() == degree - 1).all() and winner[0, 32] == 0
    assert torch.equal(out[0], torch.tensor([degree - 1.0] * 32 + [0.0]))
    _, (dx,) = with_gradients(lambda x: spmm_max(graph, x), [x])
    want = torch.zeros_like(x)
    want[degree - 1, :32], want[0, 32] = 1, 1
    assert torch.equal(dx, want)


def test_gradcheck():
    graph = graphs.small()
    x = torch.arange(10.0, dtype=torch.float64).view(5, 2).sin()  # no two equal: no ties
    value = torch.linspace(0.5, 1.5, graph.num_edges, dtype=torch.float64)
    assert gradcheck(lambda x: on(graph, OPS["spmm_max"])(x)[0], (x.requires_grad_(),), eps=1e-7, atol=1e-6)
    both = (x, value.requires_grad_())
    assert gradcheck(lambda x, value: on(graph, OPS["spmm_max"])(x, value)[0], both, eps=1e-7, atol=1e-6)


def test_function_on_graphs_and_spmm_agree():
    graph = graphs.graph("power law").gcn_norm()
    x = rand(graph.num_src, 17)
    assert torch.equal(spmm(graph, x, reduce="max"), spmm_max(graph, x, graph.value))


def test_backward_op_equals_its_reference(isa):
    graph, x = graphs.graph("bipartite, few sources"), rand(4, 17)
    _, winner = on(graph, OPS["spmm_max"])(x)
    value = rand(graph.num_edges, seed=1).abs()

    def run(op):
        return lambda dout: op(graph.rowptr, graph.col, value, winner, dout, 4)

    out, want = (run(op)(rand(90, 17, seed=2)) for op in (OPS["spmm_max_backward"], OPS["spmm_max_backward"].reference))
    torch.testing.assert_close(out, want, rtol=1e-5, atol=1e-4)  # up to 90 terms of size 1 in each sum


def test_opcheck():
    graph, x = graphs.small(), rand(5, 4).requires_grad_()
    value = rand(graph.num_edges).requires_grad_()
    opcheck(OPS["spmm_max"].overload, (graph.rowptr, graph.col, value, x, graph.max_degree))
    _, winner = OPS["spmm_max"](graph.rowptr, graph.col, None, x.detach(), 300)
    opcheck(OPS["spmm_max_backward"].overload, (graph.rowptr, graph.col, value.detach(), winner, rand(4, 4), 5))


G = graphs.small()
WINNER = torch.zeros(4, 3, dtype=torch.uint8)


@pytest.mark.parametrize(
    "error, name, value, x, max_degree",
    [
        (TypeError, "`x`.*bfloat16", None, rand(5, 3).bfloat16(), 4),
        (ValueError, "`x`", None, rand(5), 4),
        (IndexError, "`col`.*2 source rows", None, rand(2, 3), 4),
        (ValueError, "`value`.*heads", rand(7, 2), rand(5, 3), 4),
        (ValueError, "`value`", torch.tensor(1.0), rand(5, 3), 4),
        (TypeError, "`value`.*int32", torch.ones(7, dtype=torch.int32), rand(5, 3), 4),
        (ValueError, "`max_degree`.*4.*got 3", None, rand(5, 3), 3),
        (ValueError, "`max_degree`", None, rand(5, 3), -1),
    ],
)
def test_bad_arguments(error, name, value, x, max_degree):
    with pytest.raises(error, match=name):
        OPS["spmm_max"](G.rowptr, G.col, value, x, max_degree)


@pytest.mark.parametrize(
    "error, name, value, winner, dout, num_src",
    [
        (ValueError, "`winner`.*positions", None, WINNER + 4, rand(4, 3), 5),
        (ValueError, "`winner`.*positions", None, WINNER.short() - 1, rand(4, 3), 5),
        (ValueError, "`winner`", None, WINNER[:3], rand(4, 3), 5),
        (TypeError, "`winner`.*int64", None, WINNER.long(), rand(4, 3), 5),
        (ValueError, "`dout`", None, WINNER, rand(5, 3), 5),
        (ValueError, "`value`", rand(3), WINNER, rand(4, 3), 5),
        (ValueError, "`value`", torch.tensor(1.0), WINNER, rand(4, 3), 5),
        (IndexError, "`col`", None, WINNER, rand(4, 3), 1),
    ],
)
def test_bad_arguments_of_backward(error, name, value, winner, dout, num_src):
    with pytest.raises(error, match=name):
        OPS["spmm_max_backward"](G.rowptr, G.col, value, winner, dout, num_src)
