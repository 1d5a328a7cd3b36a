"""The comparison: its baselines compute what PyG computes, failures stay in their row, and nothing is run twice."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

import gossamer as gs
from gossamer.comparison import document, folder, loop, worker
from gossamer.comparison.settings import Settings, examine, seeds_of
from gossamer.comparison.variants import CSR, EDGE_INDEX, Variant, adjacency_of, prepare, variants_of, why_not
from gossamer.comparison.worker import Job, steady_seconds, toy_graphs, toy_nodes
from gossamer.datasets.pyg_data import make_data
from gossamer.measurement import fresh_process
from gossamer.training import models

BASE, FAST, OURS = Variant(EDGE_INDEX, "PyG edge_index"), Variant(CSR, "PyG CSR"), variants_of(["float32"], [])[0]
QUICK: dict[str, Any] = {"epochs": 2, "width": 8, "layers": 2, "progress": False, "recipes": ["float32"]}
pytestmark = pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state:UserWarning")


def settings_for(**changes: Any) -> Settings:
    usual = {"dataset": "digits", "model": "gcn", "layers": 2, "width": 8, "dropout": 0.5, "norm": "batch", "heads": 2}
    usual |= {"epochs": 2, "lr": 0.01, "weight_decay": 0.0, "batch_size": 4, "seeds": (0,), "threads": 1}
    return Settings(**(usual | changes))


# A run without a process, quick and with figures that are easy to check -----------------------------------------------

SECONDS = {EDGE_INDEX: 8.0, CSR: 4.0, "float32": 1.0, "tango": 1.0, "exact-int2": 1.0, "feather": 1.0}


def pretend(job: Job) -> dict[str, Any]:
    curve = {"loss": [1.0, 0.5], "val": [0.4, 0.5], "test": [0.4, 0.6], "seconds": [2.0, 1.0]}
    score = {"seed": job.seed, "test": 0.6 + 0.1 * job.seed, "val": 0.5, "best_epoch": 2, "kept_bytes": 50}
    seconds = SECONDS[job.variant.name]
    cost = {"seconds_per_epoch": seconds * (1 + job.seed), "peak_bytes": int(100 * seconds) - job.seed}
    return score | cost | {"curve": curve, "error": None}


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Runs are pretended; the list tells which there were."""
    told: list[tuple[str, int]] = []

    def listen(function: Any, args: tuple[Job], kwargs: Any, on_message: Any) -> fresh_process.Fresh[Any]:
        (job,) = args
        told.append((job.variant.name, job.seed))
        on_message((1, 0.5, 0.1))
        return fresh_process.Fresh(pretend(job), 0, 0.0)

    monkeypatch.setattr(fresh_process, "listen", listen)
    return told


# Baselines ------------------------------------------------------------------------------------------------------------


def nasty_graph() -> Any:
    """Isolated nodes, loops, repeated edges and a hub, in no order."""
    edges = [(0, 1), (0, 1), (1, 0), (2, 2), (2, 2), (5, 3), (3, 5), (7, 0), (6, 0), (5, 0), (3, 0), (8, 8), (1, 3)]
    edge_index = torch.tensor(edges).t().contiguous()
    mask = torch.ones(10, dtype=torch.bool)
    masks = {"train_mask": mask, "val_mask": mask, "test_mask": mask}
    y = torch.arange(10) % 3
    return make_data(x=torch.randn(10, 6), edge_index=edge_index, y=y, num_classes=3, **masks)


@pytest.mark.parametrize("name", ["gcn", "sage", "gin"])
def test_both_baselines_compute_what_plain_pyg_does(name: str) -> None:
    data = nasty_graph()
    outputs, gradients = [], []
    for variant in (None, BASE, FAST):
        torch.manual_seed(0)
        model = models.build(name, data, layers=3, width=16, dropout=0.0)
        adjacency = None
        if variant is not None:
            prepare(variant, model, one_graph=True)
            adjacency = adjacency_of(variant, name, data)
        out = model(data.x, data.edge_index if adjacency is None else adjacency)
        out.square().mean().backward()
        outputs.append(out.detach())
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    for other in (1, 2):
        torch.testing.assert_close(outputs[other], outputs[0], rtol=1e-4, atol=1e-5)  # sums in another order
        torch.testing.assert_close(gradients[other], gradients[0], rtol=1e-4, atol=1e-5)


