"""The inference table: every form computes what it should, failures stay in their row, finished rows are kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import gossamer as gs
from gossamer.comparison import document, folder, inference, inference_worker, onnx_model, worker
from gossamer.comparison import forms as forms_of
from gossamer.comparison.forms import COMPILED, FORMS, LIGHTENED, ONNX, Form, left_out
from gossamer.comparison.settings import Settings, examine
from gossamer.comparison.variants import CSR, EDGE_INDEX
from gossamer.comparison.worker import toy_graphs, toy_nodes
from gossamer.measurement import fresh_process
from gossamer.training import models
from gossamer.training.data import load

NAMED = {form.name: form for form in FORMS}
QUICK: dict[str, Any] = {
    "epochs": 2, "width": 8, "layers": 2, "seeds": 1, "progress": False, "recipes": ["float32"], "baselines": []
}  # fmt: skip
WITHOUT_ONNX = [form.name for form in FORMS if form.name != ONNX]


def settings_for(**changes: Any) -> Settings:
    usual = {"dataset": "digits", "model": "gcn", "layers": 2, "width": 8, "dropout": 0.5, "norm": "batch", "heads": 2}
    usual |= {"epochs": 2, "lr": 0.01, "weight_decay": 0.0, "batch_size": 4, "seeds": (0,), "threads": 1}
    return Settings(**(usual | changes))


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> Any:
    """One call is enough to be measured; ONNX Runtime is not installed."""
    monkeypatch.setattr(inference_worker, "MOST_CALLS", 1)
    monkeypatch.setattr(forms_of, "find_spec", lambda name: None)
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda model: model)


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small graphs in place of the dataset."""
    monkeypatch.setattr(worker, "load", lambda *named: toy_graphs(60))


def every_form(settings: Settings, tmp_path: Path) -> dict[str, dict[str, Any]]:
    for recipe in {form.trained for form in FORMS}:
        inference_worker.train_weights(settings, recipe, tmp_path)
    found = {}
    for name in WITHOUT_ONNX:
        if NAMED[name].is_written:
            inference_worker.write_model(settings, NAMED[name], tmp_path)
        found[name] = inference_worker.measure_form(settings, NAMED[name], tmp_path)
    return found


# What is measured -----------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize("name", ["gcn", "sage"])
def test_all_forms_of_one_graph(name: str, tmp_path: Path) -> None:
    found = every_form(settings_for(model=name, width=32, epochs=15), tmp_path)
    for figures in found.values():
        assert figures["count"] == 1797 and figures["per_second"] == pytest.approx(1797 / figures["seconds"])
        assert figures["seconds"] > 0 and figures["peak_bytes"] >= 0
    scores = {name: figures["test"] for name, figures in found.items()}
    assert scores[EDGE_INDEX] == scores[COMPILED] == scores[CSR] == scores[LIGHTENED] > 0.5
    assert scores["int8-calibrated"] == pytest.approx(scores[LIGHTENED], abs=0.03)
    assert scores["int8-degree-quant"] > 0.4 and scores["int4-degree-quant"] > 0.3
    sizes = {name: figures["file_bytes"] for name, figures in found.items()}
    assert sizes[EDGE_INDEX] == sizes[LIGHTENED] == (tmp_path / "float32.safetensors").stat().st_size
    assert sizes["int4-degree-quant"] < sizes["int8-degree-quant"] < sizes[LIGHTENED]
    assert sizes["int8-calibrated"] == (tmp_path / "int8-calibrated.model").stat().st_size


@pytest.mark.usefixtures("uncompiled", "toy")
@pytest.mark.parametrize("name", ["gin", "gat"])
def test_all_forms_of_many_graphs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inference_worker, "MOST_GRAPHS", 15)  # of 20
    found = {name: row for name, row in every_form(settings_for(model=name), tmp_path).items() if name != CSR}
    assert {figures["count"] for figures in found.values()} == {15}
    assert found[EDGE_INDEX]["test"] == found[LIGHTENED]["test"] == found[COMPILED]["test"]


@pytest.mark.usefixtures("toy")
def test_each_call_on_many_graphs_gets_an_edge_index_of_its_own() -> None:
    x, edge_index, batch = inference_worker._tested(settings_for(), toy_graphs(60)).inputs
    seen: list[torch.Tensor] = []
    call = inference_worker._call(lambda x, edges, batch: seen.append(edges), (x, edge_index, batch), anew=True)
    call()
    call()
    assert len({tensor.data_ptr() for tensor in (*seen, edge_index)}) == 3 and seen[0].equal(edge_index)


@pytest.mark.usefixtures("uncompiled")
def test_many_labels_and_sampled_training(tmp_path: Path) -> None:
    """Neighbours are sampled in training alone: all forms see all of them."""
    settings = settings_for(dataset="yelp-like", scale=0.001, model="sage", fanouts=(3, 3), batch_size=64)
    assert CSR not in left_out(settings, "node multilabel")
    inference_worker.train_weights(settings, "float32", tmp_path)
    scores = [inference_worker.measure_form(settings, NAMED[name], tmp_path)["test"] for name in (CSR, LIGHTENED)]
    assert 0 < scores[0] == pytest.approx(scores[1], abs=1e-3)


