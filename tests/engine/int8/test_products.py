"""Products and neighbour sums of int8 rows against the straight-through function in float64."""

from __future__ import annotations

import pytest
import torch

from gossamer import Graph, ops
from gossamer.aggregate import Adjacency
from gossamer.engine import noise
from gossamer.engine.int8 import qrows
from gossamer.engine.int8.entry import Entry
from gossamer.engine.int8.products import convolve, products
from gossamer.engine.settings import Int8
from gossamer.ops.int8_grad import CHUNK
from gossamer.ops.quantize_rows import QRows
from support.compare import UNIT, cosine, nsr
from support.graphs import random_graph
from support.int8 import assert_near, decoded, dense_of, exact, predicted
from support.tensors import tensors
from support.unbiased import assert_unbiased

INT8 = Entry(Int8())


@pytest.fixture(autouse=True)
def _begin_anew():
    """The same noise in every run."""
    torch.manual_seed(0)
    noise.stream.reset()


def square(weighted: bool = False, nodes: int = 60) -> Graph:
    return random_graph(nodes, nodes, 5 * nodes, weighted)


def _factors(graph: Graph) -> torch.Tensor:
    degree = (graph.rowptr[1:] - graph.rowptr[:-1]).float()
    return (1 + degree).rsqrt()


ADJACENCIES = {
    "sum": lambda: Adjacency(square()),
    "mean": lambda: Adjacency(g := square(), None, None, g.inverse_degree),
    "gcn": lambda: Adjacency(g := square(), None, _factors(g), _factors(g)),
    "edge weights": lambda: Adjacency(square(weighted=True)),
    "other weights": lambda: Adjacency(g := square(weighted=True), g.value.flip(0).contiguous()),
    "gin": lambda: Adjacency(g := square(), diagonal=torch.tensor(1.25).expand(g.num_dst)),
    "mean and own row": lambda: Adjacency(
        g := square(weighted=True), None, None, g.inverse_degree, torch.tensor(0.5).expand(g.num_dst)
    ),
    "loops of some nodes": lambda: Adjacency(g := square(), diagonal=torch.arange(g.num_dst) % 3 * 0.7),
    "few destinations": lambda: Adjacency(g := random_graph(60, 9, 200), None, None, g.inverse_degree),
    "few sources": lambda: Adjacency(random_graph(9, 60, 200, weighted=True)),
    "no edges": lambda: Adjacency(random_graph(60, 60, 0), diagonal=torch.ones(60)),
}
CASES = [("products", "none", False), ("products", "none", True)]
CASES += [(first, name, False) for first in ("multiply", "aggregate") for name in ADJACENCIES]
CASES += [(first, name, True) for first in ("multiply", "aggregate") for name in ("mean", "gcn", "gin")]


class Call:
    """One call with everything that belongs to it; `many`: a second weight (and, of products, a second result)."""

    def __init__(self, first, name, many, columns=17, outs=12, with_add=False, with_bias=True, seed=0):
        self.first = first
        self.adjacency = None if first == "products" else ADJACENCIES[name]()
        graph = square() if self.adjacency is None else self.adjacency.graph
        num_src, num_dst = graph.num_src, graph.num_dst
        count = 1 + many
        made = tensors((num_src, columns), *[(outs, columns)] * count, *[(outs,)] * count, (num_dst, outs), seed=seed)
        self.x, self.weights, biases = made[0], made[1 : 1 + count], made[1 + count : 1 + 2 * count]
        self.biases = biases if with_bias else [None] * count
        self.add = made[-1] if with_add else None
        self.douts = [t.detach() for t in tensors(*[(num_dst, outs)] * (2 if self.two else 1), seed=seed + 100)]

    @property
    def two(self) -> bool:
        return self.adjacency is None and len(self.weights) == 2

    def run(self, x=None, weights=None, entry=INT8):
        x, weights = self.x if x is None else x, self.weights if weights is None else weights
        if self.adjacency is None:
            return products(x, weights, self.biases, entry, add=self.add)[:-2]
        return convolve(x, self.adjacency, weights, self.biases, self.first, entry, add=self.add)[:-2]

    @property
    def inputs(self):
        return [self.x, *self.weights, *(b for b in self.biases if b is not None)]

    def exact(self):
        """Results, their sums of magnitudes, and gradients in the order of `inputs`."""
        if not self.two:
            e = exact(self.x, self.adjacency, self.weights, self.biases, self.first, self.douts[0], self.add)
            return [e.out], [e.size], [e.dx, *e.dweights, *e.dbiases]
        each = [
            exact(self.x, None, [w], [b], "products", d, r)
            for w, b, d, r in zip(self.weights, self.biases, self.douts, (self.add, None), strict=True)
        ]
        grads = [each[0].dx + each[1].dx, *(e.dweights[0] for e in each), *(e.dbiases[0] for e in each)]
        return [e.out for e in each], [e.size for e in each], grads

    @property
    def terms(self) -> int:
        """Products that are added up for one element at most."""
        if self.adjacency is None:
            return self.x.size(1)
        degree = self.adjacency.graph.rowptr.diff().max().item()
        return 2 * self.x.size(1) + degree


