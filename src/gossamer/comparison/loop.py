"""Plain PyG against our recipes, on one dataset, one model, one machine: accuracy, time and memory side by side.

    comparison = gs.compare("digits", model="gcn", epochs=100, seeds=3, out="compare/digits")
    rich.print(gs.report.table(comparison))

Every run is in a process of its own, with the same seeds for all variants; seeds are the outer loop, so that a busy
hour of the machine hits all variants alike. A variant that fails, for instance for lack of memory, is reported and the
others continue. Results are written after every run: `resume=True` continues a comparison that was stopped.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from ..measurement import fresh_process
from ..measurement.fresh_process import FreshProcessError
from ..recipe import Recipe
from ..report import units
from . import document, folder
from . import inference as inference_table
from .progress import Bars
from .settings import RECIPES, SAMPLED_RECIPES, Settings, examine, seeds_of
from .variants import Variant, variants_of, why_not
from .worker import Job, run


def compare(
    dataset: str,
    *,
    model: str = "gcn",
    layers: int = 3,
    width: int = 256,
    dropout: float = 0.5,
    norm: str = "batch",
    heads: int = 4,
    epochs: int = 100,
    seeds: int | Sequence[int] = 3,
    lr: float = 0.01,
    weight_decay: float = 0.0,
    batch_size: int | None = None,
    fanouts: Sequence[int] | None = None,
    recipes: Sequence[Recipe | str] | None = None,
    baselines: Sequence[str] = ("edge-index", "csr"),
    threads: int | None = None,
    scale: float | None = None,
    split: int | str | None = None,
    out: str | os.PathLike[str] | None = None,
    inference: bool = False,
    resume: bool = False,
    progress: bool = True,
) -> dict[str, Any]:
    """Train `model` on `dataset` as each baseline and with each recipe; the comparison, as comparison.json has it.

    seeds           how many, counted from 0, or the seeds themselves
    baselines       "edge-index" and "csr": plain PyG, each at its best settings
    fanouts         train on sampled batches of `batch_size` seeds, with so many neighbours per layer; plain PyG gets
                    them from our loader, as `edge_index` that it trims layer by layer
    threads         of every run; by default what torch uses here
    scale, split    for the dataset, as in `gs.datasets.load`
    inference       then evaluate one trained model as PyG, ours and integers: latency, memory, file, score
    out             the folder for comparison.json and comparison.html; None writes nothing
    resume          reuse the finished runs in `out`
    """
    threads = torch.get_num_threads() if threads is None else threads
    settings = Settings(
        dataset, model, layers, width, dropout, norm, heads, epochs, lr, weight_decay,
        batch_size if batch_size is not None else 32 if fanouts is None else 1024, seeds_of(seeds),
        threads, scale, split, None if fanouts is None else tuple(fanouts),
    )  # fmt: skip
    chosen = recipes if recipes is not None else RECIPES if fanouts is None else SAMPLED_RECIPES
    variants = variants_of(chosen, baselines)
    facts = examine(settings)
    left_out = {v.name: reason for v in variants if (reason := why_not(v, settings, facts["task"]))}
    variants = [variant for variant in variants if variant.name not in left_out]
    table = inference_table.new(settings, facts["task"]) if inference else None
    found = document.new(settings, facts, variants, left_out, table)
    if out is None and resume:
        raise ValueError("`resume` needs `out`, the folder of the comparison to go on with (got None)")
    if out is not None:
        found = folder.take_over(Path(out), found, resume)
        folder.write(Path(out), found)  # fails before the first run, not after it, if the folder cannot be written
    found = _run_all(settings, variants, found, out, progress)
    if inference:
        found = _evaluate(settings, found, out, progress)
    if out is not None:
        folder.write(Path(out), found)
        folder.write_page(Path(out), found)
    return found


def _run_all(
    settings: Settings,
    variants: list[Variant],
    found: document.Document,
    out: str | os.PathLike[str] | None,
    progress: bool,
) -> document.Document:
    jobs = [Job(settings, variant, seed) for seed in settings.seeds for variant in variants]
    jobs = [job for job in jobs if not document.done(found, job.variant.name, job.seed)]
    with Bars(len(jobs) * settings.epochs, progress and bool(jobs)) as bars:
        for job in jobs:
            one = _run_one(job, bars)
            found = document.add(found, job.variant.name, one)
            if out is not None:
                folder.write(Path(out), found)
    return found


def _run_one(job: Job, bars: Bars) -> dict[str, Any]:
    bars.begin(f"{job.variant.label}, seed {job.seed}", job.settings.epochs)
    try:
        one = fresh_process.listen(run, (job,), {}, bars.heard).value
    except FreshProcessError as error:
        bars.fail(job.settings.epochs)
        return document.failed(job.seed, error.reason)
    costs = f"{units.seconds(one['seconds_per_epoch'])}  {units.size(one['peak_bytes'])}"
    bars.end(f"test {one['test']:.4f}  {costs}")
    return one


def _evaluate(
    settings: Settings, found: document.Document, out: str | os.PathLike[str] | None, progress: bool
) -> document.Document:
    def keep(table: dict[str, Any]) -> None:
        if out is not None:
            folder.write(Path(out), found | {"inference": table})

    return found | {"inference": inference_table.evaluate(settings, found["inference"], progress, keep)}
