"""A graph in parts, one process each, against the whole graph in one process."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import gossamer as gs
from support.rank_jobs import MODELS, NODES, SIZES, Case, Step, alone, die, job
from support.ranks import run_ranks

EXACT = [Case(name, kind) for name in MODELS for kind in ("symmetric", "directed")]
EXACT += [Case(name, "weighted") for name in ("gcn", "narrow gcn", "graph conv")]
NORMED = [Case(name, "directed", norm="batch_norm") for name in ("gcn", "sage", "gat")]
ROUNDED = [
    Case(name, "directed", gs.recipes[recipe], norm)
    for name in ("gcn", "sage", "gat", "gatv2")
    for recipe, norm in (("tango", None), ("exact-int8", "batch_norm"), ("feather", "batch_norm"), ("tango-rsc", None))
]
SENT = [Case(name, "symmetric", gs.Recipe(messages=gs.Messages(8))) for name in ("gcn", "sage, max", "gat")]
SENT += [Case("gcn", "symmetric", gs.Recipe(compute=gs.Int8(), messages=gs.Messages(bits))) for bits in (8, 4)]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Any], dict[int, Any]]:
    folder = str(tmp_path_factory.mktemp("ranks"))
    return run_ranks(job, 4, [*EXACT, *NORMED, *ROUNDED, *SENT], folder, last=die, dies=3)


def of_size(ranks: Any, case: Case, size: int) -> list[Step]:
    return [each["steps"][size, case] for each in ranks[0][:size]]


def joined(steps: list[Step]) -> Tensor:
    whole = torch.empty(NODES, steps[0].out.size(1))
    for step in steps:
        whole[step.ids] = step.out
    return whole


def distance(a: list[Tensor], b: list[Tensor]) -> float:
    """Relative, of all tensors together: the gradient of a bias before a batch norm is zero but for rounding."""
    pairs = list(zip(a, b, strict=True))
    return float((sum((x - y).square().sum() for x, y in pairs) / sum(y.square().sum() for _, y in pairs)) ** 0.5)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("case", EXACT, ids=lambda c: f"{c.model}, {c.kind}")
def test_forward_has_the_bits_of_one_process_and_gradients_are_equal(ranks, case, size):
    whole, steps = alone(case), of_size(ranks, case, size)
    assert torch.equal(joined(steps), whole.out)
    for step in steps:
        assert step.loss == pytest.approx(whole.loss, rel=1e-6)
        assert distance(step.grads, whole.grads) < 2e-6  # sums over nodes in another order
        assert all(map(torch.equal, step.grads, steps[0].grads)), "ranks would drift apart"


@pytest.mark.parametrize("case", NORMED, ids=lambda c: c.model)
def test_batch_norm_takes_the_statistics_of_all_ranks(ranks, case):
    whole, steps = alone(case), of_size(ranks, case, 4)
    torch.testing.assert_close(joined(steps), whole.out, rtol=1e-5, atol=1e-5)
    for step in steps:
        assert distance(step.grads, whole.grads) < 1e-5
        for buffer, expected, first in zip(step.buffers, whole.buffers, steps[0].buffers, strict=True):
            torch.testing.assert_close(buffer, expected, rtol=1e-5, atol=1e-6)
            assert torch.equal(buffer, first)


@pytest.mark.parametrize("case", ROUNDED, ids=lambda c: f"{c.model}, {c.recipe!r:.60}")
def test_recipes_train_on_parts(ranks, case):
    """Noise of gradients differs from one process's, forward does not: rows are quantised by their owner."""
    whole, steps = alone(case), of_size(ranks, case, 4)
    torch.testing.assert_close(joined(steps), whole.out, rtol=2e-5, atol=2e-5)
    assert distance(steps[0].grads, whole.grads) < (1 if case.recipe == gs.recipes["feather"] else 0.5)  # 2 bits
    assert all(torch.equal(a, b) for step in steps for a, b in zip(step.grads, steps[0].grads, strict=True))


@pytest.mark.parametrize("case", SENT, ids=lambda c: f"{c.model}, {c.recipe!r:.60}")
def test_coded_messages_change_little(ranks, case):
    whole, steps = alone(case), of_size(ranks, case, 4)
    bits = case.recipe.messages.bits
    error = float((joined(steps) - whole.out).norm() / whole.out.norm())
    assert 0 < error < (0.02 if bits == 8 else 0.2)
    assert distance(steps[0].grads, whole.grads) < (0.1 if bits == 8 else 0.4)


@pytest.mark.parametrize("bits", [8, 4, 2])
def test_rows_in_few_bits_are_right_on_average_and_as_small_as_they_say(ranks, bits):
    for each in ranks[0]:
        found = each["messages"][bits]
        assert found["own"] == 0, "the owner computes with its exact rows"
        assert found["largest"] <= 1.02 / (2**bits - 1)  # a step, of a range rounded outward
        assert found["mean"] < 0.2  # 1 / sqrt(60) = 0.13 of the noise
        assert found["gradients"] < 0.15
    sent = sum(each["messages"][bits]["bytes"] for each in ranks[0])
    rows = sum(each["messages"][bits]["rows"] for each in ranks[0])  # out and in: each pair of ranks counts twice
    assert 2 * sent == 3 * rows * gs.Messages(bits).row_bytes(32)  # three messages each: two rows, one gradient


def test_features_travel_once(ranks):
    for each in ranks[0]:
        first_layers = {name: count for name, count in each["bytes"].items() if name.startswith("first layer")}
        assert len(first_layers) == 4
        assert not any(first_layers.values())


def test_evaluation_is_exact(ranks):
    assert not any(each["bytes"]["evaluation differs"] for each in ranks[0])


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("recipe", "`recipe` must be the same on all 4 ranks (rank 2 has Recipe(compute=Int8("),
        ("weights", "`weights` must be the same on all 4 ranks (rank 1 has weights "),
        ("rows", "`edge_index` must be a graph of"),
        ("edge weights", "`edge_weight` must be None with a part of a graph"),
        ("quantisers", "`training` must be None in a recipe for a part of a graph"),
        ("precision", "`compute` must not choose its precision by itself"),
        ("norm", "a layer norm must have mode='node' on a part of a graph"),
        ("pair norm", "`model` must have no norm that takes its statistics over the nodes of one rank (norms.0"),
        ("pickle", "cannot be pickled"),
    ],
)
def test_what_would_be_wrong_is_refused_on_every_rank(ranks, name, told):
    for each in ranks[0]:
        assert told in each["refused"][name]


def test_training_goes_on_where_it_stopped(ranks):
    first = ranks[0][0]["trained"]["whole"]
    for each in ranks[0]:
        found = each["trained"]
        assert found["whole"][:2] == first[:2]
        assert torch.equal(found["whole"][2], first[2]), "ranks have drifted apart"
        assert found["resumed"][:2] == first[:2]
        assert torch.equal(found["resumed"][2], first[2])
        assert "`out` must be a new folder" in found["taken"] or "rank 0 could not use the folder" in found["taken"]


def test_a_killed_rank_ends_the_others_with_its_name(ranks):
    assert sorted(ranks[1]) == [0, 1, 2]
    for error, seconds in ranks[1].values():
        assert error.startswith("RankFailed: ")
        assert "rank 3 no longer answers" in error
        assert seconds < 10
