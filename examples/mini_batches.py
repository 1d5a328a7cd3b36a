"""Features in one bit, training on sampled mini-batches, predictions for all nodes: for graphs that do not fit.

Run it as it is, or put your own feature file and graph in place of the embedded ones.
"""

import torch
from torch.nn import functional
from torch_geometric.nn import GraphSAGE

import gossamer as gs

data = gs.datasets.load("digits")
graph = gs.Graph.from_data(data)
store = gs.compress(data.x, gs.Scalar(bits=1))  # of a file: gs.compress("x.npy", gs.Scalar(bits=1), out="x.gsf")
print(store)

model = GraphSAGE(data.num_features, 64, num_layers=2, out_channels=data.num_classes, dropout=0.2)
gs.lighten_(model, "tango")
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
loader = gs.NeighborLoader(graph, store, [10, 10], data.train_mask, 64, y=data.y, shuffle=True, blocks=True)

for epoch in range(10):
    for batch in loader:
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(batch.x, batch.blocks), batch.y[: batch.batch_size])
        loss.backward()
        optimizer.step()
    right = gs.infer_layerwise(model, graph, store, progress=False).argmax(1) == data.y
    print(f"epoch {epoch}: loss {loss.item():.3f}, test accuracy {right[data.test_mask].float().mean():.3f}")