def test_batches_of_graphs_are_never_cached() -> None:
    model = models.build("gcn", toy_graphs(), layers=2, width=8)
    prepare(BASE, model, one_graph=False)
    assert not any(getattr(module, "cached", False) for module in model.modules())
    assert adjacency_of(FAST, "gcn", toy_graphs()) is None


def test_variants_that_make_no_sense_say_why() -> None:
    assert why_not(FAST, settings_for(model="gat"), "node multiclass") and why_not(
        FAST, settings_for(model="gcn"), "graph regression"
    )
    assert (
        why_not(FAST, settings_for(model="gcn"), "node multiclass")
        is why_not(BASE, settings_for(model="gat"), "graph regression")
        is None
    )


def test_variants_are_told_apart_by_name() -> None:
    assert [v.name for v in variants_of(["float32", gs.Recipe(), "float32"], ["csr"])] == [CSR, "float32"]
    with pytest.raises(ValueError, match="`recipes` and `baselines` must not both be empty"):
        variants_of([], [])


# One run --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def one_thread() -> Any:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(("name", "variant"), [("gcn", BASE), ("gcn", FAST), ("gcn", OURS), ("gat", BASE)])
def test_a_run_has_all_figures(name: str, variant: Variant) -> None:
    found = worker.run(Job(settings_for(model=name), variant, seed=1))
    assert found["seed"] == 1 and found["error"] is None and found["best_epoch"] in (1, 2)
    assert 0 <= found["test"] <= 1 and found["seconds_per_epoch"] > 0
    assert found["peak_bytes"] >= 0 and found["kept_bytes"] > 0
    assert {name: len(values) for name, values in found["curve"].items()} == dict.fromkeys(
        ("loss", "val", "test", "seconds"), 2
    )
    json.dumps(found)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("variant", [BASE, FAST, OURS])
def test_a_run_on_many_labels(variant: Variant) -> None:
    settings = settings_for(dataset="yelp-like", scale=0.001)
    facts = examine(settings)
    assert (facts["task"], facts["metric"], facts["higher_is_better"]) == ("node multilabel", "micro_f1", True)
    assert facts["classes"] == 100
    found = worker.run(Job(settings, variant, seed=0))
    assert 0 < found["test"] < 1 and found["kept_bytes"] > 0 and found["error"] is None


def test_the_toy_has_many_labels_where_the_dataset_has() -> None:
    assert toy_nodes(multilabel=True).y.tolist() == [[1, 0], [0, 1]] * 6


@pytest.mark.usefixtures("one_thread")
def test_a_run_on_many_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "load", lambda *named: toy_graphs())
    monkeypatch.setattr(worker, "is_graph_level", lambda name: True)
    found = worker.run(Job(settings_for(model="gin"), BASE, seed=0))
    assert found["kept_bytes"] > 0 and len(found["curve"]["loss"]) == 2


def test_kept_bytes_leave_features_and_graph_out() -> None:
    data = toy_nodes(300)
    job = Job(settings_for(dropout=0.0, norm="none"), FAST, seed=0)
    adjacency = adjacency_of(FAST, "gcn", data)
    model, _ = worker.train_variant(job, data, adjacency)
    relu, log_softmax, classes = 300 * 8 * 4, 100 * 2 * 4, 2
    small = 100  # the loss and its weight
    assert relu + log_softmax <= worker.kept_bytes(job, model, data, adjacency) <= relu + log_softmax + small
    assert model.convs[-1].out_channels == classes


def test_the_first_epochs_are_warm_up() -> None:
    assert steady_seconds([9.0, 8.0, 7.0, 1.0, 3.0, 2.0]) == 2.0
    assert steady_seconds([9.0, 1.0]) == 1.0


# The whole ------------------------------------------------------------------------------------------------------------


