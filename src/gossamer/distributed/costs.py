"""What a partition costs: rows and bytes between ranks, and memory of each, by formula.

    h, s        halo rows of a rank, and rows that it sends; for backward those of the transposed side
    message     d bits / 8 + 4 bytes of a row of width d; 4 d without a codec (bits = 32)
    epoch       sum over layers 1 .. L-1 of (h + h_t) message(width)        layer 0: rows of x arrive once, at load

A convolution sends the narrower side of its weights: rows of x where inputs are not wider than outputs, else rows of
x W. GIN sums before its MLP, so it sends inputs; GAT sends the projected rows, and a float32 logit term per head.

    memory      graph       2 (8 (n + 1) + 4 m), + 8 m with weights
                features    (n + h) bytes of a row
                saved       n (sum of hidden widths) b_a              b_a: bytes per saved value
                working     3 (n + h) d_max b_c + 4 n d_max           b_c: 4 in float32, 1 in int8
                exchange    2 (s + h) message(d_max)                  double buffered
                parameters  16 |W|                                    weights, gradients, two moments
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

MODELS = ("gcn", "sage", "gin", "gat")
BITS = (32, 8, 4, 2)


class RankCounts(NamedTuple):
    """Of one rank, in rows and edges."""

    nodes: int
    edges: int
    halo: int
    t_halo: int
    sent: int
    t_sent: int


@dataclass(frozen=True)
class Model:
    """The widths of a model's layers: inputs, hidden, ..., outputs."""

    kind: str
    widths: tuple[int, ...]
    heads: int = 1

    def __post_init__(self) -> None:
        if self.kind not in MODELS:
            raise ValueError(f"`model` must be one of {', '.join(MODELS)} (got {self.kind!r})")
        if len(self.widths) < 2 or min(self.widths) < 1:
            raise ValueError(f"`widths` must be at least 1, from inputs to outputs (got {self.widths})")

    @property
    def sent_widths(self) -> list[int]:
        """Of the rows that each layer but the first sends, forward as backward."""
        pairs = list(zip(self.widths, self.widths[1:], strict=False))[1:]
        if self.kind == "gin":
            return [inputs for inputs, _ in pairs]
        if self.kind == "gat":
            return [outputs for _, outputs in pairs]
        return [min(pair) for pair in pairs]

    @property
    def num_parameters(self) -> int:
        """Weights and biases; SAGE and GIN have two matrices in a layer."""
        pairs = list(zip(self.widths, self.widths[1:], strict=False))
        if self.kind == "sage":
            return sum(2 * a * b + b for a, b in pairs)
        return sum(a * b + b + (b * b + b if self.kind == "gin" else 0) for a, b in pairs)

    def row_bytes(self, bits: int) -> tuple[int, int]:
        """Bytes that a halo row costs in an epoch: forward, backward."""
        once = sum(message_bytes(width, bits) for width in self.sent_widths)
        logits = 4 * self.heads * len(self.sent_widths) if self.kind == "gat" else 0
        return once + logits, once + logits


def message_bytes(width: int, bits: int) -> int:
    """Of one row: codes and four bytes of metadata; float32 numbers for bits = 32."""
    if bits not in BITS:
        raise ValueError(f"`bits` must be one of {BITS} (got {bits})")
    return 4 * width if bits == 32 else -(-width * bits // 8) + 4


def epoch_bytes(counts: Sequence[RankCounts], model: Model, bits: int) -> int:
    """Bytes that all ranks together send in an epoch of training on the whole graph."""
    forward, backward = model.row_bytes(bits)
    return sum(rank.halo * forward + rank.t_halo * backward for rank in counts)


def every_layer_bytes(counts: Sequence[RankCounts], model: Model) -> int:
    """The same without any saving: float32 inputs of every layer in every epoch, also those of layer 0."""
    forward, backward = sum(model.widths[:-1]), sum(model.widths[1:-1])
    return 4 * sum(rank.halo * forward + rank.t_halo * backward for rank in counts)


def load_bytes(counts: Sequence[RankCounts], bytes_per_row: float) -> int:
    """Features of halo rows, which travel once."""
    return round(sum(rank.halo for rank in counts) * bytes_per_row)


def memory_bytes(
    rank: RankCounts,
    model: Model,
    bytes_per_row: float,
    weighted: bool = False,
    saved: float = 4.0,
    computed: int = 4,
    bits: int = 32,
) -> dict[str, int]:
    """What one rank needs, by purpose. `saved`: bytes per saved value; `computed`: 4 in float32, 1 in int8."""
    rows, widest = rank.nodes + rank.halo, max(model.widths[1:])
    found = {
        "graph": 2 * (8 * (rank.nodes + 1) + 4 * rank.edges) + (8 * rank.edges if weighted else 0),
        "features": rows * bytes_per_row,
        "saved": rank.nodes * sum(model.widths[1:-1]) * saved,
        "working": 3 * rows * widest * computed + 4 * rank.nodes * widest,
        "exchange": 2 * (rank.sent + rank.halo) * message_bytes(widest, bits),
        "parameters": 16 * model.num_parameters,
    }
    return {name: round(count) for name, count in found.items()}