def test_ranges_are_taken_from_training_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    graphs = toy_graphs(60)
    for graph, part in zip(graphs, graphs.parts[0], strict=True):
        graph.x = graph.x * float(part)
    model = models.build("gin", graphs, layers=2, width=8)
    x, _, batch = inference_worker._example(settings_for(), model, graphs)
    assert not x.any() and batch.max() + 1 == 20


def test_the_compiler_gets_plain_pyg(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    compiled: list[nn.Module] = []
    monkeypatch.setattr(torch, "compile", lambda model: compiled.append(model) or model)
    inference_worker.train_weights(settings_for(), "float32", tmp_path)
    inference_worker.measure_form(settings_for(), NAMED[COMPILED], tmp_path)
    assert [type(conv).__module__.split(".")[0] for conv in compiled[0].convs] == ["torch_geometric"] * 2


def has_a_compiler() -> bool:
    try:
        from torch._inductor.cpp_builder import get_cpp_compiler

        return bool(get_cpp_compiler())
    except Exception:
        return False


def test_the_compiler_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not has_a_compiler():
        pytest.skip("there is no C++ compiler")
    monkeypatch.setattr(worker, "load", lambda *named: toy_nodes(30))
    settings = settings_for(model="gin", width=4, layers=1, norm="none")
    inference_worker.train_weights(settings, "float32", tmp_path)
    found = [inference_worker.measure_form(settings, NAMED[name], tmp_path) for name in (COMPILED, EDGE_INDEX)]
    assert found[0]["test"] == found[1]["test"]


# ONNX Runtime ---------------------------------------------------------------------------------------------------------


def test_without_onnx_runtime_the_form_is_left_out() -> None:
    reason = left_out(settings_for(), "node multiclass")[ONNX]
    assert reason == "it needs onnx, onnxruntime, onnxscript: pip install 'gossamer-gnn[onnx]'"


def test_what_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forms_of, "find_spec", lambda name: "found")
    assert left_out(settings_for(), "node multiclass") == {}
    assert list(left_out(settings_for(model="gat"), "node multiclass")) == [CSR]
    assert list(left_out(settings_for(), "graph regression")) == [CSR]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["gcn", "sage", "gin", "gat"])
