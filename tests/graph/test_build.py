"""Graphs from what people have: every way in gives the same graph, rows are destinations, given order is kept."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import scipy.sparse
import torch

import gossamer as gs
from gossamer import Graph
from gossamer.ops import OPS, coo_to_csr, transpose_csr

NUM_SRC, NUM_DST = 11, 7

pytestmark = [
    pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta"),
    pytest.mark.filterwarnings("ignore:Sparse CSC tensor support is in beta"),
    pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled"),
]


def edge_list(num_src: int = NUM_SRC, num_dst: int = NUM_DST, nnz: int = 60, seed: int = 0):
    """Random edges with duplicates; the last node of either side has none."""
    draw = torch.Generator().manual_seed(seed)
    src = torch.randint(0, num_src - 1, (nnz,), generator=draw)
    dst = torch.randint(0, num_dst - 1, (nnz,), generator=draw)
    return torch.stack([src, dst]), torch.randn(nnz, generator=draw)


def dense(graph: Graph) -> torch.Tensor:
    """The matrix that the graph stands for, repeated edges added, in float64."""
    src, dst = graph.edge_index
    value = torch.ones(graph.num_edges) if graph.value is None else graph.value
    zeros = torch.zeros(graph.num_dst, graph.num_src, dtype=torch.float64)
    return zeros.index_put((dst, src), value.double(), accumulate=True)


@pytest.fixture(scope="module")
def pyg():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # importing PyG compiles with the deprecated torch.jit
        import torch_geometric
    return torch_geometric


@pytest.fixture
def matrix() -> torch.Tensor:
    """A sparse matrix, written densely: destinations are rows. No entry is repeated."""
    edge_index, weight = edge_list()
    entries = torch.zeros(NUM_DST, NUM_SRC)
    entries[edge_index[1], edge_index[0]] = weight
    return entries


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
@pytest.mark.parametrize("strided", [False, True])
@pytest.mark.parametrize("weighted", [None, torch.float32, torch.float64, torch.bfloat16])
def test_edges_of_a_destination_stay_in_given_order(dtype, strided, weighted):
    edge_index, weight = edge_list()
    weight = None if weighted is None else weight.to(weighted)
    given = edge_index.to(dtype)
    given = given.t().contiguous().t() if strided else given
    graph = Graph.from_edge_index(given, (NUM_SRC, NUM_DST), weight)
    by_dst = [[e for e in range(60) if edge_index[1, e] == i] for i in range(NUM_DST)]
    order = torch.tensor([e for row in by_dst for e in row])
    assert graph.rowptr.tolist() == np.cumsum([0] + [len(row) for row in by_dst]).tolist()
    assert torch.equal(graph.perm, order)
    assert torch.equal(graph.col, edge_index[0, order].int())
    assert (graph.rowptr.dtype, graph.col.dtype) == (torch.int64, torch.int32)
    assert graph.value is None if weight is None else torch.equal(graph.value, weight[order].float())


def test_number_of_nodes():
    edge_index = torch.tensor([[0, 5], [2, 1]])
    assert Graph.from_edge_index(edge_index).num_nodes == 6
    assert Graph.from_edge_index(edge_index, np.int64(8)).num_nodes == 8
    for pair in ((6, 3), [6, 3]):
        graph = Graph.from_edge_index(edge_index, pair)
        assert (graph.num_src, graph.num_dst) == (6, 3)
    nothing = Graph.from_edge_index(torch.empty(2, 0, dtype=torch.int64))
    assert (nothing.num_nodes, nothing.num_edges, nothing.rowptr.tolist()) == (0, 0, [0])
    no_edges = Graph.from_edge_index(torch.empty(2, 0, dtype=torch.int64), 3, torch.empty(0))
    assert (no_edges.num_nodes, no_edges.rowptr.tolist()) == (3, [0, 0, 0, 0])


def test_pyg_edge_index(pyg):
    edge_index, _ = edge_list(NUM_SRC, NUM_SRC)
    graph = Graph.from_edge_index(pyg.EdgeIndex(edge_index, sparse_size=(NUM_SRC, NUM_SRC)), NUM_SRC)
    assert type(graph.col) is torch.Tensor
    assert torch.equal(graph.edge_index, edge_index[:, graph.perm])


def test_pyg_data(pyg, matrix):
    Data = pyg.data.Data
    edge_index, weight = edge_list(NUM_SRC, NUM_SRC)
    assert Graph.from_data(Data(edge_index=edge_index, num_nodes=NUM_SRC)).value is None
    graph = Graph.from_data(Data(edge_index=edge_index, edge_weight=weight, num_nodes=NUM_SRC))
    assert torch.equal(graph.edge_index, edge_index[:, graph.perm])
    assert torch.equal(graph.value, weight[graph.perm])
    merged = Graph.from_data(Data(edge_index=edge_index, num_nodes=NUM_SRC), duplicates="sum")
    assert merged.num_edges < graph.num_edges
    for adj_t in (matrix.to_sparse(), matrix.to_sparse_csr(), matrix.to_sparse_csc()):
        assert torch.equal(dense(Graph.from_data(Data(adj_t=adj_t))), matrix.double())
    with pytest.raises(ValueError, match=r"`data` must have an `edge_index` or an `adj_t`"):
        Graph.from_data(Data(x=torch.ones(3, 1)))


def test_pyg_data_with_repeated_entries(pyg):
    edge_index, weight = edge_list()
    data = pyg.data.Data(adj_t=torch.sparse_coo_tensor(edge_index.flip(0), weight, (NUM_DST, NUM_SRC)))
    kept, merged = Graph.from_data(data), Graph.from_data(data, duplicates="max")
    expected = Graph.from_edge_index(edge_index, (NUM_SRC, NUM_DST), weight, "max")
    assert kept.num_edges == 60 > merged.num_edges
    assert torch.equal(dense(merged), dense(expected))


@pytest.mark.parametrize("index_dtype", [torch.int64, torch.int32])
@pytest.mark.parametrize("layout", ["coo", "csr", "csc"])
def test_torch_sparse(matrix, layout, index_dtype):
    sparse = matrix.to_sparse() if layout == "coo" else getattr(matrix, f"to_sparse_{layout}")()
    if layout != "coo":
        make = getattr(torch, f"sparse_{layout}_tensor")
        parts = ("crow", "col") if layout == "csr" else ("ccol", "row")
        indices = [getattr(sparse, f"{part}_indices")().to(index_dtype) for part in parts]
        sparse = make(*indices, sparse.values(), sparse.shape, check_invariants=True)
    graph = Graph.from_torch_sparse(sparse)
    assert (graph.num_dst, graph.num_src) == matrix.shape
    assert torch.equal(dense(graph), matrix.double())
    assert torch.equal(graph.sort_edges(sparse._values() if layout == "coo" else sparse.values()), graph.value)


def test_uncoalesced_entries_all_become_edges():
    edge_index, weight = edge_list()
    sparse = torch.sparse_coo_tensor(edge_index.flip(0), weight, (NUM_DST, NUM_SRC))
    graph = Graph.from_torch_sparse(sparse)
    assert graph.num_edges == 60 > sparse.coalesce()._nnz()
    assert torch.equal(graph.edge_index, edge_index[:, graph.perm])
    assert torch.equal(graph.value, weight[graph.perm])


@pytest.mark.parametrize("kind", ["array", "matrix"])
@pytest.mark.parametrize("format", ["csr", "coo", "csc", "lil"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "uint8", "bool"])
def test_scipy(matrix, kind, format, dtype):
    entries = (matrix * 3).abs().round().numpy().astype(dtype)
    sparse = getattr(scipy.sparse, f"{format}_{kind}")(entries)
    graph = Graph.from_scipy(sparse)
    assert torch.equal(dense(graph), torch.from_numpy(entries.astype("float64")))
    assert (graph.perm is None) == (format != "csr")  # only CSR lists its entries as the graph does


def test_scipy_adds_repeated_coo_entries_and_keeps_csr_ones():
    repeated = scipy.sparse.coo_array(([1.0, 2.0], ([0, 0], [1, 1])), shape=(2, 2))
    assert Graph.from_scipy(repeated).value.tolist() == [3.0]
    csr = scipy.sparse.csr_array(([1.0, 2.0], [1, 1], [0, 2, 2]), shape=(2, 2))
    assert Graph.from_scipy(csr).value.tolist() == [1.0, 2.0]


def test_changing_the_matrix_later_leaves_the_graph_alone(matrix):
    given = scipy.sparse.csr_array(matrix.numpy())
    given.indices, given.indptr = given.indices.astype(np.int32), given.indptr.astype(np.int64)  # what Graph keeps
    graph = Graph.from_scipy(given)
    given.data *= 5
    given.indices[:] = 2**30
    given.indptr[:] = 0
    assert torch.equal(dense(graph), matrix.double())
    sparse = matrix.to_sparse_csr()
    graph = Graph.from_torch_sparse(sparse)
    sparse.values().mul_(5)
    assert torch.equal(dense(graph), matrix.double())


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("how", ["sum", "mean", "max"])
@pytest.mark.parametrize("nnz", [0, 1, 60, 400])
def test_duplicates_are_merged(how, weighted, nnz):
    edge_index, weight = edge_list(nnz=nnz)
    weights_of: dict[tuple[int, int], list[float]] = {}
    for (src, dst), w in zip(edge_index.t().tolist(), weight.tolist(), strict=True):
        weights_of.setdefault((dst, src), []).append(w)
    graph = Graph.from_edge_index(edge_index, (NUM_SRC, NUM_DST), weight if weighted else None, how)
    assert list(zip(*graph.edge_index.flip(0).tolist(), strict=True)) == sorted(weights_of)
    assert graph.perm is None
    if not weighted and how != "sum":
        assert graph.value is None
        return
    if not weighted:  # an edge given twice counts twice
        assert graph.value.tolist() == [len(weights_of[edge]) for edge in sorted(weights_of)]
        return
    merge = {"sum": sum, "mean": lambda ws: sum(ws) / len(ws), "max": max}[how]
    expected = torch.tensor([merge(weights_of[edge]) for edge in sorted(weights_of)])
    # sums of at most 30 float32 numbers of size 1, in another precision
    torch.testing.assert_close(graph.value, expected, rtol=1e-5, atol=1e-5)


def test_duplicates_in_half_precision_are_added_in_full():
    graph = Graph.from_edge_index(torch.zeros(2, 600, dtype=torch.int64), 1, torch.ones(600).bfloat16(), "sum")
    assert graph.value.tolist() == [600.0]  # 256 + 1 = 256 in bfloat16


def test_structure_equals_reference_for_any_number_of_threads(threads):
    edge_index, weight = edge_list(3000, 2000, 100_000)
    arguments = edge_index[1], edge_index[0], 2000, 3000
    for native, reference in zip(coo_to_csr(*arguments), OPS["coo_to_csr"].reference(*arguments), strict=True):
        assert torch.equal(native, reference)
    graph = Graph.from_edge_index(edge_index, (3000, 2000), weight)
    arguments = graph.rowptr, graph.col, 3000
    for native, reference in zip(transpose_csr(*arguments), OPS["transpose_csr"].reference(*arguments), strict=True):
        assert torch.equal(native, reference)


def test_a_stored_stream_becomes_the_graph_of_its_edges(tmp_path):
    data = gs.datasets.load("arxiv-like", scale=0.002, stored=True, root=tmp_path, progress=False)
    graph = Graph.from_data(data)
    expected = Graph.from_edge_index(gs.datasets.edge_index(data), data.num_nodes)
    assert torch.equal(graph.rowptr, expected.rowptr) and torch.equal(graph.col, expected.col)