def test_seeds_are_the_outer_loop_and_figures_are_summed_up(ran: list[tuple[str, int]]) -> None:
    found = gs.compare("digits", seeds=2, **QUICK)
    assert ran == [(name, seed) for seed in (0, 1) for name in (EDGE_INDEX, CSR, "float32")]
    assert found["format"] == "gossamer-comparison-1" and found["baseline"] == CSR
    assert found["dataset"] == {
        "name": "digits", "nodes": 1797, "edges": 19858, "features": 64, "classes": 10, "task": "node multiclass",
        "metric": "accuracy", "higher_is_better": True,
    }  # fmt: skip
    assert found["model"] == {"name": "gcn", "layers": 2, "width": 8, "dropout": 0.5, "norm": "batch", "heads": None}
    assert found["settings"]["seeds"] == [0, 1] and found["settings"]["threads"] == torch.get_num_threads()
    assert {"cpu", "cores", "isa", "torch", "pyg", "gossamer", "date"} == found["machine"].keys()
    base, _, ours = found["variants"]
    assert ours["times_faster"] == {EDGE_INDEX: 8.0, CSR: 4.0} == ours["times_smaller_peak"]
    assert base["times_faster"] == {EDGE_INDEX: 1.0, CSR: 0.5}
    assert ours["test_mean"] == pytest.approx(0.65) and ours["test_std"] == pytest.approx(0.1 / 2**0.5)
    assert (ours["recipe"], base["recipe"], ours["peak_bytes"]) == ("Recipe()", None, 100)
    assert [run["seed"] for run in ours["runs"]] == [0, 1]


def test_each_of_our_ways_is_compared_unless_told_otherwise(ran: list[tuple[str, int]]) -> None:
    """Not every recipe: a comparison takes a few minutes."""
    told = {name: value for name, value in QUICK.items() if name != "recipes"}
    found = gs.compare("digits", seeds=1, **told)
    ours = ["float32", "tango", "exact-int2", "feather"]
    assert [row["name"] for row in found["variants"]] == [EDGE_INDEX, CSR, *ours]
    assert (
        found["variants"][4]["recipe"]
        == "Recipe(activations=Blockwise(bits=2, block=256, meta='bfloat16', bins='optimal'))"
    )
    assert [row["recipe"] for row in found["variants"][2:]] == [repr(gs.recipes[name]) for name in ours]
    assert f"--recipes {','.join(ours)}" in found["command"]


@pytest.mark.usefixtures("one_thread")
def test_few_bits_are_counted() -> None:
    """Logits and loss apart, two bits and a mask where float32 keeps 32."""
    few, whole = (
        worker.run(Job(settings_for(width=128, layers=3), variant, seed=0))["kept_bytes"]
        for variant in variants_of(["exact-int2", "float32"], [])
    )
    assert 5 * few < whole


def test_without_csr_ratios_are_against_edge_index(ran: list[tuple[str, int]]) -> None:
    assert gs.compare("digits", seeds=1, baselines=["edge-index"], **QUICK)["baseline"] == EDGE_INDEX
    found = gs.compare("digits", seeds=1, model="gat", **QUICK)
    assert found["baseline"] == EDGE_INDEX and "GATConv" in found["left_out"][CSR]
    assert [row["name"] for row in found["variants"]] == [EDGE_INDEX, "float32"]
    assert gs.compare("digits", seeds=1, baselines=[], **QUICK)["baseline"] is None
    assert len(ran) == 2 + 2 + 1


def test_the_command_repeats_it(ran: list[tuple[str, int]]) -> None:
    command = gs.compare("arxiv-like", scale=0.01, seeds=2, **QUICK)["command"].split()
    assert command[:3] == ["gossamer", "compare", "arxiv-like"]
    told = dict(zip(command[3::2], command[4::2], strict=True))
    assert told["--scale"] == "0.01" and told["--seeds"] == "2" and told["--baselines"] == "edge-index,csr"
    assert told["--weight-decay"] == "0.0" and "--split" not in told
    assert gs.compare("digits", seeds=[3], **QUICK)["command"] is None


def one_dies(job: Job) -> dict[str, Any]:
    """In the child: the baseline is killed, as for lack of memory."""
    if job.variant.name == CSR:
        os.kill(os.getpid(), signal.SIGKILL)
    fresh_process.tell((1, 0.5, 0.1))
    return pretend(job)


