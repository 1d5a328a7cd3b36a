"""What compression does to given features: how much smaller, how wrong, and whether a graph averages that away.

    report = gs.feature_report(x, gs.Product(16, 256), graph)
    print(report)                                  a table; report.to_json() for machines

It tells the stored ratio (codes and tables against float32, and against the dtype of the source), the relative error
||X^ - X|| / ||X||, and, with a graph, Khat, the compression it calls safe, and eta_L (features/profile.py). Of the
candidates it recommends the strongest whose eta_L is at most 0.05 for a model of L layers. Features are read in blocks
and compressed in memory; averages are taken of up to 2 GB, and of sketches where there is more. Errors count all of
x alike: noise that gs.Principal drops counts, too, though a model may do better without it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, final

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from ..codecs import Codec, Principal, Scalar
from ..codecs.rows import sample_ids
from ..graph import Graph
from .compress import BLOCK, compress
from .layout import label
from .profile import (
    HOPS,
    SAFE_ERROR,
    Gains,
    Sketch,
    error_gains,
    gains,
    khat,
    mean_graph,
    ratio,
    safe_ratio,
    unit_rows,
)
from .source import Source, source_of
from .store import FeatureStore

EXAMPLE_ROWS = 10_000
CANDIDATES: tuple[Codec, ...] = (*(Scalar(bits) for bits in (8, 4, 2, 1)), Principal(ratio=2, then=Scalar(bits=4)))
WIDEST_PRINCIPAL = 1024
"""Columns up to which it is a candidate: directions of more take longer than all else here."""


@final
@dataclass(frozen=True)
class CodecReport:
    """One codec, and its name in short. `eta`: relative error after 0, 1, .. averages; one number without a graph."""

    codec: str
    label: str
    nbytes: int
    ratio: float
    ratio_on_disk: float
    relative_error: float
    eta: tuple[float, ...]


@final
@dataclass(frozen=True)
class FeatureReport:
    """What `gs.feature_report` found; printed, a table."""

    num_nodes: int
    num_features: int
    source_dtype: str
    layers: int
    """Averages that the recommendation counts on: 0 without a graph."""
    khat: tuple[float, ...]
    """For 1, 2, 3 layers; empty without a graph."""
    safe_ratio: tuple[float, ...]
    """The compression that each Khat calls safe."""
    codecs: tuple[CodecReport, ...]
    """The codec that was asked for, then the candidates."""
    recommended: str | None
    """The strongest codec whose eta at `layers` is at most 0.05; None if there is none."""
    is_sketched: bool
    """Whether the features were too many for exact averages."""

    def to_json(self) -> str:
        return json.dumps(_finite(asdict(self)))

    def __rich__(self) -> Table:
        title = f"{self.num_nodes:,} x {self.num_features:,} features, {self.source_dtype}"
        table = Table(title=title, title_justify="left", caption=self._caption(), caption_justify="left")
        table.add_column("codec")
        against = ["vs float32", *([f"vs {self.source_dtype}"] if self.source_dtype != "float32" else [])]
        for name in ("MB", *against, "error", *(f"eta_{k}" for k in range(len(self.codecs[0].eta)))):
            table.add_column(name, justify="right")
        for each in self.codecs:
            ratios = [f"{ratio:.1f}x" for ratio in (each.ratio, each.ratio_on_disk)[: len(against)]]
            errors = [f"{error:.3f}" for error in (each.relative_error, *each.eta)]
            style = "bold" if each.codec == self.recommended else None
            table.add_row(each.label, f"{each.nbytes / 1e6:,.2f}", *ratios, *errors, style=style)
        return table

    def _caption(self) -> str:
        lines = []
        if self.khat:
            numbers = ", ".join(f"{value:.2f}" for value in self.khat)
            safe = ", ".join("any" if math.isinf(ratio) else f"{ratio:.0f}x" for ratio in self.safe_ratio)
            lines.append(f"Khat for 1, 2, 3 layers: {numbers}; compression called safe: {safe}.")
        bound = f"eta_{self.layers} <= {SAFE_ERROR}"
        if self.recommended is None:
            lines.append(f"No codec has {bound}: keep the features, or add a codec of more bits to the candidates.")
        else:
            best = next(each.label for each in self.codecs if each.codec == self.recommended)
            lines.append(f"Recommended, the strongest with {bound}: {best}.")
        if not self.khat:
            lines.append("Pass a graph to see what neighbour averages leave of the errors.")
        return "\n".join(lines)

    def __str__(self) -> str:
        console = Console(width=120, color_system=None)
        with console.capture() as captured:
            console.print(self)
        return captured.get().rstrip()


def feature_report(
    x: Any,
    codec: Codec | FeatureStore,
    graph: Graph | None = None,
    *,
    candidates: Sequence[Codec] | None = None,
    layers: int = 2,
    seed: int = 0,
) -> FeatureReport:
    """Report on compressing x with `codec`, or as the store that was made of it, and on some other codecs.

    x: features as `gs.compress` takes them. graph: over whose edges a model will average; undirected ones hold both
    directions, and no self-loops. candidates: codecs to choose from; by default gs.Scalar in 8, 4, 2 and 1 bits, and
    half as many principal components in 4 bits (of up to 1024 columns).
    layers: of the model that the recommendation is for, 1 to 3; without a graph there is nothing to average.
    """
    source = source_of(x)
    _check(source, codec, graph, layers)
    if candidates is None:
        narrow = source.num_features <= WIDEST_PRINCIPAL
        candidates = [each for each in CANDIDATES if narrow or not isinstance(each, Principal)]
    with torch.no_grad():
        signal = _Signal(source, graph, seed)
        store = codec if isinstance(codec, FeatureStore) else compress(source, codec, progress=False, seed=seed)
        told = [signal.report(store)]
        for other in candidates:
            if repr(other) != told[0].codec:
                told.append(signal.report(compress(source, other, progress=False, seed=seed)))
        gained = signal.khat()
    hop = 0 if graph is None else layers
    good = [each for each in told if each.eta[hop] <= SAFE_ERROR]
    best = max(good, key=lambda each: each.ratio).codec if good else None
    return FeatureReport(
        source.num_rows,
        source.num_features,
        source.dtype,
        hop,
        tuple(gained),
        tuple(map(safe_ratio, gained)),
        tuple(told),
        best,
        signal.is_sketched,
    )


def _check(source: Source, codec: Any, graph: Graph | None, layers: int) -> None:
    if layers not in range(1, HOPS + 1):
        raise ValueError(f"`layers` must be 1, 2 or {HOPS} (got {layers!r})")
    shape = (source.num_rows, source.num_features)
    if isinstance(codec, FeatureStore) and codec.shape != shape:
        raise ValueError(f"`codec` must be a store of these features, {shape} (got one of {tuple(codec.shape)})")
    if graph is not None and graph.num_nodes != source.num_rows:
        raise ValueError(
            f"`graph` must have the nodes of the features, {source.num_rows} (got {graph.num_nodes}); pass the graph "
            "that belongs to them"
        )


class _Signal:
    """The features, and what averages over neighbours leave of them."""

    def __init__(self, source: Source, graph: Graph | None, seed: int) -> None:
        self.source, self.graph, self.seed = source, None if graph is None else mean_graph(graph), seed
        self.with_neighbours = None if graph is None else graph.degree > 0
        self.example = sample_ids(source.num_rows, EXAMPLE_ROWS, seed)
        self.example_rows = source.rows(self.example.numpy())
        self.gains, self.sum_of_squares = self._gains(self.example_rows, lambda block, at: block)
        self.is_sketched = not self._sketch(self.example_rows).is_whole

    def report(self, store: FeatureStore) -> CodecReport:
        def error(block: Tensor, at: int) -> Tensor:
            return store.gather(slice(at, at + len(block)), dtype=torch.float32) - block

        example = store.gather(self.example, dtype=torch.float32) - self.example_rows
        left, sum_of_squares = self._gains(example, error)
        eta = [
            ratio(left.mean(hop, self._nodes(hop)), self.gains.mean(hop, self._nodes(hop)))
            for hop in range(len(left.norms))
        ]
        relative = ratio(math.sqrt(sum_of_squares), math.sqrt(self.sum_of_squares))
        ratios = store.ratio, store.ratio_on_disk
        return CodecReport(repr(store.codec), label(store.codec), store.nbytes, *ratios, relative, tuple(eta))

    def khat(self) -> list[float]:
        """For 1 .. HOPS layers; none without a graph."""
        if self.graph is None:
            return []
        signal, _ = self._gains(unit_rows(self.example_rows), lambda block, at: unit_rows(block))
        return khat(signal, error_gains(self.graph, HOPS, self.seed), self.with_neighbours)

    def _gains(self, example: Tensor, of_block: Callable[[Tensor, int], Tensor]) -> tuple[Gains, float]:
        """What averages leave of a matrix that is made of the features block by block, and its sum of squares."""
        sketch, at, squares = self._sketch(example), 0, 0.0
        rows = torch.empty(self.source.num_rows, sketch.columns)
        for block in self.source.blocks(BLOCK):
            made = of_block(block, at)
            squares += float(torch.linalg.vector_norm(made, dtype=torch.float64).square())
            rows[at : at + len(block)] = sketch(made)
            at += len(block)
        return gains(self.graph, rows, HOPS), squares

    def _sketch(self, example: Tensor) -> Sketch:
        return Sketch(self.source.num_rows, example, self.seed)

    def _nodes(self, hop: int) -> Tensor | None:
        """Averages are counted where there are neighbours."""
        return self.with_neighbours if hop else None


def _finite(plain: Any) -> Any:
    """JSON has no infinity: null."""
    if isinstance(plain, dict):
        return {key: _finite(value) for key, value in plain.items()}
    if isinstance(plain, (list, tuple)):
        return [_finite(value) for value in plain]
    return None if isinstance(plain, float) and not math.isfinite(plain) else plain
