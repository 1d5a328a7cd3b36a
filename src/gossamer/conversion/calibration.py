"""Post-training quantisation: the ranges of a trained model from a few batches, and what they cost.

    report = gs.calibrate(model, (data.x, data.edge_index), bits=8)
    print(report)                                  each layer's error; leave one that hurts in float32 by `skip`
    gs.export(model, "model.safetensors")

The model is lightened with quantisers at the sites of engine/fake_quant, which first see float values alone. Every
range is that which rounds with the least squared error: of the extremes that were seen, shrunk by some factor,

    error(t) = (share inside) step^2 / 12 + mean of (|x| - t)^2 outside        from a histogram of 2,048 bins

Then the model computes, in evaluation, what the integer engine will. SQNR is the energy of a layer's result over that
of its error, in decibels, with this layer alone rounded; and what that makes of the model's outputs. The structure of
the model is captured and its program run on the first batch: what cannot be exported is an error here already.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from ..engine.fake_quant.engine import SITES, Sites
from ..engine.fake_quant.quantiser import BINS, Quantiser
from ..engine.fake_quant.settings import QAT
from ..inference import Engine
from ..pyg import lighten_
from ..recipe import Recipe
from .capture import capture
from .lower import lower

SHRINKS = 64
"""Factors that are tried for a range, from 1 down to a quarter."""
WIDER = {"message": 1 + 2.0**-9, "aggregate": 1 + 2.0**-8}
"""Sites whose ranges are made wider by this: where two scales are alike, sums of a few codes times a half lie between
two codes, and float32 rounds them by chance."""
AGREEMENT = 0.99
"""The share of rows whose largest output the engine must have where the model has it."""


@final
@dataclass(frozen=True)
class LayerError:
    """One layer: the SQNR of its own result, and that of the model's outputs, with it alone rounded, in decibels."""

    name: str
    kind: str
    sqnr: float
    outputs: float


@final
@dataclass(frozen=True)
class Calibration:
    """What `gs.calibrate` found. `sqnr` and `agreement` (rows whose largest output stays) are of the whole model."""

    bits: int
    layers: tuple[LayerError, ...]
    sqnr: float
    agreement: float
    skipped: tuple[str, ...]

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    def __rich__(self) -> Table:
        same = f"{100 * self.agreement:.2f} % of the rows keep their largest output"
        table = Table(
            "layer", "class", "SQNR, dB", "outputs, dB", title=f"{self.bits} bits: {same}", title_justify="left"
        )
        for layer in self.layers:
            table.add_row(layer.name, layer.kind, f"{layer.sqnr:.1f}", f"{layer.outputs:.1f}")
        table.add_row("all", "", "", f"{self.sqnr:.1f}", style="bold")
        for name in self.skipped:
            table.add_row(name, "", "float32", "", style="dim")
        return table

    def __str__(self) -> str:
        console = Console(width=100, color_system=None)
        with console.capture() as captured:
            console.print(self)
        return captured.get().rstrip()


def calibrate(
    model: nn.Module, data: Any, bits: int = 8, *, skip: Sequence[str] = (), check: bool = True
) -> Calibration:
    """Give a trained model ranges from `data`, so that it can be exported; returns each layer's error.

    data    what the model is called with: a tuple such as (x, edge_index) or (x, edge_index, batch), a PyG `Data`, or a
            list of those; a few batches are enough
    bits    8 or 4
    skip    names of modules that stay in float32
    check   capture the model and run its program on the first batch
    """
    batches = list(_batches(data))
    lighten_(model, Recipe(training=QAT(bits, observer="extremes", skip=tuple(skip))))
    was_training = model.training
    model.eval()
    try:
        if check:
            capture(model)  # what is not understood is an error before anything is measured
        with torch.no_grad():
            _observe(model, batches)
            report = _report(model, batches[0], bits, tuple(skip))
            if check:
                check_program(model, batches[0])
    finally:
        model.train(was_training)
    return report


def check_program(model: nn.Module, batch: tuple[Any, ...]) -> Engine:
    """The engine of a model, after it has been compared with the model on a batch."""
    program, tensors = lower(model, capture(model))
    engine = Engine(program, tensors)
    training = model.training
    model.eval()
    with torch.no_grad():
        want = model(*batch)
    model.train(training)
    got = engine(*_for_engine(batch, program.graph_level))
    if got.shape != want.shape:
        raise RuntimeError(
            f"the program gives a result of shape {tuple(got.shape)}, the model {tuple(want.shape)}: it computes "
            "something that was not captured; please report it"
        )
    same = agreement(got, want)
    if same < AGREEMENT or sqnr(want, got) < 10:
        raise RuntimeError(
            f"the program and the model differ: the largest output agrees in {100 * same:.2f} % of the rows, SQNR "
            f"{sqnr(want, got):.1f} dB; the forward depends on something that was not captured; please report it"
        )
    return engine


def _for_engine(batch: tuple[Any, ...], graph_level: bool) -> tuple[Any, ...]:
    """x, the graph and, for graph-level models, the batch vector."""
    first = batch[0]
    if hasattr(first, "edge_index"):
        found = (first.x, first.edge_index, getattr(first, "batch", None))
    else:
        found = (*batch, None)[:3]
    return found if graph_level else found[:2]


# Ranges -----------------------------------------------------------------------------------------------------------


