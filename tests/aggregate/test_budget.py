"""How layers share the budget: never more than there is, all of what there is, and to those that lose the most."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import gossamer as gs
from gossamer.aggregate.budget import Curve, Demand, curve_of, greedy, threshold
from gossamer.state import model_state_of
from support import graphs
from support.selections import CONVS, Net, policy_of
from support.tensors import rand, seeded

ALLOCATIONS = {"greedy": greedy, "threshold": threshold}
BOTH = pytest.mark.parametrize("allocation", ALLOCATIONS)


def curve(*steps, size=1.0):
    """Of steps (work, kept)."""
    work, kept = (np.concatenate([[0.0], np.cumsum(column)]) for column in zip(*steps, strict=True))
    return Curve((work * size).tolist(), kept.tolist())


def spent(demands, shares):
    return sum(d.work * share for d, share in zip(demands, shares, strict=True))


def lossless(demands):
    return [d.curve.work[-1] for d in demands]


STEPS = st.lists(st.tuples(st.floats(0.001, 1), st.floats(0, 10)), min_size=1, max_size=8)


@st.composite
def some_demands(draw):
    found = []
    for steps in draw(st.lists(STEPS, min_size=1, max_size=5)):
        share = draw(st.floats(0.05, 1)) / sum(work for work, _ in steps)
        found.append(Demand(curve(*steps, size=share), draw(st.floats(1, 1e9)), draw(st.floats(1e-6, 1e6))))
    return found


@BOTH
@settings(max_examples=150, deadline=None)
@given(demands=some_demands(), budgets=st.tuples(st.floats(0.01, 1), st.floats(0.01, 1)))
def test_the_budget_is_spent_and_not_exceeded(allocation, demands, budgets):
    """More of it is more for all together, and what is lossless is never refused if it fits."""
    whole, totals = sum(d.work for d in demands), []
    for budget in sorted(budgets):
        shares = ALLOCATIONS[allocation](demands, budget)
        assert all(-1e-9 <= share <= 1 + 1e-9 for share in shares)
        assert spent(demands, shares) <= budget * whole * (1 + 1e-9)
        needed = spent(demands, lossless(demands))
        if needed <= budget * whole:
            assert all(a >= b - 1e-9 for a, b in zip(shares, lossless(demands), strict=True))
        assert spent(demands, shares) >= min(needed, budget * whole) * (1 - 1e-9)
        totals.append(spent(demands, shares))
    assert totals[0] <= totals[1] * (1 + 1e-9)


@settings(max_examples=100, deadline=None)
@given(demands=some_demands(), budgets=st.tuples(st.floats(0.01, 1), st.floats(0.01, 1)))
def test_with_one_threshold_no_layer_loses_by_a_larger_budget(demands, budgets):
    less, more = (threshold(demands, budget) for budget in sorted(budgets))
    assert all(a <= b + 1e-9 for a, b in zip(less, more, strict=True))


@BOTH
def test_a_whole_budget_is_all_of_every_layer(allocation):
    demands = [Demand(curve((0.1, 5.0), (0.3, 1.0)), 100.0, 2.0), Demand(curve((0.9, 1.0)), 7.0, 1.0)]
    assert ALLOCATIONS[allocation](demands, 1.0) == pytest.approx([1, 1])


@BOTH
def test_a_layer_at_its_floor_does_not_stop_the_others(allocation):
    """The first loses nothing to speak of and is given nothing; the others are shortened all the same."""
    cheap = Demand(curve(*[(0.1, 1e-6)] * 10), 10.0, 1.0)
    dear = Demand(curve(*[(0.1, 10.0 - k) for k in range(10)]), 100.0, 1.0)
    shares = ALLOCATIONS[allocation]([cheap, dear, dear], 0.2)
    assert shares[0] == 0 and spent([cheap, dear, dear], shares) == pytest.approx(0.2 * 210)
    assert shares[1] == pytest.approx(shares[2], abs=0.1)


@BOTH
def test_what_is_kept_is_measured_by_the_layers_result(allocation):
    """Of two equal layers the one of the smaller result gets more."""
    steps = [(0.1, 10.0 - k) for k in range(10)]
    shares = ALLOCATIONS[allocation]([Demand(curve(*steps), 1.0, 1.0), Demand(curve(*steps), 1.0, 100.0)], 0.5)
    assert shares == pytest.approx([1.0, 0.0])


def test_one_threshold_asks_what_a_layer_pays_for():
    """Equal curves, ten times the width: the wide layer gets less."""
    steps = [(0.1, 2.0**-k) for k in range(10)]
    narrow, wide = threshold([Demand(curve(*steps), 1.0, 1.0), Demand(curve(*steps), 10.0, 1.0)], 0.3)
    assert narrow > wide > 0 and narrow + 10 * wide == pytest.approx(0.3 * 11)


# Curves ---------------------------------------------------------------------------------------------------------


def sorted_curve(key, cost, score, power):
    """Work and what is kept of the best rows, one after the other."""
    order = torch.argsort(key, descending=True)[: int((key > 0).sum())]
    columns = cost.double() / cost.sum(), score.double() ** power
    return [np.concatenate([[0.0], column[order].cumsum(0).numpy()]) for column in columns]


@BOTH
@pytest.mark.parametrize("by", ["score", "density"])
@pytest.mark.parametrize("scale", [1.0, 2.0**-90, 2.0**60])
def test_a_curve_is_that_of_the_sorted_rows(allocation, by, scale):
    """Up to a bin, 1/16 of a power of two, and to the steps of the grid; whatever the gradient's scale."""
    cost = graphs.graph("power law").degree.repeat(10)
    score = rand(4000).abs() * ((rand(4000, seed=1) > -0.5) & (cost > 0)) * scale
    key = score if by == "score" else score / cost.clamp(min=1).sqrt()
    found = curve_of(key, cost, score, allocation)
    work, kept = sorted_curve(key, cost, score, 1 if allocation == "greedy" else 2)
    assert found.work[0] == found.kept[0] == 0
    assert found.work[-1] == pytest.approx(work[-1]) and found.kept[-1] == pytest.approx(kept[-1])
    near = np.interp(found.work, work, kept)
    assert np.abs(near - found.kept).max() < 0.03 * kept[-1]


