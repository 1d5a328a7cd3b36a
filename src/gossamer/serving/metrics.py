"""Counters and latencies of a server, in the text form that Prometheus reads."""

from __future__ import annotations

import threading
from collections import Counter, deque
from typing import final

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
RECENT = 10_000
"""Requests that quantiles are taken over."""


@final
class Metrics:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.requests: Counter[tuple[str, int]] = Counter()
        self._buckets = [0] * (len(BUCKETS) + 1)
        self._seconds = 0.0
        self._recent: deque[float] = deque(maxlen=RECENT)
        self.in_flight = 0

    def begin(self) -> None:
        with self._lock:
            self.in_flight += 1

    def end(self, path: str, status: int, seconds: float) -> None:
        with self._lock:
            self.in_flight -= 1
            self.requests[path, status] += 1
            self._seconds += seconds
            self._recent.append(seconds)
            self._buckets[next((k for k, limit in enumerate(BUCKETS) if seconds <= limit), len(BUCKETS))] += 1

    def quantile(self, share: float) -> float:
        """Of the recent requests, in seconds; 0 without any."""
        with self._lock:
            ordered = sorted(self._recent)
        return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else 0.0

    def text(self) -> str:
        lines = ["# TYPE gossamer_requests_total counter"]
        with self._lock:
            counted, buckets = dict(self.requests), list(self._buckets)
            seconds, in_flight = self._seconds, self.in_flight
        lines += [f'gossamer_requests_total{{path="{p}",status="{s}"}} {n}' for (p, s), n in sorted(counted.items())]
        lines.append("# TYPE gossamer_request_seconds histogram")
        total = 0
        for limit, count in zip((*map(str, BUCKETS), "+Inf"), buckets, strict=True):
            total += count
            lines.append(f'gossamer_request_seconds_bucket{{le="{limit}"}} {total}')
        lines += [f"gossamer_request_seconds_sum {seconds:.6f}", f"gossamer_request_seconds_count {total}"]
        lines += ["# TYPE gossamer_requests_in_flight gauge", f"gossamer_requests_in_flight {in_flight}"]
        quantiles = [(share, self.quantile(share)) for share in (0.5, 0.99)]
        lines.append("# TYPE gossamer_recent_seconds summary")
        lines += [f'gossamer_recent_seconds{{quantile="{share}"}} {value:.6f}' for share, value in quantiles]
        return "\n".join(lines) + "\n"
