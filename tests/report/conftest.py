"""Comparisons made by hand: as `gossamer compare` would write them, and with everything that may go wrong."""

from __future__ import annotations

import math
import random

import pytest

BASELINES = ("pyg-edge-index", "pyg-csr")


def run(seed: int, score: float, seconds: float, peak: float, kept: float, epochs: int, higher: bool) -> dict:
    noise = random.Random(seed)
    shape = [1 - math.exp(-(epoch + 1) / (0.12 * epochs + 1)) for epoch in range(epochs)]
    scores = [(s * score if higher else score / (0.15 + 0.85 * s)) + noise.gauss(0, 0.004) for s in shape]
    curve = {
        "loss": [3.2 - 2.2 * s + noise.gauss(0, 0.02) for s in shape],
        "val": scores,
        "test": scores,
        "seconds": [seconds * (1 + 0.1 * noise.random()) for _ in range(epochs)],
    }
    found = {"seed": seed, "test": score, "val": score, "best_epoch": epochs - 1, "seconds_per_epoch": seconds}
    return found | {"peak_bytes": int(peak), "kept_bytes": int(kept), "curve": curve, "error": None}


def failed(name: str, label: str, error: str, recipe: str | None = None) -> dict:
    numbers = ("test_mean", "test_std", "val_mean", "seconds_per_epoch", "peak_bytes", "kept_bytes")
    row = {"name": name, "label": label, "recipe": recipe, "error": error} | dict.fromkeys(numbers)
    return row | {"times_faster": {}, "times_smaller_peak": {}, "runs": [{"seed": 0, "error": error}]}


class Maker:
    """Collects variants; `done` adds the ratios against the baselines that worked."""

    def __init__(self, epochs: int = 100, seeds: int = 3, metric: str = "accuracy", higher: bool = True) -> None:
        self.epochs, self.seeds, self.metric, self.higher = epochs, seeds, metric, higher
        self.variants: list[dict] = []

    def add(self, name, label, score, std, seconds, peak, kept, recipe=None) -> Maker:
        runs = [run(s, score + std * (s - 1), seconds, peak, kept, self.epochs, self.higher) for s in range(self.seeds)]
        row = {"name": name, "label": label, "recipe": recipe, "error": None, "test_mean": score, "test_std": std}
        row |= {"val_mean": score, "seconds_per_epoch": seconds, "peak_bytes": int(peak), "kept_bytes": int(kept)}
        self.variants.append(row | {"times_faster": {}, "times_smaller_peak": {}, "runs": runs})
        return self

    def fail(self, *args, **kwargs) -> Maker:
        self.variants.append(failed(*args, **kwargs))
        return self

    def done(self, dataset: str = "arxiv-like") -> dict:
        working = [v for v in self.variants if v["error"] is None]
        for base in (v for v in working if v["name"] in BASELINES):
            for row in working:
                row["times_faster"][base["name"]] = base["seconds_per_epoch"] / row["seconds_per_epoch"]
                row["times_smaller_peak"][base["name"]] = base["peak_bytes"] / row["peak_bytes"]
        sizes = {"nodes": 169343, "edges": 2315598, "features": 128, "classes": 40}
        task = {"task": "node classification", "metric": self.metric, "higher_is_better": self.higher}
        versions = {"torch": "2.13.0", "pyg": "2.6.1", "gossamer": "0.1.0", "date": "2031-05-04"}
        settings = {
            "epochs": self.epochs,
            "lr": 0.01,
            "weight_decay": 0.0,
            "seeds": list(range(self.seeds)),
            "threads": 2,
        }
        return {
            "format": "gossamer-comparison-1",
            "dataset": {"name": dataset} | sizes | task,
            "model": {"name": "gcn", "layers": 3, "width": 256, "dropout": 0.5, "norm": "batch", "heads": None},
            "settings": settings,
            "machine": {"cpu": "A Processor 9000", "cores": 2, "isa": "avx512"} | versions,
            "baseline": "pyg-csr",
            "variants": self.variants,
        }


def form(name: str, label: str, ours: bool, score: float, seconds: float, peak: float, file: float) -> dict:
    found = {"name": name, "label": label, "ours": ours, "test": score, "count": 169343, "seconds": seconds}
    return found | {"per_second": 169343 / seconds, "peak_bytes": peak, "file_bytes": file, "error": None}


@pytest.fixture
def with_inference(realistic):
    """The realistic comparison with an inference table, in which one form failed and one is left out."""
    rows = [
        form("pyg-edge-index", "PyG edge_index", False, 0.7295, 6.1, 4.7e9, 1.01e6),
        form("pyg-csr", "PyG CSR", False, 0.7295, 1.52, 0.52e9, 1.01e6),
        form("pyg-compiled", "PyG compiled", False, 0.7295, 2.2, 1.1e9, 1.01e6),
        form("onnx-int8", "ONNX Runtime int8", False, 0.7291, 14.2, 9.4e9, 0.27e6),
        form("float32", "Gossamer float32", True, 0.7295, 0.43, 0.35e9, 1.01e6),
        form("int8-calibrated", "engine int8, calibrated", True, 0.7288, 0.12, 0.09e9, 0.26e6),
        form("int8-degree-quant", "engine int8, degree-quant", True, 0.728, 0.1, 0.08e9, 0.26e6),
        form("int4-degree-quant", "engine int4, degree-quant", True, 0.71, 0.09, 0.05e9, 0.14e6),
    ]
    rows[2] |= dict.fromkeys(("test", "count", "seconds", "per_second", "peak_bytes", "file_bytes"))
    rows[2]["error"] = "InvalidCxxCompiler: no working C++ compiler found"
    left_out = {"pyg-none": "there is <none> of it"}
    return realistic | {"inference": {"of": "nodes", "rows": rows, "left_out": left_out}}


@pytest.fixture
def maker():
    return Maker


@pytest.fixture
def realistic():
    """Two baselines, two recipes that work and one that failed."""
    made = Maker()
    made.add("pyg-edge-index", "PyG edge_index", 0.7295, 0.003, 12.1, 6.5e9, 4.1e9)
    made.add("pyg-csr", "PyG CSR", 0.730, 0.003, 3.3, 2.3e9, 1.4e9)
    made.add("float32", "float32", 0.729, 0.002, 0.9, 1.1e9, 0.7e9, recipe="Recipe()")
    made.add(
        "exact-int2", "exact-int2", 0.7262, 0.0025, 1.1, 0.45e9, 0.07e9, recipe="Recipe(activations=Blockwise(bits=2))"
    )
    made.fail(
        "tango", "tango", "RuntimeError: out of memory: tried to allocate 3,221,225,472 bytes", "Recipe(compute=Int8())"
    )
    return made.done()
