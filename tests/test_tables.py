"""Tables of the benchmarks, from results that are made up."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"

pytestmark = pytest.mark.skipif(not BENCHMARKS.is_dir(), reason="needs the source tree")

MACHINE = {"cpu": "abacus", "threads": 2, "isa": "beads", "torch": "9", "torch_geometric": "8", "commit": "c0ffee"}
PYG = {"pyg-edge-index": (12.0, 6e9), "pyg-csr": (4.0, 2e9)}
OURS = {"float32": (1.0, 1e9), "tango": (0.5, 8e8), "feather": (0.8, 4e8)}


def trained(**models: dict[str, tuple[float, float]]) -> dict[str, Any]:
    """As benchmarks/train.py writes it, from seconds and bytes of each variant."""
    rows = [
        {
            "case": case,
            "model": case.upper(),
            "variants": {
                name: {"seconds": seconds, "peak_bytes": peak, "kept_bytes": peak / 2}
                for name, (seconds, peak) in variants.items()
            },
        }
        for case, variants in models.items()
    ]
    graph = {"name": "made-up", "nodes": 1000, "edges": 20000}
    return {"machine": MACHINE, "graph": graph, "epochs": 6, "results": rows}


def scored(set_name: str, model: str, recipe: str, tests: list[float]) -> dict[str, Any]:
    facts = {"set": set_name, "model": model, "recipe": recipe, "seeds": len(tests), "epochs": 60 + len(tests)}
    return facts | {"layers": 3, "mean": sum(tests) / len(tests), "std": 0.5, "tests": tests}


ACCURACIES = {
    "machine": MACHINE | {"threads": 1},
    "results": [
        scored("cora", "gcn", "float32", [80.0, 81.0]),
        scored("tolokers", "gcn", "float32", [70.0, 71.0, 72.0]),
        scored("tolokers", "gcn", "tango", [70.5, 71.5, 72.5]),
        scored("cora", "gcn", "tango", [80.5, 81.0]),
        scored("tolokers", "sage", "float32", [70.0]),
        scored("cora", "sage", "float32", [80.0, 82.0]),
    ],
}


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """benchmarks/tables.py, with results of its own."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    import tables

    monkeypatch.setattr(tables, "RESULTS", tmp_path)
    return sys.modules["tables"]


def write(folder: Path, name: str, content: dict[str, Any]) -> None:
    (folder / f"{name}.json").write_text(json.dumps(content))


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_epochs_in_int8(tables: ModuleType, tmp_path: Path) -> None:
    """Every recipe but float32 stands against our own float32 too, in time."""
    write(tmp_path, "train-int8", trained(gcn=PYG | OURS))
    by_variant = {row[1]: row for row in map(cells, tables.table("train-int8").splitlines()) if len(row) == 7}
    assert by_variant["**float32**"][3] == "PyG `edge_index` **12.0x**, PyG CSR **4.0x**"
    assert by_variant["**tango**"][3] == "PyG `edge_index` **24.0x**, PyG CSR **8.0x**, float32 **2.0x**"
    assert by_variant["**tango**"][5] == "PyG `edge_index` **7.5x**, PyG CSR **2.5x**"
    assert by_variant["**feather**"][3].endswith("float32 **1.2x**")


def test_summary_of_int8(tables: ModuleType, tmp_path: Path) -> None:
    """A model without a CSR baseline, and one without accuracies, have a dash there."""
    no_csr = {"pyg-edge-index": PYG["pyg-edge-index"]} | OURS
    write(tmp_path, "train-int8", trained(gcn=PYG | OURS, gat=no_csr))
    assert [cells(line)[-1] for line in tables.table("int8-summary").splitlines()[2:4]] == ["–", "–"]
    write(tmp_path, "accuracy-int8", ACCURACIES)
    heads, _, gcn, gat, _, facts = tables.table("int8-summary").splitlines()
    assert [len(cells(line)) for line in (heads, gcn, gat)] == [9, 9, 9]
    assert cells(gcn) == [
        "GCN", "12.00", "4.00", "1.00", "0.50", "`edge_index` **24.0x**, CSR **8.0x**, `float32` **2.0x**", "800",
        "`edge_index` **7.5x**, CSR **2.5x**, `float32` **1.2x**", "+0.38",
    ]  # fmt: skip
    assert cells(gat)[1:6] == ["12.00", "–", "1.00", "0.50", "`edge_index` **24.0x**, `float32` **2.0x**"]
    assert cells(gat)[-1] == "–"
    assert facts.startswith("Graph `made-up` with 1,000 nodes and 20,000 edges, best of 6 epochs; abacus, 2 threads")


