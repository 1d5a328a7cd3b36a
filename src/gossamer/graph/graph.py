"""A graph in the form of the kernels: CSR by destination, built once; what is derived from it is cached on it.

    rowptr[i] .. rowptr[i+1]   the edges into node i          (int64 [num_dst + 1])
    col[e], value[e]           their sources and weights      (int32, float32 [nnz]; value may be None: all 1)

As a matrix it is A [num_dst, num_src] with A X the sum over incoming edges: PyG's `edge_index` with its default
source-to-target flow, or its `adj_t`. Its weights count in every layer that sums or takes maxima, as PyG's layers use
the entries of a torch.sparse matrix: in SAGE and GIN, too, which have no `edge_weight`. num_src may differ from num_dst
(bipartite). Edges of a node keep the order in which they were given; `perm[k]` is the place of CSR edge k in that list.
Where `block` is set, the destinations are the first sources. Where `halo` is set, the sources are the destinations,
then rows of other machines. A Graph is immutable.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, final

import torch
from torch import Tensor

from .. import memory
from ..ops import _checks
from ..ops.csr import MAX_NODES, row_of_edge, transpose_csr
from ..ops.gather_rows import gather_rows
from ..state import facts
from . import build, file
from .halo import Halo

if TYPE_CHECKING:
    from ..codecs import CodedRows

Duplicates = Literal["keep", "sum", "mean", "max"]
TRACED = "traced"
LARGE = 10**6
"""From this many edges on, memory that malloc holds free after building is returned to the system."""


class Block(NamedTuple):
    """Says of a Graph that its destinations are its first sources: a layer takes their own rows from the same x.

    A block that has all edges into its destinations says of which graph they are and which of its nodes the sources
    are: what depends on a source's degree is then that of the whole graph.
    """

    whole: Graph | None = None
    nodes: Tensor | None = None


@final
class Graph:
    __slots__ = ("__weakref__", "_cache", "block", "col", "halo", "num_src", "perm", "rowptr", "value")
    rowptr: Tensor
    col: Tensor
    num_src: int
    value: Tensor | None
    perm: Tensor | None
    block: Block | None
    halo: Halo | None
    _cache: dict[str, Any]

    def __init__(
        self, rowptr: Tensor, col: Tensor, num_src: int, value: Tensor | None = None, perm: Tensor | None = None,
        block: Block | None = None, halo: Halo | None = None,
    ) -> None:  # fmt: skip
        build.check_count("num_src", num_src)
        _checks.csr(rowptr, col, num_src)
        if block is not None and rowptr.numel() - 1 > num_src:
            raise ValueError(
                f"`block` says that destinations are the first sources, so there must be no more of them (got "
                f"{rowptr.numel() - 1} destinations and {num_src} sources)"
            )
        if perm is not None:
            _checks.permutation("perm", perm, col.numel())
        if value is not None:
            _checks.shape_of("value", value, (col.numel(),), f"[{col.numel()}], one number per edge")
            build.check_fixed("value", value)
        value = None if value is None else value.to(torch.float32).contiguous()
        if halo is not None and rowptr.numel() - 1 + halo.plan.num_halo != num_src:
            raise ValueError(
                f"`halo` has {halo.plan.num_halo} rows, so there must be as many sources beyond the destinations (got "
                f"{rowptr.numel() - 1} destinations and {num_src} sources)"
            )
        fields = {"rowptr": rowptr, "col": col, "num_src": num_src, "value": value, "perm": perm, "block": block}
        fields["halo"] = halo
        for name, field in fields.items():
            object.__setattr__(self, name, field)
        object.__setattr__(self, "_cache", {})

    @classmethod
    def traced(
        cls, rowptr: Tensor, col: Tensor, num_src: int, value: Tensor | None = None, perm: Tensor | None = None
    ) -> Graph:
        """In a program that is being traced: the ops that read its tensors check them, whenever the program runs."""
        graph = object.__new__(cls)
        fields = {"rowptr": rowptr, "col": col, "num_src": num_src, "value": value, "perm": perm, "block": None}
        fields["halo"] = None
        for name, field in fields.items():
            object.__setattr__(graph, name, field)
        object.__setattr__(graph, "_cache", {TRACED: True, "max_degree": MAX_NODES})  # a bound: sizes are not known
        return graph

    def as_traced(self) -> Graph:
        """This structure in a program that is being traced, without what it remembers."""
        return Graph.traced(self.rowptr, self.col, self.num_src, self.value, self.perm)

    @property
    def is_traced(self) -> bool:
        """Whether it belongs to a program that is being traced; ops transpose it in backward, if there is one."""
        return TRACED in self._cache

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"`{name}` of a Graph cannot be changed; make another, for instance by with_value(...)")

    # Building ---------------------------------------------------------------------------------------------------

    @classmethod
    def from_edge_index(
        cls,
        edge_index: Tensor,
        num_nodes: int | tuple[int, int] | None = None,
        weight: Tensor | None = None,
        duplicates: Duplicates = "keep",
    ) -> Graph:
        """From PyG's [2, nnz] list of (source, destination).

        num_nodes: how many nodes, (num_src, num_dst) for a bipartite graph, or None for the largest id + 1.
        weight: one number per edge. duplicates: keep repeated edges, or merge them and their weights by
        sum, mean or max; merged edges are ordered by source and have no `perm`.
        """
        return cls(*build.from_edge_index(edge_index, num_nodes, weight, duplicates))

    @classmethod
    def from_data(cls, data: Any, duplicates: Duplicates = "keep") -> Graph:
        """From a PyG `Data`: its `adj_t`, its `edge_index` and `edge_weight`, or a stored stream's CSR by source."""
        adj_t = getattr(data, "adj_t", None)
        if adj_t is not None:
            graph = cls.from_torch_sparse(adj_t.to_torch_sparse_csr_tensor() if hasattr(adj_t, "csr") else adj_t)
            if duplicates == "keep":
                return graph
            return cls.from_edge_index(graph.edge_index, (graph.num_src, graph.num_dst), graph.value, duplicates)
        if getattr(data, "edge_index", None) is None and "rowptr" in data and "col" in data:  # a stream: CSR by source
            return cls(data.rowptr, data.col, int(data.num_nodes)).t()
        edge_index = getattr(data, "edge_index", None)
        if edge_index is None:
            raise ValueError(f"`data` must have an `edge_index` or an `adj_t`, or be a stored stream (got {data})")
        return cls.from_edge_index(edge_index, data.num_nodes, getattr(data, "edge_weight", None), duplicates)

    @classmethod
    def from_torch_sparse(cls, matrix: Tensor) -> Graph:
        """From a `torch.sparse` COO, CSR or CSC matrix with destinations as rows: PyG's `adj_t`."""
        return cls(*build.from_torch_sparse(matrix))

    @classmethod
    def from_scipy(cls, matrix: Any) -> Graph:
        """From a SciPy sparse matrix with destinations as rows; transpose one that has sources as rows."""
        return cls(*build.from_scipy(matrix))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write as safetensors: to a temporary file first, then renamed, so a crash never leaves half a file."""
        file.save(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, mmap: bool = False) -> Graph:
        """Read what `save` wrote, and compare its checksum.

        With `mmap` the graph stays in the file and takes no memory of its own, for graphs that do not fit. The file
        must then not be written to while the graph is used, which ends the process or changes results; to replace it by
        renaming, as `save` does, is harmless.
        """
        return cls(*file.load(path, mmap))

    # Facts ------------------------------------------------------------------------------------------------------

    @property
    def num_dst(self) -> int:
        return self.rowptr.numel() - 1

    @property
    def num_edges(self) -> int:
        return self.col.numel()

    @property
    def num_nodes(self) -> int:
        """Of a square graph."""
        self._require_square("num_nodes")
        return self.num_src

    @property
    def nbytes(self) -> int:
        """Bytes of the structure, its weights, and whatever has been cached."""
        own = [self.rowptr, self.col, self.value, self.perm]
        cached = [c for c in self._facts().values() if isinstance(c, Tensor)]
        t = self._facts().get("t")
        below = t.nbytes if isinstance(t, Graph) else 0
        return sum(t.nbytes for t in own + cached if t is not None) + below

    @property
    def degree(self) -> Tensor:
        """Incoming edges of each destination, int64."""
        return self.derived("degree", self.rowptr.diff)

    @property
    def out_degree(self) -> Tensor:
        """Outgoing edges of each source, int64."""
        return self.t().degree

    @property
    def max_degree(self) -> int:
        return self.derived("max_degree", lambda: int(self.degree.max()) if self.num_dst else 0)

    @property
    def inverse_degree(self) -> Tensor:
        """1 / max(degree, 1), float32: what turns a sum into a mean."""
        return self.derived("inverse_degree", lambda: self.degree.clamp(min=1).to(torch.float32).reciprocal())

    @property
    def edge_index(self) -> Tensor:
        """[2, nnz] (source, destination) in CSR order, int64."""
        return torch.stack([self.col.long(), row_of_edge(self.rowptr)])

    def t(self) -> Graph:
        """The graph with every edge reversed, cached. The sources of each row ascend, unless it is `g.t().t()`, g."""
        if self.halo is not None:
            return self if self.halo.reverse is None else self.halo.reverse
        cache = self._facts()
        held = cache.get("t")
        reverse = held() if isinstance(held, weakref.ref) else held
        if reverse is None:
            with _outside_inference_mode():
                t_rowptr, t_col, t_perm = transpose_csr(self.rowptr, self.col, self.num_src)
                _checks.passed(t_rowptr, t_col, self.num_dst)
                value = None if self.value is None else gather_rows(self.value, t_perm)
                reverse = Graph(t_rowptr, t_col, self.num_dst, value)
            del t_perm  # eight bytes an edge: recomputed by `t_perm` if needed
            if self.num_edges >= LARGE:
                memory.trim_heap()
            reverse._facts()["t"] = weakref.ref(self)  # weak: a cycle would keep both alive until a collection
            cache["t"] = reverse
            cache.pop("t_perm", None)  # it may belong to the graph this one was reversed from, now gone
        return reverse

    @property
    def t_perm(self) -> Tensor:
        """For each edge of `t()`, its position among this graph's edges, int64."""
        if self.halo is not None:
            raise ValueError("`t_perm` needs all edges of both ends, and this part of a graph has those into its nodes")
        held = self._facts().get("t")
        origin = held() if isinstance(held, weakref.ref) else None
        if origin is not None:  # t() is the graph this one was reversed from, in that graph's edge order
            return self.derived("t_perm", lambda: _inverse(origin.t_perm))
        return self.derived("t_perm", lambda: transpose_csr(self.rowptr, self.col, self.num_src)[2])

    # Edge tensors -----------------------------------------------------------------------------------------------

    def sort_edges(self, attribute: Tensor) -> Tensor:
        """An edge tensor in the order of the list this graph was built from -> in CSR order. Differentiable."""
        return gather_rows(attribute, self._require_perm("sort_edges", attribute))

    def unsort_edges(self, attribute: Tensor) -> Tensor:
        """The inverse of `sort_edges`."""
        return gather_rows(attribute, _inverse(self._require_perm("unsort_edges", attribute)))

    # Derived graphs ---------------------------------------------------------------------------------------------

    def with_value(self, value: Tensor | None) -> Graph:
        """The same structure with other weights, in CSR order."""
        if self.halo is not None and value is not None:
            raise ValueError(
                "`value` must be None for a part of a graph, as the reversed edges have weights of their own; give the "
                "weights to the whole graph before it is partitioned"
            )
        return Graph(self.rowptr, self.col, self.num_src, value, self.perm, self.block, self.halo)

    def with_self_loops(self, fill: float = 1.0) -> Graph:
        """One loop for every node, last in its row. A loop already there keeps its weight; new ones get `fill`.

        As PyG's `add_remaining_self_loops`: of several loops of a node the last counts, and an unweighted graph stays
        unweighted whatever `fill` is.
        """
        self._require_square("with_self_loops")
        return Graph(*build.with_self_loops(self.rowptr, self.col, self.value, fill))

    def without_self_loops(self) -> Graph:
        self._require_square("without_self_loops")
        keep = row_of_edge(self.rowptr) != self.col
        return Graph(*build.filter_edges(self.rowptr, self.col, self.num_src, self.value, keep))

    def split_self_loops(self) -> tuple[Graph, Tensor]:
        """The graph without its self-loops, and the sum of the weights of each node's loops, float32 [nodes].

        An unweighted loop counts 1. With `ops.spmm(graph, x, diagonal=diagonal)` the product is that of this graph.
        """
        self._require_square("split_self_loops")
        parts, diagonal = build.split_self_loops(self.rowptr, self.col, self.value)
        return Graph(*parts), diagonal

    def gcn_norm(self, improved: bool = False, add_self_loops: bool = True) -> Graph:
        """Weights D^-1/2 (A + I) D^-1/2 with D the weighted in-degree: PyG's `gcn_norm`."""
        self._require_square("gcn_norm")
        graph = self.with_self_loops(2.0 if improved else 1.0) if add_self_loops else self
        return graph.with_value(build.symmetric_weights(graph.rowptr, graph.col, graph.value))

    def mean_norm(self) -> Graph:
        """Weights divided by the number of incoming edges: A X is then PyG's mean aggregation."""
        per_edge = self.inverse_degree[row_of_edge(self.rowptr)]
        return self.with_value(per_edge if self.value is None else self.value * per_edge)

    @property
    def local(self) -> Graph:
        """The edges into a part's own nodes as a block, [own | halo] -> own."""
        block = Block(self)
        return self.derived("local", lambda: Graph(self.rowptr, self.col, self.num_src, self.value, block=block))

    # ------------------------------------------------------------------------------------------------------------

    def check_rows(self, name: str, x: Tensor | CodedRows) -> None:
        """Raise unless `x` has one row per source node; of a part, per own node."""
        if self.halo is not None:
            if x.dim() != 2 or x.size(0) != self.num_dst:
                raise ValueError(
                    f"`{name}` must have one row for each of the {self.num_dst} nodes of this part (got the shape "
                    f"{tuple(x.shape)}); pass part.x, or what layers made of it"
                )
            return
        if x.dim() < 2 or x.size(0) != self.num_src:
            raise ValueError(
                f"`{name}` must have one row for each of the graph's {self.num_src} source nodes "
                f"(got the shape {tuple(x.shape)}); pass the features that belong to this graph, or build the graph "
                "with the right `num_nodes`"
            )

    def __repr__(self) -> str:
        if self.halo is not None:
            ranks = self.halo.ranks
            told = f"part {ranks.rank} of {ranks.size}, {self.halo.plan.num_halo} in the halo"
            return f"Graph({self.num_dst} nodes, {self.num_edges} edges, {told})"
        size = str(self.num_src) if self.num_src == self.num_dst else f"{self.num_src} -> {self.num_dst}"
        return f"Graph({size} nodes, {self.num_edges} edges{'' if self.value is None else ', weighted'})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles start without a cache, whose weak reference cannot be pickled."""
        return Graph, (self.rowptr, self.col, self.num_src, self.value, self.perm, self.block, self.halo)

    def derived(self, key: str, compute: Any) -> Any:
        """compute(), cached on this graph; the cache is emptied if one of its tensors is changed in place."""
        cache = self._facts()
        if key not in cache:
            with _outside_inference_mode():
                cache[key] = compute()
        return cache[key]

    def _facts(self) -> dict[str, Any]:
        """The cache, emptied if a tensor of this graph has been changed in place since."""
        if torch.compiler.is_compiling():
            return self._cache
        tensors = (self.rowptr, self.col, self.value)
        versions = tuple(facts.version_of(t) for t in tensors if t is not None)
        if self._cache.get("versions") != versions:
            self._cache.clear()
            self._cache["versions"] = versions
        return self._cache

    def _require_square(self, what: str) -> None:
        if self.num_src != self.num_dst:
            raise ValueError(f"`{what}` needs as many sources as destinations (got {self.num_src} and {self.num_dst})")

    def _require_perm(self, what: str, attribute: Tensor) -> Tensor:
        if self.perm is None:
            raise ValueError(
                f"`{what}` needs a graph built from an edge list with its duplicates kept; this one was merged, "
                "derived or loaded, so its edges no longer correspond to a list"
            )
        if attribute.dim() == 0 or attribute.size(0) != self.num_edges:
            raise ValueError(
                f"`attribute` must have {self.num_edges} rows, one per edge (got {tuple(attribute.shape)})"
            )
        return self.perm


def _outside_inference_mode() -> contextlib.AbstractContextManager[object]:
    """Tensors cached during evaluation must be usable in training; compiled code is not traced in inference mode."""
    return contextlib.nullcontext() if torch.compiler.is_compiling() else torch.inference_mode(False)


def _inverse(perm: Tensor) -> Tensor:
    inverse = torch.empty_like(perm)
    inverse[perm] = torch.arange(perm.numel(), device=perm.device)
    return inverse