def test_curves_leave_out_what_is_zero_or_not_finite():
    score = torch.tensor([1.0, 0.0, torch.nan, torch.inf, 2.0])
    found = curve_of(score, torch.tensor([1, 2, 3, 4, 10]), score, "threshold")
    assert found.work[-1] == pytest.approx(11 / 20) and found.kept[-1] == pytest.approx(5)


def test_curves_are_averaged():
    assert Curve([0, 1], [0, 4]).averaged(Curve([0, 0.5], [0, 2])) == Curve([0, 0.75], [0, 3])


# Models ---------------------------------------------------------------------------------------------------------


def work_of(model):
    """What the selections multiply, from their masks, and what exact products would; whether one is at its floor."""
    kept = whole = 0
    for policy in model_state_of(model).backward.layers.values():
        degree = graphs.graph("power law").degree
        if policy.edges < int(degree.sum()):  # GCN's loops stand beside its edges
            degree = GCN_DEGREE
        kept += policy.width * int(degree[policy._keep].sum())
        whole += policy.width * policy.edges
    return kept, whole, any(p.at_floor for p in model_state_of(model).backward.layers.values())


GCN_DEGREE = graphs.graph("power law").split_self_loops()[0].degree


@pytest.mark.parametrize("share", [0.05, 0.3, 0.7])
@BOTH
@pytest.mark.parametrize("kind", CONVS)
def test_models_stay_within_their_budget(kind, allocation, share):
    """Over 30 steps of training, with another loss in each."""
    seeded()
    model = Net(kind, (8, 30, 6, 17, 4))
    settings = {"warmup": 2, "refresh": 3, "reallocate": 5, "exact_after": None, "allocation": allocation}
    backward = gs.TopRows(share, sample=False, **settings)
    gs.lighten_(model, gs.Recipe(backward=backward))
    optimizer, edges = torch.optim.Adam(model.parameters(), lr=0.01), graphs.graph("power law").edge_index
    for step in range(30):
        optimizer.zero_grad()
        out = model(rand(400, 8, seed=step), edges)
        (out * rand(*out.shape, seed=step + 1)).square().mean().backward()
        optimizer.step()
        if step >= 2:
            kept, whole, at_floor = work_of(model)
            assert kept <= share * whole or at_floor
            assert gs.selection(model).kept == pytest.approx(kept / whole)
    assert share < 0.1 or kept > 0.6 * share * whole  # most of it is used
    assert all(policy_of(conv).product(0).draws >= 9 for conv in model.convs[1:])


def test_passes_are_counted_once_whatever_the_number_of_layers():
    model = Net("GCN")
    gs.lighten_(model, "rsc")
    for passes in range(1, 4):
        model(rand(400, 8), graphs.graph("power law").edge_index).sum().backward()
        assert gs.selection(model).passes == passes
