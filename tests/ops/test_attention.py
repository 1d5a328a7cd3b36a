from __future__ import annotations

import pytest
import torch
from torch.autograd import gradcheck
from torch.nn import functional
from torch_geometric.utils import softmax

from gossamer import Graph
from gossamer.ops import OPS, gat_attention
from support import graphs
from support.compare import UNIT, assert_sums_agree, on_baseline, random_cotangent, same, same_bits, with_gradients
from support.tensors import rand

HEADS = (0, 1, 2, 4, 7, 8, 16)  # all that divide sixteen lanes, and others
PARTS = (("a_src",), ("a_src", "a_dst"), ("a_src", "a_edge"), ("a_src", "a_dst", "a_edge"))
ids = {"ids": lambda value: " ".join(value) if isinstance(value, tuple) else str(value)}


def terms(graph, heads, parts, dtype=torch.float32):
    counts = {"a_src": graph.num_src, "a_dst": graph.num_dst, "a_edge": graph.num_edges}
    return [2 * rand(counts[name], heads, seed=k, dtype=dtype) for k, name in enumerate(parts)]


def on(graph, op, parts, slope=0.2):
    """`op` as a function of the terms that are there."""

    def run(*given):
        named = dict(zip(parts, given, strict=True))
        return op(graph.rowptr, graph.col, *map(named.get, PARTS[3]), slope, None, None)

    return run


@pytest.mark.parametrize("parts", PARTS, **ids)
@pytest.mark.parametrize("name", graphs.GRAPHS)
def test_equals_the_reference(name, parts, isa):
    """The logits are equal to the bit, the weights as near as a softmax's, the gradients as sums of its gradients."""
    graph = graphs.graph(name)
    near = 2 * (max(graph.max_degree, graph.t().max_degree) + 8) * UNIT
    for heads, slope in zip(HEADS, (0.2, 0.2, 0.0, 0.2, 1.0, 0.1, -0.3), strict=True):
        given = terms(graph, heads, parts)
        (p, grads), (want, want_grads) = (
            with_gradients(on(graph, op, parts, slope), given, random_cotangent)
            for op in (OPS["gat_attention"], OPS["gat_attention"].reference)
        )
        torch.testing.assert_close(p, want, rtol=near, atol=1e-37)
        top = random_cotangent(p).abs().max() if p.numel() else 0.0
        allowed = 6 * near * want * top + 1e-37  # of each edge, as in test_edge_softmax.py
        src, dst = graph.edge_index
        for part, got, expected in zip(parts, grads, want_grads, strict=True):
            index = {"a_src": src, "a_dst": dst, "a_edge": torch.arange(graph.num_edges)}[part]
            bound = torch.zeros_like(got).index_add(0, index, 2 * allowed)  # and as much again for the sum's own
            assert got.shape == expected.shape and ((got - expected).abs() <= bound).all(), (part, heads)


@pytest.mark.parametrize("parts", PARTS, **ids)
def test_equals_pygs_formula(parts):
    """torch_geometric.nn.GATConv.edge_update, in float64."""
    graph = graphs.graph("power law")
    src, dst = graph.edge_index

    def formula(*given):
        named = dict(zip(parts, given, strict=True))
        alpha = named["a_src"][src]
        alpha = alpha + named["a_dst"][dst] if "a_dst" in named else alpha
        alpha = alpha + named["a_edge"] if "a_edge" in named else alpha
        return softmax(functional.leaky_relu(alpha, 0.2), dst, num_nodes=graph.num_dst)

    given = terms(graph, 3, parts, torch.float64)
    function = on(graph, lambda *args: gat_attention(graph, *args[2:5]), parts)
    # PyG adds 1e-16 to the sum of a softmax.
    torch.testing.assert_close(
        with_gradients(function, given, random_cotangent), with_gradients(formula, given, random_cotangent)
    )


def test_same_bits_for_every_instruction_set_and_thread_count(isa, threads):
    graph = graphs.graph("power law")
    for heads in (1, 2, 3, 4, 8, 16):

        def run(heads=heads):
            given = terms(graph, heads, PARTS[3])
            out, grads = with_gradients(lambda *a: gat_attention(graph, *a), given, random_cotangent)
            return out, *grads

        assert same_bits(run(), on_baseline(run))


def test_a_given_transpose_changes_nothing():
    """The function on graphs passes the cached transpose; the op alone makes its own."""
    graph = graphs.graph("bipartite, few sources")
    given = terms(graph, 2, PARTS[3])
    got = with_gradients(lambda *a: gat_attention(graph, *a), given, random_cotangent)
    want = with_gradients(on(graph, OPS["gat_attention"], PARTS[3]), given, random_cotangent)
    assert same_bits((got[0], *got[1]), (want[0], *want[1]))


def test_gradient_on_a_transposed_graph():
    """Its transpose is the first graph, whose edges stand in the order given."""
    graph = graphs.graph("power law").t()
    given = terms(graph, 2, PARTS[3])
    got = with_gradients(lambda *a: gat_attention(graph, *a), given, random_cotangent)
    want = with_gradients(on(graph, OPS["gat_attention"].reference, PARTS[3]), given, random_cotangent)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)  # sums of hundreds of weights of size 1