def test_epochs_in_few_bits(tables: ModuleType, tmp_path: Path) -> None:
    """A run without `exact-int2` has no rows; ratios of times have two places, as they are near 1."""
    few = {"exact-int2": (1.04, 4e8)}
    write(tmp_path, "train-int8", trained(gcn=PYG | OURS))
    write(tmp_path, "train-int8-avx2", trained(gcn=PYG | OURS | few, gat={"pyg-edge-index": (12.0, 6e9)} | OURS | few))
    _, _, gcn, gat, *facts = (line for line in tables.table("train-activations").splitlines() if line)
    smaller = "PyG `edge_index` **15.0x**, PyG CSR **5.0x**, `float32` **2.5x**"
    assert cells(gcn) == ["GCN", "beads", "1.00", "1.04", "1.04", "200", "400", smaller]
    assert cells(gat)[-1] == "PyG `edge_index` **15.0x**, `float32` **2.5x**" and len(facts) == 2
    write(tmp_path, "train-few-bits", trained(gcn={"float32": (1.0, 1e9), "exact-int2": (0.956, 4e8)}))
    assert cells(tables.table("train-few-bits").splitlines()[2]) == ["GCN", "1.00", "0.96", "0.96"]


def test_accuracy_of_int8(tables: ModuleType, tmp_path: Path) -> None:
    """Differences are of pairs, with their standard error; a run that is still to come is a dash."""
    write(tmp_path, "accuracy-int8", ACCURACIES)
    heads, _, cora, other, tolokers, half, _, facts = tables.table("accuracy-int8").splitlines()
    assert cells(heads) == ["set", "model", "`float32`", "`tango`", "difference", "seeds"]
    assert cells(cora) == ["`cora`", "GCN", "80.50 ± 0.50", "80.75 ± 0.50", "+0.25 ± 0.25", "2"]
    assert cells(other)[:2] == ["`cora`", "GraphSAGE"]  # beside its set, though it was run last
    assert cells(tolokers)[0] == "`tolokers`, ROC AUC" and cells(tolokers)[4] == "+0.50 ± 0.00"
    assert cells(half) == ["`tolokers`, ROC AUC", "GraphSAGE", "70.00 ± 0.50", "–", "–", "1"]
    assert facts.startswith("61, 62 or 63 epochs. abacus, 1 thread, beads;")


def test_accuracy_with_columns_of_another_scale(tables: ModuleType, tmp_path: Path) -> None:
    """A row for each model and column, the model named once; a run that is still to come is a dash."""
    facts = {"form": "ready", "layers": 3, "norm": "batch", "model": "gcn", "epochs": 60, "tests": [90.0, 92.0]}
    runs = [("price", "float32", 91.0), ("price", "tango", 90.96), ("year", "float32", 50.0)]
    rows = [facts | {"column": column, "recipe": recipe, "mean": mean} for column, recipe, mean in runs]
    rows.append(rows[0] | {"norm": "none", "mean": 10.0})
    write(tmp_path, "outlier-columns", {"machine": MACHINE, "results": rows})
    heads, _, *found, _, told = tables.table("outlier-columns").splitlines()
    assert cells(heads) == ["model", "column", "`float32`", "`tango`"]
    assert [cells(line) for line in found] == [
        ["GCN, 3 layers, batch norm", "price", "91.0", "91.0"],
        ["", "year", "50.0", "–"],
        ["GCN, 3 layers, no norm", "price", "10.0", "–"],
    ]
    assert told.startswith("Mean of 2 seeds. abacus, 2 threads, beads;")


