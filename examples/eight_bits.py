"""Training in eight bits, forward and backward: python examples/eight_bits.py

Once with the recipe "tango", once with "tango-auto", which measures in the first steps which modules can do with it.
"""

import torch
from torch.nn import functional
from torch_geometric.nn import GCN

import gossamer as gs

data = gs.datasets.load("arxiv-like", scale=0.05)  # products of smaller graphs gain nothing in int8


def trained(recipe: str) -> GCN:
    torch.manual_seed(0)
    model = GCN(data.num_features, 128, num_layers=3, out_channels=data.num_classes, norm="batch_norm", dropout=0.5)
    print(gs.lighten_(model, recipe))  # the line; the report says what stays in float32
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)  # weights and optimizer are float32 as ever
    for _ in range(50):
        optimizer.zero_grad()
        out = model(data.x, data.edge_index)
        functional.cross_entropy(out[data.train_mask], data.y[data.train_mask]).backward()
        optimizer.step()
    return model.eval()


for recipe in ("tango", "tango-auto"):
    model = trained(recipe)
    with torch.no_grad():
        right = model(data.x, data.edge_index).argmax(dim=1) == data.y
    print(f"{recipe}: test accuracy {right[data.test_mask].float().mean():.3f}")

print(gs.precision(model))  # of the second run: the noise of each module's operands, and what was decided
