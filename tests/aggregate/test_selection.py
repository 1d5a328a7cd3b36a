"""TopRows in one module: which rows backward multiplies, for how long, and what that costs in accuracy."""

from __future__ import annotations

import copy
import dataclasses
import io
import math

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch_geometric import nn as pyg

import gossamer as gs
from gossamer import ops
from gossamer.aggregate import Adjacency, budget
from gossamer.aggregate.build import gcn
from gossamer.aggregate.selection import LEAST_ROWS, chances, row_norms
from gossamer.ops.quantize_rows import QRows
from gossamer.ops.spmm import row_sums
from gossamer.state import ModelState, model_state_of
from support import graphs
from support.adjacencies import dense_of
from support.compare import cosine
from support.selections import CONVS, KINDS, adjacency, back, bound, gradients, pair_of, policy_of, simple
from support.tensors import rand
from support.unbiased import assert_unbiased

NAMES = ("power law", "bipartite, few sources", "bipartite, few destinations", "star", "self-loops", "isolated nodes")
PAIRS = [(name, kind) for name in NAMES for kind in KINDS if kind != "gcn" or "bipartite" not in name]
EDGES = graphs.graph("power law").edge_index


def top(budget=0.3, **settings):
    """Alive from the second pass on; the result of the second is exact, as its error is measured."""
    return gs.TopRows(budget, **({"warmup": 1, "refresh": 3, "sample": False, "exact_after": None} | settings))


def sloping(rows, columns=7, seed=0):
    """A gradient whose rows differ much in size."""
    return rand(rows, columns, seed=seed) * (1 + torch.arange(rows)).flip(0).unsqueeze(1) / rows


def after_warmup(matrix, dout, passes=2):
    for _ in range(passes):
        back(matrix, dout)
    return matrix


# What is multiplied ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("allocation", ["threshold", "greedy"])
@pytest.mark.parametrize("name, kind", PAIRS)
def test_a_whole_budget_loses_nothing(name, kind, allocation):
    """Also if other rows are zero than in the passes before."""
    exact = adjacency(name, kind)
    chosen = exact.under(bound(top(1.0, allocation=allocation)))
    for seed in range(6):
        dout = sloping(exact.graph.num_dst, seed=seed)
        dout[torch.rand(len(dout), generator=torch.Generator().manual_seed(seed)) < (0.9, 0.5, 0.1)[seed % 3]] = 0
        assert torch.equal(back(chosen, dout), back(exact, dout))


@pytest.mark.parametrize("rank", ["density", "score"])
@pytest.mark.parametrize("name, kind", PAIRS)
def test_the_rows_that_are_kept_are_multiplied(name, kind, rank):
    """A^T (mask * dZ) + diagonal * dZ, with masks in a selection's first pass and a matrix of its own later."""
    exact, dout = adjacency(name, kind), sloping(graphs.graph(name).num_dst)
    policy = bound(top(rank=rank))
    chosen = after_warmup(exact.under(policy), dout)
    for seed in range(4):
        dout = sloping(len(dout), seed=seed)
        got, mask = back(chosen, dout), policy.product(0)._keep.unsqueeze(1)
        assert torch.equal(got, row_sums(exact.transpose(), dout, exact.diagonal, policy.product(0)._keep))
        plain = exact.with_diagonal(None)
        want = dense_of(plain).t() @ (mask * dout).double()
        own = 0 if exact.diagonal is None else exact.diagonal.unsqueeze(1) * dout
        torch.testing.assert_close(got.double(), want + own, rtol=1e-4, atol=1e-4)
        if exact.diagonal is None:
            assert torch.equal(got, back(exact, mask * dout))
    assert policy.product(0).draws == 2


@pytest.mark.parametrize("sample", [False, True])
def test_loops_among_edges_whose_weights_require_grad_are_exact(sample):
    """GCN's own part of a node, c_i dZ_i, whatever rows are selected."""
    edges = graphs.graph("power law").edge_index
    weight = torch.rand(3000, generator=torch.Generator().manual_seed(0)).requires_grad_()
    exact, dout = gcn(edges, 400, weight, False, True), sloping(400)
    exact = dataclasses.replace(exact, value=exact.value.detach())
    policy = bound(top(0.1, sample=sample))
    chosen = after_warmup(exact.under(policy), dout)
    got, dense = back(chosen, dout).double(), dense_of(exact)
    taken = (
        policy.product(0)._keep.double() if policy.product(0)._weight is None else policy.product(0)._weight.double()
    )
    own = dense.diag().unsqueeze(1) * dout
    want = (dense - dense.diag().diag()).t() @ (taken.unsqueeze(1) * dout).double() + own
    assert (taken == 0).any()
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