def rsc_run(variant: str, tests: list[float]) -> dict[str, Any]:
    facts = {"set": "cora", "model": "gcn", "variant": variant, "seeds": len(tests), "epochs": 60}
    return facts | {"mean": sum(tests) / len(tests), "std": 0.5, "tests": tests}


def test_accuracy_of_selected_rows(tables: ModuleType, tmp_path: Path) -> None:
    """Columns by kind, then by budget; differences are of pairs; what was not run is a dash."""
    runs = [rsc_run("exact", [80.0, 81.0]), rsc_run("sampled 0.3", [80.0, 82.0]), rsc_run("density 0.5", [79.0, 80.0])]
    other = rsc_run("exact", [70.0, 71.0]) | {"set": "pubmed"}
    write(tmp_path, "rsc-accuracy", {"machine": MACHINE, "width": 64, "results": [*runs, other]})
    heads, _, cora, pubmed, *_ = tables.table("rsc-accuracy").splitlines()
    assert cells(heads) == ["set and model", "exact", "density 0.5", "sampled 0.3"]
    assert cells(cora) == ["cora, GCN", "80.50 ± 0.50", "-1.00 ± 0.00", "+0.50 ± 0.50"]
    assert cells(pubmed)[2:] == ["–", "–"]


def test_gains_of_selected_rows(tables: ModuleType, tmp_path: Path) -> None:
    seconds = {"exact": 1.2, "nonzero": 1.1, "rsc": 1.0, "recipe": 1.1}
    gains = {"share": 0.25, "bound": 1.29, "gain": 1.2, "reached": 0.74, "recipe_gain": 1.09}
    facts = {"graph": "made-up", "nodes": 10, "edges": 4000, "model": "gcn", "compute": "Float32", "seconds": seconds}
    write(tmp_path, "rsc-epochs", {"machine": MACHINE, "budget": 0.1, "results": [facts | gains]})
    found = cells(tables.table("rsc-epochs").splitlines()[2])
    assert found[:2] == ["`made-up`, mean degree 400", "GCN 3x256, float32"]
    assert found[2:] == ["1.200", "1.100", "1.000", "1.100", "25.0%", "1.29x", "**1.20x**", "74%", "**1.09x**"]
    times = {"exact": 0.05, "masked": 0.01, "compacted": 0.008, "spread": 0.01, "write": 0.005}
    times |= {"score": 0.003, "selection": 0.001, "allocation": 0.001, "compaction": 0.003}
    product = {"graph": "made-up", "nodes": 100, "rows_kept": 5, "seconds": {"float32": times}}
    write(tmp_path, "rsc-products", {"machine": MACHINE, "results": [product]})
    assert cells(tables.table("rsc-products").splitlines()[2])[-3:] == ["6.2x", "**5.0x**", "10.0x"]


