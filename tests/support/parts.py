"""Parts of graphs in tests: when two are equal, and the whole graph that parts came from."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from gossamer import FeatureStore, Graph
from gossamer.distributed import Part
from gossamer.ops.csr import row_of_edge


def differences(a: Part, b: Part) -> list[str]:
    """The names of the fields that differ in type, dtype, shape or bits."""
    fields = [field.name for field in dataclasses.fields(Part)]
    return [name for name in fields if not _equal(getattr(a, name), getattr(b, name))]


def _equal(a: object, b: object) -> bool:
    if isinstance(a, FeatureStore) and isinstance(b, FeatureStore):
        return repr(a.codec) == repr(b.codec) and torch.equal(a.codes, b.codes) and torch.equal(a.decode(), b.decode())
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    return type(a) is type(b) and a == b


def glued(parts: Sequence[Part], transposed: bool = False) -> Graph:
    """The graph whose parts these are, or its transpose, from ids alone."""
    num_nodes = parts[0].num_nodes
    rows, cols, values = [], [], []
    for part in parts:
        side = part.t_edges if transposed else part.edges
        rows.append(part.node_ids[row_of_edge(side.rowptr)])
        cols.append(torch.cat([part.node_ids, side.halo_ids])[side.col.long()])
        values.append(torch.empty(0) if side.value is None else side.value)
    weight = None if parts[0].value is None else torch.cat(values)
    return Graph.from_edge_index(torch.stack([torch.cat(cols), torch.cat(rows)]), num_nodes, weight)
