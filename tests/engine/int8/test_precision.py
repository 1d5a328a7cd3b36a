"""gs.Int8(auto=True): what is measured, what is decided, and that neither watching nor resuming changes a result."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric import nn as pyg
from torch_geometric.data import Data

import gossamer as gs
from gossamer import ops
from gossamer.engine.choice import engine_of
from gossamer.engine.int8.engine import Int8Engine
from gossamer.engine.int8.precision import SAMPLE, STEPS, Watch, nsr, sampled
from gossamer.ops.quantize_rows import QRows
from gossamer.state.layer import model_state_of
from gossamer.training.history import Epoch

NODES, EDGES, COLUMNS = 200, 1200, 24
TOLERANT, STRICT = 0.9, 1e-9


def mlp(first: int, last: int) -> nn.Module:
    return nn.Sequential(nn.Linear(first, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, last))


class Gin(nn.Module):
    def __init__(self, columns: int, width: int) -> None:
        super().__init__()
        self.first, self.second = pyg.GINConv(mlp(columns, width)), pyg.GINConv(mlp(width, 3))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.second(self.first(x, edge_index).relu(), edge_index)


SETTINGS: dict[str, Any] = {"num_layers": 3, "out_channels": 3, "dropout": 0.5, "norm": "BatchNorm"}
MODELS: dict[str, Callable[[int], nn.Module]] = {
    "GCN": lambda columns: pyg.GCN(columns, 16, **SETTINGS),
    "GCN, wider": lambda columns: pyg.GCN(columns, 2 * columns, **SETTINGS),
    "SAGE": lambda columns: pyg.GraphSAGE(columns, 16, **SETTINGS),
    "SAGE, wider": lambda columns: pyg.GraphSAGE(columns, 2 * columns, **SETTINGS),
    "GIN": lambda columns: Gin(columns, 16),
    "GIN, wider": lambda columns: Gin(columns, 2 * columns),
}


def model_of(name: str, columns: int = COLUMNS) -> nn.Module:
    torch.manual_seed(0)
    return MODELS[name](columns)


def inputs(columns: int = COLUMNS, peaked: bool = False) -> tuple[Tensor, Tensor]:
    """Features and edges. Peaked: a row is one large number and many that half a step swallows."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(NODES, columns, generator=generator)
    if peaked:
        x = x.sign()
        x[torch.arange(NODES), torch.arange(NODES) % columns] = 260
    return x, torch.randint(0, NODES, (2, EDGES), generator=generator)


def step(model: nn.Module, optimizer: torch.optim.Optimizer, given: tuple[Tensor, Tensor]) -> float:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(*given), torch.arange(NODES) % 3)
    loss.backward()
    optimizer.step()
    return loss.item()


