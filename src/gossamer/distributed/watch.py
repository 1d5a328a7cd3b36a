"""Which rank failed: every process says twice a second that it lives, and how many exchanges it has begun.

An error of gloo says that a connection was closed or that time is up, not who is to blame: a rank whose neighbour died
may itself have been waiting for a third. So each rank writes a beat to the store that torchrun keeps. When an exchange
fails, a rank whose beat stands still was killed or stopped; if all beat, the rank with the fewest exchanges hangs.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from typing import Any, final

from ..ranks import Ranks

BEAT_SECONDS = 0.5
SILENT_SECONDS = 1.5
"""Without a beat for so long, a rank is dead."""
LOOKS = 15
FOUND = "found"
"""What the first rank that knew who failed has told the others."""


@final
class Watch:
    def __init__(self, store: Any, ranks: Ranks) -> None:
        self.store, self.ranks = store.clone() if hasattr(store, "clone") else store, ranks
        self._stop, self._count, self._told = threading.Event(), 0, ""
        self._beat()
        self._thread = threading.Thread(target=self._run, name="gossamer beat", daemon=True)
        self._thread.start()

    def _beat(self) -> None:
        self._count += 1
        self.store.set(f"beat {self.ranks.rank}", f"{self._count} {self.ranks.exchanges}")

    def _run(self) -> None:
        with contextlib.suppress(Exception):  # the store is gone: so is the job
            while not self._stop.wait(BEAT_SECONDS):
                self._beat()
                self._told = self._told_by_another() or self._told

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(2 * BEAT_SECONDS)

    def _beats(self) -> dict[int, tuple[int, int]]:
        found = {}
        for rank in range(self.ranks.size):
            if rank != self.ranks.rank:
                beat, exchanges = self.store.get(f"beat {rank}").decode().split()
                found[rank] = int(beat), int(exchanges)
        return found

    def blame(self, peer: int | None, error: Exception) -> str:
        """Who failed, in words."""
        if peer is not None and "closed" in str(error):  # torchrun may end this process before more is known
            print(
                f"gossamer: rank {self.ranks.rank} has lost the connection to rank {peer}", file=sys.stderr, flush=True
            )
        try:
            told = self._told or self._found() or self._told_by_another()
        except Exception:
            return self._told or "rank 0, or the process that keeps the job's store, has ended"
        return (
            told or ("the connection to another rank" if peer is None else f"the connection to rank {peer}") + " failed"
        )

    def _told_by_another(self) -> str:
        return self.store.get(FOUND).decode() if self.store.check([FOUND]) else ""

    def _found(self) -> str:
        """What beats tell; empty if they tell nothing. Told to the others, too: the store may end with this process."""
        before = self._beats()
        for _ in range(LOOKS):
            time.sleep(SILENT_SECONDS / LOOKS)
            told = self._told_by_another()
            if told:
                return told
        now = self._beats()
        silent = [rank for rank in now if now[rank][0] == before[rank][0]]
        least = min((exchanges for _, exchanges in now.values()), default=self.ranks.exchanges)
        told = ""
        if silent:
            told = f"{_named(silent)} no longer {'answers' if len(silent) == 1 else 'answer'}: killed or stopped"
        elif least < self.ranks.exchanges:
            behind = [rank for rank in now if now[rank][1] == least]
            verb = "hangs" if len(behind) == 1 else "hang"
            told = f"{_named(behind)} {verb} (at exchange {least} of {self.ranks.exchanges})"
        if told:
            self.store.set(FOUND, told)
            time.sleep(2 * BEAT_SECONDS)  # until all have heard
        return told


def _named(ranks: list[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
