"""A PyTorch model of any kind, trained with what it keeps for backward in four bits: python examples/any_model.py

No layer of it is converted; the `with` block alone makes the difference.
"""

import torch
from torch import nn
from torch.nn import functional

import gossamer as gs


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(functional.dropout(functional.gelu(self.up(self.norm(x))), 0.2, self.training))


data = gs.datasets.load("digits")
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(data.num_features, 64), Block(64), Block(64), nn.Linear(64, data.num_classes))
optimizer = torch.optim.Adam(model.parameters(), lr=0.003)

for _ in range(30):
    optimizer.zero_grad()
    with gs.compressed_activations(gs.Blockwise(bits=4)) as account:
        loss = functional.cross_entropy(model(data.x)[data.train_mask], data.y[data.train_mask])
    loss.backward()
    optimizer.step()

print(account)  # of the last step
model.eval()
with torch.no_grad():
    right = model(data.x).argmax(dim=1) == data.y
print(f"test accuracy {right[data.test_mask].float().mean():.3f}")
