"""What connects the ranks of a job, for `gossamer doctor`: backend, interface, bandwidth between each two."""

from __future__ import annotations

import os
import time
from typing import Any

import torch

from ..ranks import Ranks
from .start import start

BYTES, ROUNDS = 2**23, 3


def network() -> dict[str, Any]:
    """Under torchrun called by all ranks; the bandwidth of each pair is then measured, one pair at a time."""
    folder = "/sys/class/net"
    there = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    named = os.environ.get("GLOO_SOCKET_IFNAME")
    found: dict[str, Any] = {
        "backend": "nccl" if torch.cuda.is_available() else "gloo",
        "interface": named or "the one of this machine's host name; GLOO_SOCKET_IFNAME chooses another",
        "interfaces": there,
        "rank": 0,
        "bandwidth": [],
    }
    if "RANK" not in os.environ:
        return found
    ranks = start()
    found["rank"] = ranks.rank
    pairs = [(a, b) for a in range(ranks.size) for b in range(a + 1, ranks.size)]
    for a, b in pairs:
        rate = bandwidth(ranks, a, b)
        found["bandwidth"].append(f"rank {a} and rank {b}: {rate / 1e9 * 8:.2f} Gbit/s each way")
    return found


def bandwidth(ranks: Ranks, a: int, b: int) -> float:
    """Bytes per second that two ranks exchange each way, the best of a few rounds; called by all ranks."""
    best = torch.zeros(1, dtype=torch.float64)
    mine, theirs = torch.zeros(BYTES, dtype=torch.uint8), torch.empty(BYTES, dtype=torch.uint8)
    for _ in range(ROUNDS):
        ranks.gather(best)  # all begin together
        peer = b if ranks.rank == a else a if ranks.rank == b else None
        begun = time.perf_counter()
        outgoing = [mine if rank == peer else None for rank in range(ranks.size)]
        incoming = [theirs if rank == peer else None for rank in range(ranks.size)]
        ranks.post(outgoing, incoming).wait()
        if peer is not None:
            best = torch.maximum(best, torch.tensor([BYTES / (time.perf_counter() - begun)], dtype=torch.float64))
    return float(ranks.gather(best)[a])