@pytest.fixture(params=CASES, ids=lambda case: " ".join(map(str, case)))
def call(request):
    return Call(*request.param)


def test_forward(call):
    """Integer sums are exact, so what remains is float32's rounding of scales, of sums over edges, of biases."""
    outs, sizes, _ = call.exact()
    for out, truth, size in zip(call.run(), outs, sizes, strict=True):
        assert_near(out, truth, size, call.terms)


WITH_ADD = [("products", "none", True), ("multiply", "gcn", True), ("aggregate", "few destinations", False)]


@pytest.mark.parametrize("first, name, many", WITH_ADD)
def test_an_addend_gets_its_gradient(first, name, many):
    call = Call(first, name, many, with_add=True)
    outs, sizes, _ = call.exact()
    found = call.run()
    for out, truth, size in zip(found, outs, sizes, strict=True):
        assert_near(out, truth, size, call.terms)
    (dadd,) = torch.autograd.grad(found, [call.add], call.douts)
    assert torch.equal(dadd, call.douts[0])  # the first result's alone


def test_every_width():
    """One column, fewer than a vector, one more than a vector, several and a tail."""
    for columns in (1, 3, 17, 130):
        for outs in (1, 3, 17, 130):
            for first, name in (("products", "none"), ("multiply", "gcn"), ("aggregate", "gcn")):
                call = Call(first, name, False, columns, outs)
                with torch.no_grad():  # outputs of alike scale, see test_outputs_with_small_weights
                    call.weights[0].add_(2 * call.weights[0].sign())
                (truth,), (size,), grads = call.exact()
                (out,) = call.run()
                assert_near(out, truth, size, call.terms)
                found = torch.autograd.grad(out, call.inputs, call.douts)
                assert [f.shape for f in found] == [g.shape for g in grads]
                assert all(cosine(f, g) > 0.99 for f, g in zip(found, grads, strict=True)), (columns, outs, first)


def test_gradients_are_unbiased(call):
    """Over many draws of noise the gradients of x and of the weights are those of the straight-through function.

    Those of the biases are sums of exact gradients and have no noise.
    """
    outs = call.run()
    _, _, (dx, *grads) = call.exact()
    wanted = 1 + len(call.weights)
    *_, dbias = torch.autograd.grad(outs, call.inputs, call.douts, retain_graph=True)
    torch.testing.assert_close(dbias.double(), grads[-1], rtol=1e-5, atol=1e-5)

    def draw():
        return torch.autograd.grad(outs, call.inputs[:wanted], call.douts, retain_graph=True)

    if call.adjacency is not None and not call.adjacency.graph.num_edges:
        return  # what does not flow has no noise
    assert_unbiased(draw, [dx, *grads][:wanted])


@pytest.mark.parametrize("first", ["multiply", "aggregate"])
def test_gradients_without_a_gradient_of_x_are_unbiased(first):
    """Of an input that needs no gradient: dW alone, by another path."""
    call = Call(first, "gcn", False)
    call.x.requires_grad_(False)
    (out,) = call.run()
    _, _, (_, dw, _) = call.exact()
    assert_unbiased(lambda: torch.autograd.grad(out, call.weights, call.douts, retain_graph=True), [dw])


