"""Processes with ranks, on the loopback interface."""

from __future__ import annotations

import io
import os
import socket
import traceback
from collections.abc import Callable
from typing import Any

import torch
import torch.multiprocessing as mp

SECONDS = 300.0
"""After so long without a result the test fails."""


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def run_ranks(
    job: Callable[..., Any], size: int, *args: Any, last: Callable[[], Any] | None = None, dies: int | None = None
) -> tuple[list[Any], dict[int, Any]]:
    """What job(*args) returns on each rank, then what last() does on those that outlive it: all but `dies`.

    An error of a rank is an error here. Both live in a module that child processes can import: one of tests/support.
    """
    context, port, pipes, started = mp.get_context("spawn"), free_port(), [], []
    for rank in range(size):
        mine, its = context.Pipe(duplex=False)
        process = context.Process(target=_run, args=(job, rank, size, port, its, args, last), daemon=True)
        process.start()
        its.close()
        pipes.append(mine)
        started.append(process)
    found = [_received(pipe, rank, "job") for rank, pipe in enumerate(pipes)]
    ends = {} if last is None else {r: _received(pipe, r, "last") for r, pipe in enumerate(pipes) if r != dies}
    for process in started:
        process.join(SECONDS)
    return found, ends


def _received(pipe: Any, rank: int, phase: str) -> Any:
    assert pipe.poll(SECONDS), f"rank {rank} has no result of its {phase} after {SECONDS:.0f} s"
    outcome = torch.load(io.BytesIO(pipe.recv_bytes()), weights_only=False)
    assert "error" not in outcome, f"rank {rank}:\n{outcome['error']}"
    return outcome["result"]


def _run(job: Any, rank: int, size: int, port: int, pipe: Any, args: tuple[Any, ...], last: Any) -> None:
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    for call, given in ((job, args), (last, ())):
        if call is None:
            break
        try:
            outcome = {"result": call(*given)}
        except Exception:
            outcome = {"error": traceback.format_exc()}
        written = io.BytesIO()
        torch.save(outcome, written)
        pipe.send_bytes(written.getvalue())
    from gossamer import distributed

    distributed.stop()
