"""Adjacency: products of float and of int8 rows, forward and transposed, against a dense matrix in float64."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
import torch

import gossamer as gs
from gossamer import ops
from gossamer.aggregate import Adjacency, Exact
from gossamer.aggregate.policy import Transposed
from gossamer.ops.quantize_rows import QRows
from support import graphs
from support.adjacencies import dense_of
from support.compare import UNIT
from support.tensors import rand

PARTS = {
    "plain": set(),
    "diagonal": {"diagonal"},
    "one number": {"constant"},
    "scales": {"scales"},
    "values": {"value"},
    "all": {"scales", "value", "diagonal"},
}
COLUMNS = (1, 7, 33)


def made(name, parts, requires_grad=False):
    """An adjacency, and the same matrix built edge by edge in float64."""
    graph = graphs.graph(name)
    (src, dst), own = graph.edge_index, min(graph.num_src, graph.num_dst)
    value = rand(graph.num_edges, seed=1) if "value" in parts else None
    scales = [rand(n, seed=2).abs() if "scales" in parts else None for n in (graph.num_src, graph.num_dst)]
    diagonal = None
    if parts & {"diagonal", "constant"}:
        diagonal = rand(1 if "constant" in parts else own, seed=3)
    matrix = torch.zeros(graph.num_dst, graph.num_src, dtype=torch.float64)
    for k, (j, i) in enumerate(zip(src.tolist(), dst.tolist(), strict=True)):
        weight = 1.0 if value is None else float(value[k])
        weight *= 1.0 if scales[0] is None else float(scales[0][j]) * float(scales[1][i])
        matrix[i, j] += weight
    if diagonal is not None:
        main = matrix.diagonal()
        main += diagonal.double().expand(own)
    for part in (value, diagonal):
        if part is not None:
            part.requires_grad_(requires_grad)
    return Adjacency(graph, value, *scales, diagonal), matrix


def assert_near(found, want, size, terms):
    """A sum of so many rounded terms, their magnitudes adding up to `size`; duplicates and factors round, too."""
    assert found.shape == want.shape
    assert ((found.double() - want).abs() <= 2 * (terms + 16) * UNIT * size).all()


def quantised(x):
    rows = QRows(*ops.quantize_rows(x))
    return rows, rows.codes.double() * rows.scale.double().unsqueeze(1)


@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize("name", graphs.GRAPHS)
def test_products_of_float_rows(name, parts):
    adjacency, matrix = made(name, PARTS[parts])
    graph = adjacency.graph
    terms = graph.num_edges
    for columns in COLUMNS:
        x, dout = rand(graph.num_src, columns, seed=5), rand(graph.num_dst, columns, seed=6)
        bias, add = rand(columns, seed=7), rand(graph.num_dst, columns, seed=8)
        size = matrix.abs() @ x.abs().double()
        assert_near(adjacency.product(x), matrix @ x.double(), size, terms)
        want = matrix @ x.double() + bias.double() + add.double()
        assert_near(adjacency.product(x, bias, add), want, size + bias.abs() + add.abs(), terms)
        assert_near(adjacency.back(dout), matrix.t() @ dout.double(), matrix.abs().t() @ dout.abs().double(), terms)


@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize("name", graphs.GRAPHS)
def test_products_of_int8_rows(name, parts):
    """In float32 up to the rounding of the sum; as int8 rows within half a step more, or one with noise."""
    adjacency, matrix = made(name, PARTS[parts])
    graph = adjacency.graph
    for columns, noise in zip(COLUMNS, (None, 3, None), strict=True):
        x, x_hat = quantised(rand(graph.num_src, columns, seed=5))
        g, g_hat = quantised(rand(graph.num_dst, columns, seed=6))
        bias, add, factor = rand(columns, seed=7), rand(graph.num_dst, columns, seed=8), rand(columns, seed=9)
        want, back = matrix @ x_hat, matrix.t() @ g_hat
        size, back_size = matrix.abs() @ x_hat.abs(), matrix.abs().t() @ g_hat.abs()
        assert_near(adjacency.product_of_rows(x), want, size, graph.num_edges)
        ends = adjacency.product_of_rows(x, bias, add)
        assert_near(ends, want + bias.double() + add.double(), size + bias.abs() + add.abs(), graph.num_edges)
        assert_near(adjacency.back_of_rows(g), back, back_size, graph.num_edges)
        scaled = (adjacency.back_rows(g, factor, noise), back * factor.double(), back_size * factor.abs())
        for rows, truth, most in ((adjacency.product_rows(x, noise), want, size), scaled):
            step = rows.scale.double().unsqueeze(1) * (0.5 if noise is None else 1.0)
            error = (rows.codes.double() * rows.scale.double().unsqueeze(1) - truth).abs()
            rounding = 2 * (graph.num_edges + 16) * UNIT * most + 2.0**-100
            assert (error <= step * (1 + 1e-4) + rounding).all()


@pytest.mark.parametrize("columns", COLUMNS)
@pytest.mark.parametrize("name", graphs.GRAPHS)
def test_gradients(name, columns):
    """Of x, edge values, the diagonal, bias and addend, all of which require grad."""
    adjacency, matrix = made(name, {"scales", "value", "diagonal"}, requires_grad=True)
    graph = adjacency.graph
    src, dst = graph.edge_index
    x, bias = rand(graph.num_src, columns, seed=5).requires_grad_(), rand(columns, seed=7).requires_grad_()
    add, dout = rand(graph.num_dst, columns, seed=8).requires_grad_(), rand(graph.num_dst, columns, seed=6)
    out = adjacency.product(x, bias, add)
    size = matrix.abs() @ x.detach().abs().double() + bias.detach().abs() + add.detach().abs()
    assert_near(out.detach(), (matrix @ x.double() + bias + add).detach(), size, graph.num_edges)
    out.backward(dout)
    wide, rows = dout.double(), x.detach().double()
    assert_near(x.grad, matrix.t() @ wide, matrix.abs().t() @ wide.abs(), graph.num_edges)
    assert_near(bias.grad, wide.sum(0), wide.abs().sum(0), graph.num_dst)
    assert torch.equal(add.grad, dout)
    scale = adjacency.src_scale.double()[src] * adjacency.dst_scale.double()[dst]
    dots, sizes = ((f(wide)[dst] * f(rows)[src]).sum(1) * scale for f in (lambda t: t, torch.abs))
    assert_near(adjacency.value.grad, dots, sizes, columns)
    if adjacency.diagonal is not None:
        own = min(graph.num_src, graph.num_dst)
        both = wide[:own] * rows[:own]
        assert_near(adjacency.diagonal.grad, both.sum(1), both.abs().sum(1), columns)


@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize("name", graphs.GRAPHS)
def test_a_factor(name, parts):
    """Forward, transposed, and of the gradient of edge values; the adjacency itself stays."""
    adjacency, matrix = made(name, PARTS[parts], requires_grad=True)
    graph = adjacency.graph
    x, dout = rand(graph.num_src, 7, seed=5), rand(graph.num_dst, 7, seed=6)
    whole, tenth = adjacency.product(x), adjacency.times(0.1).product(x)
    size = matrix.abs() @ x.abs().double()
    assert_near(tenth.detach(), 0.1 * matrix @ x.double(), 0.1 * size, graph.num_edges)
    assert_near(whole.detach(), matrix @ x.double(), size, graph.num_edges)
    back_size = 0.1 * matrix.abs().t() @ dout.abs().double()
    fixed, _ = made(name, PARTS[parts])
    assert_near(fixed.times(0.1).back(dout), 0.1 * matrix.t() @ dout.double(), back_size, graph.num_edges)
    leaves = [part for part in (adjacency.value, adjacency.diagonal) if part is not None]
    if leaves and graph.num_edges:
        found, want = (torch.autograd.grad(out, leaves, dout) for out in (tenth, whole))
        torch.testing.assert_close(found, tuple(0.1 * grad for grad in want), rtol=1e-5, atol=1e-5)


def test_a_number_on_the_diagonal_that_requires_grad():
    adjacency, _ = made("power law", {"constant"}, requires_grad=True)
    x, dout = rand(400, 7, seed=5), rand(400, 7, seed=6)
    adjacency.product(x).backward(dout)
    want = (x.double() * dout.double()).sum()
    assert_near(adjacency.diagonal.grad, want.reshape(1), (x * dout).abs().double().sum(), x.numel())


@pytest.mark.parametrize("own_values", [False, True])
def test_weights_of_the_graph_itself(own_values):
    """Values beside the graph take the place of its own."""
    graph = graphs.random_graph(30, 20, 100, weighted=True)
    value = rand(100, seed=1) if own_values else None
    src, dst = graph.edge_index
    weight = (graph.value if value is None else value).double()
    matrix = torch.zeros(20, 30, dtype=torch.float64).index_put_((dst, src), weight, True)
    adjacency = Adjacency(graph, value)
    x, dout = rand(30, 7), rand(20, 7, seed=2)
    assert_near(adjacency.product(x), matrix @ x.double(), matrix.abs() @ x.abs().double(), 100)
    assert_near(adjacency.back(dout), matrix.t() @ dout.double(), matrix.abs().t() @ dout.abs().double(), 100)


def test_second_derivatives():
    adjacency, matrix = made("self-loops", {"scales", "diagonal"})
    x = rand(6, 3).requires_grad_()
    (slope,) = torch.autograd.grad((adjacency.product(x) ** 2).sum(), x, create_graph=True)
    (slope**2).sum().backward()
    gram = 2 * matrix.t() @ matrix
    torch.testing.assert_close(x.grad.double(), 2 * gram.t() @ (gram @ x.detach().double()), rtol=1e-4, atol=1e-4)


def test_maxima():
    graph = graphs.graph("power law")
    adjacency = Adjacency.of(graph, reduce="max")
    x = rand(400, 7)
    src, dst = graph.edge_index
    want = torch.full((400, 7), -torch.inf).scatter_reduce(0, dst.unsqueeze(1).expand(-1, 7), x[src], "amax")
    assert torch.equal(adjacency.product(x), want.where(want.isfinite(), 0.0))
    assert not adjacency.is_linear and not adjacency.is_fixed


def test_means():
    graph = graphs.graph("bipartite, few sources")
    src, dst = graph.edge_index
    matrix = torch.zeros(90, 4, dtype=torch.float64).index_put_((dst, src), torch.ones(500).double(), True)
    matrix /= matrix.sum(1, keepdim=True).clamp(min=1)
    x = rand(4, 7)
    torch.testing.assert_close(Adjacency.of(graph, reduce="mean").product(x).double(), matrix @ x.double())


def test_what_is_fixed():
    graph = graphs.graph("power law")
    value, own = torch.ones(graph.num_edges), torch.ones(400)
    assert Adjacency(graph, value, diagonal=own).is_fixed
    assert not Adjacency(graph, value.clone().requires_grad_(), diagonal=own).is_fixed
    assert not Adjacency(graph, value, diagonal=own.clone().requires_grad_()).is_fixed


def test_a_fixed_adjacency_saves_nothing_for_backward():
    held = []
    adjacency, _ = made("power law", {"scales", "value", "diagonal"})
    x = rand(400, 7).requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: held.append(t) or t, lambda t: t):
        adjacency.product(x, rand(7), rand(400, 7)).sum().backward()
    assert held == []


def test_rows_of_another_number():
    adjacency, _ = made("power law", set())
    with pytest.raises(ValueError, match=r"`x`.*400"):
        adjacency.product(rand(399, 7))


# Sums that are remembered ---------------------------------------------------------------------------------------


def test_a_sum_of_the_same_rows_is_made_once():
    adjacency, _ = made("power law", {"scales", "constant"})
    x, _ = quantised(rand(400, 7))
    first = adjacency.product_rows_once(x)
    assert all(map(torch.equal, first, adjacency.product_rows(x, None)))
    assert adjacency.product_rows_once(x) is first
    again = adjacency.with_diagonal(adjacency.diagonal.clone())  # the same number in a new tensor
    assert again.product_rows_once(x) is first


CHANGES = {
    "graph": lambda a: dataclasses.replace(a, graph=graphs.graph("reversed star")),
    "value": lambda a: dataclasses.replace(a, value=None),
    "diagonal": lambda a: a.with_diagonal(rand(1, seed=11)),
    "no diagonal": lambda a: a.with_diagonal(None),
    "scale": lambda a: dataclasses.replace(a, dst_scale=None),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_sum_of_another_matrix_is_another(change):
    adjacency, _ = made("star", {"scales", "value", "constant"})
    x, _ = quantised(rand(300, 7))
    first = adjacency.product_rows_once(x)
    other = CHANGES[change](adjacency)
    if change == "graph":
        other = dataclasses.replace(other, value=other.value.clone())
    found = other.product_rows_once(x)
    assert all(map(torch.equal, found, other.product_rows(x, None)))
    assert not all(map(torch.equal, found, first))


@pytest.mark.parametrize("part", ["codes", "value", "dst_scale"])
def test_a_sum_is_void_once_a_part_has_changed(part):
    adjacency, _ = made("power law", {"scales", "value"})
    x, _ = quantised(rand(400, 7))
    first = adjacency.product_rows_once(x)
    (x.codes if part == "codes" else getattr(adjacency, part)).neg_()
    found = adjacency.product_rows_once(x)
    assert found is not first and all(map(torch.equal, found, adjacency.product_rows(x, None)))


# Policies -------------------------------------------------------------------------------------------------------


def test_exact_multiplies_by_the_transpose():
    for name, parts in itertools.product(("power law", "bipartite, few sources"), ({"value"}, {"scales"}, set())):
        adjacency, matrix = made(name, parts)
        given, keep = Exact().multiply(adjacency, rand(adjacency.graph.num_dst, 3), lambda transposed: transposed)
        back = Adjacency(gs.Graph(given.rowptr, given.col, adjacency.graph.num_dst), *given[2:])
        assert keep is None
        torch.testing.assert_close(dense_of(back), matrix.t())


def test_under_a_policy():
    adjacency, _ = made("star", {"scales"})
    assert adjacency.policy == Exact() and adjacency.under(Exact()) is adjacency
    assert Exact().bound_to("conv", None) == Exact() and Exact().edge_rows() is None


class Nothing:
    """Backward passes the diagonal alone."""

    def multiply(self, adjacency, gradient, product, factor=None):
        matrix = adjacency.transpose()
        return product(Transposed(matrix._replace(value=torch.zeros(matrix.col.numel()))))

    def edge_rows(self):
        return None


def test_a_policy_says_what_backward_multiplies():
    """Of float and of int8 rows; own rows are exact whatever it says, and forward does not ask it."""
    adjacency, _ = made("power law", {"scales", "diagonal"})
    cut, own = adjacency.under(Nothing()), adjacency.diagonal.unsqueeze(1)
    x, dout = rand(400, 7).requires_grad_(), rand(400, 7, seed=6)
    out = cut.product(x)
    assert torch.equal(out, adjacency.product(x))
    out.backward(dout)
    torch.testing.assert_close(x.grad, own * dout)
    g, g_hat = quantised(dout)
    torch.testing.assert_close(cut.back_of_rows(g).double(), own.double() * g_hat)
