"""Training on one graph, whole or in sampled batches, or on many: a plain loop with early stopping, checkpoints and
exact resumption.

    result = gs.train(model, data, epochs=200, patience=50, out="runs/1")
    print(result)                      test score at best validation, seconds per epoch
    model                              has the weights of the best epoch

A run that is killed at any moment and resumed ends with the same bits as one that was not: a checkpoint holds the
weights, the optimizer's moments, the best weights, the history (from which early stopping is decided), the random
generators (from which dropout, noise and the order of batches are drawn), what automatic precision has measured and
which rows backward selects.
Resume with the number of threads in run.json: our kernels give the same bits for any number of threads, PyG's own
layers and matrix products may not.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from ..distributed import RankPart
from ..engine.int8.precision import precision
from ..pyg import lighten_
from ..recipe import Recipe, recipe_of
from ..state import model_state_of
from .checkpoint import copy_of
from .checks import check_adam, check_counts
from .divergence import check_finite, check_gradients, scoring
from .examples import Examples, Sampling, examples_of
from .features import with_features
from .history import Epoch, TrainResult
from .progress import EpochBar
from .random_state import seed_all
from .run import Run

if TYPE_CHECKING:
    from torch_geometric.data import Data


def train(
    model: nn.Module,
    data: Data | Sequence[Data] | RankPart,
    recipe: Recipe | str | None = None,
    *,
    epochs: int = 200,
    lr: float = 0.01,
    weight_decay: float = 0.0,
    patience: int | None = None,
    seed: int = 0,
    batch_size: int | None = None,
    fanouts: Sequence[int] | None = None,
    eval_fanouts: Sequence[int] | None = None,
    split: int = 0,
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    checkpoint_seconds: float = 10.0,
    adjacency: Any = None,
    settings: Mapping[str, Any] | None = None,
    progress: bool = True,
    on_epoch: Callable[[Epoch], object] | None = None,
) -> TrainResult:
    """Train `model` with Adam; it ends with the weights of the epoch that validated best, the first among equals.

    data            a PyG `Data` with masks, for `model(x, edge_index)`; or a list of graphs, for
                    `model(x, edge_index, batch)`, of which `split` names the split and `batch_size` the batches.
                    With `fanouts`, data.x may also be a gs.FeatureStore or a memory map. Under torchrun the part of
                    a graph, from gs.distributed.load: all ranks train one model, rank 0 writes `out`
    recipe          lighten the model first, by this recipe; None trains it as it is. Its `features` say in which
                    codes node features are kept, from the beginning on
    batch_size      graphs in a batch (32), or training nodes where neighbours are sampled (1024)
    fanouts         train on sampled batches: so many neighbours of the seeds, of those, and so on, one number for
                    each layer; -1 takes all. None trains on the whole graph
    eval_fanouts    sample neighbours for the scores, too; None takes all of them, layer by layer
    patience        stop after so many epochs without a better validation score; None never does
    out             the folder of the run, with checkpoints, result.json and TensorBoard scalars; None writes nothing
    resume          continue the run in `out`
    adjacency       what the model gets instead of `data.edge_index`: a gs.Graph, or a torch.sparse tensor
    settings        more facts for run.json; on resumption they must be what they were
    on_epoch        called after every epoch with its number, loss, scores and seconds
    """
    batch_size = batch_size if batch_size is not None else 32 if fanouts is None else 1024
    _check_arguments(model, epochs, lr, weight_decay, patience, batch_size, checkpoint_seconds)
    recipe = None if recipe is None else recipe_of(recipe)
    if recipe is not None and recipe.features is not None and not isinstance(data, RankPart):
        data = with_features(data, recipe.features, fanouts is not None, progress)
    sampling = _sampling(batch_size, fanouts, eval_fanouts)
    examples = examples_of(data, batch_size, split, adjacency, sampling)
    seed_all(seed)
    _fill_lazy(model, examples)
    if recipe is not None:
        lighten_(model, recipe)
    optimizer = torch.optim.Adam(model.parameters(), lr=lr, weight_decay=weight_decay)
    facts: dict[str, Any] = dict(settings or {})
    facts |= {"epochs": epochs, "lr": lr, "weight_decay": weight_decay, "patience": patience, "seed": seed}
    facts |= {"recipe": recipe and json.loads(recipe.to_json()), "parameters": _num_parameters(model)}
    facts |= examples.describe()
    leads = examples.ranks is None or examples.ranks.rank == 0
    shown = EpochBar(epochs, progress and leads)
    with Run(out, facts, resume, checkpoint_seconds, examples.ranks) as run, shown as bar:
        history, best = run.start(model, optimizer, examples.task.higher_is_better)
        bar.show(history)
        state = model_state_of(model)
        if state is not None:
            state.epoch, state.epochs = len(history), epochs
        while len(history) < epochs and not history.out_of_patience(patience):
            when, start = run.stopped_in(len(history) + 1), time.perf_counter()
            loss = train_epoch(model, optimizer, examples, when)
            seconds = time.perf_counter() - start
            if state is not None:
                state.epoch += 1
            with scoring(when):
                val, test = evaluate(model, examples)
            check_finite("validation score", val, when)
            check_finite("test score", test, when)
            bar.tell(precision(model))
            if history.append(loss, val, test, seconds):
                best = copy_of(model.state_dict())
            bar.show(history)
            if on_epoch is not None:
                on_epoch(history[len(history)])
            run.keep(model, optimizer, history, best)
        run.keep(model, optimizer, history, best, now=True)
        if state is not None:
            state.epochs = None  # a loop of the user's own may follow
        model.load_state_dict(best)
        result = TrainResult.of(history, examples.task.metric)
        run.finish(result)
    return result


def train_epoch(model: nn.Module, optimizer: torch.optim.Optimizer, examples: Examples, when: str) -> float:
    """One pass over the training examples; the mean loss per example. Raises before NaN or infinity reach a weight."""
    model.train()
    total, count, state = 0.0, 0, model_state_of(model)
    for batch in examples.batches(model):
        optimizer.zero_grad()
        loss = examples.task.loss(batch.predict(model, examples.task), batch.y)
        check_finite("loss", value := loss.item(), when)
        loss.backward()
        examples.after_backward(model)
        check_gradients(model, when)
        optimizer.step()
        if state is not None:
            state.step += 1
        rows = 1 if examples.ranks is not None else len(batch.y)  # the loss of all ranks' rows, in one batch
        total, count = total + value * rows, count + rows
    return total / count


@torch.no_grad()
def evaluate(model: nn.Module, examples: Examples) -> tuple[float, float]:
    """Validation and test score."""
    model.eval()
    return examples.scores(model)


def _sampling(batch_size: int, fanouts: Sequence[int] | None, eval_fanouts: Sequence[int] | None) -> Sampling | None:
    if fanouts is not None:
        return Sampling(batch_size, tuple(fanouts), None if eval_fanouts is None else tuple(eval_fanouts))
    if eval_fanouts is not None:
        raise ValueError(f"`eval_fanouts` needs `fanouts`, those of training (got {eval_fanouts!r} alone)")
    return None


def _fill_lazy(model: nn.Module, examples: Examples) -> None:
    """Initialise lazy layers, whose size depends on their first input."""
    if any(is_lazy(parameter) for parameter in model.parameters()):
        model.eval()
        with torch.no_grad():
            model(*next(examples.batches(model)).inputs)


def _num_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _check_arguments(
    model: nn.Module,
    epochs: int,
    lr: float,
    weight_decay: float,
    patience: int | None,
    batch_size: int,
    checkpoint_seconds: float,
) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"`model` must be a torch.nn.Module (got {type(model).__name__})")
    if not any(True for _ in model.parameters()):
        raise ValueError(f"`model` must have parameters to train ({type(model).__name__} has none)")
    check_counts(epochs=epochs, **({} if patience is None else {"patience": patience}), batch_size=batch_size)
    check_adam(lr, weight_decay)
    if not checkpoint_seconds >= 0:
        raise ValueError(f"`checkpoint_seconds` must be at least 0, which is every epoch (got {checkpoint_seconds!r})")
