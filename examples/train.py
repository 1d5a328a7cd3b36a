"""Train a PyG model, stop early, and keep the run in a folder: python examples/train.py [folder]

Run it again with the same folder and it goes on where it stopped; what is finished is only reported.
"""

import sys
from pathlib import Path

import torch
from torch_geometric.nn import GCN

import gossamer as gs

data = gs.datasets.load("digits")
folder = Path(sys.argv[1]) if len(sys.argv) > 1 else None

torch.manual_seed(0)
model = GCN(data.num_features, hidden_channels=64, num_layers=2, out_channels=data.num_classes, dropout=0.5)
resume = folder is not None and (folder / "run.json").exists()
result = gs.train(model, data, "float32", epochs=60, patience=20, out=folder, resume=resume)

print(result)
best = max(result.history["val"])
print(f"best validation score {best:.4f}; the model now has the weights of epoch {result.best_epoch}")