def test_a_table_without_results_stays_and_the_others_are_made(
    tables: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    kept = f"<!-- table: accuracy-int8 -->\n{tables.NOT_MEASURED}\n<!-- end -->"
    page.write_text(f"{kept}\n<!-- table: train-int8 -->\nold\n<!-- end -->\n")
    monkeypatch.setattr(tables, "pages", lambda: [page])
    write(tmp_path, "train-int8", trained(gcn=PYG | OURS))
    tables.update_pages()
    assert page.read_text().startswith(f"{kept}\n<!-- table: train-int8 -->\n| model |")
    assert "old" not in page.read_text()
    assert "accuracy-int8.json is not there" in capsys.readouterr().out
    with pytest.raises(tables.NotMeasured, match="accuracy-int8"):
        tables.table("accuracy-int8")


def test_features(tables: ModuleType) -> None:
    """Differences are by seed, ratios those that were stored; a sampler that draws a part of the edges is left out."""
    import feature_tables

    def run(codec: str, ratio: float, tests: list[float]) -> dict[str, Any]:
        facts = {"set": "digits", "model": "sage", "codec": codec, "ratio": ratio, "seeds": 2, "std": 0.7}
        return facts | {"mean": sum(tests) / 2, "tests": tests}

    accuracies = {"machine": MACHINE, "width": 64}
    accuracies["results"] = [run("float32", 1.0, [90.0, 91.0]), run("1 bit", 31.6, [89.0, 91.0])]
    text = feature_tables.accuracy_table({"features-accuracy": accuracies})
    assert "| digits, GraphSAGE | 90.50 ± 0.70 | -0.50 ± 0.50 (32x) |" in text and "2 seeds" in text
    speed = {"edges_per_second": 2e6, "seconds_per_batch": 0.01, "edges_per_batch": 100}
    dgl = {"version": "1", "best": "a", "a": speed, "b": speed | {"edges_per_batch": 7}}
    sampled = {"machine": MACHINE, "graph": {"nodes": 5, "edges": 9}, "fanouts": [3, 2], "batch_size": 4}
    sampled |= {"gossamer": speed | {"edges_per_second": 3e6}, "dgl": dgl, "ratio_edges_per_second": 1.5}
    text = feature_tables.sampling_table({"sampling": sampled})
    assert "| DGL 1, a | 2.0 | 10.0 |" in text and "DGL 1, b" not in text and "1.5 times as many" in text


def inferred(**variants: tuple[float, float]) -> dict[str, Any]:
    made = {name: {"seconds": seconds, "peak_bytes": peak} for name, (seconds, peak) in variants.items()}
    return {"case": "gcn", "model": "GCN", "variants": made, "files": {"float32": 4000, "int8": 1000}}


def test_integer_inference() -> None:
    """Ratios are against PyG alone; what was measured of the engine counts where a variant has one."""
    import inference_tables

    row = inferred(**{"pyg-edge-index": (4.0, 8e6), "pyg-csr": (1.0, 2e6), "int8": (0.1, 1e6)})
    graph = {"name": "made-up", "nodes": 10, "edges": 20, "features": 3}
    content = {"machine": MACHINE, "graph": graph, "repeat": 5, "results": [row]}
    text = inference_tables.models_table({"inference-models": content})
    assert "PyG `edge_index` **40.0x**, PyG CSR **10.0x**" in text and "1 kB (4.0x smaller)" in text
    assert "4,000 | 1,000 | 100 |" in inference_tables.summary_table({"inference-models": content})

    def run(variant: str, tests: list[float | None], engines: list[float | None]) -> dict[str, Any]:
        known = [value for value in tests if value is not None]
        mean = sum(known) / len(known) if known else None
        engine = None if None in engines or not engines else sum(e for e in engines if e is not None) / len(engines)
        facts = {"set": "cora", "model": "gin", "variant": variant, "metric": "accuracy", "runs": [*range(len(tests))]}
        facts |= {"tests": tests, "engines": engines, "test_mean": mean, "test_std": 0.5}
        return facts | {"engine_mean": engine, "engine_std": 0.25}

    runs = [run("float32", [80.0, 82.0], [None, None]), run("DQ8", [79.0, 80.0], [79.5, 80.5])]
    runs.append(run("QAT4", [None, None], [None, None]))
    results = {"degree-quant-accuracy": {"machine": MACHINE, "results": runs}}
    text = inference_tables.accuracy_table(results)
    assert "| cora, GIN | 81.00 ± 0.50 | – | 80.00 ± 0.25 | – | – | diverged | 2 |" in text
    assert inference_tables.paired_scores(runs[0], runs[1]) == (-1.0, 0.5)
    assert inference_tables.paired_scores(runs[0], runs[2]) is None
    text = inference_tables.published_table(results)
    assert "| cora, GIN | ours | 81.0 ± 0.5 |" in text and "| published | 77.9 | 75.6 |" in text
