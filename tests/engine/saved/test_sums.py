"""Neighbour sums whose edge weights require grad: few bits of the rows are saved for the weights' gradient."""

from __future__ import annotations

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch_geometric import nn as pyg

import gossamer as gs
from gossamer import measure, ops
from gossamer.aggregate import Adjacency
from gossamer.engine.saved.sums import weighted_sum
from support.codecs import Identity
from support.graphs import random_graph
from support.saved import dots
from support.tensors import tensors
from support.unbiased import assert_unbiased

NODES, WIDTH = 60, 20
CODEC = gs.Blockwise(bits=2)
REDUCES = pytest.mark.parametrize("reduce", ["sum", "mean"])


def inputs(graph, width=WIDTH, dtype=torch.float32):
    """x, weights of edges, a bias and an addend."""
    return tensors((graph.num_src, width), (graph.num_edges,), (width,), (graph.num_dst, width), dtype=dtype)


@REDUCES
@pytest.mark.parametrize("codec", [Identity(), None])
def test_gradcheck(reduce, codec):
    graph = random_graph(9, 7, 24)

    def function(x, value, bias, add):
        return weighted_sum(Adjacency.of(graph, value, reduce), x, codec, bias, add)

    assert torch.autograd.gradcheck(function, inputs(graph, 4, torch.float64), fast_mode=True)


@REDUCES
def test_only_the_weights_gradient_carries_noise(reduce):
    graph = random_graph(NODES, NODES, 300)
    x, value, bias, add = leaves = inputs(graph)
    want = ops.spmm(graph, x, value, reduce) + bias + add
    exact = torch.autograd.grad(dots([want]), leaves)
    out = weighted_sum(Adjacency.of(graph, value, reduce), x, CODEC, bias, add)
    grads = torch.autograd.grad(dots([out]), leaves)
    torch.testing.assert_close(out, want, rtol=1e-5, atol=1e-5)
    for k in (0, 2, 3):
        torch.testing.assert_close(grads[k], exact[k], rtol=1e-5, atol=1e-5)
    assert not torch.allclose(grads[1], exact[1], rtol=1e-3)


@REDUCES
def test_unbiased(reduce):
    graph = random_graph(NODES, NODES, 300)
    x, value, *_ = inputs(graph)
    exact = torch.autograd.grad(dots([ops.spmm(graph, x, value, reduce)]), [value])
    adjacency = Adjacency.of(graph, value, reduce)
    assert_unbiased(lambda: torch.autograd.grad(dots([weighted_sum(adjacency, x, CODEC)]), [value]), exact)


def test_rows_die_after_forward_and_their_codes_are_all_that_is_saved():
    graph = random_graph(NODES, NODES, 300)
    x, value, *_ = inputs(graph)
    with measure.kept(exclude=[value]) as account:
        h = x * 2
        out = weighted_sum(Adjacency.of(graph, value), h, CODEC)
    held = StorageWeakRef(h.untyped_storage())
    del h
    assert held.expired() and out.requires_grad
    assert account.bytes == CODEC.nbytes((NODES, WIDTH))


def test_second_derivatives_are_refused():
    graph = random_graph(NODES, NODES, 300)
    x, value, *_ = inputs(graph)
    loss = weighted_sum(Adjacency.of(graph, value), x, CODEC).square().sum()
    (grad,) = torch.autograd.grad(loss, value, create_graph=True)
    with pytest.raises(RuntimeError, match=r"allow one derivative.*activations=gs.Keep\(\)"):
        grad.square().sum().backward()


@pytest.mark.parametrize("needs_grad", [False, True])
@pytest.mark.parametrize("kind", [pyg.GCNConv, pyg.GraphConv])
@pytest.mark.parametrize("recipe", ["exact-int4", "exact-int2-published"])
def test_layers_are_unbiased(kind, needs_grad, recipe):
    graph = random_graph(NODES, NODES, 300)
    torch.manual_seed(0)
    x, weight, conv = tensors((NODES, WIDTH))[0], torch.rand(300).add_(0.5).requires_grad_(), kind(WIDTH, 18)
    x.requires_grad_(needs_grad)
    leaves = [weight, *conv.parameters(), *([x] if needs_grad else [])]

    def draw():
        return torch.autograd.grad(dots([conv(x, graph.edge_index, weight)]), leaves)

    exact = draw()
    gs.lighten_(conv, recipe)
    assert_unbiased(draw, exact)
