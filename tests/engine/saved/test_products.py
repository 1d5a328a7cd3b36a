"""Products that keep few bits of their rows: the same results, exact dx and db, dW right on average."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.autograd import gradcheck
from torch.multiprocessing.reductions import StorageWeakRef

import gossamer as gs
from gossamer import measure, ops
from gossamer.activations import chain as keeping
from gossamer.activations.linear import of_neighbours, products
from gossamer.activations.plan import plan_of
from gossamer.ops.norm_act import Over
from support.codecs import EXACT, Identity
from support.saved import dots, plan_with
from support.tensors import seeded, tensors
from support.unbiased import assert_unbiased

ROWS, IN, OUT = 70, 24, 5
FEW = plan_with(gs.Blockwise(bits=2))
PLANS = {
    "2 bits": FEW,
    "optimal": plan_with(gs.Blockwise(bits=2, block=100, bins="optimal")),
    "uniform": plan_with(gs.Uniform(bits=4)),
    "projected": plan_with(gs.Projected(ratio=3, then=gs.Blockwise(bits=4))),
    "int8": plan_with(gs.RowInt8()),
}


@pytest.fixture(params=PLANS)
def plan(request):
    return PLANS[request.param]


def graph(dtype=torch.float32, num=ROWS, edges=300):
    generator = torch.Generator().manual_seed(1)
    return gs.Graph.from_edge_index(torch.randint(0, num, (2, edges), generator=generator), num)


def inputs(dtype=torch.float32):
    """x, two weights, a bias and rows."""
    return tensors((ROWS, IN), (OUT, IN), (3, IN), (OUT,), (ROWS, OUT), dtype=dtype)


def two(x, w1, w2, bias, rows, plan):
    return products(x, [w1, w2], [bias, None], plan, rows)


# Exactness ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("count", [1, 2])
def test_gradcheck_products(count, bias):
    x, w1, w2, b, rows = tensors((6, 4), (3, 4), (2, 4), (3,), (6, 3), dtype=torch.float64)

    def function(x, w1, w2, b, rows):
        b = b if bias else None
        if count == 1:
            return products(x, [w1], [b], plan_with(Identity()), rows if bias else None)
        return products(x, [w1, w2], [b, None], plan_with(Identity()), rows)

    used = (x, w1, w2, b, rows)
    assert gradcheck(lambda *used: function(*used), used)


@pytest.mark.parametrize("reduce", ["sum", "mean"])
def test_gradcheck_of_neighbours(reduce):
    x, weight, b, rows = tensors((9, 4), (3, 4), (3,), (9, 3), dtype=torch.float64)
    g = graph(num=9, edges=24)
    assert gradcheck(lambda *args: of_neighbours(g, None, reduce, x.detach(), *args), (weight, b, rows))
    assert gradcheck(lambda w: of_neighbours(g, None, reduce, x.detach(), w, None), (weight,))


def test_gradcheck_of_a_dropped_sum():
    x, weight = tensors((9, 4), (3, 4), dtype=torch.float64)
    dropped = keeping.dropout(x.detach(), 0.5, 3)
    g = graph(num=9, edges=24)
    assert gradcheck(lambda w: of_neighbours(g, None, "sum", dropped, w, None), (weight,))


def test_results_are_the_same_bits(plan):
    x, w1, w2, bias, rows = inputs()
    first, second = two(x, w1, w2, bias, rows, plan)
    assert torch.equal(first, ops.linear(x, w1, bias, rows)) and torch.equal(second, ops.linear(x, w2))
    (alone,) = products(x, [w1], [None], plan)
    assert torch.equal(alone, ops.linear(x, w1))
    assert torch.equal(
        of_neighbours(graph(), None, "mean", x.detach(), w1, bias, rows),
        ops.linear(ops.spmm(graph(), x.detach(), reduce="mean"), w1, bias, rows),
    )


def test_only_weight_gradients_carry_noise(plan):
    x, w1, w2, bias, rows = leaves = inputs()
    exact = torch.autograd.grad(dots((ops.linear(x, w1, bias, rows), ops.linear(x, w2))), leaves)
    grads = torch.autograd.grad(dots(two(*leaves, plan)), leaves)
    for k in (0, 3, 4):
        torch.testing.assert_close(grads[k], exact[k], rtol=1e-5, atol=1e-5)
    assert not torch.allclose(grads[1], exact[1], rtol=1e-4)


def test_weight_gradients_from_codes_that_lose_nothing():
    for plan in (plan_with(EXACT), plan_with(Identity())):
        x, w1, w2, bias, rows = leaves = inputs()
        exact = torch.autograd.grad(dots((ops.linear(x, w1, bias, rows), ops.linear(x, w2))), leaves)
        torch.testing.assert_close(torch.autograd.grad(dots(two(*leaves, plan)), leaves), exact, rtol=1e-5, atol=1e-5)


def test_unbiased(plan):
    x, w1, w2, *_ = inputs()
    exact = torch.autograd.grad(dots((x @ w1.t(), x @ w2.t())), [w1, w2])
    draw = lambda: torch.autograd.grad(dots(products(x, [w1, w2], [None, None], plan)), [w1, w2])  # noqa: E731
    assert_unbiased(draw, exact)


# What is kept ---------------------------------------------------------------------------------------------------


def test_bytes_are_those_of_the_codec_once_for_all_products(plan):
    x, w1, w2, bias, rows = map(nn.Parameter, inputs())
    with measure.kept() as account:
        outs = two(x * 1, w1, w2, bias, rows, plan)
    levels = 4 * 2**2 if plan is PLANS["optimal"] else 0
    assert account.bytes == plan.rows.nbytes((ROWS, IN)) + levels and outs[0].requires_grad


def test_data_is_kept_by_reference_and_exact(plan):
    x, w1, w2, bias, rows = inputs()
    x = x.detach()
    with measure.kept(exclude=[x, w1, w2]) as account:
        outs = two(x, w1, w2, bias, rows, plan)
    assert account.bytes == 0
    grads = torch.autograd.grad(dots(outs), [w1, w2])
    exact = torch.autograd.grad(dots((ops.linear(x, w1, bias, rows), ops.linear(x, w2))), [w1, w2])
    assert all(torch.equal(a, b) for a, b in zip(grads, exact, strict=True))


def test_neighbour_sums_of_data_are_made_again():
    x, w1, _, bias, rows = inputs()
    x, g = x.detach(), graph()
    with measure.kept(exclude=[x, w1]) as account:
        out = of_neighbours(g, None, "mean", x, w1, bias, rows)
    assert account.bytes == 0
    exact = torch.autograd.grad(dots([ops.linear(ops.spmm(g, x, reduce="mean"), w1, bias, rows)]), [w1, bias, rows])
    torch.testing.assert_close(torch.autograd.grad(dots([out]), [w1, bias, rows]), exact, rtol=1e-6, atol=1e-6)


def test_few_bits_of_a_sum_of_data_are_kept_but_four_or_more(plan):
    plan = plan_of(plan.rows)
    x, w1, _, bias, rows = inputs()
    summed = ops.spmm(graph(), x.detach())
    held = StorageWeakRef(summed.untyped_storage())
    want = ops.linear(summed, w1, bias, rows)
    exact = torch.autograd.grad(dots([want]), [w1, bias, rows])
    del want
    with measure.kept(exclude=[w1]) as account:
        (out,) = products(summed, [w1], [bias], plan, rows, is_sum=True)
    assert account.bytes == plan.sums.nbytes((ROWS, IN)) < summed.nbytes / 3
    assert getattr(plan.sums, "bits", 8) >= 4
    assert torch.equal(out, ops.linear(summed, w1, bias, rows))
    del summed
    assert held.expired()
    dw, *others = torch.autograd.grad(dots([out]), [w1, bias, rows])
    torch.testing.assert_close(others, list(exact[1:]), rtol=1e-6, atol=1e-6)
    assert 0 < (dw - exact[0]).norm() / exact[0].norm() < 0.2


def test_sums_of_data_are_unbiased(plan):
    plan = plan_of(plan.rows)
    x, w1, *_ = inputs()
    summed = ops.spmm(graph(), x.detach())
    exact = torch.autograd.grad(dots([summed @ w1.t()]), [w1])
    draw = lambda: torch.autograd.grad(dots(products(summed, [w1], [None], plan, is_sum=True)), [w1])  # noqa: E731
    assert_unbiased(draw, exact)


@pytest.mark.parametrize("sums", [False, True])
def test_dropout_of_data_is_made_again(sums):
    x, w1, *_ = inputs()
    x, g = x.detach(), graph()
    with measure.kept(exclude=[x, w1]) as account:
        h = keeping.dropout(x, 0.5, 3)
        out = of_neighbours(g, None, "sum", h, w1, None) if sums else products(h, [w1], [None], FEW)[0]
    held = StorageWeakRef(h.untyped_storage())
    assert account.bytes == 0
    want = ops.dropout(x, 0.5, 3)
    assert torch.equal(h, want)
    del h
    assert held.expired()
    want = ops.spmm(g, want) if sums else want
    exact = torch.autograd.grad(dots([ops.linear(want, w1)]), w1)
    torch.testing.assert_close(torch.autograd.grad(dots([out]), w1), exact, rtol=1e-6, atol=1e-6)


def test_rows_die_after_forward(plan):
    x, w1, w2, bias, rows = inputs()
    h = x * 2
    held = StorageWeakRef(h.untyped_storage())
    outs = two(h, w1, w2, bias, rows, plan)
    del h
    assert held.expired() and outs[0].requires_grad


def test_as_published_data_is_kept_in_few_bits_too():
    x, w1, *_ = inputs()
    plan = plan_with(gs.Blockwise(bits=2), shared=False)
    with measure.kept(exclude=[x, w1]) as account:
        out = products(x.detach(), [w1], [None], plan)
    assert account.bytes == plan.rows.nbytes((ROWS, IN)) and out[0].requires_grad


@pytest.mark.parametrize("wanted", [(0,), (1,), (2,), (3,), (4,), (1, 2), (0, 3)])
def test_only_what_is_asked_for(wanted):
    leaves = [t.requires_grad_(k in wanted) for k, t in enumerate(inputs())]
    asked = [leaves[k] for k in wanted]
    exact = torch.autograd.grad(dots((ops.linear(leaves[0], leaves[1], *leaves[3:]), leaves[0] @ leaves[2].t())), asked)
    got = torch.autograd.grad(dots(two(*leaves, plan_with(EXACT))), asked)
    torch.testing.assert_close(got, exact, rtol=1e-5, atol=1e-5)


# Marks ----------------------------------------------------------------------------------------------------------


def marked(x, plan=FEW):
    """Batch norm and relu of x, marked with what was kept of it."""
    how = keeping.Settings(Over.COLUMNS, 1e-5, 1, 0.0, 0.0, 0)
    return keeping.chain(x, None, None, None, None, how, plan)[0]


def test_a_product_after_a_chain_keeps_nothing():
    x, w1, *_ = map(nn.Parameter, inputs())
    with measure.kept() as chain_alone:
        out = marked(x * 1)
    with measure.kept() as both:
        y = products(marked(x * 1), [w1], [None], FEW)[0]
    assert both.bytes == chain_alone.bytes and out.requires_grad and y.requires_grad


@pytest.mark.parametrize("change", [lambda h: h.mul_(2), lambda h: h[3].zero_(), lambda h: h.add_(1)])
def test_a_change_in_place_voids_the_mark(change):
    x, w1, *_ = inputs()
    plan = plan_with(EXACT)

    h = marked(x, plan)
    change(h.detach())
    got = torch.autograd.grad(dots(products(h, [w1], [None], plan)), w1)[0]
    plain = torch.relu(nn.functional.batch_norm(x, None, None, training=True)).detach().clone()
    change(plain)
    torch.testing.assert_close(got, torch.autograd.grad(dots([plain @ w1.t()]), w1)[0], rtol=1e-4, atol=1e-4)


def test_a_change_of_dropped_data_is_noticed():
    x, w1, *_ = inputs()
    x = x.detach()
    loss = dots(products(keeping.dropout(x, 0.5, 3), [w1], [None], FEW))
    x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


# Autograd -------------------------------------------------------------------------------------------------------


def test_two_backwards_agree_and_second_derivatives_are_refused(plan):
    leaves = inputs()
    loss = dots([out.square() for out in two(*leaves, plan)])
    first, again = (torch.autograd.grad(loss, leaves, retain_graph=True) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    grads = torch.autograd.grad(loss, leaves, create_graph=True)
    assert all(torch.equal(a, b) for a, b in zip(first, grads, strict=True))
    with pytest.raises(RuntimeError, match=r"allow one derivative.*activations=gs.Keep\(\)"):
        grads[0].square().sum().backward()


def test_second_derivatives_of_neighbour_sums_are_refused():
    x, w1, *_ = inputs()
    loss = dots([of_neighbours(graph(), None, "sum", x.detach(), w1, None).square()])
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
    leaves = inputs()
    turned = [leaf.detach().t().contiguous().t().requires_grad_() for leaf in leaves]
    results = []
    for given in (leaves, turned):
        seeded(0)
        results.append(torch.autograd.grad(dots(two(*given, FEW)), given))
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
