"""`gossamer compress`: features of a file or a dataset in few bits, into one file that is mapped when it is used."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from ..codecs.named import codec_of
from ..datasets import GraphList
from ..features import FeatureReport, FeatureStore, feature_report
from ..features import compress as run_compression
from ..features.compress import BLOCK
from ..features.file import OUTPUT_DTYPES, SUFFIX
from ..graph import Graph
from ..training.data import load
from .errors import told_plainly
from .train import _set_threads


def show(store: FeatureStore, seconds: float, report: FeatureReport | None) -> None:
    if report is not None:
        print(report)
    size = f"{store.num_nodes:,} x {store.num_features:,} as {store.codec!r}, {store.nbytes / 1e6:,.2f} MB"
    ratio = f"{store.ratio:.1f}x smaller than float32"
    if store.source_dtype != "float32":
        ratio += f", {store.ratio_on_disk:.1f}x than {store.source_dtype}"
    print(f"{store.path}: {size}, {ratio}; {seconds:.1f} s")


def compress(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="[IN]... OUT", help=f"One .npy or some Parquet files, and the file to write, *{SUFFIX}."
        ),
    ],
    codec: Annotated[str, typer.Option(help="Codec and its settings, such as scalar:1.")],
    dataset: Annotated[
        str | None, typer.Option(help="Dataset whose graph the report is for; without IN its features are taken, too.")
    ] = None,
    graph: Annotated[Path | None, typer.Option(help="File of Graph.save that the report is for.")] = None,
    report: Annotated[bool, typer.Option("--report", help="Report errors, and which codec is strong enough.")] = False,
    layers: Annotated[int, typer.Option(help="Layers of the model that the report is for: 1, 2 or 3.")] = 2,
    sample: Annotated[
        int | None, typer.Option(help="Rows that the codec is fitted to. [default: 100000 or more]")
    ] = None,
    block: Annotated[int, typer.Option(help="Rows that are encoded at a time.")] = BLOCK,
    dtype: Annotated[str, typer.Option(help="In which rows are decoded: float32 or bfloat16.")] = "float32",
    seed: Annotated[int, typer.Option(help="Seed of the sample.")] = 0,
    scale: Annotated[float | None, typer.Option(help="Size of a generated set, 1 being the full one.")] = None,
    threads: Annotated[int | None, typer.Option(help="Threads; by default what torch chooses.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted run.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False,
) -> None:
    """Compress features: fit a codec to a sample, encode everything block by block, write one file."""
    with told_plainly("Add --resume to continue; what is encoded is kept."):
        _set_threads(threads)
        *sources, out = paths
        if out.suffix != SUFFIX:
            raise ValueError(f"OUT must end in {SUFFIX}, which is what it will be (got {out})")
        if dtype not in OUTPUT_DTYPES:
            raise ValueError(f"`--dtype` must be {' or '.join(OUTPUT_DTYPES)} (got {dtype!r})")
        chosen = codec_of(codec)
        x, edges = _inputs(sources, dataset, graph, scale, report)
        begun = time.perf_counter()
        store = run_compression(
            x,
            chosen,
            out,
            sample=sample,
            block=block,
            progress=not as_json,
            resume=resume,
            dtype_out=OUTPUT_DTYPES[dtype],
            seed=seed,
        )
        seconds = time.perf_counter() - begun
        found = feature_report(x, store, edges, layers=layers, seed=seed) if report else None
        if as_json:
            print(json.dumps(_facts(store, seconds, found)))
        else:
            show(store, seconds, found)


def _inputs(
    sources: list[Path], dataset: str | None, graph: Path | None, scale: float | None, report: bool
) -> tuple[Any, Graph | None]:
    """Features, and the graph of the report."""
    if dataset is not None and graph is not None:
        raise ValueError("`--graph` and `--dataset` exclude each other: both give the graph of the report")
    if not sources and dataset is None:
        raise ValueError("IN is missing: give a .npy or Parquet file before OUT, or `--dataset`")
    edges = None if graph is None else Graph.load(graph)
    x: Any = sources if len(sources) > 1 else sources[0] if sources else None
    if dataset is not None:
        data = load(dataset, scale=scale)
        if isinstance(data, GraphList) or not isinstance(data.x, torch.Tensor):
            raise ValueError(f"`--dataset` must be one graph with features ({dataset} is not)")
        x = data.x if x is None else x
        edges = Graph.from_data(data).without_self_loops() if report else None
    return x, edges


def _facts(store: FeatureStore, seconds: float, report: FeatureReport | None) -> dict[str, Any]:
    return {
        "out": str(store.path),
        "codec": repr(store.codec),
        "shape": list(store.shape),
        "source_dtype": store.source_dtype,
        "nbytes": store.nbytes,
        "ratio": store.ratio,
        "ratio_on_disk": store.ratio_on_disk,
        "seconds": seconds,
        "report": None if report is None else json.loads(report.to_json()),
    }
