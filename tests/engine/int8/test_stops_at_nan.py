"""Training that leaves the finite numbers: it stops before a weight is touched, says where, and can be resumed."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric import nn as pyg
from torch_geometric.data import Data
from typer.testing import CliRunner

import gossamer as gs
from gossamer.cli import app
from gossamer.training import TrainingDiverged
from gossamer.training import checkpoint as files
from gossamer.training.checkpoint import copy_of
from gossamer.training.history import Epoch, TrainResult

DIGITS = gs.datasets.load("digits")
RECIPES = ["float32", "tango", "feather"]


def model_of(**settings: Any) -> nn.Module:
    torch.manual_seed(0)
    return pyg.GCN(64, 16, **({"num_layers": 3, "out_channels": 10, "norm": "BatchNorm"} | settings))


def run(model: nn.Module, data: Any = DIGITS, recipe: str = "tango", **options: Any) -> TrainResult:
    return gs.train(model, data, recipe, **({"epochs": 6, "checkpoint_seconds": 0, "progress": False} | options))


class Poison:
    """Spoils the gradients of some parameters in one epoch; remembers the weights after the epoch before."""

    def __init__(self, model: nn.Module, names: tuple[str, ...], epoch: int, value: float = math.nan) -> None:
        self.model, self.at, self.value, self.epoch = model, epoch, value, 1
        self.before: dict[str, Tensor] = {}
        self.hooks = [model.get_parameter(name).register_hook(self._spoil) for name in names]

    def _spoil(self, grad: Tensor) -> Tensor | None:
        return grad * self.value if self.epoch == self.at else None

    def after(self, epoch: Epoch) -> None:
        self.epoch = epoch.number + 1
        if self.epoch == self.at:
            self.before = copy_of(dict(self.model.named_parameters()))


def assert_untouched(model: nn.Module, before: dict[str, Tensor]) -> None:
    assert before
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, before[name]), name


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_spoiled_gradient_stops_the_run_and_it_can_be_resumed(tmp_path: Path, recipe: str, value: float) -> None:
    whole, model = model_of(), model_of()
    expected = run(whole, recipe=recipe)
    poison = Poison(model, ("convs.1.lin.weight", "convs.2.bias"), 3, value)
    with pytest.raises(TrainingDiverged, match=r"the gradient of 'convs.1.lin.weight' became (nan|inf|-inf) ") as told:
        run(model, recipe=recipe, out=tmp_path, on_epoch=poison.after)
    message = str(told.value)
    assert f"in epoch 3, so training stopped; {tmp_path} keeps the checkpoint of epoch 2. Remedy: " in message
    for remedy in ("a smaller `lr`", "the recipe 'float32'", "torch.autograd.set_detect_anomaly(True)"):
        assert remedy in message
    assert_untouched(model, poison.before)
    assert files.load(tmp_path / "checkpoint.safetensors").state["epoch"] == 2
    resumed = model_of()
    result = run(resumed, recipe=recipe, out=tmp_path, resume=True)
    assert result.history["loss"] == expected.history["loss"]
    for one, other in zip(whole.state_dict().values(), resumed.state_dict().values(), strict=True):
        assert torch.equal(one, other)


def test_the_first_parameter_in_the_models_order_is_named() -> None:
    model = model_of()
    poison = Poison(model, ("norms.0.module.weight", "convs.2.lin.weight", "convs.0.bias"), 1)
    with pytest.raises(TrainingDiverged, match=r"the gradient of 'convs.0.bias' became nan in epoch 1, so training st"):
        run(model, on_epoch=poison.after)


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_loss_that_is_not_finite_stops_before_backward(tmp_path: Path, recipe: str) -> None:
    data, model = DIGITS.clone(), model_of()
    before: dict[str, Tensor] = {}

    def spoil(epoch: Epoch) -> None:
        if epoch.number == 2:
            before.update(copy_of(dict(model.named_parameters())))
            data.x[0, 0] = math.inf

    with pytest.raises(TrainingDiverged, match=r"the loss became nan in epoch 3, .*keeps the checkpoint of epoch 2"):
        run(model, data, recipe, out=tmp_path, on_epoch=spoil)
    assert_untouched(model, before)
    assert all(parameter.grad is None for parameter in model.parameters()), "no backward has run"
    data.x[0, 0] = 0
    assert run(model_of(), data, recipe, out=tmp_path, resume=True).epochs_run == 6


def test_it_stops_in_the_midst_of_an_epoch() -> None:
    graphs = [
        Data(x=torch.ones(5, 4), edge_index=torch.tensor([[0, 1], [1, 0]]), y=torch.tensor([i % 2])) for i in range(40)
    ]
    torch.manual_seed(0)
    model = gs.training.models.build("gcn", graphs, layers=2, width=8)
    steps = []

    def count(grad: Tensor) -> Tensor:
        steps.append(1)
        return grad * (math.nan if len(steps) == 2 else 1)

    next(model.parameters()).register_hook(count)
    with pytest.raises(
        TrainingDiverged, match=r"the gradient of .* became nan in epoch 1, so training stopped\. Remedy"
    ):
        gs.train(model, graphs, epochs=2, batch_size=4, progress=False)
    assert len(steps) == 2 and all(bool(parameter.isfinite().all()) for parameter in model.parameters())


def test_the_command_line_tells_it_in_one_line(tmp_path: Path) -> None:
    given = ["train", "digits", "--width", "8", "--recipe", "tango", "--lr", "1e20", "--norm", "none"]
    result = CliRunner().invoke(app, [*given, "--out", str(tmp_path), "--checkpoint-seconds", "0"])
    assert result.exit_code == 2 and result.stdout == ""
    assert "Error: outputs must be finite" in result.stderr and "Remedy: a smaller `lr`" in result.stderr
    assert files.load(tmp_path / "checkpoint.safetensors").state["epoch"] == 0


def lightened(recipe: str = "tango", **settings: Any) -> nn.Module:
    model = model_of(**settings)
    gs.lighten_(model, recipe)
    return model


@pytest.fixture
def anomaly() -> Any:
    with torch.autograd.set_detect_anomaly(True):
        yield


def into_rows(model: nn.Module) -> Any:
    x = DIGITS.x.clone()
    x[3, 3] = math.nan
    return x


def into_hidden_rows(model: nn.Module) -> Any:
    with torch.no_grad():
        model.norms[0].module.bias[1] = math.inf
    return DIGITS.x


def into_weights(model: nn.Module) -> Any:
    with torch.no_grad():
        model.convs[1].lin.weight[2, 2] = math.inf
    return DIGITS.x


@pytest.mark.parametrize(
    ("spoil", "what"),
    [
        (into_rows, r"in layer 'convs.0' \(GCNConv\), the rows"),
        (into_hidden_rows, r"in layer 'convs.1' \(GCNConv\), "),
        (into_weights, r"in layer 'convs.1' \(GCNConv\), the weights"),
    ],
)
@pytest.mark.parametrize("recipe", ["tango", "feather"])
def test_anomaly_mode_names_the_layer_of_an_operand(
    anomaly: Any, recipe: str, spoil: Callable[[nn.Module], Tensor], what: str
) -> None:
    model = lightened(recipe)
    x = spoil(model)
    with pytest.raises(ValueError, match=f"{what}.* hold.? NaN or infinity; look for the step that diverged"):
        model(x, DIGITS.edge_index)


@pytest.mark.filterwarnings("ignore:Error detected in _Int8Backward:UserWarning")
@pytest.mark.parametrize("norm", [None, "BatchNorm"])
def test_anomaly_mode_names_the_layer_of_a_gradient(anomaly: Any, norm: str | None) -> None:
    model = lightened(norm=norm)

    def spoil(module: nn.Module, args: Any, out: Tensor) -> None:
        out.register_hook(lambda grad: grad + math.inf)

    model.convs[1].register_forward_hook(spoil)
    loss = model(DIGITS.x, DIGITS.edge_index).sum()
    with pytest.raises(ValueError, match=r"in layer 'convs.1' \(GCNConv\), the gradients of an int8 product hold NaN"):
        loss.backward()


@pytest.mark.filterwarnings("ignore:Error detected in _Int8Backward:UserWarning")
@pytest.mark.filterwarnings("ignore:No forward pass information available:UserWarning")
def test_anomaly_mode_may_begin_after_forward() -> None:
    out = lightened(norm=None).convs[0](DIGITS.x, DIGITS.edge_index)
    with (
        torch.autograd.set_detect_anomaly(True),
        pytest.raises(ValueError, match=r"in a layer that ran before anomaly mode was on, the gradients"),
    ):
        out.backward(torch.full_like(out, math.inf))


def test_without_anomaly_mode_results_show_it() -> None:
    model = lightened(norm=None)
    out = model(into_rows(model), DIGITS.edge_index)
    assert out.isnan().any() and not out.isnan().all()
    out.sum().backward()
    assert model.convs[0].lin.weight.grad.isnan().any()
