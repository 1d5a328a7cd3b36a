"""Join the other processes of a job, as torchrun describes it in the environment; alone without one.

Each attempt of torchrun has names of its own in the job's store: else workers that were started again would read the
addresses of those that died, and fail. Rows travel in a process group of their own.
"""

from __future__ import annotations

import datetime
import os
import warnings
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from ..ranks import Ranks, draw_apart
from .watch import Watch

SECONDS = 120.0
"""After so long without an answer a rank is given up."""


@dataclass
class _Job:
    ranks: Ranks
    watch: Watch | None


_job: _Job | None = None


def start(seconds: float = SECONDS) -> Ranks:
    """This process's rank among those of the job; the same object at every call."""
    global _job
    if _job is not None and (_job.ranks.size == 1 or dist.is_initialized()):
        return _job.ranks
    if not isinstance(seconds, (int, float)) or not seconds > 0:
        raise ValueError(f"`seconds` must be a number above 0: how long a rank may be silent (got {seconds!r})")
    wait = datetime.timedelta(seconds=seconds)
    if not dist.is_initialized():
        if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
            _job = _Job(Ranks(0, 1), None)
            return _job.ranks
        _check_environment()
        _init(wait)
    rank, size = dist.get_rank(), dist.get_world_size()
    group = dist.new_group(timeout=wait, backend=dist.get_backend())
    ranks = Ranks(rank, size, group)
    watch = None
    if size > 1:
        store: Any = dist.distributed_c10d._get_default_store()
        watch = Watch(dist.PrefixStore("gossamer", store), ranks)
        ranks.blame = watch.blame
    draw_apart(rank)
    _job = _Job(ranks, watch)
    return ranks


def stop() -> None:
    """Leave the job. A script may end without it; another `load` joins again."""
    global _job
    if _job is not None and _job.watch is not None:
        _job.watch.stop()
    _job = None
    draw_apart(0)
    if dist.is_initialized():
        dist.destroy_process_group()


def _init(wait: datetime.timedelta) -> None:
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    store, rank, size = next(iter(dist.rendezvous("env://", timeout=wait)))
    store.set_timeout(wait)
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    run = os.environ.get("TORCHELASTIC_RUN_ID", "")
    if int(os.environ.get("GROUP_WORLD_SIZE", "1")) > 1 and os.environ.get("TORCH_DISABLE_SHARE_RDZV_TCP_STORE") != "1":
        warnings.warn(
            "set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 on every machine: agents count their attempts apart, so that "
            "after a restart workers could read addresses of those that died",
            stacklevel=3,
        )
    dist.init_process_group(
        backend, store=dist.PrefixStore(f"attempt {run} {attempt}", store), rank=rank, world_size=size, timeout=wait
    )


def _check_environment() -> None:
    named = os.environ.get("GLOO_SOCKET_IFNAME")
    if named:
        there = sorted(os.listdir("/sys/class/net")) if os.path.isdir("/sys/class/net") else []
        missing = [name for name in named.split(",") if there and name not in there]
        if missing:
            raise ValueError(
                f"`GLOO_SOCKET_IFNAME` must name an interface of this machine (there is no {missing[0]!r}); they are "
                f"{', '.join(there)}"
            )
