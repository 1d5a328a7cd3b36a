"""gs.feature_report: its numbers against their definitions, on small graphs in float64 and on real ones."""

from __future__ import annotations

import json
import math
import os

import pytest
import torch
from torch import Tensor

import gossamer as gs
from gossamer.features import profile
from gossamer.features.layout import label
from gossamer.features.profile import error_gains, gains, unit_rows


def some_graph(num_nodes: int = 50, num_edges: int = 300, seed: int = 0) -> gs.Graph:
    draw = torch.Generator().manual_seed(seed)
    edges = torch.randint(0, num_nodes - 2, (2, num_edges), generator=draw)  # the last two nodes have no neighbours
    edges = edges[:, edges[0] != edges[1]]
    return gs.Graph.from_edge_index(torch.cat([edges, edges.flip(0)], 1), num_nodes, duplicates="sum").with_value(None)


def mean_matrix(graph: gs.Graph) -> Tensor:
    dense = torch.zeros(graph.num_nodes, graph.num_nodes, dtype=torch.float64)
    source, destination = graph.edge_index
    dense[destination, source] = 1.0
    return dense / dense.sum(1, keepdim=True).clamp(min=1)


def by_recursion(graph: gs.Graph, x: Tensor, hops: int) -> list[Tensor]:
    """K_(v,l+1)^2 = |N(v)|^-2 sum over u, w in N(v) of r_(l,u,w) K_(u,l) K_(w,l), r the correlations of the signals."""
    signal, norms = x, [torch.ones(len(x), dtype=x.dtype)]
    for _ in range(hops):
        correlation = torch.nn.functional.normalize(signal, dim=1) @ torch.nn.functional.normalize(signal, dim=1).T
        after, means = torch.zeros(len(x), dtype=x.dtype), torch.zeros_like(signal)
        for v in range(len(x)):
            near = graph.col[graph.rowptr[v] : graph.rowptr[v + 1]].long()
            if len(near):
                k = norms[-1][near]
                after[v] = ((correlation[near][:, near] * k[:, None] * k[None, :]).sum() / len(near) ** 2).sqrt()
                means[v] = signal[near].mean(0)
        signal = means
        norms.append(after)
    return norms


def test_signal_gains_are_those_of_the_recursion():
    graph, draw = some_graph(), torch.Generator().manual_seed(1)
    x = unit_rows(torch.randn(50, 600, generator=draw, dtype=torch.float64) + 0.5)
    for ours, expected in zip(gains(graph, x, 3).norms, by_recursion(graph, x, 3), strict=True):
        assert ours.dtype == torch.float64 and (ours - expected).abs().max() < 1e-10


def test_error_gains_are_sums_of_squared_weights():
    """128 Gaussian columns: 12.5 % for one node, 2 % for the mean over many that do not all share their neighbours."""
    draw = torch.Generator().manual_seed(5)
    source = torch.randint(0, 2000, (5000,), generator=draw)
    other = (source + torch.randint(1, 4, (5000,), generator=draw)) % 2000
    edges = torch.stack([torch.cat([source, other]), torch.cat([other, source])])
    graph = gs.Graph.from_edge_index(edges, 2000, duplicates="sum").with_value(None)
    p, nodes = mean_matrix(graph), graph.degree > 0
    found, power = error_gains(graph, 3, seed=0), torch.eye(2000, dtype=torch.float64)
    for hop in range(4):
        expected = power.square().sum(1)[nodes].mean()
        assert float(found.norms[hop][nodes].square().mean() / expected) == pytest.approx(1, abs=0.02)
        power = p @ power


def test_eta_and_errors_by_their_definitions():
    graph, draw = some_graph(), torch.Generator().manual_seed(2)
    x = torch.randn(50, 40, generator=draw) + 1
    store = gs.compress(x, gs.Uniform(bits=2))
    report = gs.feature_report(x, store, graph, candidates=[])
    (told,) = report.codecs
    error, signal, p, nodes = (store.decode() - x).double(), x.double(), mean_matrix(graph), graph.degree > 0
    assert told.relative_error == pytest.approx(float(error.norm() / signal.norm()), rel=1e-6)
    assert told.eta[0] == pytest.approx(float(error.norm(dim=1).mean() / signal.norm(dim=1).mean()), rel=1e-6)
    for hop in (1, 2, 3):
        error, signal = p @ error, p @ signal
        expected = float(error.norm(dim=1)[nodes].mean() / signal.norm(dim=1)[nodes].mean())
        assert told.eta[hop] == pytest.approx(expected, rel=1e-5)
    assert (told.nbytes, told.ratio, told.ratio_on_disk) == (store.nbytes, store.ratio, store.ratio_on_disk)
    assert told.codec == repr(store.codec) and len(report.khat) == len(report.safe_ratio) == 3