def test_nearest_gradients_are_biased():
    """The contrast: rounded to nearest, gradients are not the truth on average (the test above can fail)."""
    call = Call("multiply", "gcn", False)
    (out,) = call.run(entry=Entry(Int8(gradients="nearest")))
    _, _, (dx, *_) = call.exact()
    with pytest.raises(AssertionError):
        assert_unbiased(lambda: torch.autograd.grad(out, [call.x], call.douts, retain_graph=True), [dx])


LARGE = {"nodes": 1500, "columns": 64, "outs": 48}


def _large(first):
    """Gaussian operands on a graph of 1,500 nodes with GCN's factors."""
    graph = square(nodes=LARGE["nodes"])
    adjacency = Adjacency(graph, None, _factors(graph), _factors(graph))
    nodes, columns, outs = LARGE.values()
    x, w, dout = tensors((nodes, columns), (outs, columns), (nodes, outs), seed=4)
    return x, w, dout.detach(), None if first == "products" else adjacency


def _operators(adjacency):
    """A and its transpose, in float64."""
    if adjacency is None:
        return (lambda t: t), (lambda t: t)
    matrix = dense_of(adjacency)
    return (lambda t: matrix @ t), (lambda t: matrix.t() @ t)


@pytest.mark.parametrize("first", ["products", "multiply", "aggregate"])
def test_noise_of_one_draw_is_as_predicted(first):
    """nsr of y, dx and dW against float32 operands is the sum of the nsr of what was rounded on the way.

    Roundings are independent, so their energies add up; a product with a Gaussian matrix, or a sum over neighbours of
    Gaussian rows, scales noise and signal alike, so relative energies pass through unchanged. With nsr(t) of rows
    phi s^2 / 12 to nearest and / 6 stochastically (predicted), w the scales of W's outputs, H = x^'s scales times g:

        products    y: x + W             dx: dy w + W                 dW: dy w + x + H by columns
        multiply    y: x + W + h         dx: dy + dh w + W            dW: dy + dh w + x + H by columns
        aggregate   y: x + z + W         dx: dy w + dz + W            dW: dy w + x + z + H by columns

    Measured noise is within a quarter of that: a sample of 1,500 rows scatters it by a few per cent, the products of
    two noises and the spread of w are left out.
    """
    x, w, dout, adjacency = _large(first)
    forward, back = _operators(adjacency)
    if adjacency is None:
        (out, *_) = products(x, [w], [None], INT8)
    else:
        (out, *_) = convolve(x, adjacency, [w], [None], first, INT8)
    dx, dw = torch.autograd.grad(out, [x, w], dout)
    xd, wd, dy = x.detach().double(), w.detach().double(), dout.double()
    fold = ops.quantize_rows(w.detach())[1].double()
    h, z, dz = xd @ wd.t(), forward(xd), dy @ wd
    dh = back(dy)
    of_x, of_w = predicted(xd, False), predicted(wd, False)

    def columns(g, operand):
        scale = operand.abs().amax(1, keepdim=True) / 127
        return predicted(g * scale, True, by_column_of=CHUNK)

    sums = {
        "products": (of_x + of_w, predicted(dy * fold, True) + of_w,
                     predicted(dy * fold, True) + of_x + columns(dy, xd)),
        "multiply": (of_x + of_w + predicted(h, False), predicted(dy, True) + predicted(dh * fold, True) + of_w,
                     predicted(dy, True) + predicted(dh * fold, True) + of_x + columns(dh, xd)),
        "aggregate": (of_x + of_w + predicted(z, False), predicted(dy * fold, True) + predicted(dz, True) + of_w,
                      predicted(dy * fold, True) + of_x + predicted(z, False) + columns(dy, z)),
    }[first]  # fmt: skip
    truth = (forward(h), dh @ wd, dh.t() @ xd)
    for name, found, want, bound in zip(("y", "dx", "dW"), (out, dx, dw), truth, sums, strict=True):
        measured = nsr(found, want)
        assert 0.75 * bound < measured < 1.25 * bound, f"{name}: {measured:.3g}, predicted {bound:.3g}"
        assert cosine(found, want) > 0.99