def trained(
    model: nn.Module, compute: gs.Int8 | gs.Float32, given: tuple[Tensor, Tensor], steps: int = STEPS, **places: Any
) -> list[float]:
    gs.lighten_(model, gs.Recipe(compute=compute, **places))
    torch.manual_seed(2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    return [step(model, optimizer, given) for _ in range(steps)]


def state(model: nn.Module) -> dict[str, Any]:
    """What each layer of a lightened model has measured, as a checkpoint holds it."""
    found = model_state_of(model)
    return {} if found is None else {name: told["precision"] for name, told in found.state()["layers"].items()}


def auto(tolerance: float, **settings: Any) -> gs.Int8:
    return gs.Int8(auto=True, tolerance=tolerance, **settings)


def rows_of(x: Tensor, seed: int | None = None) -> QRows:
    return QRows(*ops.quantize_rows(x, seed))


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize(("seed", "divisor"), [(None, 12), (7, 6)])
def test_the_measurement_agrees_with_the_formula(relu: bool, seed: int | None, divisor: int) -> None:
    x = torch.randn(512, 128, generator=torch.Generator().manual_seed(0))
    x = x.relu() if relu else x
    step_size, share = x.abs().amax(1) / 127, (x != 0).float().mean(1)
    predicted = (share * step_size**2 / divisor * 128).sum() / (x**2).sum()
    # the formula is of all columns together, the measurement is the median column's
    assert nsr(x, rows_of(x, seed)) == pytest.approx(predicted.item(), rel=0.04)


def test_a_factor_is_part_of_what_was_rounded() -> None:
    x, factor = torch.randn(64, 8), torch.rand(8) + 0.5
    assert nsr(x, rows_of(x * factor), factor) == nsr(x * factor, rows_of(x * factor))
    assert nsr(x, rows_of(x * factor)) > 100 * nsr(x, rows_of(x * factor), factor)


@pytest.mark.parametrize(
    ("rows", "columns"), [(10, 7), (1, 1), (SAMPLE, 1), (SAMPLE + 1, 1), (70_000, 3), (5000, 256), (3, 100_000), (0, 4)]
)
def test_a_sample_is_evenly_spaced_and_not_too_large(rows: int, columns: int) -> None:
    index = torch.arange(rows).unsqueeze(1).expand(rows, columns)
    picked = index[sampled(rows, columns)]
    assert picked.numel() <= SAMPLE
    assert picked.numel() >= min(rows * columns, SAMPLE // 4)
    if len(picked) > 1:
        assert picked[:, 0].diff().unique().numel() == 1 and rows - picked[-1, 0] <= picked[1, 0] - picked[0, 0]


def test_zeros_tiny_rows_and_what_is_not_finite() -> None:
    zeros, tiny = torch.zeros(4, 4), 1e-35 * torch.randn(4, 4)
    assert nsr(zeros, rows_of(zeros)) == 0
    assert nsr(tiny, rows_of(tiny)) == 1, "flushed to zero: all of it is lost"
    assert nsr(zeros[:0], rows_of(zeros[:0])) == 0
    watch = Watch(1e-3)
    for bad in (float("nan"), float("inf")):
        watch.see("x", x := torch.tensor([[1.0, bad]]), rows_of(x))
    assert watch.nsr == {}
    watch.see("x", tiny, rows_of(tiny))
    watch.see("x", zeros, rows_of(zeros))
    assert watch.nsr["x"] >= 1, "the largest counts"


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        ({"x": 5e-4, "weight": 5e-4, "h": 1e-3, "dout": 1e-2, "dh": 1e-2, "dz": 1e-2}, ""),
        ({"x": 6e-4, "weight": 5e-4}, "noise of x and weight 1.1e-03, above 1.0e-03"),
        ({"x": 1e-4, "z": 6e-4, "weight": 5e-4}, "noise of z and weight 1.1e-03, above 1.0e-03"),
        ({"x": 1e-4, "weight": 5e-4, "h": 2e-3}, "noise of h 2.0e-03, above 1.0e-03"),
        ({"x": 1e-4, "weight": 5e-4, "dout": 2e-2}, "noise of dout 2.0e-02, above 1.0e-02"),
        ({"x": 1e-4, "weight": 5e-4, "dh": 2e-2}, "noise of dh 2.0e-02, above 1.0e-02"),
        ({"x": 1e-4, "weight": 5e-4, "dz": 2e-2}, "noise of dz 2.0e-02, above 1.0e-02"),
    ],
)
def test_the_limits(found: dict[str, float], reason: str) -> None:
    watch = Watch(1e-3, STEPS - 1, found)
    assert not watch.decided and not watch.in_float32
    watch.end_step()
    assert watch.decided and watch.in_float32 == bool(reason) and watch.excess == reason


@pytest.mark.parametrize("activations", [gs.Keep(), gs.Blockwise(bits=2)], ids=["float32", "few bits"])
@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
@pytest.mark.parametrize("name", MODELS)
def test_watching_changes_no_result(name: str, rounding: Any, activations: Any) -> None:
    plain, watched = model_of(name), model_of(name)
    expected = trained(plain, gs.Int8(rounding), inputs(), STEPS + 2, activations=activations)
    losses = trained(watched, auto(TOLERANT, rounding=rounding), inputs(), STEPS + 2, activations=activations)
    assert losses == expected
    for one, other in zip(plain.state_dict().values(), watched.state_dict().values(), strict=True):
        assert torch.equal(one, other)
    told = gs.precision(watched)
    assert told and all(decision.decided and decision.compute == "int8" for decision in told.values())


