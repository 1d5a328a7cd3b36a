"""The part of a graph that this process trains on: its nodes and their features, and a Graph whose other ends are
fetched from other ranks.

    part = gs.distributed.load("parts/")
    out = model(part.x, part.graph)                                        as on one machine
    loss = part.mean(F.cross_entropy(out[part.train], part.y[part.train], reduction="sum"))
    loss.backward()
    gs.distributed.sum_gradients(model)                                    or DistributedDataParallel, see `mean`
    part.accuracy(out, "test")                                             over the nodes of all ranks

Rows of features of remote neighbours are fetched once, here, and never travel again.
"""

from __future__ import annotations

import os
from typing import Any, final

import torch
from torch import Tensor

from ..aggregate.halo import note_known
from ..features import FeatureStore
from ..graph import Graph
from ..graph.halo import Halo, Plan
from ..ranks import Ranks
from .part import Part, Side
from .read import read
from .start import SECONDS, start


@final
class RankPart:
    """What this rank holds. `x`: float rows of own nodes; `y` and masks alike; `part`: as it was read."""

    def __init__(self, part: Part, ranks: Ranks) -> None:
        if (part.part, part.num_parts) != (ranks.rank, ranks.size):
            raise ValueError(
                f"`part` must be that of rank {ranks.rank} of {ranks.size} (got part {part.part} of {part.num_parts}); "
                "merge the parts of a rank: gs.distributed.merge"
            )
        self.part, self.ranks = part, ranks
        self.graph = graph_of(part, ranks)
        self.x = self._features()
        sizes = ranks.gather(torch.tensor([part.num_own])).view(-1)
        from ..engine import rules  # takes PyG, which takes a second or two

        rules.shared_by_ranks(part.num_own, int(sizes.max()))

    @property
    def node_ids(self) -> Tensor:
        """Of each row its id in the whole graph."""
        return self.part.node_ids

    @property
    def y(self) -> Tensor:
        return self._there("y", self.part.y)

    @property
    def train(self) -> Tensor:
        return self._there("train_mask", self.part.train_mask)

    @property
    def val(self) -> Tensor:
        return self._there("val_mask", self.part.val_mask)

    @property
    def test(self) -> Tensor:
        return self._there("test_mask", self.part.test_mask)

    def _there(self, name: str, value: Tensor | None) -> Tensor:
        if value is None:
            raise ValueError(f"the parts must have been cut with `{name}` (there is none); partition them anew with it")
        return value

    def _features(self) -> Any:
        x = self.part.x
        halo = self.graph.halo
        assert halo is not None
        if isinstance(x, FeatureStore):
            x = x.decode()
        if x is None:
            return None
        both = halo.spread(x)
        own = both[: len(x)]
        note_known(own, both)
        return own

    # Over all ranks ---------------------------------------------------------------------------------------------

    def sum(self, mine: Tensor | float) -> Tensor:
        """The sum of a number (or of a tensor) over all ranks, float64, with the same bits on each; no gradient."""
        return self.ranks.sum(torch.as_tensor(mine).detach())

    def count(self, split: str = "train") -> int:
        """Nodes of all ranks in a split."""
        told = getattr(self.part, f"num_{split}", None) if split in ("train", "val", "test") else None
        if told is None:
            raise ValueError(
                f"`split` must be 'train', 'val' or 'test', and the parts cut with its mask (got {split!r})"
            )
        return told

    def mean(self, total: Tensor, split: str = "train", averaged: bool = False) -> Tensor:
        """The mean over the rows of all ranks, given the sum over own rows (of a loss with reduction="sum").

        Gradients of parameters are then each rank's part, and their sum is the gradient of the mean:
        `sum_gradients`. `averaged`: for DistributedDataParallel, which divides that sum by the number of ranks; or wrap
        the model by `gs.distributed.data_parallel`, which does not.
        """
        factor = self.ranks.size if averaged else 1
        return mean_over_ranks(total, self.ranks, self.count(split), factor)

    def accuracy(self, out: Tensor, split: str = "test") -> float:
        """The share of the nodes of all ranks in a split whose largest output is at the label."""
        mask = {"train": self.train, "val": self.val, "test": self.test}.get(split)
        if mask is None:
            raise ValueError(f"`split` must be 'train', 'val' or 'test' (got {split!r})")
        hits = (out.detach()[mask].argmax(1) == self.y[mask]).sum() if out.numel() else torch.zeros(())
        right, rows = self.ranks.sum(torch.stack([hits.double(), mask.sum().double()])).tolist()
        return right / rows if rows else float("nan")

    def __repr__(self) -> str:
        return f"RankPart({self.part!r}, rank {self.ranks.rank} of {self.ranks.size})"


def mean_over_ranks(total: Tensor, ranks: Ranks, count: int, factor: int = 1) -> Tensor:
    """The sum of `total` over all ranks, divided by `count`; its gradient is this rank's, times `factor`."""
    return _Mean.apply(total, ranks, count, factor)


class _Mean(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, total: Tensor, ranks: Ranks, count: int, factor: int) -> Tensor:
        if total.dim() != 0:
            raise ValueError(
                f"`total` must be one number, the sum over this rank's rows (got the shape {tuple(total.shape)}); take "
                'a loss with reduction="sum"'
            )
        ctx.scale = factor / count
        return (ranks.sum(total.detach()) / count).to(total.dtype)

    @staticmethod
    def backward(ctx: Any, dmean: Tensor) -> tuple[Tensor, None, None, None]:
        return dmean * ctx.scale, None, None, None


def load(folder: str | os.PathLike[str], *, seconds: float = SECONDS) -> RankPart:
    """This rank's part of a partitioned graph. Joins the other processes that torchrun has started.

    seconds: how long a rank may be silent before the others give up with an error.
    """
    ranks = start(seconds)
    part = ranks.together(lambda: read(folder, ranks.rank, ranks.size), f"read its part of {folder}")
    ranks.agree("parts", f"{part.fingerprint} ({part.num_nodes} nodes)")
    ranks.agree("versions", _versions())
    return RankPart(part, ranks)


def _versions() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        own = version("gossamer-gnn")
    except PackageNotFoundError:
        own = "unknown"
    return f"gossamer {own}, torch {torch.__version__}"


def graph_of(part: Part, ranks: Ranks) -> Graph:
    """The edges into own nodes as a Graph with a halo."""
    forward = _side(part.edges, ranks, None)
    if part.symmetric:
        return forward
    return _side(part.edges, ranks, _side(part.t_edges, ranks, None))


def _side(side: Side, ranks: Ranks, reverse: Graph | None) -> Graph:
    """With the halo's rows of one rank together."""
    n, order = side.rowptr.numel() - 1, torch.argsort(side.halo_part, stable=True)
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order))
    table = torch.cat([torch.arange(n), n + place]).to(torch.int32)
    col = table[side.col.long()]
    plan = Plan.of(side.send_ptr, side.send_row, side.halo_part[order])
    return Graph(side.rowptr, col, n + len(order), side.value, halo=Halo(ranks, plan, reverse))


__all__ = ["RankPart", "graph_of", "load"]
