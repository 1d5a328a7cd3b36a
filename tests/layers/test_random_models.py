"""Any model made of these layers, on any small graph: the same outputs and gradients as PyG."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn
from torch_geometric import nn as pyg

from support.pyg_models import assert_same

CONVS = {
    "gcn": lambda i, o: pyg.GCNConv(i, o),
    "gcn, improved": lambda i, o: pyg.GCNConv(i, o, improved=True, bias=False),
    "sage": lambda i, o: pyg.SAGEConv(i, o),
    "sage, sum": lambda i, o: pyg.SAGEConv(i, o, aggr="sum", project=True),
    "sage, normalize": lambda i, o: pyg.SAGEConv(i, o, normalize=True),
    "gin": lambda i, o: pyg.GINConv(pyg.MLP([i, o, o], norm=None), train_eps=True),
    "gat": lambda i, o: pyg.GATConv(i, o, heads=2, concat=False),
    "gat, residual": lambda i, o: pyg.GATConv(i, o, residual=True),
    "gatv2": lambda i, o: pyg.GATv2Conv(i, o, heads=3, concat=False),
    "graphconv": lambda i, o: pyg.GraphConv(i, o, aggr="mean"),
    "linear": lambda i, o: pyg.Linear(i, o),
}
NORMS = {
    "none": lambda o: None,
    "batch": nn.BatchNorm1d,
    "pyg batch": pyg.BatchNorm,
    "layer": nn.LayerNorm,
    "graph": pyg.LayerNorm,
}
ACTS = {
    "none": (None, None),
    "elu": (nn.ELU, F.elu),
    "gelu": (nn.GELU, F.gelu),
    "leaky": (nn.LeakyReLU, F.leaky_relu),
    "relu": (nn.ReLU, F.relu),
    "tanh": (nn.Tanh, torch.tanh),
}

layers = st.lists(
    st.fixed_dictionaries(
        {
            "conv": st.sampled_from(sorted(CONVS)),
            "norm": st.sampled_from(sorted(NORMS)),
            "act": st.sampled_from(sorted(ACTS)),
            "width": st.integers(2, 20),
            "functional": st.booleans(),
            "skip": st.booleans(),
        }
    ),
    min_size=1,
    max_size=4,
)


class Made(nn.Module):
    def __init__(self, width: int, plan: list[dict]) -> None:
        super().__init__()
        self.plan = plan
        self.convs, self.tails = nn.ModuleList(), nn.ModuleList()
        for layer in plan:
            self.convs.append(CONVS[layer["conv"]](width, layer["width"]))
            width = layer["width"]
            act = None if layer["functional"] else ACTS[layer["act"]][0]
            tail = [NORMS[layer["norm"]](width), act and act(), nn.Dropout(0.0)]
            self.tails.append(nn.Sequential(*[m for m in tail if m is not None]))

    def forward(self, x, edge_index):
        for layer, conv, tail in zip(self.plan, self.convs, self.tails, strict=True):
            h = conv(x) if layer["conv"] == "linear" else conv(x, edge_index)
            h = tail(h)
            function = ACTS[layer["act"]][1]
            if layer["functional"] and function is not None:
                h = F.dropout(function(h), 0.0, self.training)
            x = h + x if layer["skip"] and h.shape == x.shape else h
        return x


@settings(
    max_examples=120, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    plan=layers,
    nodes=st.integers(3, 40),
    edges=st.integers(0, 120),
    width=st.integers(1, 16),
    x_learns=st.booleans(),
    train=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_random_models(fused, plan, nodes, edges, width, x_learns, train, seed):
    torch.manual_seed(seed)
    edge_index = torch.randint(0, nodes, (2, edges))
    x = torch.randn(nodes, width, requires_grad=x_learns)
    # More than elsewhere: a norm over few rows may divide by a tiny deviation, which no gradient's size tells of.
    assert_same(Made(width, plan), x, edge_index, train=train, roundings=1000)