def test_a_mask_and_a_matrix_of_its_own_give_the_same_bits():
    exact, dout = adjacency("power law", "gcn"), sloping(400)
    policy = bound(top(refresh=100, reallocate=100))
    chosen = after_warmup(exact.under(policy), dout)
    compact = back(chosen, dout)
    assert policy.product(0)._compact is not None
    policy.product(0)._compact, policy.product(0)._uses = None, 0
    assert (
        torch.equal(back(chosen, dout), compact) and policy.product(0)._compact is None and policy.product(0).draws == 1
    )


def test_rows_that_are_not_finite_are_kept():
    exact, dout = adjacency("power law", "sum"), sloping(400)
    policy = bound(top(0.05, refresh=1))
    chosen = after_warmup(exact.under(policy), dout)
    last = exact.graph.degree.nonzero().squeeze(1)[-2:]
    dout[last[0], 0], dout[last[1], 3] = math.nan, math.inf
    got = back(chosen, dout)
    assert policy.product(0)._keep[last].all() and got[:, 0].isnan().any() and got[:, 3].isinf().any()


@pytest.mark.parametrize("name", ["no edges", "no nodes", "one node", "one node, one loop", "no destinations"])
def test_graphs_with_nothing_to_select(name):
    exact = adjacency(name, "sum")
    chosen = exact.under(bound(top(0.1)))
    for seed in range(4):
        dout = rand(exact.graph.num_dst, 3, seed=seed)
        assert torch.equal(back(chosen, dout), back(exact, dout))


def test_no_columns():
    assert back(adjacency("power law", "sum").under(bound(top())), rand(400, 0)).shape == (400, 0)


@pytest.mark.parametrize("rows, kept", [(4, 4), (90, LEAST_ROWS)])
def test_ten_rows_at_least(rows, kept):
    """Or all, where there are fewer; that it is more than the budget allows is told."""
    exact = adjacency({4: "bipartite, few destinations", 90: "bipartite, few sources"}[rows], "sum")
    policy = bound(top(1e-9))
    after_warmup(exact.under(policy), sloping(rows), 3)
    assert int(policy.product(0)._keep.sum()) == kept and policy.product(0).at_floor


def test_a_gradient_of_zeros():
    exact = adjacency("power law", "sum")
    chosen = exact.under(bound(top()))
    assert not any(back(chosen, torch.zeros(400, 3)).any() for _ in range(5))


def test_a_column_whose_factor_is_zero_does_not_hide_the_norm():
    """Int8 rows are made times a factor; the norm is that of the result without it."""
    exact, dout = adjacency("power law", "sum"), sloping(400)
    policy, factor = bound(top()), torch.tensor([0.5, 2.0, 0.0, 1.0, 1.0, 1.0, 1.0])
    exact.under(policy).back_rows(QRows(*ops.quantize_rows(dout)), factor, None)
    assert policy.product(0).norm == pytest.approx(float(back(exact, dout)[:, factor != 0].norm()), rel=0.02)


# Layers ---------------------------------------------------------------------------------------------------------


def expected(conv, kind, x, dout, mask):
    """dX of one layer by its formula, in float64."""
    plain = adjacency("power law", "mean" if kind == "SAGE, mean" else "sum")
    if kind == "GCN":
        full = adjacency("power law", "gcn")
        dy = dout @ conv.lin.weight
        return dense_of(full.with_diagonal(None)).t() @ (mask * dy).double() + full.diagonal.unsqueeze(1) * dy
    if kind == "GIN":
        dy = dout @ conv.nn.weight
        return dense_of(plain).t() @ (mask * dy).double() + 1.25 * dy
    neighbours, root = (conv.lin_rel, conv.lin_root) if kind == "GraphConv" else (conv.lin_l, conv.lin_r)
    return dense_of(plain).t() @ (mask * (dout @ neighbours.weight)).double() + dout @ root.weight


