"""A model as a file of integers, calibrated in eight bits and trained for four: python examples/integers.py"""

import tempfile
from pathlib import Path

import torch
from torch_geometric.nn import GraphSAGE

import gossamer as gs

data = gs.datasets.load("digits")
graph = gs.Graph.from_data(data)
inputs = (data.x, data.edge_index)


def new_model() -> GraphSAGE:
    torch.manual_seed(0)
    return GraphSAGE(data.num_features, 64, num_layers=2, out_channels=data.num_classes, norm="batch_norm")


def show(name: str, out: torch.Tensor) -> None:
    right = out.argmax(dim=1) == data.y
    print(f"{name}: test accuracy {right[data.test_mask].float().mean():.3f}")


with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "model.safetensors"

    model = new_model()
    gs.train(model, data, epochs=50, progress=False)
    with torch.no_grad():
        show("float32", model.eval()(*inputs))
    print(gs.calibrate(model, inputs, bits=8))  # each layer's error; `skip=` leaves one in float32
    print(gs.export(model, path, inputs))
    show("eight bits, calibrated", gs.load(path)(data.x, graph))

    model = new_model()
    gs.train(model, data, "degree-quant-int4", epochs=50, progress=False)
    gs.export(model, path, inputs)
    engine = gs.load(path)  # needs neither PyG nor the model's code
    print(engine)
    show("four bits, Degree-Quant", engine(data.x, graph))
