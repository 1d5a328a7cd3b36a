"""How large and how slow a request may be: checked before anything of it is parsed.

The body is read by the server itself, up to `body_bytes` and within `read_seconds`, so neither a huge nor a trickling
client holds more than one such body. Answers are computed in a few threads; one that is not there after
`answer_seconds` is given up, and its thread is free again once it ends.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    body_bytes: int = 16 * 2**20
    read_seconds: float = 10.0
    answer_seconds: float = 30.0
    nodes: int = 100_000
    """Numbers of nodes, or rows, in one request."""
    edges: int = 1_000_000
    concurrency: int = 1_000
    """Connections at a time; more are told to come back."""
    workers: int = 2

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            if not getattr(self, name) > 0:
                raise ValueError(f"`{name}` must be above 0 (got {getattr(self, name)!r})")