class One(nn.Module):
    """One convolution, and a linear layer that feeds the loss."""

    def __init__(self, conv: nn.Module, width: int) -> None:
        super().__init__()
        self.conv, self.head = conv, nn.Linear(width, 3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.head(self.conv(x, edge_index))


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("width", [4, 128])
@pytest.mark.parametrize("kind", [pyg.GCNConv, pyg.SAGEConv, pyg.GraphConv])
def test_every_operand_is_measured(kind: Any, width: int, requires_grad: bool) -> None:
    model, (x, edges) = One(kind(COLUMNS, width), width), inputs()
    trained(model, auto(TOLERANT), (x.requires_grad_(requires_grad), edges), 1)
    ((name, told),) = gs.precision(model).items()
    multiply = {"x", "weight", "h", "dout", "dh"}
    aggregate = {"x", "weight", "z"} | ({"dout", "dz"} if requires_grad else set())
    assert name == "conv" and set(told.nsr) == (multiply if width == 4 else aggregate)
    assert all(1e-6 < noise < 1e-3 for noise in told.nsr.values())


def test_linear_layers_are_measured_by_themselves() -> None:
    model = model_of("GIN")
    trained(model, auto(TOLERANT), inputs(), 1)
    told = gs.precision(model)
    assert list(told) == ["first.nn.0", "first.nn.3", "second.nn.0"], "what feeds the loss is not watched"
    assert set(told["first.nn.3"].nsr) == {"x", "weight", "dout"}


@pytest.mark.parametrize("name", MODELS)
def test_what_is_decided_float32_computes_in_float32(name: str) -> None:
    model = model_of(name)
    trained(model, auto(STRICT), inputs())
    other = copy.deepcopy(model)
    told = gs.precision(model)
    assert told and {decision.compute for decision in told.values()} == {"float32"}
    multiplying = [module for module in model.modules() if hasattr(module, "weight") and module.weight.dim() == 2]
    assert multiplying and not any(isinstance(engine_of(module), Int8Engine) for module in multiplying)
    gs.lighten_(other, gs.Recipe(compute=gs.Int8(float32=tuple(told))))
    for mode in (True, False):
        torch.manual_seed(3)
        expected = other.train(mode)(*inputs())
        torch.manual_seed(3)
        assert torch.equal(model.train(mode)(*inputs()), expected)


@pytest.mark.parametrize("name", ["GCN", "SAGE", "GIN"])
def test_rows_that_int8_loses_are_found(name: str) -> None:
    model = model_of(name, 512)
    losses = trained(model, auto(1e-3), inputs(512, peaked=True), STEPS)
    first, *others = gs.precision(model).values()
    assert first.compute == "float32" and first.reason.startswith("noise of x and weight ")
    assert first.nsr["x"] > 5e-3 and {decision.compute for decision in others} == {"int8"}
    exact = trained(model_of(name, 512), gs.Float32(), inputs(512, peaked=True), 1)
    assert losses[0] != exact[0], "while it was watched it computed in int8"


def test_a_step_is_a_forward_and_its_backward() -> None:
    model = model_of("GCN")
    gs.lighten_(model, gs.Recipe(compute=auto(TOLERANT)))
    given = inputs()

    def steps() -> int:
        return state(model)["convs.0"]["steps"]

    with torch.no_grad():
        model(*given)
    assert state(model)["convs.0"] == {"steps": 0, "nsr": {}}
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    model(*given)
    assert state(model)["convs.0"] == {"steps": 0, "nsr": {}}, "no backward will come"
    for parameter in model.parameters():
        parameter.requires_grad_(True)
    for _ in range(2 * STEPS):
        loss = model(*given).sum()
    assert steps() == 0 and not gs.precision(model).settled
    loss.backward()
    assert steps() == 1
    for _ in range(STEPS):
        model(*given).sum().backward()
    assert steps() == STEPS and gs.precision(model).settled
    measured = state(model)
    model(given[0] * torch.arange(1, COLUMNS + 1), given[1]).sum().backward()
    assert state(model) == measured, "a decision stands"


def test_lighten_begins_anew_and_restore_forgets() -> None:
    model = model_of("SAGE")
    trained(model, auto(STRICT), inputs())
    other = copy.deepcopy(model)
    assert state(other) == state(model)
    gs.lighten_(model, gs.Recipe(compute=auto(STRICT)))
    assert all(told == {"steps": 0, "nsr": {}} for told in state(model).values())
    assert gs.precision(other)["convs.0"].decided, "a copy has a watch of its own"
    gs.restore_(other)
    assert len(gs.precision(other)) == 0 and state(other) == {}
    assert not any("_gossamer" in key for module in other.modules() for key in module.__dict__)
    gs.lighten_(model, gs.Recipe(compute=gs.Int8()))
    assert len(gs.precision(model)) == 0


def test_decisions_are_printable() -> None:
    model = model_of("GCN", 512)
    gs.lighten_(model, gs.Recipe(compute=auto(1e-3)))
    assert str(gs.precision(model)).splitlines() == [f"convs.{k}: int8, not decided yet" for k in (0, 1)]
    trained(model, auto(1e-3), inputs(512, peaked=True))
    first, second = str(gs.precision(model)).splitlines()
    assert first.startswith("convs.0: float32: noise of x and weight ") and ", above 1.0e-03, weight " in first
    assert second.startswith("convs.1: int8, weight ") and "e-0" in second
    gs.lighten_(model, "float32")
    assert str(gs.precision(model)) == "no module is watched; lighten the model by compute=gs.Int8(auto=True)"
    with pytest.raises(TypeError, match=r"`model` must be a torch.nn.Module \(got int\)"):
        gs.precision(3)  # type: ignore[arg-type]


def test_a_convolution_with_all_it_holds_is_one_module() -> None:
    model = nn.ModuleList([pyg.GraphConv(COLUMNS, 8), nn.Linear(8, 2)])  # the last product feeds the loss
    gs.lighten_(model, gs.Recipe(compute=auto(STRICT)))
    for _ in range(STEPS):
        model[0](*inputs()).sum().backward()
    assert list(gs.precision(model)) == ["0"] and gs.precision(model)["0"].compute == "float32"


def test_a_convolution_alone_feeds_the_loss() -> None:
    conv = pyg.GraphConv(COLUMNS, 8)
    gs.lighten_(conv, gs.Recipe(compute=auto(STRICT)))
    conv(*inputs()).sum().backward()
    assert not gs.precision(conv)


def peaked_data(dropout: float) -> tuple[Data, Callable[[], nn.Module]]:
    x, edges = inputs(512, peaked=True)
    part = torch.arange(NODES) % 4
    masks = {"train_mask": part < 2, "val_mask": part == 2, "test_mask": part == 3}
    data = Data(x=x, edge_index=edges, y=(x[:, 1] > 0).long(), **masks)

    def make() -> nn.Module:
        torch.manual_seed(0)
        return pyg.GCN(512, 16, num_layers=3, out_channels=2, dropout=dropout, norm="BatchNorm")

    return data, make


class Stop(Exception):
    """What a test raises to end a run."""


@pytest.mark.parametrize("stopped, dropout", [(1, 0.5), (STEPS - 1, 0.0), (STEPS, 0.5), (STEPS + 2, 0.5)])
def test_a_resumed_run_decides_and_ends_like_one_that_was_not_stopped(
    tmp_path: Path, stopped: int, dropout: float
) -> None:
    data, make = peaked_data(dropout)
    settings: dict[str, Any] = {"epochs": 8, "checkpoint_seconds": 0, "progress": False}
    settings["recipe"] = gs.Recipe(compute=auto(1e-3))

    def stop(epoch: Epoch) -> None:
        if epoch.number == stopped + 1:  # the checkpoint is of the epoch before
            raise Stop

    whole, resumed = make(), make()
    expected = gs.train(whole, data, **settings)
    with pytest.raises(Stop):
        gs.train(make(), data, out=tmp_path, on_epoch=stop, **settings)
    result = gs.train(resumed, data, out=tmp_path, resume=True, **settings)
    assert result.history["loss"] == expected.history["loss"]
    for one, other in zip(whole.state_dict().values(), resumed.state_dict().values(), strict=True):
        assert torch.equal(one, other)
    assert state(whole) == state(resumed)
    assert [decision.compute for decision in gs.precision(resumed).values()] == ["float32", "int8"]


def test_a_checkpoint_without_measurements_begins_them_anew() -> None:
    model = model_of("GCN")
    trained(model, auto(STRICT), inputs())
    found, owner = state(model), model_state_of(model)
    written = owner.state()
    owner.restore({"step": 0, "epoch": 0, "layers": {}})
    assert all(told == {"steps": 0, "nsr": {}} for told in state(model).values())
    owner.restore(json.loads(json.dumps(written)))
    assert state(model) == found and gs.precision(model)["convs.0"].compute == "float32"


def test_training_prints_each_decision_once(capsys: pytest.CaptureFixture[str]) -> None:
    data, make = peaked_data(0.5)
    gs.train(make(), data, gs.Recipe(compute=auto(1e-3)), epochs=STEPS + 3)
    told = capsys.readouterr().err
    assert told.count("convs.0: float32: noise of x and weight") == told.count("convs.1: int8, ") == 1
    gs.train(make(), data, gs.Recipe(compute=auto(1e-3)), epochs=STEPS - 1)
    assert "convs." not in capsys.readouterr().err
