"""Bad input is refused with a message that names the argument, what was expected, and what to do."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse
import torch

from gossamer import Graph, ops

EDGES = torch.tensor([[0, 1, 2, 2], [1, 2, 0, 0]])

pytestmark = [
    pytest.mark.filterwarnings("ignore:Sparse (CSR|CSC) tensor support is in beta"),
    pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled"),
]


@pytest.mark.parametrize("duplicates", ["keep", "sum"])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
@pytest.mark.parametrize(
    ("row", "position", "bad", "num_nodes", "count"),
    [
        (0, 2, -1, 3, 3),
        (1, 3, -5, 3, 3),
        (0, 0, -1, None, 3),
        (0, 3, 3, 3, 3),
        (1, 0, 2**31 - 1, 3, 3),
        (0, 1, 4, (4, 3), 4),
        (1, 1, 3, (4, 3), 3),
    ],
)
def test_ids_of_no_node(row, position, bad, num_nodes, count, dtype, duplicates):
    edge_index = EDGES.to(dtype).clone()
    edge_index[row, position] = bad
    ids = rf"`edge_index\[{row}\]` must hold ids of the {count} nodes, 0 to {count - 1} "
    with pytest.raises(IndexError, match=rf"{ids}\(got {bad} at position {position}\); correct.*`num_nodes`"):
        Graph.from_edge_index(edge_index, num_nodes, duplicates=duplicates)


@pytest.mark.parametrize("merge", ["keep", "sum"])
def test_an_id_beyond_int32(merge):
    for edge_index in (torch.tensor([[0, 2**31], [1, 0]]), torch.tensor([[0], [2**31 - 1]], dtype=torch.int32)):
        with pytest.raises(ValueError, match=r"`num_nodes` must lie between 0 and 2147483647.*split the graph"):
            Graph.from_edge_index(edge_index, duplicates=merge)
    with pytest.raises(IndexError, match=r"`edge_index\[0\]`.*got 4294967296 at position 1"):  # 0 if cut to 32 bits
        Graph.from_edge_index(torch.tensor([[0, 2**32], [1, 0]]), 2, duplicates=merge)


@pytest.mark.parametrize(
    ("edge_index", "error", "message"),
    [
        ([[0, 1], [1, 0]], TypeError, r"`edge_index` must be a tensor of shape \[2, nnz\] \(got list\)"),
        (np.zeros((2, 3), np.int64), TypeError, r"`edge_index` must be a tensor .*\(got ndarray\)"),
        (EDGES.float(), TypeError, r"`edge_index` must be int64 or int32 \(got torch.float32\); convert it"),
        (EDGES.bool(), TypeError, r"`edge_index` must be int64 or int32 \(got torch.bool\); convert it"),
        (EDGES.t(), ValueError, r"`edge_index` must have the shape \[2, nnz\] \(got \(4, 2\)\)"),
        (EDGES[0], ValueError, r"`edge_index` must have the shape \[2, nnz\] \(got \(4,\)\)"),
        (EDGES[None], ValueError, r"`edge_index` must have the shape \[2, nnz\] \(got \(1, 2, 4\)\)"),
    ],
)
def test_edge_index_of_another_kind(edge_index, error, message):
    with pytest.raises(error, match=message):
        Graph.from_edge_index(edge_index)


@pytest.mark.parametrize(
    ("num_nodes", "error"),
    [(2**31, ValueError), ((3, 2**31), ValueError), ((2**40, 3), ValueError), (-1, ValueError), ((3, -1), ValueError)]
    + [(bad, TypeError) for bad in (3.0, "3", (3,), (3, 3, 3), (3, 3.0), (3, None))],
)
def test_number_of_nodes(num_nodes, error):
    wanted = "an int or" if error is TypeError else "lie between 0 and 2147483647, because.*split the graph"
    with pytest.raises(error, match=rf"`num_nodes` must (be )?{wanted}"):
        Graph.from_edge_index(EDGES, num_nodes)


@pytest.mark.parametrize(
    ("weight", "error", "message"),
    [
        (torch.ones(4, dtype=torch.int64), TypeError, r"`weight` must be floating point \(got torch.int64\); convert"),
        (torch.ones(3), ValueError, r"`weight` must have the shape \[4\], one number per edge \(got \(3,\)\)"),
        (torch.ones(4, 1), ValueError, r"`weight` must have the shape \[4\], one number per edge \(got \(4, 1\)\)"),
        (torch.ones(4, requires_grad=True), ValueError, r"`weight` must not require grad.*Detach it.*ops\.spmm"),
    ],
)
@pytest.mark.parametrize("duplicates", ["keep", "mean"])
def test_weights(weight, error, message, duplicates):
    with pytest.raises(error, match=message):
        Graph.from_edge_index(EDGES, 3, weight, duplicates)


def test_nan_weights_are_allowed():
    graph = Graph.from_edge_index(EDGES, 3, torch.tensor([1.0, torch.nan, 2.0, torch.inf]))
    assert graph.value.isnan().sum() == 1
    assert graph.t().value.isinf().sum() == 1


def test_duplicates():
    with pytest.raises(ValueError, match=r"`duplicates` must be one of .*'keep', 'sum', 'mean', 'max'.*got 'min'"):
        Graph.from_edge_index(EDGES, duplicates="min")


@pytest.mark.parametrize(
    ("rowptr", "col", "num_src", "error", "message"),
    [
        (
            [0, 2, 1, 4],
            [0, 1, 2, 0],
            3,
            ValueError,
            r"`rowptr` must ascend from 0 to .*4 \(got 1 at position 2\); build",
        ),
        ([1, 2, 3, 4], [0, 1, 2, 0], 3, ValueError, r"`rowptr` must ascend from 0 .*\(got 1 at position 0\)"),
        ([0, 2, 3, 3], [0, 1, 2, 0], 3, ValueError, r"`rowptr` must ascend .*\(got 3 at position 3\)"),
        ([0, 2, 9, 4], [0, 1, 2, 0], 3, ValueError, r"`rowptr` must ascend .*\(got 4 at position 3\)"),
        ([], [], 3, ValueError, r"`rowptr` must have the shape \[num_dst \+ 1\] \(got \(0,\)\)"),
        ([0, 4], [0, 1, 3, 0], 3, IndexError, r"`col` must hold ids from 0 to 2.*\(got 3 at position 2\)"),
        ([0, 4], [0, 1, -1, 0], 3, IndexError, r"`col` must hold ids from 0 to 2.*\(got -1 at position 2\)"),
        ([0, 4], [0, 1, 2, 0], 2**31, ValueError, r"`num_src` must lie between 0 and 2147483647.*split the graph"),
        ([0], [], -1, ValueError, r"`num_src` must lie between 0 and 2147483647"),
    ],
)
def test_parts(rowptr, col, num_src, error, message):
    with pytest.raises(error, match=message):
        Graph(torch.tensor(rowptr, dtype=torch.int64), torch.tensor(col, dtype=torch.int32), num_src)


def test_parts_of_another_kind():
    graph = Graph.from_edge_index(EDGES)
    with pytest.raises(TypeError, match=r"`rowptr` must be int64 \(got torch.int32\); convert it"):
        Graph(graph.rowptr.int(), graph.col, 3)
    with pytest.raises(TypeError, match=r"`col` must be int32 \(got torch.int64\); convert it"):
        Graph(graph.rowptr, graph.col.long(), 3)
    with pytest.raises(ValueError, match=r"`perm` must have the shape \[4\]"):
        Graph(graph.rowptr, graph.col, 3, perm=torch.arange(3))
    for perm, message in (([0, 1, 2, 4], "must hold ids from 0 to 3"), ([0, 1, 1, 2], "must hold each position once")):
        with pytest.raises((IndexError, ValueError), match=f"`perm` {message}"):
            Graph(graph.rowptr, graph.col, 3, perm=torch.tensor(perm))
    with pytest.raises(TypeError, match=r"`perm` must be int64 \(got torch.float32\)"):
        Graph(graph.rowptr, graph.col, 3, perm=torch.arange(4.0))
    with pytest.raises(ValueError, match=r"`value` must have the shape \[4\], one number per edge \(got \(5,\)\)"):
        graph.with_value(torch.ones(5))
    with pytest.raises(ValueError, match=r"`value` must not require grad.*graph\.sort_edges\(weight\)"):
        graph.with_value(torch.ones(4, requires_grad=True))


def test_matrices():
    with pytest.raises(
        TypeError, match=r"`matrix` must be a torch.sparse COO.*got torch.strided\); use `.to_sparse_csr"
    ):
        Graph.from_torch_sparse(torch.eye(3))
    with pytest.raises(TypeError, match=r"`matrix` must be a torch.sparse COO.*got ndarray"):
        Graph.from_torch_sparse(np.eye(3))
    hybrid = torch.sparse_coo_tensor(torch.tensor([[0, 2]]), torch.ones(2, 3), (3, 3))
    for matrix in (torch.ones(2, 3, 4).to_sparse(), hybrid):
        with pytest.raises(ValueError, match=r"`matrix` must have two dimensions, both sparse \(got the shape"):
            Graph.from_torch_sparse(matrix)
    for matrix in (torch.eye(3).to_sparse(), torch.eye(3).to_sparse_csr(), torch.eye(3).to_sparse_csc()):
        with pytest.raises(ValueError, match=r"`matrix` must not require grad.*Detach it"):
            Graph.from_torch_sparse(matrix.requires_grad_())
    with pytest.raises(TypeError, match=r"`matrix` must hold real numbers \(got torch.complex64\)"):
        Graph.from_torch_sparse((torch.eye(3) * 1j).to_sparse())
    with pytest.raises(TypeError, match=r"`matrix` must hold real numbers \(got torch.complex128\)"):
        Graph.from_scipy(scipy.sparse.csr_array(np.eye(3) * 1j))
    with pytest.raises(TypeError, match=r"`matrix` must be a SciPy sparse matrix \(got ndarray\)"):
        Graph.from_scipy(np.eye(3))
    with pytest.raises(ValueError, match=r"`matrix` must have two dimensions \(got the shape \(3,\)\)"):
        Graph.from_scipy(scipy.sparse.coo_array(np.ones(3)))


def test_matrix_with_bad_indices():
    """A matrix whose maker did not check it."""
    sparse = torch.sparse_csr_tensor([0, 1, 2], [0, 7], [1.0, 1.0], (2, 2), check_invariants=False)
    with pytest.raises(IndexError, match=r"`col` must hold ids from 0 to 1.*got 7 at position 1"):
        Graph.from_torch_sparse(sparse)
    scipy_csr = scipy.sparse.csr_array(np.eye(2))
    scipy_csr.indices[1] = -3
    with pytest.raises(IndexError, match=r"`col` must hold ids from 0 to 1.*got -3 at position 1"):
        Graph.from_scipy(scipy_csr)


@pytest.mark.parametrize("name", ["num_nodes", "with_self_loops", "without_self_loops", "split_self_loops", "gcn_norm"])
def test_what_needs_a_square_graph(name):
    graph = Graph.from_edge_index(EDGES, (4, 3))
    with pytest.raises(ValueError, match=rf"`{name}` needs as many sources as destinations \(got 4 and 3\)"):
        attribute = getattr(graph, name)
        attribute()


@pytest.mark.parametrize("name", ["sort_edges", "unsort_edges"])
def test_edge_tensors(name):
    graph = Graph.from_edge_index(EDGES)
    for attribute in (torch.ones(3), torch.ones(5, 2), torch.tensor(1.0)):
        with pytest.raises(ValueError, match=r"`attribute` must have 4 rows, one per edge \(got"):
            getattr(graph, name)(attribute)
    for derived in (Graph.from_edge_index(EDGES, duplicates="sum"), graph.with_self_loops(), graph.t()):
        with pytest.raises(
            ValueError, match=rf"`{name}` needs a graph built from an edge list with its duplicates kept"
        ):
            getattr(derived, name)(torch.ones(derived.num_edges))


@pytest.mark.parametrize("reduce", ["sum", "mean", "max"])
@pytest.mark.parametrize("shape", [(3, 2), (5, 2), (0, 2), (4,), ()])
def test_features_of_another_graph(shape, reduce):
    graph = Graph.from_edge_index(EDGES, (4, 3))
    with pytest.raises(ValueError, match=r"`x` must have one row for each of the graph's 4 source nodes.*`num_nodes`"):
        ops.spmm(graph, torch.ones(shape), reduce=reduce)