def test_the_safe_ratio():
    assert profile.safe_ratio(0.05) == profile.safe_ratio(0.01) == math.inf
    assert profile.safe_ratio(0.14) == pytest.approx(21, abs=0.6)  # Amazon Computers, two layers
    assert profile.safe_ratio(0.75) == pytest.approx(8, abs=0.3)  # Cora


def test_weights_and_blocks_do_not_matter(monkeypatch):
    graph, x = some_graph(), torch.randn(50, 9)
    plain = gs.feature_report(x, gs.Uniform(bits=2), graph)
    weighted = graph.with_value(torch.rand(graph.num_edges))
    assert gs.feature_report(x.numpy(), gs.Uniform(bits=2), weighted) == plain
    monkeypatch.setattr(profile, "COLUMNS_AT_ONCE", 4)
    assert gs.feature_report(x, gs.Uniform(bits=2), graph).khat == pytest.approx(plain.khat, rel=1e-5)


def test_sketched_features_have_almost_the_same_numbers(monkeypatch):
    """Rows with much in common, as features have: averages over neighbours all point the same way."""
    graph, draw = some_graph(600, 9000), torch.Generator().manual_seed(3)
    x = torch.rand(600, 3000, generator=draw).square()
    exact = gs.feature_report(x, gs.Uniform(bits=1), graph, candidates=[])
    monkeypatch.setattr(profile, "BUDGET_BYTES", 600 * 4 * 512)
    sketched = gs.feature_report(x, gs.Uniform(bits=1), graph, candidates=[])
    assert sketched.is_sketched and not exact.is_sketched
    assert sketched.khat == pytest.approx(exact.khat, rel=0.02)
    assert sketched.codecs[0].eta == pytest.approx(exact.codecs[0].eta, rel=0.05)
    assert sketched.codecs[0].relative_error == exact.codecs[0].relative_error  # which needs no sketch


def test_the_strongest_codec_within_the_bound_is_recommended():
    graph, draw = some_graph(200, 4000), torch.Generator().manual_seed(4)
    x = torch.randn(200, 64, generator=draw) + 1
    report = gs.feature_report(x, gs.Scalar(bits=8), graph, layers=2)
    fine = {each.codec: each.ratio for each in report.codecs if each.eta[2] <= 0.05}
    assert 0 < len(fine) < 5 and report.recommended == max(fine, key=fine.get)
    alone = gs.feature_report(x, gs.Scalar(bits=8))
    assert alone.khat == () and alone.layers == 0 and all(len(each.eta) == 1 for each in alone.codecs)
    assert alone.recommended == repr(gs.Scalar(bits=8))  # nothing averages the errors away
    assert gs.feature_report(x, gs.Uniform(bits=1), candidates=[]).recommended is None


def test_what_is_exact_has_no_error():
    x = torch.randint(0, 2, (50, 30)).float()
    report = gs.feature_report(x, gs.Scalar(bits=1), some_graph())
    assert report.codecs[0].relative_error == 0 and report.codecs[0].eta == (0, 0, 0, 0)
    assert report.recommended == repr(gs.Scalar(bits=1))
    assert gs.feature_report(torch.zeros(50, 3), gs.Uniform(bits=1), some_graph()).codecs[0].eta == (0, 0, 0, 0)