@pytest.mark.parametrize("heads", [2, 3, 4, 16])
@pytest.mark.parametrize("part", range(3))
def test_nan_and_infinity_stay_in_their_rows(part, heads, isa):
    graph = graphs.graph("power law")
    for bad in (torch.nan, torch.inf, -torch.inf):
        given = terms(graph, heads, PARTS[3])
        given[part][0, 1] = bad
        (p, grads), (want, want_grads) = (
            with_gradients(on(graph, op, PARTS[3]), given, random_cotangent)
            for op in (OPS["gat_attention"], OPS["gat_attention"].reference)
        )
        assert same(p.isnan(), want.isnan()) and p[:, [h for h in range(heads) if h != 1]].isfinite().all()
        if bad < 0:  # minus infinity switches edges off, and a row of it gives zeros
            assert not p.isnan().any() and all(g.isfinite().all() for g in grads)
            continue
        assert p.isnan().any()
        for got, expected in zip(grads, want_grads, strict=True):
            assert same(got.isnan(), expected.isnan())


def test_huge_terms_do_not_overflow(isa):
    graph = Graph(torch.tensor([0, 3]), torch.tensor([0, 1, 2], dtype=torch.int32), 3)
    p = gat_attention(graph, torch.tensor([[3e38], [3e38], [-3e38]]), torch.zeros(1, 1))
    assert torch.equal(p.view(-1), torch.tensor([0.5, 0.5, 0.0]))


@pytest.mark.parametrize("heads", [1, 2, 3, 4])
def test_a_row_sum_that_overflows_is_infinite(heads, isa):
    """Not NaN, as 0 * inf in lanes that no edge fills would be; the row without edges has the gradient 0."""
    graph = Graph(torch.tensor([0, 3, 3]), torch.zeros(3, dtype=torch.int32), 1)
    p, dp = torch.ones(3, heads), torch.full((3, heads), 3e38)
    ds, da_dst = OPS["gat_attention_backward"](graph.rowptr, graph.col, torch.ones(1, heads), None, None, 0.2, p, dp)
    assert torch.equal(ds, torch.full((3, heads), -torch.inf))
    assert torch.equal(da_dst, torch.tensor([[-torch.inf], [0.0]]).expand(2, heads))


def test_gradcheck():
    graph = graphs.small()
    for parts in PARTS:
        leaves = [t.requires_grad_() for t in terms(graph, 2, parts, torch.float64)]
        assert gradcheck(on(graph, OPS["gat_attention"], parts), leaves)
        assert gradcheck(on(graph, lambda *args: gat_attention(graph, *args[2:5]), parts), leaves)


def test_strides_change_nothing(isa):
    graph = graphs.graph("power law")
    given = terms(graph, 3, PARTS[3])
    want, grads = with_gradients(on(graph, OPS["gat_attention"], PARTS[3]), given)
    strided = [torch.stack([t, t], -1)[..., 0].requires_grad_() for t in given]
    for function in (on(graph, OPS["gat_attention"], PARTS[3]), lambda *a: gat_attention(graph, *a)):
        out = function(*strided)
        got = torch.autograd.grad(out, strided, torch.ones(3, len(out)).t())
        assert same_bits((out, *got), (want, *grads))
    dp = random_cotangent(want)
    args = (graph.rowptr, graph.col, *given, 0.2)
    wide = [torch.stack([t, t], -1)[..., 0] for t in (want, dp)]
    assert same_bits(OPS["gat_attention_backward"](*args, *wide), OPS["gat_attention_backward"](*args, want, dp))


def test_weights_terms_and_graph_are_kept():
    graph = graphs.graph("power law")
    held, given = [], [t.requires_grad_() for t in terms(graph, 4, PARTS[3])]
    with torch.autograd.graph.saved_tensors_hooks(lambda t: held.append(t) or t, lambda t: t):
        p = gat_attention(graph, *given)
    own = {t.data_ptr() for t in (graph.rowptr, graph.col, graph.t().rowptr, graph.t_perm, *given, p)}
    assert {t.data_ptr() for t in held} <= own


@pytest.mark.parametrize("name", graphs.GRAPHS)
def test_edge_sums(name, isa):
    graph = graphs.graph(name)
    t = graph.t()
    for heads in HEADS:
        values = rand(graph.num_edges, heads)
        for rowptr, perm in ((graph.rowptr, None), (t.rowptr, graph.t_perm)):
            out, want = (op(rowptr, perm, values) for op in (OPS["edge_sums"], OPS["edge_sums"].reference))
            size = OPS["edge_sums"].reference(rowptr, perm, values.abs())
            assert out.shape == want.shape
            assert ((out - want).abs() <= 2 * max(graph.max_degree, t.max_degree) * UNIT * size).all()


@pytest.mark.parametrize("heads", HEADS[1:])
def test_edge_sums_have_the_same_bits_everywhere(heads, isa, threads):
    graph = graphs.graph("power law")
    values = rand(graph.num_edges, heads)
    wide = torch.stack([values, values], -1)[..., 0]
    perm = torch.stack([graph.t_perm, graph.t_perm], -1)[..., 0]
    want = on_baseline(lambda: OPS["edge_sums"](graph.t().rowptr, graph.t_perm, values))
    assert same_bits(OPS["edge_sums"](graph.t().rowptr, perm, wide), want)
    assert_sums_agree(
        lambda v: OPS["edge_sums"].reference(graph.rowptr, None, v),
        lambda v: v.new_zeros(graph.num_dst, heads).index_add(0, graph.edge_index[1], v),
        [values],
        graph.max_degree,
    )
