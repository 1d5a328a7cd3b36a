"""One graph on several processes: torchrun --standalone --nproc-per-node 2 examples/distributed.py

On several machines the folder of parts is made once, by `gossamer partition`, and copied. Without torchrun one process
has all parts.
"""

import tempfile
from pathlib import Path

import torch
from torch.nn import functional
from torch_geometric.nn import GraphSAGE

import gossamer as gs

ranks = gs.distributed.start()
folder = Path(tempfile.gettempdir()) / "gossamer-digits-parts"


def partition() -> None:
    if ranks.rank == 0:
        data = gs.datasets.load("digits")
        masks = (data.train_mask, data.val_mask, data.test_mask)
        graph = gs.Graph.from_data(data)
        print(gs.distributed.partition(graph, data.x, data.y, *masks, parts=4, out=folder, progress=False))


ranks.together(partition, "partition the graph")
part = gs.distributed.load(folder)
torch.manual_seed(0)  # the same weights on every rank
model = GraphSAGE(part.x.size(1), 64, num_layers=2, out_channels=10, dropout=0.5, norm="batch_norm")
gs.lighten_(model, gs.Recipe(messages=gs.Messages(bits=8)))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

for _ in range(50):
    model.train()
    optimizer.zero_grad()
    out = model(part.x, part.graph)  # the same call as on one machine
    loss = functional.cross_entropy(out[part.train], part.y[part.train], reduction="sum")
    part.mean(loss).backward()  # the mean over the nodes of all ranks
    gs.distributed.sum_gradients(model)
    optimizer.step()

model.eval()
with torch.no_grad():
    accuracy = part.accuracy(model(part.x, part.graph), "test")
if ranks.rank == 0:
    print(f"{ranks.size} ranks, test accuracy {accuracy:.4f}")
gs.distributed.stop()
