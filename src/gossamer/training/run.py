"""One run on disk: its checkpoints, its scalars for TensorBoard, its result. Without a folder nothing is written."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import time
import warnings
from pathlib import Path
from types import TracebackType
from typing import Any, final

import torch
from torch import Tensor, nn

from ..engine.noise import stream
from ..ranks import Ranks
from ..state import ModelState, model_state_of
from . import checkpoint as files
from . import random_state
from .checkpoint import BadCheckpoint, Checkpoint, NotWritten
from .folder import CHECKPOINT, RESULT, RUN, environment, open_folder, plain, write_json
from .history import History, TrainResult

ATTEMPT = "TORCHELASTIC_RESTART_COUNT"


def _restore(state: ModelState, found: Any, path: Path) -> None:
    try:
        state.restore(found)
    except Exception as error:  # of any kind: the contents may be anyone's
        raise BadCheckpoint(
            f"the state of the model in {path} is not that of this recipe ({type(error).__name__}: {error}); it was "
            "written by another version, or is damaged: start again in another folder"
        ) from error


@final
class Run:
    """Owns the folder `out`. Checkpoints are written at most every `checkpoint_seconds`, and at the end."""

    def __init__(
        self, out: str | os.PathLike[str] | None, settings: dict[str, Any], resume: bool, checkpoint_seconds: float,
        ranks: Ranks | None = None,
    ) -> None:  # fmt: skip
        if out is None and resume:
            raise ValueError("`resume` needs `out`, the folder of the run to go on with (got None)")
        self.ranks, self.writes = ranks, ranks is None or ranks.rank == 0
        self.folder = None if out is None else Path(out)
        self.settings, self.checkpoint_seconds = plain(settings), checkpoint_seconds
        self.saved_at, self.saved_epoch = -float("inf"), 0
        self.environment = environment()
        self.board: Any = None
        self.on_board = 0
        folder = self.folder
        if folder is not None and ranks is not None and self.writes and int(os.environ.get(ATTEMPT, "0")):
            resume = resume or (folder / RUN).is_file()  # torchrun has started the job again
        if folder is not None and ranks is not None:
            check = (lambda: open_folder(folder, self.settings, resume)) if self.writes else lambda: None
            ranks.together(check, f"use the folder {folder}")
        elif folder is not None:
            open_folder(folder, self.settings, resume)

    def start(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, higher_is_better: bool
    ) -> tuple[History, dict[str, Tensor]]:
        """The history and the best weights so far; restores the model, the optimizer and the generators, too."""
        history, best = History(higher_is_better), files.copy_of(model.state_dict())
        if self.folder is None:
            return history, best
        path = self.folder / CHECKPOINT
        there = self._checkpoint(path)
        if there is not None:
            found = there
            files.check_fits(found, model, path)
            files.check_moments(found, optimizer, path)
            with files.believed(path):
                history = History.replay(higher_is_better, found.state["history"])
            self._check_epochs(len(history))
            state = model_state_of(model)
            with files.believed(path):
                own = dict(self._own_state(found))
            if state is not None and own.get("model"):
                _restore(state, own["model"], path)
            files.restore(found, model, optimizer)
            random_state.restore(found.random)
            if self.ranks is not None:
                with files.believed(path):
                    stream.restore(own["noise"])
            best = found.best
            self.saved_epoch = len(history)
        if self.writes:
            write_json(self.folder / RUN, {"settings": self.settings, "environment": self.environment})
        if there is None:
            self.keep(model, optimizer, history, best)
        if self.writes:
            self._open_board(history)
        return history, best

    def _checkpoint(self, path: Path) -> Checkpoint | None:
        """The last checkpoint; that of rank 0 on all ranks, which need not see its folder."""
        if self.ranks is None:
            return files.load(path) if path.exists() else None
        data = self.ranks.from_first(path.read_bytes() if self.writes and path.exists() else None)
        if data is None:
            return None
        with tempfile.TemporaryDirectory() as folder:
            copied = Path(folder) / CHECKPOINT
            copied.write_bytes(data)
            return files.load(copied)

    def _own_state(self, found: Checkpoint) -> dict[str, Any]:
        """What this rank remembered; with another number of ranks what rank 0 did, without noise."""
        if self.ranks is None:
            return found.state
        of_ranks = found.state.get("ranks") or []
        if len(of_ranks) == self.ranks.size:
            return of_ranks[self.ranks.rank]
        return {"model": found.state.get("model"), "noise": []}

    def keep(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        history: History,
        best: dict[str, Tensor],
        now: bool = False,
    ) -> None:
        """Write a checkpoint if one is due, or `now` if the last one is not of this epoch."""
        if self.folder is None:
            return
        due = time.monotonic() - self.saved_at >= self.checkpoint_seconds
        if self.ranks is not None:
            due = bool(self.ranks.gather(torch.tensor([int(due)]))[0])  # as rank 0 finds
        if not (due or (now and self.saved_epoch != len(history))):
            return
        state_of_model = model_state_of(model)
        state = {
            "epoch": len(history),
            "history": history.columns(),
            "model": None if state_of_model is None else state_of_model.state(),
            "settings": self.settings,
            "versions": self.environment,
        }
        if self.ranks is not None:
            own = {"model": state["model"], "noise": stream.state()}
            state["ranks"] = [json.loads(text) for text in self.ranks.texts(json.dumps(own))]
            self.saved_at, self.saved_epoch = time.monotonic(), len(history)
            if not self.writes:
                return
        moments = optimizer.state_dict()["state"]
        kept = Checkpoint(dict(model.state_dict()), best, moments, random_state.capture(), state)
        files.save(kept, self.folder / CHECKPOINT)
        self.saved_at, self.saved_epoch = time.monotonic(), len(history)
        self._log(history)

    def stopped_in(self, epoch: int) -> str:
        """The part of the message of a divergence that names epoch and checkpoint."""
        kept = f"; {self.folder} keeps the checkpoint of epoch {self.saved_epoch}" if self.folder else ""
        return f"in epoch {epoch}, so training stopped{kept}"

    def finish(self, result: TrainResult) -> None:
        if self.folder is not None and self.writes:
            write_json(self.folder / RESULT, json.loads(result.to_json()))

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.board is not None:
            with contextlib.suppress(OSError):  # a full disk was reported by the checkpoint
                self.board.close()

    def _check_epochs(self, done: int) -> None:
        if done > self.settings["epochs"]:
            raise ValueError(
                f"`epochs` must be at least {done}, which the run in {self.folder} has done already "
                f"(got {self.settings['epochs']}); choose another folder for a shorter run"
            )

    def _open_board(self, history: History) -> None:
        """A writer whose first entry invalidates all older ones; they are rewritten from the history."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from torch.utils.tensorboard import SummaryWriter
        self.board = SummaryWriter(str(self.folder), purge_step=1 if len(history) else None)
        self._log(history)

    def _log(self, history: History) -> None:
        if self.board is None:
            return
        try:
            for number in range(self.on_board + 1, len(history) + 1):
                for name, value in history[number]._asdict().items():
                    if name != "number":
                        self.board.add_scalar(name, value, number)
            self.board.flush()
        except OSError as error:
            raise NotWritten(f"the TensorBoard events in {self.folder} could not be written ({error})") from error
        self.on_board = len(history)
