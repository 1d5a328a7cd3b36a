"""Products that save few bits of their rows: the same results, exact dx and db, dW right on average."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.autograd import gradcheck
from torch.multiprocessing.reductions import StorageWeakRef

import gossamer as gs
from gossamer import measure, ops
from gossamer.aggregate import Adjacency
from gossamer.engine.saved import epilogue as epilogues
from gossamer.engine.saved import products as saved_products
from gossamer.engine.saved.policy import saving_of
from gossamer.engine.saved.products import of_neighbours
from gossamer.engine.saved.source import encoded, source_of
from gossamer.ops.norm_act import Epilogue, Over
from support.codecs import EXACT, Identity
from support.saved import assert_one_derivative, dots, saving_by
from support.tensors import seeded, tensors
from support.unbiased import assert_unbiased

ROWS, IN, OUT = 70, 24, 5
FEW = saving_by(gs.Blockwise(bits=2))
SAVINGS = {
    "2 bits": FEW,
    "optimal": saving_by(gs.Blockwise(bits=2, block=100, bins="optimal")),
    "uniform": saving_by(gs.Uniform(bits=4)),
    "projected": saving_by(gs.Projected(ratio=3, then=gs.Blockwise(bits=4))),
    "int8": saving_by(gs.RowInt8()),
}


@pytest.fixture(params=SAVINGS)
def saving(request):
    return SAVINGS[request.param]


def graph(num=ROWS, edges=300):
    generator = torch.Generator().manual_seed(1)
    return gs.Graph.from_edge_index(torch.randint(0, num, (2, edges), generator=generator), num)


def inputs(dtype=torch.float32):
    """x, two weights, a bias and an addend."""
    return tensors((ROWS, IN), (OUT, IN), (3, IN), (OUT,), (ROWS, OUT), dtype=dtype)


def products(x, weights, biases, saving, add=None):
    return saved_products.products(x, weights, biases, source_of(x, saving), add)


def two(x, w1, w2, bias, add, saving):
    return products(x, [w1, w2], [bias, None], saving, add)


def of_sum(summed, weight, bias, saving, add=None):
    """The product of a neighbour sum of input that needs no gradient."""
    return saved_products.products(summed, [weight], [bias], encoded(summed, saving.sums), add)


# Exactness ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("count", [1, 2])
def test_gradcheck_products(count, bias):
    used = tensors((6, 4), (3, 4), (2, 4), (3,), (6, 3), dtype=torch.float64)

    def function(x, w1, w2, b, add):
        b = b if bias else None
        if count == 1:
            return products(x, [w1], [b], saving_by(Identity()), add if bias else None)
        return products(x, [w1, w2], [b, None], saving_by(Identity()), add)

    assert gradcheck(function, used)


@pytest.mark.parametrize("reduce", ["sum", "mean"])
def test_gradcheck_of_neighbours(reduce):
    x, weight, b, add = tensors((9, 4), (3, 4), (3,), (9, 3), dtype=torch.float64)
    adjacency = Adjacency.of(graph(num=9, edges=24), reduce=reduce)
    assert gradcheck(lambda *args: of_neighbours(adjacency, x.detach(), *args), (weight, b, add))
    assert gradcheck(lambda w: of_neighbours(adjacency, x.detach(), w, None), (weight,))


def test_gradcheck_of_a_dropped_sum():
    x, weight = tensors((9, 4), (3, 4), dtype=torch.float64)
    dropped = epilogues.dropout(x.detach(), 0.5, 3)
    adjacency = Adjacency.of(graph(num=9, edges=24))
    assert gradcheck(lambda w: of_neighbours(adjacency, dropped, w, None), (weight,))


def test_results_are_the_same_bits(saving):
    x, w1, w2, bias, add = inputs()
    first, second = two(x, w1, w2, bias, add, saving)
    assert torch.equal(first, ops.linear(x, w1, bias, add)) and torch.equal(second, ops.linear(x, w2))
    (alone,) = products(x, [w1], [None], saving)
    assert torch.equal(alone, ops.linear(x, w1))
    assert torch.equal(
        of_neighbours(Adjacency.of(graph(), reduce="mean"), x.detach(), w1, bias, add),
        ops.linear(ops.spmm(graph(), x.detach(), reduce="mean"), w1, bias, add),
    )


def test_only_weight_gradients_carry_noise(saving):
    x, w1, w2, bias, add = leaves = inputs()
    exact = torch.autograd.grad(dots((ops.linear(x, w1, bias, add), ops.linear(x, w2))), leaves)
    grads = torch.autograd.grad(dots(two(*leaves, saving)), leaves)
    for k in (0, 3, 4):
        torch.testing.assert_close(grads[k], exact[k], rtol=1e-5, atol=1e-5)
    assert not torch.allclose(grads[1], exact[1], rtol=1e-4)


def test_weight_gradients_from_codes_that_lose_nothing():
    for saving in (saving_by(EXACT), saving_by(Identity())):
        x, w1, w2, bias, add = leaves = inputs()
        exact = torch.autograd.grad(dots((ops.linear(x, w1, bias, add), ops.linear(x, w2))), leaves)
        torch.testing.assert_close(torch.autograd.grad(dots(two(*leaves, saving)), leaves), exact, rtol=1e-5, atol=1e-5)


def test_unbiased(saving):
    x, w1, w2, *_ = inputs()
    exact = torch.autograd.grad(dots((x @ w1.t(), x @ w2.t())), [w1, w2])
    draw = lambda: torch.autograd.grad(dots(products(x, [w1, w2], [None, None], saving)), [w1, w2])  # noqa: E731
    assert_unbiased(draw, exact)


# What is saved --------------------------------------------------------------------------------------------------


def test_bytes_are_those_of_the_codec_once_for_all_products(saving):
    x, w1, w2, bias, add = map(nn.Parameter, inputs())
    with measure.kept() as account:
        outs = two(x * 1, w1, w2, bias, add, saving)
    levels = 4 * 2**2 if saving is SAVINGS["optimal"] else 0
    assert account.bytes == saving.rows.nbytes((ROWS, IN)) + levels and outs[0].requires_grad


def test_input_that_needs_no_gradient_is_saved_by_reference_and_exact(saving):
    x, w1, w2, bias, add = inputs()
    x = x.detach()
    with measure.kept(exclude=[x, w1, w2]) as account:
        outs = two(x, w1, w2, bias, add, saving)
    assert account.bytes == 0
    grads = torch.autograd.grad(dots(outs), [w1, w2])
    exact = torch.autograd.grad(dots((ops.linear(x, w1, bias, add), ops.linear(x, w2))), [w1, w2])
    assert all(torch.equal(a, b) for a, b in zip(grads, exact, strict=True))


def test_neighbour_sums_of_input_that_needs_no_gradient_are_recomputed():
    x, w1, _, bias, add = inputs()
    x, g = x.detach(), graph()
    with measure.kept(exclude=[x, w1]) as account:
        out = of_neighbours(Adjacency.of(g, reduce="mean"), x, w1, bias, add)
    assert account.bytes == 0
    exact = torch.autograd.grad(dots([ops.linear(ops.spmm(g, x, reduce="mean"), w1, bias, add)]), [w1, bias, add])
    torch.testing.assert_close(torch.autograd.grad(dots([out]), [w1, bias, add]), exact, rtol=1e-6, atol=1e-6)


def test_few_bits_of_neighbour_sums_are_saved_but_four_or_more(saving):
    saving = saving_of(saving.rows)
    x, w1, _, bias, add = inputs()
    summed = ops.spmm(graph(), x.detach())
    held = StorageWeakRef(summed.untyped_storage())
    want = ops.linear(summed, w1, bias, add)
    exact = torch.autograd.grad(dots([want]), [w1, bias, add])
    del want
    with measure.kept(exclude=[w1]) as account:
        (out,) = of_sum(summed, w1, bias, saving, add)
    assert account.bytes == saving.sums.nbytes((ROWS, IN)) < summed.nbytes / 3
    assert getattr(saving.sums, "bits", 8) >= 4
    assert torch.equal(out, ops.linear(summed, w1, bias, add))
    del summed
    assert held.expired()
    dw, *others = torch.autograd.grad(dots([out]), [w1, bias, add])
    torch.testing.assert_close(others, list(exact[1:]), rtol=1e-6, atol=1e-6)
    assert 0 < (dw - exact[0]).norm() / exact[0].norm() < 0.2


def test_products_of_neighbour_sums_are_unbiased(saving):
    saving = saving_of(saving.rows)
    x, w1, *_ = inputs()
    summed = ops.spmm(graph(), x.detach())
    exact = torch.autograd.grad(dots([summed @ w1.t()]), [w1])
    assert_unbiased(lambda: torch.autograd.grad(dots(of_sum(summed, w1, None, saving)), [w1]), exact)


@pytest.mark.parametrize("sums", [False, True])
def test_dropout_of_input_that_needs_no_gradient_is_recomputed(sums):
    x, w1, *_ = inputs()
    x, g = x.detach(), graph()
    with measure.kept(exclude=[x, w1]) as account:
        h = epilogues.dropout(x, 0.5, 3)
        out = of_neighbours(Adjacency.of(g), h, w1, None) if sums else products(h, [w1], [None], FEW)[0]
    held = StorageWeakRef(h.untyped_storage())
    assert account.bytes == 0
    want = ops.dropout(x, 0.5, 3)
    assert torch.equal(h, want)
    del h
    assert held.expired()
    want = ops.spmm(g, want) if sums else want
    exact = torch.autograd.grad(dots([ops.linear(want, w1)]), w1)
    torch.testing.assert_close(torch.autograd.grad(dots([out]), w1), exact, rtol=1e-6, atol=1e-6)


def test_rows_die_after_forward(saving):
    x, w1, w2, bias, add = inputs()
    h = x * 2
    held = StorageWeakRef(h.untyped_storage())
    outs = two(h, w1, w2, bias, add, saving)
    del h
    assert held.expired() and outs[0].requires_grad


@pytest.mark.parametrize("wanted", [(0,), (1,), (2,), (3,), (4,), (1, 2), (0, 3)])
def test_only_what_is_asked_for(wanted):
    leaves = [t.requires_grad_(k in wanted) for k, t in enumerate(inputs())]
    asked = [leaves[k] for k in wanted]
    exact = torch.autograd.grad(dots((ops.linear(leaves[0], leaves[1], *leaves[3:]), leaves[0] @ leaves[2].t())), asked)
    got = torch.autograd.grad(dots(two(*leaves, saving_by(EXACT))), asked)
    torch.testing.assert_close(got, exact, rtol=1e-5, atol=1e-5)


# Behind an epilogue ---------------------------------------------------------------------------------------------


def normed(x, saving=FEW):
    """Batch norm and relu of x; what was saved of it serves the products that follow."""
    return epilogues.run_epilogue(x, Epilogue(over=int(Over.COLUMNS), eps=1e-5, act=1), saving)[0]


def test_a_product_after_an_epilogue_saves_nothing():
    x, w1, *_ = map(nn.Parameter, inputs())
    with measure.kept() as alone:
        out = normed(x * 1)
    with measure.kept() as both:
        y = products(normed(x * 1), [w1], [None], FEW)[0]
    assert both.bytes == alone.bytes and out.requires_grad and y.requires_grad


@pytest.mark.parametrize("change", [lambda h: h.mul_(2), lambda h: h[3].zero_(), lambda h: h.add_(1)])
def test_a_change_in_place_voids_what_the_epilogue_saved(change):
    x, w1, *_ = inputs()
    saving = saving_by(EXACT)

    h = normed(x, saving)
    change(h.detach())
    got = torch.autograd.grad(dots(products(h, [w1], [None], saving)), w1)[0]
    plain = torch.relu(nn.functional.batch_norm(x, None, None, training=True)).detach().clone()
    change(plain)
    torch.testing.assert_close(got, torch.autograd.grad(dots([plain @ w1.t()]), w1)[0], rtol=1e-4, atol=1e-4)


def test_a_change_of_dropped_input_is_noticed():
    x, w1, *_ = inputs()
    x = x.detach()
    loss = dots(products(epilogues.dropout(x, 0.5, 3), [w1], [None], FEW))
    x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


# Autograd -------------------------------------------------------------------------------------------------------


def test_two_backwards_agree_and_second_derivatives_are_refused(saving):
    leaves = inputs()
    loss = dots([out.square() for out in two(*leaves, saving)])
    assert_one_derivative(loss, leaves)


def test_second_derivatives_of_neighbour_sums_are_refused():
    x, w1, *_ = inputs()
    loss = dots([of_neighbours(Adjacency.of(graph()), x.detach(), w1, None).square()])
    (grad,) = torch.autograd.grad(loss, w1, create_graph=True)
    with pytest.raises(RuntimeError, match=r"allow one derivative.*activations=gs.Keep\(\)"):
        grad.square().sum().backward()


def test_a_weight_changed_in_place_is_noticed():
    leaves = inputs()
    loss = dots(two(*leaves, FEW))
    with torch.no_grad():
        leaves[1].add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_not_a_number_shows_in_the_gradient():
    x, w1, *_ = inputs()
    x.data[3, 2] = torch.nan
    (grad,) = torch.autograd.grad(dots(products(x, [w1], [None], FEW)), w1)
    assert grad[:, 2].isnan().all()


def test_same_noise_for_the_same_generator_state_and_any_number_of_threads():
    x, w1, *_ = inputs()
    found = []
    for threads in (1, 2, 8):
        torch.set_num_threads(threads)
        seeded(0)
        found.append(torch.autograd.grad(dots(products(x, [w1], [None], FEW)), w1)[0])
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])
    seeded(1)
    assert not torch.equal(torch.autograd.grad(dots(products(x, [w1], [None], FEW)), w1)[0], found[0])


def test_strides_change_nothing():
    x, weight, _, bias, _ = inputs()
    turned = [leaf.detach().t().contiguous().t().requires_grad_() for leaf in (x, weight, bias)]
    results = []
    for given in ((x, weight, bias), turned):
        lin = nn.Linear(IN, OUT)
        gs.lighten_(lin, "exact-int2")
        lin.weight, lin.bias = map(nn.Parameter, given[1:])
        seeded(0)
        results.append(torch.autograd.grad(dots([lin(given[0])]), [given[0], lin.weight, lin.bias]))
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