def test_onnx_runtime(name: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    data = toy_nodes(30)
    data.x = torch.randn(30, 4)
    model = models.build(name, data, layers=2, width=8, heads=2, norm="none").eval()
    settings = settings_for(model=name)
    given = inference_worker._tested(settings, data).inputs
    want = model(*given).detach()
    inputs = inference_worker._inputs(settings, NAMED[ONNX], model, data, given)
    onnx_model.write(model, inputs, tmp_path / "model.onnx")
    got = onnx_model.load(tmp_path / "model.onnx", threads=1)(*inputs)
    assert got.shape == want.shape
    assert (got - want).abs().max() < 0.05 * want.abs().max()  # eight bits, a few products


# The table ------------------------------------------------------------------------------------------------------------


def pretend(settings: Settings, form: Form) -> dict[str, Any]:
    return {"test": 0.5, "count": 1797, "seconds": 0.1, "per_second": 17970.0, "peak_bytes": 10, "file_bytes": 5}


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Nothing is trained or measured; the list tells what would have been."""
    told: list[tuple[str, str]] = []
    curve: dict[str, list[float]] = {name: [] for name in ("loss", "val", "test", "seconds")}
    figures = {"test": 0.6, "val": 0.5, "best_epoch": 2, "seconds_per_epoch": 0.5, "peak_bytes": 10, "kept_bytes": 5}

    def listen(function: Any, args: tuple[Any, ...], kwargs: Any, on_message: Any) -> fresh_process.Fresh[Any]:
        value: Any = None
        if function is worker.run:
            value = {"seed": 0, **figures, "curve": curve, "error": None}
        else:
            _, what, _ = args
            told.append((function.__name__, what if isinstance(what, str) else what.name))
            value = 0.5 if function is inference_worker.train_weights else pretend(args[0], what)
            if function is inference_worker.train_weights:
                on_message((1, 0.5, 0.1))
        return fresh_process.Fresh(value, 0, 0.0)

    monkeypatch.setattr(fresh_process, "listen", listen)
    return told


def test_each_recipe_is_trained_once(ran: list[tuple[str, str]]) -> None:
    found = gs.compare("digits", inference=True, **QUICK)
    table = found["inference"]
    assert table["of"] == "nodes" and list(table["left_out"]) == [ONNX]
    assert [row["name"] for row in table["rows"]] == WITHOUT_ONNX
    assert table["rows"][0] == {
        "name": EDGE_INDEX, "label": "PyG edge_index", "ours": False, "test": 0.5, "count": 1797, "seconds": 0.1,
        "per_second": 17970.0, "peak_bytes": 10, "file_bytes": 5, "error": None,
    }  # fmt: skip
    trained = [what for function, what in ran if function == "train_weights"]
    assert trained == ["float32", "degree-quant-int8", "degree-quant-int4"]
    written = [what for function, what in ran if function == "write_model"]
    assert written == ["int8-calibrated", "int8-degree-quant", "int4-degree-quant"]
    assert found["command"].endswith(" --inference")


def test_no_table_unless_asked_for(ran: list[tuple[str, str]]) -> None:
    found = gs.compare("digits", **QUICK)
    assert found["inference"] is None and ran == [] and "--inference" not in found["command"]


@pytest.mark.parametrize("what", ["degree-quant-int8", "int8-calibrated"])
def test_a_failure_stays_in_its_row(what: str, ran: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch) -> None:
    pretended = fresh_process.listen

    def unlucky(function: Any, args: tuple[Any, ...], *others: Any) -> Any:
        if function is not worker.run and what in (args[1], getattr(args[1], "name", None)):
            raise fresh_process.FreshProcessError("run", "ValueError: no luck")
        return pretended(function, args, *others)

    monkeypatch.setattr(fresh_process, "listen", unlucky)
    rows = gs.compare("digits", inference=True, **(QUICK | {"progress": True}))["inference"]["rows"]
    failed = {row["name"]: row["error"] for row in rows if row["error"] is not None}
    if what == "int8-calibrated":
        assert failed == {"int8-calibrated": "ValueError: no luck"}
    else:
        assert failed == {"int8-degree-quant": "training by 'degree-quant-int8' failed: ValueError: no luck"}
    assert len(rows) == len(WITHOUT_ONNX) and next(r for r in rows if r["error"] is not None)["seconds"] is None


def test_finished_rows_are_kept(ran: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pretended = fresh_process.listen

    def stop(function: Any, args: tuple[Any, ...], *others: Any) -> Any:
        if function is inference_worker.write_model:
            raise KeyboardInterrupt
        if function is inference_worker.measure_form and args[1].name == CSR:
            raise fresh_process.FreshProcessError("run", "ValueError: no luck")
        return pretended(function, args, *others)

    monkeypatch.setattr(fresh_process, "listen", stop)
    with pytest.raises(KeyboardInterrupt):
        gs.compare("digits", inference=True, out=tmp_path, **QUICK)
    kept = json.loads((tmp_path / "comparison.json").read_text())["inference"]["rows"]
    assert [row["name"] for row in kept] == [EDGE_INDEX, CSR, COMPILED, LIGHTENED]
    monkeypatch.setattr(fresh_process, "listen", pretended)
    ran.clear()
    found = gs.compare("digits", inference=True, out=tmp_path, resume=True, **QUICK)
    measured = [what for function, what in ran if function == "measure_form"]
    assert measured == [CSR, "int8-calibrated", "int8-degree-quant", "int4-degree-quant"]
    assert [row["name"] for row in found["inference"]["rows"]] == WITHOUT_ONNX
    assert json.loads((tmp_path / "comparison.json").read_text()) == found
    ran.clear()
    assert gs.compare("digits", inference=True, out=tmp_path, resume=True, **QUICK) == found and ran == []


def test_the_table_may_be_added_but_not_dropped(ran: list[tuple[str, str]], tmp_path: Path) -> None:
    before = document.new(settings_for(), examine(settings_for()), [], {})
    del before["inference"]  # as older versions wrote it
    table = inference.new(settings_for(), "node multiclass")
    now = document.new(settings_for(), examine(settings_for()), [], {}, table)
    folder.write(tmp_path, before)
    assert folder.take_over(tmp_path, now, resume=True)["inference"]["rows"] == []
    gs.compare("digits", inference=True, out=tmp_path / "new", **QUICK)
    with pytest.raises(folder.OtherComparison, match="it has an inference table, which is not asked for"):
        gs.compare("digits", out=tmp_path / "new", resume=True, **QUICK)


def test_what_the_engine_cannot_take_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Odd(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: torch.Tensor, edge_index: Any) -> torch.Tensor:
            return self.inner(x, edge_index).cumsum(1)

    built = models.build
    monkeypatch.setattr(models, "build", lambda *named, **options: Odd(built(*named, **options)))
    inference_worker.train_weights(settings_for(), "float32", tmp_path)
    with pytest.raises(gs.CannotCapture):
        inference_worker.write_model(settings_for(), NAMED["int8-calibrated"], tmp_path)
    assert inference_worker.measure_form(settings_for(), NAMED[EDGE_INDEX], tmp_path)["count"] == len(load("digits").x)


def test_in_processes_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inference, "FORMS", (NAMED[EDGE_INDEX],))
    table = inference.new(settings_for(), "node multiclass")
    seen: list[int] = []
    found = inference.evaluate(settings_for(), table, progress=False, keep=lambda now: seen.append(len(now["rows"])))
    (row,) = found["rows"]
    assert row["error"] is None and row["test"] > 0.05 and row["file_bytes"] > 0 and seen == [1]