@pytest.mark.parametrize("kind", CONVS)
def test_a_nodes_own_path_is_exact(kind):
    """GCN's loops, SAGE's and GraphConv's root weights, GIN's own row."""
    model, _ = pair_of(kind, top(0.1))
    conv, dout = model.convs[0], sloping(400, 12)
    for _ in range(4):
        x = rand(400, 8).requires_grad_()
        conv(x, EDGES).backward(dout)
    mask = policy_of(conv).product(0)._keep.unsqueeze(1)
    with torch.no_grad():
        torch.testing.assert_close(x.grad.double(), expected(conv, kind, x, dout, mask).double(), rtol=1e-4, atol=1e-4)
    assert 0 < int(mask.sum()) < 200


@pytest.mark.parametrize("kind", CONVS)
def test_models_with_a_whole_budget_are_exact(kind):
    chosen, exact = pair_of(kind, top(1.0))
    weight = (torch.rand(3000),) if kind == "GraphConv" else ()
    for seed in range(5):
        got, want = (gradients(m, EDGES, *weight, seed=seed, share=(0.1, 1.0)[seed % 2]) for m in (chosen, exact))
        assert all(map(torch.equal, got, want))


OTHERS = {
    "int8": {"compute": gs.Int8()},
    "saved in 8 bits": {"activations": gs.Blockwise(bits=8)},
    "both": {"compute": gs.Int8(), "activations": gs.Blockwise(bits=8)},
}


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("kind", CONVS)
def test_together_with_other_settings(kind, other):
    """Gradients point where the exact ones do; with less budget it runs."""
    for share in (1.0, 0.2):
        chosen, exact = pair_of(kind, top(share), **OTHERS[other])
        for seed in range(4):
            got, want = (gradients(m, EDGES, seed=seed) for m in (chosen, exact))
        near = [cosine(a, b) for a, b in zip(got, want, strict=True) if b.norm() > 1e-3]
        assert min(near) > (0.98 if share == 1 else 0.0)
        assert gs.selection(chosen).phase == "selected" and gs.selection(chosen).kept <= share + 1e-9


# Errors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["weighted", "gcn"])
@pytest.mark.parametrize("rank", ["density", "score"])
def test_estimated_and_true_errors(kind, rank):
    """The estimate is sqrt(sum of score^2) over the norm; the true error is at most the sum of scores."""
    exact, dout = simple("power law", kind), sloping(400)
    policy = bound(top(0.2, rank=rank))
    got = back(after_warmup(exact.under(policy), dout), dout).double()
    matrix, want = dense_of(exact.with_diagonal(None)), dense_of(exact).t() @ dout.double()
    score = matrix.norm(dim=1) * dout.double().norm(dim=1)
    torch.testing.assert_close(row_norms(exact).double(), matrix.norm(dim=1), rtol=1e-5, atol=1e-6)
    left_out, size = score[~policy.product(0)._keep], want.norm()
    assert policy.product(0).estimated_error == pytest.approx(float(left_out.norm() / size), rel=1e-4)
    assert policy.product(0).measured_error == pytest.approx(float((got - want).norm() / size), rel=1e-4)
    assert 0 < float((got - want).norm()) <= float(left_out.sum())


def test_density_keeps_more_than_score_for_the_same_work():
    errors = {}
    for rank in ("density", "score"):
        policy = bound(top(0.2, rank=rank))
        after_warmup(simple("power law", "gcn").under(policy), rand(400, 7))
        assert policy.product(0).kept_work <= 0.2
        errors[rank] = policy.product(0).estimated_error
    assert errors["density"] <= errors["score"]


# For how long ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("refresh, draws", [(10, 3), (1, 30), (7, 5)])
def test_a_selection_serves_so_many_passes(refresh, draws):
    policy = bound(top(refresh=refresh, reallocate=100))
    after_warmup(adjacency("power law", "sum").under(policy), sloping(400), 31)
    assert policy.product(0).draws == draws


def test_another_graph_needs_another_selection():
    """An equal graph does not."""
    policy, dout = bound(top(refresh=100, reallocate=100)), sloping(400)
    after_warmup(adjacency("power law", "sum").under(policy), dout, 4)
    again = gs.Graph.from_edge_index(graphs.graph("power law").edge_index, 400)
    for graph, draws in ((again, 1), (again.t(), 2), (graphs.graph("power law"), 3)):
        matrix = Adjacency.of(graph)
        assert torch.equal(
            back(matrix.under(policy), dout), row_sums(matrix.transpose(), dout, None, policy.product(0)._keep)
        )
        assert policy.product(0).draws == draws