def test_one_zero_output_leaves_the_others_alone():
    """An output whose weights are zero gets a gradient, and costs the gradients of the others nothing."""
    x, w, dout, _ = _large("products")
    with torch.no_grad():
        w[5] = 0
        want = dout.t() @ x
    (out, *_) = products(x, [w], [None], INT8)
    dx, dw = torch.autograd.grad(out, [x, w], dout)
    assert nsr(dx, (dout @ w).detach()) < 1e-3 and nsr(dw, want) < 1e-3
    assert nsr(dw[5], want[5]) < 1e-3


@pytest.mark.parametrize("first", ["products", "multiply"])
def test_outputs_with_small_weights(first):
    """dx does not suffer where outputs differ in scale; dW of the weak ones has at most the noise that folding makes.

    The scale w_o is folded into the gradient before a row of it is rounded, with the step of max over o of w_o |g_o|.
    Divided by w_o again, the noise of a weak output is (max w / w_o)^2 times that of the strongest, and no more than
    sixteen times: what is folded is at least a quarter of the largest scale.
    """
    x, w, dout, adjacency = _large(first)
    with torch.no_grad():
        w *= torch.logspace(-1.5, 0, w.size(0)).unsqueeze(1)
    if adjacency is None:
        (out, *_) = products(x, [w], [None], INT8)
    else:
        (out, *_) = convolve(x, adjacency, [w], [None], first, INT8)
    dx, dw = torch.autograd.grad(out, [x, w], dout)
    wd, dh = w.detach().double(), _operators(adjacency)[1](dout.double())
    assert nsr(dx, dh @ wd) < 1e-3
    want = dh.t() @ x.detach().double()
    fold = wd.abs().amax(1)
    fold = fold.clamp(min=fold.max() / 4)
    step = (dh * fold).abs().amax(1, keepdim=True) / (127 * fold)  # [nodes, outs]
    of_rows = (step.square().sum(0) / 6) / dh.square().sum(0)
    for o in range(w.size(0)):
        assert nsr(dw[o], want[o]) < 2 * (float(of_rows[o]) + 1e-3), o


@pytest.mark.parametrize("first", ["products", "multiply", "aggregate"])
def test_a_zero_weight_gets_a_gradient(first):
    call = Call(first, "gcn", False)
    with torch.no_grad():
        call.weights[0].zero_()
    (out,) = call.run()
    dx, dw, _ = torch.autograd.grad(out, call.inputs, call.douts)
    assert torch.equal(out, call.biases[0].expand_as(out)) and not dx.any()
    _, _, grads = call.exact()
    if first == "aggregate":
        assert cosine(dw, grads[1]) > 0.99
    else:
        assert nsr(dw, grads[1]) < 1e-2


# Homogeneity: a factor 2^k changes scales alone, so results and gradients are exactly the right power of it.


@pytest.fixture
def same_noise(monkeypatch):
    """Seeds are a hash of the numbers that are rounded; here they are one constant."""
    monkeypatch.setattr(qrows, "draw_seed", lambda x=None: 5)


@pytest.mark.parametrize("power", [-20, 20])
@pytest.mark.parametrize("which", ["x", "dout", "weights"])
def test_homogeneity(call, which, power, same_noise):
    call.biases = [None] * len(call.biases)
    by = {name: 2.0**power if name == which else 1.0 for name in ("x", "dout", "weights")}

    def run(x_by, dout_by, weights_by):
        x = (call.x.detach() * x_by).requires_grad_()
        weights = [(w.detach() * weights_by).requires_grad_() for w in call.weights]
        outs = call.run(x, weights)
        return outs, torch.autograd.grad(outs, [x, *weights], [d * dout_by for d in call.douts])

    outs, (dx, *dweights) = run(1.0, 1.0, 1.0)
    more, (more_dx, *more_dweights) = run(by["x"], by["dout"], by["weights"])
    for a, b in zip(outs, more, strict=True):
        assert torch.equal(a * by["x"] * by["weights"], b)
    assert torch.equal(dx * by["dout"] * by["weights"], more_dx)
    for a, b in zip(dweights, more_dweights, strict=True):
        assert torch.equal(a * by["dout"] * by["x"], b)


