"""A model written by hand, lightened and trained: python examples/own_model.py

Its convolutions, norms and F.relu, F.dropout run on our kernels; everything else about it stays as it is.
"""

import torch
from torch import nn
from torch.nn import functional
from torch_geometric.nn import GATConv, SAGEConv

import gossamer as gs


class Net(nn.Module):
    def __init__(self, in_channels: int, width: int, out_channels: int) -> None:
        super().__init__()
        self.first = SAGEConv(in_channels, width)
        self.norm = nn.BatchNorm1d(width)
        self.second = GATConv(width, out_channels, heads=4, concat=False)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        x = functional.relu(self.norm(self.first(x, edge_index)))
        x = functional.dropout(x, p=0.5, training=self.training)
        return self.second(x, edge_index)


data = gs.datasets.load("digits")
torch.manual_seed(0)
model = Net(data.num_features, 64, data.num_classes)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
print(gs.lighten_(model))  # the parameters stay the same objects: the optimizer above stays valid

for _ in range(50):
    model.train()
    optimizer.zero_grad()
    out = model(data.x, data.edge_index)
    loss = functional.cross_entropy(out[data.train_mask], data.y[data.train_mask])
    loss.backward()
    optimizer.step()

gs.restore_(model).eval()  # plain PyG again, for those who know nothing of us
with torch.no_grad():
    right = model(data.x, data.edge_index).argmax(dim=1) == data.y
print(f"test accuracy {right[data.test_mask].float().mean():.3f}")
