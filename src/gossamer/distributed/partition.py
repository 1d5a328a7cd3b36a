"""Partition a graph into a folder of parts, once; every job after that starts from the folder.

    found = partition(graph, x, y, train_mask, val_mask, test_mask, parts=16, out="parts/")
    print(found)                              cut, halo and balance of the parts
    found.counts(ranks=4)                     nodes, edges, halo of each of four ranks; costs.py goes on from them

The same input gives the same files, bit for bit. An interrupted run is continued by running it again; a folder that
holds anything else is left as it is. Memory: the graph, what the partitioner takes, and one part.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from ..checksums import of_tensors
from ..features import FeatureStore
from ..features.layout import to_plain
from ..features.source import Source
from ..graph import Graph
from .assign import assign, check_parts, method_for
from .costs import RankCounts
from .cut import Cutter, NodeData
from .folder import FORMAT, Manifest, read_manifest
from .merge import first_of_each, groups
from .progress import Steps
from .read import read_part
from .write import Writer, claim

BLOCK = 2**16


def partition(
    graph: Graph,
    x: Any = None,
    y: Tensor | None = None,
    train_mask: Tensor | None = None,
    val_mask: Tensor | None = None,
    test_mask: Tensor | None = None,
    *,
    parts: int,
    out: str | os.PathLike[str],
    method: str | None = None,
    seed: int = 0,
    num_classes: int | None = None,
    task: str | None = None,
    overwrite: bool = False,
    progress: bool = True,
) -> Partition:
    """Cut a graph and what its nodes have into `parts` parts, and write them into the folder `out`.

    x: features as `gs.compress` takes them (a tensor, an array or memmap, a path to .npy or Parquet), stored as
    float32; or a FeatureStore, whose codes are stored. method: "metis" (pymetis), "stream" (linear time, for graphs
    that METIS has no memory for), or None for METIS where it is installed and the graph fits. num_classes: by default
    the largest label + 1. task: what the labels are, as in `data.task`; the parts remember it. overwrite: remove
    another partition from `out`. Make more parts than there will be ranks: a rank takes several neighbouring parts.
    """
    nodes = NodeData.of(graph, x, y, train_mask, val_mask, test_mask, num_classes, task)
    check_parts(parts, graph.num_nodes)
    method = method_for(graph, method)
    with Steps(progress) as steps:
        steps.begin("reading", None)
        job = _job(graph, nodes, parts, method, seed)
        writer = claim(Path(out), job, overwrite)
        if writer.is_finished:
            return Partition.open(out)
        if writer.assignment is None:
            steps.begin("partitioning", None if method == "metis" else 1.0)
            writer.save_assignment(assign(graph, parts, method, seed, steps.show))
        assert writer.assignment is not None
        steps.begin("writing parts", parts)
        manifest = _write(writer, Cutter(graph, writer.assignment, nodes, parts), nodes, steps)
        writer.finish(manifest)
    return Partition(Path(out), manifest)


def _write(writer: Writer, cutter: Cutter, nodes: NodeData, steps: Steps) -> Manifest:
    fingerprint = _hash(writer.job | {"assignment": of_tensors([cutter.part_of])})
    for p in range(cutter.num_parts):
        if p not in writer.entries:
            writer.write(cutter.part(p), fingerprint)
        steps.show(p + 1)
    graph = cutter.graph
    facts = {
        "num_nodes": graph.num_nodes,
        "num_edges": graph.num_edges,
        "weighted": graph.value is not None,
        "symmetric": cutter.symmetric,
        "cut_edges": cutter.cut_edges(),
    }
    entries = tuple(writer.entries[p] for p in range(cutter.num_parts))
    return Manifest(fingerprint, writer.job, facts, _facts(cutter, nodes), entries)


def _facts(cutter: Cutter, nodes: NodeData) -> dict[str, Any]:
    x = nodes.x
    facts: dict[str, Any] = {"num_features": None, "codec": None, "bytes_per_row": 0}
    if isinstance(x, FeatureStore):
        facts = {"num_features": x.num_features, "codec": to_plain(x.codec), "bytes_per_row": x.row_bytes}
    elif x is not None:
        facts = {"num_features": x.num_features, "codec": None, "bytes_per_row": 4 * x.num_features}
    return facts | {"num_classes": nodes.num_classes, "task": nodes.task} | cutter.totals


def _job(graph: Graph, nodes: NodeData, parts: int, method: str, seed: int) -> dict[str, Any]:
    """What tells this partition from any other one."""
    own = [graph.rowptr, graph.col] + ([] if graph.value is None else [graph.value])
    given = {name: _checksum(rows) for name, rows in nodes._asdict().items()}
    return {"graph": f"{of_tensors(own):08x}", **given, "parts": parts, "method": method, "seed": seed}


def _checksum(rows: Tensor | Source | FeatureStore | str | int | None) -> str | int | None:
    if rows is None or isinstance(rows, (str, int)):
        return rows
    if isinstance(rows, FeatureStore):
        metadata, tensors = rows.unpacked()
        return f"{of_tensors(list(tensors.values())):08x} {metadata['codec']}"
    if isinstance(rows, Tensor):
        return f"{of_tensors([rows]):08x} {rows.dtype}"
    crc = 0
    for block in rows.blocks(BLOCK):
        crc = of_tensors([block], crc)
    return f"{crc:08x}"


def _hash(facts: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps({"format": FORMAT} | facts, sort_keys=True).encode()).hexdigest()


@final
@dataclass(frozen=True, eq=False, repr=False)
class Partition:
    """A folder of parts, and what it costs to use them. `open` reads the manifest; parts are read where needed."""

    folder: Path
    manifest: Manifest

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> Partition:
        return cls(Path(folder), read_manifest(Path(folder)))

    @property
    def num_parts(self) -> int:
        return len(self.manifest.parts)

    @property
    def cut(self) -> float:
        """The share of edges whose ends are in different parts."""
        return self.manifest.graph["cut_edges"] / max(self.manifest.graph["num_edges"], 1)

    @property
    def node_balance(self) -> float:
        """Nodes of the largest part over the mean."""
        return _balance([part.nodes for part in self.manifest.parts])

    @property
    def edge_balance(self) -> float:
        return _balance([part.edges for part in self.manifest.parts])

    @property
    def nbytes(self) -> int:
        return sum(part.bytes for part in self.manifest.parts)

    def counts(self, ranks: int | None = None) -> list[RankCounts]:
        """Of each of so many ranks; by default one for each part. Reads the halos of all parts."""
        bounds = groups(self.num_parts, ranks or self.num_parts)
        every = range(self.num_parts)
        parts = [read_part(self.folder, self.manifest, p, "the report", every, verify=False) for p in every]
        sides = [[(part.halo_ids, part.halo_part) for part in parts]]
        if not self.manifest.graph["symmetric"]:
            sides.append([(part.t_halo_ids, part.t_halo_part) for part in parts])
        halos = [_halos(side, bounds) for side in sides]
        (halo, sent), (t_halo, t_sent) = halos[0], halos[-1]
        own = [self.manifest.parts[low:high] for low, high in itertools.pairwise(bounds)]
        nodes, edges = ([sum(getattr(e, name) for e in group) for group in own] for name in ("nodes", "edges"))
        return [RankCounts(*each) for each in zip(nodes, edges, halo, t_halo, sent, t_sent, strict=True)]

    def to_dict(self) -> dict[str, Any]:
        facts = asdict(self.manifest)
        measures = {name: getattr(self, name) for name in ("cut", "node_balance", "edge_balance", "nbytes")}
        return {"folder": str(self.folder)} | measures | facts

    def __repr__(self) -> str:
        halo = sum(part.halo for part in self.manifest.parts)
        nodes = self.manifest.graph["num_nodes"]
        return (
            f"Partition({self.folder}: {self.num_parts} parts of {nodes:,} nodes, {self.cut:.1%} of "
            f"{self.manifest.graph['num_edges']:,} edges cut, {halo / nodes:.2f} halo rows per own row, largest part "
            f"{self.node_balance:.2f} x the mean in nodes and {self.edge_balance:.2f} x in edges, "
            f"{self.nbytes / 1e6:,.1f} MB)"
        )


def _balance(counts: list[int]) -> float:
    return max(counts) * len(counts) / max(sum(counts), 1)


def _halos(parts: list[tuple[Tensor, Tensor]], bounds: list[int]) -> tuple[list[int], list[int]]:
    """Halo rows of each rank, and rows that it sends."""
    halo, sent = [], torch.zeros(len(bounds) - 1, dtype=torch.int64)
    for rank, (low, high) in enumerate(itertools.pairwise(bounds)):
        _, place = first_of_each(torch.cat([ids for ids, _ in parts[low:high]]))
        owner = torch.cat([part for _, part in parts[low:high]])[place]
        owner = torch.searchsorted(torch.tensor(bounds), owner, right=True) - 1
        remote = owner[owner != rank]
        halo.append(len(remote))
        sent += torch.bincount(remote, minlength=len(sent))
    return halo, sent.tolist()