def test_exact_from_a_number_of_passes_on():
    exact, dout = adjacency("power law", "gcn"), sloping(400)
    policy = bound(top(exact_after=4))
    chosen = exact.under(policy)
    same = [torch.equal(back(chosen, dout), back(exact, dout)) for _ in range(8)]
    assert same == [True, True, False, False, True, True, True, True]
    assert policy.budget.phase == "exact" and policy.product(0).extra_bytes == 0


def test_two_models_share_nothing():
    (one, _), (two, _) = (pair_of("GCN", top(0.2)) for _ in range(2))
    for _ in range(4):
        gradients(one, EDGES)
    assert gs.selection(one).passes == 4 and gs.selection(two).passes == 0 and not gs.selection(two).layers
    assert policy_of(two.convs[1]).budget is not policy_of(one.convs[1]).budget


@pytest.mark.parametrize("sample", [False, True])
def test_a_copy_goes_on_as_the_model_would(sample):
    model, _ = pair_of("GCN", top(0.2, sample=sample))
    for _ in range(4):
        gradients(model, EDGES)
    other = copy.deepcopy(model)
    assert policy_of(other.convs[1]).budget is model_state_of(other).backward is not model_state_of(model).backward
    for seed in range(5):
        assert all(map(torch.equal, gradients(model, EDGES, seed=seed), gradients(other, EDGES, seed=seed)))
    assert gs.selection(other).passes == 9


def test_weights_are_saved_and_loaded_as_ever():
    model, exact = pair_of("GCN", top(0.2))
    for _ in range(4):
        gradients(model, EDGES)
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    nn.init.zeros_(exact.convs[0].bias)
    exact.load_state_dict(torch.load(file, weights_only=True))
    assert list(model.state_dict()) == list(exact.state_dict())


def test_a_checkpoint_goes_on_as_the_model_would():
    (model, _), (other, _) = (pair_of("SAGE, mean", top(0.2)) for _ in range(2))
    for _ in range(4):
        gradients(model, EDGES)
    model_state_of(other).restore(model_state_of(model).state())
    for seed in range(5):
        assert all(map(torch.equal, gradients(model, EDGES, seed=seed), gradients(other, EDGES, seed=seed)))


def test_gradients_of_gradients_are_exact():
    chosen, exact = pair_of("GCN", top(0.1))
    found = []
    for model in (chosen, exact):
        for _ in range(4):
            gradients(model, EDGES)
        x = rand(400, 8).requires_grad_()
        (slope,) = torch.autograd.grad(model(x, EDGES).square().sum(), x, create_graph=True)
        found.append([slope])
    assert all(map(torch.equal, *found))


# Weights of edges -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("edge_grad", ["exact", "sliced"])
def test_gradients_of_edge_weights(edge_grad):
    """Exact, or exact in the rows that are selected and zero elsewhere."""
    chosen, exact = pair_of("GraphConv", top(0.2, edge_grad=edge_grad))
    weight, found = torch.rand(3000, generator=torch.Generator().manual_seed(0)).requires_grad_(), []
    dout = sloping(400, 12)
    for model in (chosen, exact):
        for _ in range(4):
            x = rand(400, 8).requires_grad_()
            (dweight,) = torch.autograd.grad(model.convs[0](x, EDGES, weight), weight, dout)
        found.append(dweight)
    if edge_grad == "exact":
        assert torch.equal(*found)
    else:
        stays = policy_of(chosen.convs[0]).product(0)._keep[EDGES[1]]
        assert torch.equal(found[0], found[1] * stays) and 0 < int(stays.sum()) < 1500


@pytest.mark.parametrize("name, needs_x", [("star", False), ("reversed star", False), ("no edges", True)])
def test_a_selection_is_not_used_for_the_edges_of_another_graph(name, needs_x):
    """Where nothing is selected, as x needs no gradient or there are no edges, all edges have theirs."""
    policy, graph = bound(top(0.2, edge_grad="sliced")), graphs.graph(name)
    after_warmup(adjacency("power law", "sum").under(policy), sloping(400), 4)
    value, x = rand(graph.num_edges).requires_grad_(), rand(graph.num_src, 7).requires_grad_(needs_x)
    Adjacency.of(graph, value).under(policy).product(x).sum().backward()
    torch.testing.assert_close(value.grad, x.detach()[graph.edge_index[0]].sum(1))


