"""Training: the loop, early stopping, the history, the models and graphs it takes, and what it refuses."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GCN, SAGEConv
from torch_geometric.utils import to_torch_csr_tensor

import gossamer as gs
from gossamer.training import TrainingDiverged, loop
from gossamer.training.history import Epoch, History
from gossamer.training.models import build
from gossamer.training.scores import micro_f1

DIGITS = gs.datasets.load("digits")


def small(dropout: float = 0.5) -> nn.Module:
    torch.manual_seed(0)
    return build("gcn", DIGITS, layers=2, width=16, dropout=dropout)


def run(model: nn.Module | None = None, data: Any = DIGITS, **options: Any) -> gs.training.history.TrainResult:
    return gs.train(model or small(), data, **({"epochs": 5, "progress": False} | options))


def rings(count: int, target: bool = False) -> list[Data]:
    """Rings of 3 nodes and of 5, labelled by which they are, or by their length."""
    graphs = []
    for i in range(count):
        n = (3, 5)[i % 2]
        edges = torch.stack([torch.arange(n), (torch.arange(n) + 1) % n])
        y = torch.tensor([float(n)]) if target else torch.tensor([i % 2])
        graphs.append(Data(x=torch.ones(n, 2), edge_index=torch.cat([edges, edges.flip(0)], 1), y=y))
    return graphs


def test_it_learns_and_tells_what_happened() -> None:
    result = run(epochs=40)
    assert result.metric == "accuracy" and result.test > 0.9
    assert result.epochs_run == 40 and all(len(column) == 40 for column in result.history.values())
    assert set(result.history) == {"loss", "val", "test", "seconds"}
    assert result.val == max(result.history["val"]) == result.history["val"][result.best_epoch - 1]
    assert result.test == result.history["test"][result.best_epoch - 1]
    assert result.fastest_seconds == min(result.history["seconds"]) <= result.seconds_per_epoch
    assert json.loads(result.to_json())["best_epoch"] == result.best_epoch
    assert f"{result.test:.4f}" in str(result)


def test_the_model_ends_with_the_best_weights() -> None:
    model = small()
    result = run(model, epochs=200, patience=3)
    assert result.best_epoch < result.epochs_run, "the last epoch must not be the best, or this test says nothing"
    assert not model.training
    predicted = model(DIGITS.x, DIGITS.edge_index).argmax(1)
    assert float((predicted == DIGITS.y)[DIGITS.test_mask].double().mean()) == result.test


def test_the_seed_decides_everything() -> None:
    first, again, other = run(seed=3), run(seed=3), run(seed=4)
    assert first.history["loss"] == again.history["loss"] != other.history["loss"]


def test_of_equal_scores_the_first_epoch_is_best() -> None:
    for higher, values, best in ((True, [1, 3, 3, 2], 2), (False, [3, 1, 2, 1], 2)):
        history = History(higher)
        for value in values:
            history.append(0.0, float(value), 0.0, 0.0)
        assert history.best_epoch == best
        assert not history.out_of_patience(3) and history.out_of_patience(2) and not history.out_of_patience(None)


def test_early_stopping_waits_for_patience_epochs() -> None:
    result = run(epochs=200, patience=4, lr=0.05)
    assert result.epochs_run == result.best_epoch + 4 < 200


def test_on_epoch_sees_every_epoch() -> None:
    seen: list[Epoch] = []
    result = run(on_epoch=seen.append)
    assert [epoch.number for epoch in seen] == [1, 2, 3, 4, 5]
    assert [epoch.loss for epoch in seen] == result.history["loss"]


def test_the_bar_goes_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    run(progress=True)
    captured = capsys.readouterr()
    assert captured.out == "" and "5/5" in captured.err and "MB" in captured.err
    run(progress=False)
    assert capsys.readouterr().err == ""


@pytest.mark.filterwarnings("ignore:Sparse")
def test_another_adjacency_is_passed_to_the_model() -> None:
    adjacency = to_torch_csr_tensor(DIGITS.edge_index, size=(1797, 1797))
    torch.manual_seed(0)
    model = build("sage", DIGITS, layers=2, width=16)
    result = run(model, adjacency=adjacency, epochs=20)
    assert result.test > 0.8


def test_a_recipe_lightens_the_model_first(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []
    monkeypatch.setattr(loop, "lighten_", lambda model, recipe: seen.append(recipe))
    run(recipe="float32")
    run(recipe=gs.Recipe())
    run()
    assert seen == [gs.Recipe(), gs.Recipe()]


def test_layers_that_wait_for_their_input_size() -> None:
    class Lazy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = SAGEConv(-1, 10)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return self.conv(x, edge_index)

    assert run(Lazy(), epochs=30).test > 0.8


def test_nodes_without_label_are_ignored() -> None:
    data = DIGITS.clone()
    data.y[::3] = -1
    torch.manual_seed(0)
    assert run(data=data, epochs=30).test > 0.8


def many_labels(**changes: Any) -> Data:
    """A generated multi-label set whose labels can be read from the neighbours."""
    return gs.datasets.powerlaw(1500, 9000, 32, 6, homophily=0.6, noise=3.0, labels=8, **changes)


def for_labels(data: Data) -> nn.Module:
    torch.manual_seed(0)
    return build("gcn", data, layers=2, width=64, dropout=0.2)


def constant_f1(data: Data) -> float:
    """The best micro-F1 of a predictor that gives all nodes the same labels, chosen on the test nodes themselves."""
    y = data.y[data.test_mask]
    hits = y.sum(0).sort(descending=True).values.cumsum(0)
    predicted = len(y) * torch.arange(1, 1 + y.size(1))
    return float((2 * hits / (predicted + y.sum())).max())


@pytest.mark.parametrize("recipe", [None, "float32", "tango", "feather"])
def test_many_labels_are_learned_from_the_neighbours(recipe: str | None) -> None:
    data = many_labels()
    result = run(for_labels(data), data, recipe=recipe, epochs=40)
    assert result.metric == "micro_f1" and "test micro-F1 0." in str(result)
    majority = (data.y[data.train_mask].mean(0) > 0.5).float().expand_as(data.y)[data.test_mask]
    assert micro_f1(majority - 0.5, data.y[data.test_mask]) == 0.0, "every label is rare"
    assert result.test > constant_f1(data) + 0.25
    alone = data.clone()
    alone.edge_index = torch.empty(2, 0, dtype=torch.long)
    assert result.test > run(for_labels(data), alone, recipe=recipe, epochs=40).test + 0.2


def test_many_labels_by_mean_roc_auc() -> None:
    data = many_labels()
    data.task = "node multilabel (ROC AUC)"
    result = run(for_labels(data), data, epochs=40)
    assert result.metric == "roc_auc" and result.test > 0.8


@pytest.mark.parametrize("unknown", [-1, math.nan])
def test_unknown_entries_among_many_labels_are_never_seen(unknown: float) -> None:
    """What stands in the place of an unknown entry changes nothing, and half of the entries suffice to learn."""
    data = many_labels()
    whole = data.y.clone()
    hidden = torch.rand(data.y.shape, generator=torch.Generator().manual_seed(0)) < 0.5
    data.y[hidden] = unknown
    model = for_labels(data)
    result = run(model, data, epochs=40)
    assert result.test > constant_f1(many_labels()) + 0.2
    rows, seen = data.test_mask, ~hidden[data.test_mask]
    out = model(data.x, data.edge_index)[rows].detach()
    assert result.test == pytest.approx(micro_f1(out[seen][:, None], whole[rows][seen][:, None]))


def test_many_labels_need_an_output_each() -> None:
    data = many_labels()
    with pytest.raises(ValueError, match=r"outputs of shape \[1500, 8\] for 'node multilabel' .*out_channels=8"):
        run(build("gcn", data, layers=2, width=8, out_channels=6), data)


def test_roc_auc_is_the_metric_where_the_data_says_so() -> None:
    data = DIGITS.clone()
    data.y, data.task, data.num_classes = (DIGITS.y == 3).long(), "node binary (ROC AUC)", 2
    torch.manual_seed(0)
    result = run(build("gcn", data, width=16, layers=2), data=data, epochs=20)
    assert result.metric == "roc_auc" and result.test > 0.9


@pytest.mark.parametrize(("target", "metric"), [(False, "accuracy"), (True, "mae")])
def test_lists_of_graphs(target: bool, metric: str) -> None:
    graphs = rings(60, target)
    torch.manual_seed(0)
    result = run(build("gin", graphs, width=16, layers=2, dropout=0, norm="none"), graphs, epochs=60, batch_size=16)
    assert result.metric == metric
    assert result.test == 1.0 if metric == "accuracy" else result.test < 0.3
    best = min if target else max
    assert result.val == best(result.history["val"])


def test_splits_of_graphs_differ() -> None:
    graphs = rings(40)
    histories = []
    for split in (0, 1):
        torch.manual_seed(0)
        histories.append(run(build("gcn", graphs, width=8), graphs, split=split).history["loss"])
    assert histories[0] != histories[1]


def test_divergence_is_told_with_epoch_and_remedy() -> None:
    data = DIGITS.clone()
    data.x[5, 5] = math.nan
    with pytest.raises(TrainingDiverged, match=r"the loss became nan in epoch 1, .*Remedy: a smaller `lr`"):
        run(data=data)


class SpoilsEvaluation(nn.Module):
    """Outputs of validation or test nodes are spoiled where no loss sees it."""

    def __init__(self, mask: Tensor, value: float) -> None:
        super().__init__()
        self.inner, self.mask, self.value = small(), mask, value

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        out = self.inner(x, edge_index)
        return out if self.training else out.masked_fill(self.mask[:, None], self.value)


@pytest.mark.parametrize("part", ["val_mask", "test_mask"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_outputs_that_are_no_numbers_are_not_scored_as_class_0(part: str, value: float) -> None:
    count = int(DIGITS[part].sum())
    message = rf"outputs must be finite to be scored \(got NaN or infinity in {count} of {count} rows.* in epoch 1, so"
    with pytest.raises(TrainingDiverged, match=message):
        run(SpoilsEvaluation(DIGITS[part], value))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": 0}, r"`epochs` must be a whole number of at least 1 \(got 0\)"),
        ({"epochs": 2.0}, r"`epochs` .*got 2.0"),
        ({"patience": 0}, r"`patience` must be a whole number of at least 1 \(got 0\)"),
        ({"batch_size": 0}, r"`batch_size` must be"),
        ({"lr": 0.0}, r"`lr` must be a finite number above 0 \(got 0.0\)"),
        ({"lr": math.inf}, r"`lr`"),
        ({"weight_decay": -1.0}, r"`weight_decay` must be a finite number of at least 0"),
        ({"seed": -1}, r"`seed` must be a whole number in 0"),
        ({"checkpoint_seconds": -1}, r"`checkpoint_seconds` must be at least 0"),
        ({"recipe": "flot32"}, r"no recipe 'flot32'. Did you mean 'float32'"),
        ({"resume": True}, r"`resume` needs `out`"),
        ({"model": nn.ReLU()}, r"`model` must have parameters to train \(ReLU has none\)"),
    ],
)
def test_settings_out_of_range(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run(**options)


def test_a_model_with_other_outputs_is_refused() -> None:
    model = GCN(64, 8, 2, 3)
    with pytest.raises(
        ValueError, match=r"shape \[1797, 10\] for 'node multiclass' \(got \[1797, 3\]\).*out_channels=10"
    ):
        run(model)


def test_what_is_no_model_or_no_data_is_refused() -> None:
    with pytest.raises(TypeError, match=r"`model` must be a torch.nn.Module \(got str\)"):
        run("gcn")
    with pytest.raises(TypeError, match=r"`data` must be a PyG Data or a list of them \(got dict\)"):
        run(data={})


def test_graphs_that_cannot_be_trained_on() -> None:
    graphs = rings(20)
    with pytest.raises(ValueError, match="`adjacency` must be left out for a list of graphs"):
        run(build("gcn", graphs), graphs, adjacency=graphs[0].edge_index)
    with pytest.raises(ValueError, match="`k` must be not negative"):
        run(build("gcn", graphs), graphs, split=-1)
    graphs[7].x = None
    with pytest.raises(ValueError, match="graph 7 has no `x`"):
        run(build("gcn", graphs), graphs)


def test_data_without_edges_needs_an_adjacency() -> None:
    data = DIGITS.clone()
    del data.edge_index
    with pytest.raises(
        ValueError, match=r"`data` must have an `edge_index`.*pass another form of the graph as `adjacency`"
    ):
        run(data=data)