# What diverges shows.


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_nan_and_infinity_surface(call, bad):
    with torch.no_grad():
        call.x[4, 2] = bad
    outs = call.run()
    for out in outs:
        reached = out.isnan().any(1)
        assert reached.any() or call.adjacency is not None  # node 4 may have no neighbour
        if call.adjacency is None:
            assert reached.nonzero().flatten().tolist() == [4]
    _, dw, *_ = torch.autograd.grad(outs, call.inputs, call.douts)
    assert dw.isnan().any()


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_bad_gradient_surfaces(call, bad):
    outs = call.run()
    call.douts[0][3, 1] = bad
    dx, dw, *others = torch.autograd.grad(outs, call.inputs, call.douts)
    assert dw.isnan().any() and not others[-1].isfinite().all() if not call.two else dw.isnan().any()
    if call.adjacency is None:
        assert dx.isnan().any(1).nonzero().flatten().tolist() == [3]
    else:
        assert dx.isnan().any() or not call.adjacency.graph.num_edges


def test_zero_rows(call):
    """Rows of zeros, and rows below 2^-100, have scale 0: results are those of zeros, gradients flow."""
    with torch.no_grad():
        call.x[:20] = 0
        call.x[20:25] = 2.0**-110
    outs, sizes, grads = call.exact()
    found = call.run()
    for out, truth, size in zip(found, outs, sizes, strict=True):
        assert_near(out, truth, size, call.terms)
    for f, g in zip(torch.autograd.grad(found, call.inputs, call.douts), grads, strict=True):
        assert f.isfinite().all() and (cosine(f, g) > 0.99 or not g.any())


@pytest.mark.parametrize("inwards", [True, False])
@pytest.mark.parametrize("first", ["multiply", "aggregate"])
def test_a_star_with_200_000_leaves(first, inwards):
    """The hub's sum is 200,000 terms in float32: compared with float64, its error is of the order of their roundings.

    Random rounding errors add up as the root of their number: sqrt(200,000) units of the sum of magnitudes / number.
    """
    leaves = 200_000
    hub, others = torch.zeros(leaves, dtype=torch.int64), torch.arange(1, leaves + 1)
    edges = torch.stack([others, hub] if inwards else [hub, others])
    graph = Graph.from_edge_index(edges, leaves + 1)
    x, w, dout = tensors((leaves + 1, 8), (8, 8), (leaves + 1, 8))
    (out, *_) = convolve(x, Adjacency(graph), [w], [None], first, INT8)
    dx, dw = torch.autograd.grad(out, [x, w], dout.detach())
    xd, wd, dy = x.detach().double(), w.detach().double(), dout.detach().double()
    summed = torch.zeros_like(xd).index_add_(0, edges[1], xd[edges[0]])
    back = torch.zeros_like(dy).index_add_(0, edges[0], dy[edges[1]])
    assert nsr(out, summed @ wd.t()) < 2e-4 and nsr(dx, back @ wd) < 1e-3
    assert out.isfinite().all() and dw.isfinite().all()
    # the hub alone: coherent with the float64 sum of the rounded rows
    if first == "aggregate" and inwards:
        z = decoded(Adjacency(graph).product_rows(QRows(*ops.quantize_rows(x.detach())), None))[0]
        want = decoded(ops.quantize_rows(x.detach()))[1:].sum(0)
        step = float(want.abs().max()) / 127
        assert float((z - want).abs().max()) <= step / 2 + leaves * UNIT * float(xd.abs().max()) * leaves**0.5


def test_sums_of_an_input_follow_the_diagonal():
    """Remembered for a constant of the same number, in a new tensor; made again for another number or vector."""
    graph, x = square(), QRows(*ops.quantize_rows(torch.randn(60, 17)))

    def summed(diagonal):
        adjacency = Adjacency(graph, diagonal=diagonal)
        rows, fresh = adjacency.product_rows_once(x), adjacency.product_rows(x, None)
        assert torch.equal(rows.codes, fresh.codes) and torch.equal(rows.scale, fresh.scale)
        return rows

    first = summed(torch.tensor(1.25))
    assert summed(torch.tensor(1.25)) is first
    vector = torch.rand(60)
    for diagonal in (torch.tensor(0.5), None, vector, torch.rand(60), vector, vector.neg_(), None):
        summed(diagonal)
    assert summed(vector) is summed(vector)
    with torch.inference_mode():
        summed(torch.rand(60))
    summed(None)