# At random ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("work", [1, 300, 1500, 2900])
def test_chances_spend_the_work_on_average(work):
    key, cost = rand(400).abs(), adjacency("power law", "sum").graph.degree
    chance = chances(key, cost, work)
    assert (chance >= 0).all() and (chance <= 1).all()
    assert float((chance.double() * cost).sum()) == pytest.approx(work, rel=1e-5)
    below = chance < 1
    ratio = (chance / key)[below]
    torch.testing.assert_close(ratio, ratio[:1].expand_as(ratio), rtol=1e-5, atol=0)
    assert (key[~below] * ratio[0] >= 1 - 1e-5).all()


def test_chances_of_keys_that_are_zero_or_not_finite():
    key, cost = torch.tensor([0.0, math.nan, 1.0, math.inf, 2.0]), torch.tensor([5, 5, 1, 5, 1])
    assert chances(key, cost, 100).tolist() == [0, 1, 1, 1, 1]
    assert chances(key, cost, 10).tolist() == [0, 1, 0, 1, 0]
    torch.testing.assert_close(chances(key, cost, 11), torch.tensor([0, 1, 1 / 3, 1, 2 / 3]))


@pytest.fixture
def never_measured(monkeypatch):
    """After the first selected pass no other is exact."""
    monkeypatch.setattr(budget, "MEASURED_EVERY", 10**9)


@pytest.mark.parametrize("kind", ["weighted", "gcn"])
def test_sampled_rows_are_right_on_average(kind, never_measured):
    exact, dout = simple("power law", kind), sloping(400)
    chosen = after_warmup(exact.under(bound(top(0.3, sample=True, refresh=1))), dout)
    assert_unbiased(lambda: [back(chosen, dout)], [dense_of(exact).t() @ dout.double()], 400)


def test_the_variance_is_that_of_the_formula(never_measured):
    """sum of (1/p - 1) score^2, within 10 % in 2000 draws; the work is the budget on average."""
    exact, dout = simple("power law", "weighted"), sloping(400)
    policy = bound(top(0.3, sample=True, refresh=1, reallocate=10**6))
    chosen, want = after_warmup(exact.under(policy), dout), back(exact, dout)
    score = row_norms(exact) * dout.norm(dim=1)
    key = score / exact.graph.degree.clamp(min=1).sqrt()
    p = chances(key, exact.graph.degree, math.floor(policy.product(0).share * exact.graph.num_edges))
    formula = float(((1 / p - 1) * score.square())[p > 0].sum())
    squares, work = 0.0, 0.0
    for _ in range(2000):
        squares += float((back(chosen, dout) - want).square().sum()) / 2000
        work += policy.product(0).kept_work / 2000
    assert squares == pytest.approx(formula, rel=0.1)
    assert work == pytest.approx(0.3, rel=0.03)


def test_draws_depend_on_the_seed_and_on_the_module():
    masks = []
    for seed, name in ((0, "a"), (0, "a"), (1, "a"), (0, "b")):
        torch.manual_seed(seed)
        policy = bound(top(sample=True), name)
        after_warmup(adjacency("power law", "sum").under(policy), sloping(400), 3)
        masks.append(policy.product(0)._keep)
    assert torch.equal(masks[0], masks[1])
    assert not torch.equal(masks[0], masks[2]) and not torch.equal(masks[0], masks[3])


class Shared(nn.Module):
    """One convolution, twice."""

    def __init__(self):
        super().__init__()
        self.conv = pyg.SAGEConv(8, 8)

    def forward(self, x, edge_index):
        return self.conv(self.conv(x, edge_index).relu(), edge_index)


def gradients_of_few(model, draws=1):
    """Of the first weight, with a loss on a tenth of the nodes."""
    found, few = [], (torch.arange(400) % 10 == 0).unsqueeze(1)
    for _ in range(draws):
        model.zero_grad()
        (model(rand(400, 8).requires_grad_(), EDGES) * rand(400, 8, seed=9) * few).sum().backward()
        found.append(model.conv.lin_l.weight.grad.clone())
    return found


