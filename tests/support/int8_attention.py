"""GAT and GATv2 in float64 at the values of int8 rows, and what their tests share."""

from __future__ import annotations

import torch
from torch import nn

from gossamer import ops
from gossamer.ops.csr import row_of_edge


def decoded(h):
    return ops.dequantize_rows(*ops.quantize_rows(h.detach())).double()


def passing(h):
    """Float64 rows with the values that int8 rows decode to and the gradient of h."""
    wide = h.double()
    return wide + (decoded(h) - wide).detach()


def dots(h, att):
    return (h.view(len(h), *att.shape[1:]) * att).sum(-1)


def at_values(tensor, values):
    """The gradient of `tensor`, with these values."""
    return tensor + (values - tensor).detach()


def softmax(graph, logits):
    row = row_of_edge(graph.rowptr)
    e = logits.exp()
    total = torch.zeros(graph.num_dst, logits.size(1), dtype=e.dtype).index_add(0, row, e)
    return e / total[row]


def weighted(graph, p, h, bias, drop):
    w = p if drop is None else ops.dropout(p, *drop)
    heads = (w.unsqueeze(2) * h[graph.col.long()].view(len(w), w.size(1), h.size(1) // w.size(1))).flatten(1)
    return torch.zeros(graph.num_dst, h.size(1), dtype=h.dtype).index_add(0, row_of_edge(graph.rowptr), heads) + bias


def exact_gat(graph, h_src, h_dst, att_src, att_dst, a_edge, bias, drop, whole=False):
    """Float64 throughout. Logits have the values of h itself, and backward reads the rounded rows, or h itself."""
    h_dst = h_src if h_dst is None else h_dst
    pairs = ((h_src, att_src), (h_dst, att_dst))
    read = torch.Tensor.double if whole else passing
    a_src, a_dst = (at_values(dots(read(h), a.double()), dots(h.double(), a.double())) for h, a in pairs)
    s = a_src[graph.col.long()] + a_dst[row_of_edge(graph.rowptr)] + a_edge.double()
    p = softmax(graph, nn.functional.leaky_relu(s, 0.2))
    return weighted(graph, p, passing(h_src), bias.double(), drop)


def exact_gatv2(graph, h_src, h_dst, att, bias, drop):
    h_dst = h_src if h_dst is None else h_dst

    def logits(h, g):
        s = h[graph.col.long()] + g[row_of_edge(graph.rowptr)]
        return (nn.functional.leaky_relu(s, 0.2).view(len(s), *att.shape) * att.double()).sum(-1)

    at_rows = logits(passing(h_src), passing(h_dst))
    p = softmax(graph, at_values(at_rows, logits(h_src.double(), h_dst.double())))
    return weighted(graph, p, passing(h_src), bias.double(), drop)


def whole_codes(shape):
    """A gradient that int8 rows hold exactly, so that rounding it changes nothing."""
    codes = torch.randint(-127, 128, shape)
    codes[:, 0] = 127
    return codes * 2.0 ** torch.randint(-8, 4, (shape[0], 1))


class Held(nn.Module):
    """A convolution that does not feed the loss, so that it is not left in float32."""

    def __init__(self, conv):
        super().__init__()
        self.conv, self.head = conv, nn.Linear(2, 2)

    def forward(self, *args, **named):
        return self.conv(*args, **named)