def _batches(data: Any) -> Iterator[tuple[Any, ...]]:
    """Tuples of arguments."""
    if isinstance(data, tuple):
        yield data
    elif hasattr(data, "edge_index"):
        yield _arguments(data)
    elif isinstance(data, Iterable):
        found = [each if isinstance(each, tuple) else _arguments(each) for each in data]
        if not found:
            raise ValueError("`data` must hold at least one batch (got an empty list)")
        yield from found
    else:
        raise TypeError(
            f"`data` must be what the model is called with, as (x, edge_index), or a list of such (got "
            f"{type(data).__name__})"
        )


def _arguments(data: Any) -> tuple[Any, ...]:
    batch = getattr(data, "batch", None)
    return (data.x, data.edge_index) if batch is None else (data.x, data.edge_index, batch)


def quantisers_of(model: nn.Module) -> dict[str, Quantiser]:
    return {name: module for name, module in model.named_modules() if isinstance(module, Quantiser)}


def _observe(model: nn.Module, batches: list[tuple[Any, ...]]) -> None:
    """Extremes first, then histograms between them, then the range of least error."""
    named = quantisers_of(model)
    quantisers = list(named.values())
    _let_pass(model, None)
    for quantiser in quantisers:
        quantiser.train()
    for batch in batches:
        _run(model, batch)
    seen = [quantiser for quantiser in quantisers if quantiser.is_ready]
    for quantiser in seen:
        quantiser.counts = torch.zeros(BINS, dtype=torch.float64)
    for batch in batches:
        _run(model, batch)
    for name, quantiser in named.items():
        if quantiser.counts is not None:
            _shrink(quantiser, WIDER.get(name.rpartition(".")[2], 1.0))
        quantiser.counts = None
        quantiser.eval()
    _let_pass(model, "")


def _let_pass(model: nn.Module, rounding: str | None) -> None:
    """Let modules round whose sites' names begin so, and no others; None: none does."""
    for name, module in model.named_modules():
        if isinstance(module, (Sites, Quantiser)):
            module.passes = rounding is None or not name.startswith(rounding)


def _run(model: nn.Module, batch: tuple[Any, ...]) -> Any:
    """A call in which what is computed requires grad, by which quantisers tell it from what the model is given."""
    with torch.enable_grad():
        out = model(*batch)
    return out.detach() if isinstance(out, Tensor) else out


def _shrink(quantiser: Quantiser, wider: float = 1.0) -> None:
    """The range of least squared error between the extremes, times `wider`."""
    low, high, counts = min(0.0, float(quantiser.low)), max(0.0, float(quantiser.high)), quantiser.counts
    assert counts is not None
    width = high - low
    if width == 0 or float(counts.sum()) == 0:
        return
    centres = low + (torch.arange(BINS, dtype=torch.float64) + 0.5) * width / BINS
    share, best = counts / counts.sum(), (math.inf, low, high)
    for shrink in torch.linspace(1, 0.25, SHRINKS).tolist():
        start, end = low * shrink, high * shrink
        step = (end - start) / quantiser.top
        outside = (start - centres).clamp(min=0) + (centres - end).clamp(min=0)
        inside = (outside == 0).double()
        error = float((share * (inside * step * step / 12 + outside.square())).sum())
        best = min(best, (error, start, end))
    quantiser.low.fill_(best[1] * wider)
    quantiser.high.fill_(best[2] * wider)


# The report -------------------------------------------------------------------------------------------------------


def sqnr(want: Tensor, got: Tensor) -> float:
    """Decibels; infinite without error."""
    noise = float((got.double() - want.double()).square().sum())
    signal = float(want.double().square().sum())
    return math.inf if noise == 0 else 10 * math.log10(max(signal, 1e-300) / noise)


def agreement(got: Tensor, want: Tensor) -> float:
    """The share of rows whose largest output is the same, or equal but for rounding; of one output, 1."""
    if want.dim() != 2 or want.size(1) < 2 or not len(want):
        return 1.0
    chosen = want.gather(1, got.argmax(1, keepdim=True)).squeeze(1)
    return float((chosen >= want.amax(1) - 1e-5 * want.abs().amax()).float().mean())


def _noting(results: list[Tensor]) -> Callable[[nn.Module, Any, Tensor], None]:
    """A hook that keeps what a module returns."""

    def note(module: nn.Module, args: Any, out: Tensor) -> None:
        results.append(out.detach())

    return note


def _report(model: nn.Module, batch: tuple[Any, ...], bits: int, skipped: tuple[str, ...]) -> Calibration:
    owners = {name.removesuffix(f".{SITES}"): m for name, m in model.named_modules() if isinstance(m, Sites)}

    def run(rounding: str | None) -> Tensor:
        """With the sites whose names begin so, or none."""
        _let_pass(model, rounding)
        return model(*batch).detach()

    layers = []
    exact = run(None)
    for owner in owners:
        results: list[Tensor] = []
        handle = model.get_submodule(owner).register_forward_hook(_noting(results))
        try:
            run(None)
            outputs = run(f"{owner}.{SITES}" if owner else SITES)
        finally:
            handle.remove()
        own = sqnr(results[0], results[-1]) if len(results) > 1 else sqnr(exact, outputs)
        kind = type(model.get_submodule(owner)).__name__.removeprefix("Pyg")
        layers.append(LayerError(owner or "(model)", kind, own, sqnr(exact, outputs)))
    rounded = run("")
    return Calibration(bits, tuple(layers), sqnr(exact, rounded), agreement(rounded, exact), skipped)