def test_a_module_that_is_called_twice_has_two_selections():
    """The second call's gradient is zero for nodes without a loss, the first call's is not."""
    torch.manual_seed(0)
    model = Shared()
    (exact,) = gradients_of_few(model)
    gs.lighten_(model, gs.Recipe(backward=top(0.2, sample=True, warmup=2, refresh=3)))
    found = torch.stack(gradients_of_few(model, 602)[2:])
    assert list(gs.selection(model).layers) == ["conv", "conv (2)"]
    off, spread = (found.mean(0) - exact).norm() / exact.norm(), (found - exact).norm(dim=(1, 2)) / exact.norm()
    assert off < 0.01 < spread.mean()


def test_other_loss_nodes_are_selected_anew():
    """Rows that had no gradient when a selection was drawn carry all of it in the next pass."""
    exact = adjacency("power law", "sum")
    policy = bound(top(0.3, refresh=100, reallocate=100))
    chosen, early = exact.under(policy), sloping(400) * (torch.arange(400) < 200).unsqueeze(1)
    after_warmup(chosen, early, 3)
    late = sloping(400).flip(0) * (torch.arange(400) >= 200).unsqueeze(1)
    assert policy.product(0).draws == 1
    assert back(chosen, late).any() and policy.product(0).draws == 2 and not policy.product(0)._keep[:200].any()


def test_a_row_that_is_not_finite_shows_between_draws():
    exact, dout = adjacency("power law", "sum"), sloping(400)
    policy = bound(top(0.05, refresh=100, reallocate=100))
    chosen = after_warmup(exact.under(policy), dout, 3)
    last = int(exact.graph.degree.nonzero()[-1])
    dout[last] = math.nan
    assert not policy.product(0)._keep[last] and back(chosen, dout).isnan().any()


@pytest.mark.parametrize("reduce", ["sum", "mean"])
def test_loops_are_exact_whatever_the_scales(reduce):
    graph = graphs.graph("self-loops")
    exact, dout = Adjacency.of(graph, rand(graph.num_edges, seed=1), reduce), sloping(6)
    policy = bound(top(0.1))
    chosen = after_warmup(exact.under(policy), dout)
    dense, keep = dense_of(exact), policy.product(0)._keep.double().unsqueeze(1)
    own = dense.diag().unsqueeze(1) * dout
    want = (dense - dense.diag().diag()).t() @ (keep * dout).double() + own
    torch.testing.assert_close(back(chosen, dout).double(), want, rtol=1e-4, atol=1e-4)


def test_sliced_gradients_of_sampled_rows_are_right_on_average():
    graph = graphs.graph("power law")
    value, x, dout = rand(3000, seed=1).requires_grad_(), rand(400, 4).requires_grad_(), sloping(400)[:, :4]
    exact = Adjacency.of(graph, value)
    (want,) = torch.autograd.grad(exact.product(x), value, dout)
    policy = bound(top(0.5, sample=True, refresh=1, edge_grad="sliced"))

    def draw():
        return torch.autograd.grad(exact.under(policy).product(x), [value], dout)

    for _ in range(2):
        draw()
    mean = torch.stack([draw()[0] for _ in range(300)]).mean(0)
    assert abs(float((mean * want).sum() / want.square().sum()) - 1) < 0.05


def test_a_state_that_names_nothing_begins_anew():
    model, _ = pair_of("GCN", top(0.2))
    for _ in range(4):
        gradients(model, EDGES)
    state = model_state_of(model)
    state.restore({"step": 0, "epoch": 0, "layers": {}})
    assert gs.selection(model).passes == 0 and not gs.selection(model).layers
    assert policy_of(model.convs[1]).product(0).share is None


def test_checkpointing_counts_as_one_pass():
    """A reentrant checkpoint calls backward within backward."""
    model = ModelState(gs.Recipe(backward=top(0.2)))
    first, second = (adjacency("power law", kind).under(bound(top(0.2), kind, model)) for kind in ("sum", "mean"))
    for passes in (1, 2):
        x = checkpoint(first.product, rand(400, 4).requires_grad_(), use_reentrant=True)
        checkpoint(second.product, x, use_reentrant=True).sum().backward()
        assert model.backward.passes == passes