def test_principal_components_are_a_candidate():
    draw = torch.Generator().manual_seed(6)
    low_rank = torch.randn(3000, 4, generator=draw) @ torch.randn(4, 128, generator=draw)
    x = low_rank + 0.01 * torch.randn(3000, 128, generator=draw)
    dense = gs.feature_report(x, gs.Scalar(bits=8))
    principal = next(each for each in dense.codecs if each.codec == repr(gs.Principal()))
    two_bits = next(each for each in dense.codecs if each.codec == repr(gs.Scalar(2)))
    assert principal.ratio > 12 and principal.relative_error < 0.12 < 0.3 < two_bits.relative_error
    words = (torch.rand(3000, 128, generator=draw) < 0.05).float()
    assert gs.feature_report(words, gs.Scalar(bits=8)).recommended == repr(gs.Scalar(bits=1))
    wide = gs.feature_report(torch.ones(5, 1025), gs.Scalar(bits=8))
    assert not any("Principal" in each.codec for each in wide.codecs)


def test_text_and_json():
    report = gs.feature_report(torch.randn(50, 30).half(), gs.Scalar(bits=4), some_graph())
    text = str(report)
    assert "50 x 30 features, float16" in text and "vs float16" in text and "eta_3" in text and "Khat" in text
    assert "Scalar(bits=4) " in text and "refine" not in text  # in short
    told = json.loads(report.to_json())
    assert eval(told["codecs"][0]["codec"], vars(gs)) == gs.Scalar(bits=4)
    assert len(told["codecs"]) == 5 and told["khat"] == list(report.khat) and told["source_dtype"] == "float16"
    without = str(gs.feature_report(torch.randn(50, 30), gs.Uniform(bits=1), candidates=[]))
    assert "No codec has eta_0 <= 0.05" in without and "Pass a graph" in without
    endless = gs.feature_report(torch.ones(500, 3), gs.Uniform(bits=4), complete(500))
    assert endless.safe_ratio[2] == math.inf and json.loads(endless.to_json())["safe_ratio"][2] is None
    assert "any" in str(endless)


@pytest.mark.parametrize(
    ("codec", "text"),
    [
        (gs.Scalar(), "Scalar(bits=4)"),
        (gs.Scalar(2, scale="log", refine=False), "Scalar(bits=2, scale='log', refine=False)"),
        (gs.Product(8, 64, metric="cosine"), "Product(width=8, length=64, metric='cosine')"),
        (gs.TwoLevel(gs.Scalar(8), gs.Scalar(1)), "TwoLevel(Scalar(bits=8), Scalar(bits=1))"),
        (gs.Principal(), "Principal(ratio=2, Scalar(bits=4))"),
    ],
)
def test_labels(codec, text):
    assert label(codec) == text


def complete(num_nodes: int) -> gs.Graph:
    pairs = torch.cartesian_prod(torch.arange(num_nodes), torch.arange(num_nodes)).T
    return gs.Graph.from_edge_index(pairs[:, pairs[0] != pairs[1]].contiguous(), num_nodes)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"layers": 0}, r"`layers` must be 1, 2 or 3 \(got 0\)"),
        ({"layers": 4}, r"`layers` must be 1, 2 or 3 \(got 4\)"),
        ({"graph": some_graph(40)}, r"`graph` must have the nodes of the features, 50 \(got 40\)"),
        ({"codec": gs.compress(torch.zeros(50, 31), gs.Uniform())}, r"`codec` must be a store of these features"),
    ],
)
def test_mistakes(settings, message):
    arguments = {"codec": gs.Uniform(bits=4)} | settings
    with pytest.raises(ValueError, match=message):
        gs.feature_report(torch.zeros(50, 30), arguments.pop("codec"), **arguments)


TABLE = {
    "cora": (0.89, 0.75, 0.73),
    "citeseer": (0.92, 0.85, 0.85),
    "pubmed": (0.89, 0.51, 0.66),
    "amazon_computers": (0.36, 0.14, 0.10),
    "musae_github": (0.68, 0.22, 0.16),
}


@pytest.mark.skipif("GOSSAMER_DATA" not in os.environ, reason="needs the graphs in GOSSAMER_DATA")
@pytest.mark.parametrize("name", TABLE)
def test_khat_of_real_graphs(name):
    data = gs.datasets.load(name)
    graph = gs.Graph.from_data(data).without_self_loops()
    found = gains(graph, unit_rows(data.x), 3)
    khat = profile.khat(found, error_gains(graph, 3, seed=0), graph.degree > 0)
    assert khat == pytest.approx(TABLE[name], rel=0.05)