def test_a_failure_stays_in_its_row(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(loop, "run", one_dies)
    found = gs.compare("digits", seeds=1, baselines=["csr"], out=tmp_path, **(QUICK | {"progress": True}))
    killed, ours = found["variants"]
    assert killed["error"].startswith("seed 0: its process was killed (SIGKILL)") and killed["test_mean"] is None
    assert "memory" in killed["runs"][0]["error"] and killed["seconds_per_epoch"] is None
    assert ours["error"] is None and ours["test_mean"] == 0.6 and ours["times_faster"] == {}
    assert json.loads((tmp_path / "comparison.json").read_text()) == found
    assert "SIGKILL" in (tmp_path / "comparison.html").read_text()


def test_a_seed_that_raises_is_told(ran: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch) -> None:
    pretended = fresh_process.listen

    def unlucky(function: Any, args: tuple[Job], *others: Any) -> Any:
        if args[0].seed == 1:
            raise fresh_process.FreshProcessError("run", "ValueError: no luck")
        return pretended(function, args, *others)

    monkeypatch.setattr(fresh_process, "listen", unlucky)
    ours = gs.compare("digits", seeds=3, baselines=[], **QUICK)["variants"][0]
    assert ours["error"] == "seed 1: ValueError: no luck" and ours["test_mean"] == pytest.approx(0.7)
    assert [run["error"] for run in ours["runs"]] == [None, "ValueError: no luck", None]


def test_in_processes_of_their_own(tmp_path: Path) -> None:
    found = gs.compare("digits", seeds=1, baselines=["csr"], out=tmp_path, threads=1, **QUICK)
    assert [row["error"] for row in found["variants"]] == [None, None]
    assert all(row["peak_bytes"] > 0 and row["kept_bytes"] > 0 for row in found["variants"])
    assert found["variants"][0]["runs"][0]["test"] > 0.05


# Folders --------------------------------------------------------------------------------------------------------------


def test_a_stopped_comparison_goes_on(
    ran: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    whole = gs.compare("digits", seeds=2, **QUICK)
    ran.clear()
    pretended = fresh_process.listen

    def stop_at_fourth(*args: Any) -> Any:
        if len(ran) == 4:
            raise KeyboardInterrupt
        return pretended(*args)

    monkeypatch.setattr(fresh_process, "listen", stop_at_fourth)
    with pytest.raises(KeyboardInterrupt):
        gs.compare("digits", seeds=2, out=tmp_path, **QUICK)
    kept = json.loads((tmp_path / "comparison.json").read_text())
    assert sum(len(row["runs"]) for row in kept["variants"]) == 4
    monkeypatch.setattr(fresh_process, "listen", pretended)
    found = gs.compare("digits", seeds=2, out=tmp_path, resume=True, **QUICK)
    assert len(ran) == 6 and len(set(ran)) == 6  # no run twice
    assert found["variants"] == whole["variants"] and (tmp_path / "comparison.html").exists()
    gs.compare("digits", seeds=3, out=tmp_path, resume=True, **QUICK)
    assert len(ran) == 9  # a seed more costs its runs alone


def test_failed_runs_are_tried_again(ran: list[tuple[str, int]], tmp_path: Path) -> None:
    settings = settings_for()
    before = document.new(settings, examine(settings), [BASE], {})
    before = document.add(before, EDGE_INDEX, document.failed(0, "out of luck"))
    folder.write(tmp_path, before)
    after = folder.take_over(tmp_path, document.new(settings, examine(settings), [BASE], {}), resume=True)
    assert after["variants"][0]["runs"] == [] and not document.done(before, EDGE_INDEX, 0)


def test_a_folder_with_another_comparison_is_refused(ran: list[tuple[str, int]], tmp_path: Path) -> None:
    gs.compare("digits", seeds=2, out=tmp_path, **QUICK)
    before = (tmp_path / "comparison.json").read_bytes()
    with pytest.raises(FileExistsError, match=r"`out` must be a new folder.*this very comparison.*--resume"):
        gs.compare("digits", seeds=2, out=tmp_path, **QUICK)
    words = r"`out`.*epochs is 2 there and 5 here; settings lr is 0.01 there and 0.1 here.*seeds \[1\].*choose another"
    with pytest.raises(folder.OtherComparison, match=words):
        gs.compare("digits", seeds=1, lr=0.1, out=tmp_path, resume=True, **(QUICK | {"epochs": 5}))
    with pytest.raises(folder.OtherComparison, match=r"it has 'pyg-csr', which is not asked for"):
        gs.compare("digits", seeds=2, baselines=["edge-index"], out=tmp_path, resume=True, **QUICK)
    assert (tmp_path / "comparison.json").read_bytes() == before


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "cannot be read"),
        ("[]", "must have the format 'gossamer-comparison-1'"),
        ('{"format": "gossamer-comparison-1"}', "is damaged"),
    ],
)
def test_a_damaged_file_is_refused(content: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "comparison.json").write_text(content)
    with pytest.raises(folder.OtherComparison, match=rf"{words}.*choose another folder"):
        gs.compare("digits", seeds=1, out=tmp_path, resume=True, **QUICK)
    assert (tmp_path / "comparison.json").read_text() == content


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    with pytest.raises(NotADirectoryError, match=r"`out` must be a folder.*is a file"):
        gs.compare("digits", seeds=1, out=tmp_path / "taken", **QUICK)


