"""`torch.compile` sees through whole chains of ops: one graph, the same numbers, the same gradients."""

from __future__ import annotations

import shutil

import pytest
import torch

from gossamer.ops import (
    dequantize_rows,
    dropout,
    edge_softmax,
    gat_attention,
    gather_rows,
    gatv2_logits,
    head_mean_spmm,
    int8_linear,
    linear,
    norm_act,
    pack,
    quantize_rows,
    relu_dropout,
    sddmm,
    spmm,
    spmm_int8,
    unpack,
)
from support import graphs
from support.compare import same, with_gradients
from support.tensors import rand


@pytest.fixture
def graph():
    """What training would have made once, before the first step: the transpose and the degrees."""
    graph = graphs.graph("power law").gcn_norm()
    _ = graph.t(), graph.t_perm, graph.max_degree, graph.inverse_degree
    yield graph
    torch._dynamo.reset()


def assert_compiles(function, inputs, backend="aot_eager", dynamic=None):
    compiled = torch.compile(function, backend=backend, fullgraph=True, dynamic=dynamic)
    out, grads = with_gradients(compiled, inputs)
    want, want_grads = with_gradients(function, inputs)
    return (out, *grads), (want, *want_grads)


def gcn(graph):
    def forward(x, w1, w2):
        h = relu_dropout(spmm(graph, x @ w1), 0.5, 3)
        return spmm(graph, h @ w2)

    return forward


def attention(graph):
    def forward(x):
        h = dropout(x, 0.2, 4)
        alpha = edge_softmax(graph, sddmm(graph, h, h))
        h = spmm(graph, h, value=alpha)
        return spmm(graph, h, reduce="mean") + spmm(graph, h, reduce="max")

    return forward


@pytest.mark.parametrize("dynamic", [False, True])
def test_convolutions(graph, dynamic):
    inputs = [rand(400, 5), rand(5, 16, seed=1), rand(16, 3, seed=2)]
    assert same(*assert_compiles(gcn(graph), inputs, dynamic=dynamic))


def test_attention_with_heads(graph):
    assert same(*assert_compiles(attention(graph), [rand(400, 2, 5)[:, 0].contiguous()]))

    def heads(x):
        return spmm(graph, x, value=edge_softmax(graph, sddmm(graph, x, x)))

    assert same(*assert_compiles(heads, [rand(400, 2, 5)]))


@pytest.mark.parametrize("dynamic", [False, True])
def test_what_layers_are_made_of(graph, dynamic):
    """A product, a sum with a bias and the node's own row, norms with activation and dropout, two attentions."""
    diagonal = torch.tensor(1.5).expand(400)

    def forward(x, weight, bias, att):
        h = linear(x, weight, bias)
        h = spmm(graph, h, bias=bias, diagonal=diagonal, rows=h)
        for over in (2, 3, 4):  # columns, rows, all
            h = norm_act(h, bias, bias, None, None, over, 1e-5, 3, 1.0, 0.2, 7)[0]
        p = gat_attention(graph, h[:, :2], h[:, 2:4]) + edge_softmax(graph, gatv2_logits(graph, h, h, att))
        return spmm(graph, h.view(-1, 2, 4), value=p).mean(1) + head_mean_spmm(graph, h, p, bias[:4])

    inputs = [rand(400, 5), rand(8, 5, seed=1), rand(8, seed=2), rand(2, 4, seed=3)]
    assert same(*assert_compiles(forward, inputs, dynamic=dynamic))


def test_codes(graph):
    """Quantised forward, and gradients through what is differentiable: the scales."""

    def forward(x, weight):
        codes, scale = quantize_rows(x.detach(), 5)
        packed = pack(x.detach(), 2, 100, 1)
        w, w_scale = quantize_rows(weight.detach())
        h = int8_linear(codes, scale, w, w_scale) + spmm_int8(graph, codes, scale) @ weight.t()
        kept = unpack(*packed, x.numel(), 2, 100).view_as(x)
        return h + dequantize_rows(codes, scale) @ weight.t() + gather_rows(kept * x, graph.col.long()[:1]) @ weight.t()

    assert same(*assert_compiles(forward, [rand(400, 7), rand(7, 7, seed=1)]))


def test_a_new_number_of_rows_needs_no_new_graph():
    """Mini-batches: every batch brings another structure."""
    compilations = []

    def backend(module, example_inputs):
        compilations.append(module)
        return module.forward

    def forward(rowptr, col, x):
        return torch.ops.gossamer.spmm(rowptr, col, None, None, None, x, None, None, None, None, None, None, None)

    compiled = torch.compile(forward, backend=backend, fullgraph=True, dynamic=True)
    for name in ("power law", "star", "isolated nodes", "bipartite, few sources"):
        graph = graphs.graph(name)
        x = rand(graph.num_src, 6)
        assert same(compiled(graph.rowptr, graph.col, x), spmm(graph, x))
    torch._dynamo.reset()
    assert len(compilations) == 1


@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, while it imports inductor
def test_inductor(graph):
    got, want = assert_compiles(gcn(graph), [rand(400, 5), rand(5, 16, seed=1), rand(16, 3, seed=2)], "inductor")
    torch.testing.assert_close(got, want)  # inductor may order the dense products' sums in its own way