# Errors ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"dataset": "digit"}, "no dataset 'digit'.*Nearest: digits"),
        ({"model": "gcnn"}, "no model 'gcnn'. Did you mean 'gcn'"),
        ({"recipes": ["flaot32"]}, "no recipe 'flaot32'. Did you mean 'float32'"),
        ({"baselines": ["crs"]}, "no baseline 'crs'. Did you mean 'csr'.*Baselines: edge-index, csr"),
        ({"seeds": 0}, r"`seeds` must be at least 1.*got 0"),
        ({"seeds": [1, -1]}, r"`seeds` must be.*got \[1, -1\]"),
        ({"epochs": 0}, r"`epochs` must be a whole number of at least 1 \(got 0\)"),
        ({"threads": 0}, r"`threads` must be a whole number of at least 1 \(got 0\)"),
        ({"lr": -1.0}, r"`lr` must be a finite number above 0 \(got -1.0\)"),
        ({"weight_decay": -1.0}, r"`weight_decay` must be.*got -1.0"),
        ({"dropout": 1.5}, "`dropout` must be"),
        ({"resume": True}, "`resume` needs `out`"),
    ],
)
def test_nonsense_is_refused_before_anything_runs(
    changes: dict[str, Any], words: str, ran: list[tuple[str, int]]
) -> None:
    with pytest.raises(ValueError, match=words):
        gs.compare(**({"dataset": "digits"} | QUICK | changes))
    assert ran == []


def test_options_that_a_set_does_not_take() -> None:
    with pytest.raises(TypeError, match="takes no option 'split'"):
        gs.compare("digits", split=1, **QUICK)


def test_seeds_are_a_number_or_a_list() -> None:
    assert seeds_of(3) == (0, 1, 2) and seeds_of([5, 2, 5]) == (5, 2)


@pytest.mark.skipif("GOSSAMER_DATA" not in os.environ, reason="needs a set of many graphs")
def test_many_graphs_are_described(ran: list[tuple[str, int]]) -> None:
    found = gs.compare("tu_mutag", split=1, seeds=1, **QUICK)
    assert found["dataset"]["nodes"] == 3371 and CSR in found["left_out"]
    with pytest.raises(ValueError, match="`split` must be a number for lists of graphs"):
        gs.compare("tu_mutag", split="random", **QUICK)


# Sampled batches ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["pyg-edge-index", "tango", "bifeat-1bit"])
def test_a_run_on_sampled_batches(name: str) -> None:
    (variant,) = variants_of([], ["edge-index"]) if name.startswith("pyg") else variants_of([name], [])
    settings = settings_for(model="sage", batch_size=64, fanouts=(5, 5))
    found = worker.run(Job(settings, variant, 0))
    assert found["test"] > 0.1 and found["kept_bytes"] > 0 and len(found["curve"]["loss"]) == 2
