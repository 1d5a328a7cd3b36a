"""What against.py runs in a process of its own, on either tree: training epochs, or weights after a few steps.

    python benchmarks/against_child.py REQUEST       JSON: the package to use, the job, its cases and options

Answers in JSON lines on the standard output, one for each case. Both trees run this very file, so of Gossamer it uses
only `recipes` and `lighten_`; models are PyG's own or written here, and memory is read from /proc.
"""

from __future__ import annotations

import ctypes
import gc
import hashlib
import importlib
import importlib.util
import itertools
import json
import sys
import time
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric import nn as pyg

MODELS = {"gcn": "GCN", "sage": "GraphSAGE", "gin": "GIN", "gat": "GAT"}
WRITTEN = ("ready", "hand")


class Shape(NamedTuple):
    layers: int
    width: int
    heads: int  # of GAT
    width_per_head: int
    norm: bool

    def width_of(self, kind: str) -> int:
        return self.heads * self.width_per_head if kind == "gat" else self.width


SHAPES = {"arxiv-like": Shape(3, 256, 4, 64, norm=True), "cora": Shape(2, 16, 8, 8, norm=False)}
"""The models of each graph; Cora's as in the papers that introduced it to this field."""


class Case(NamedTuple):
    graph: str
    model: str
    written: str
    recipe: str


def weights_file(case: Case) -> str:
    return f"{'-'.join(case)}.pt"


class Graph(NamedTuple):
    """What training needs of a dataset; the parent writes it once, so that both trees read the same numbers."""

    x: Tensor
    edge_index: Tensor
    y: Tensor
    train_mask: Tensor


class Handwritten(nn.Module):
    """A model as its users write it: layers in __init__, F.relu and F.dropout in forward."""

    def __init__(self, kind: str, sizes: list[int], shape: Shape, dropout: float) -> None:
        super().__init__()
        ends = len(sizes) - 2
        pairs = itertools.pairwise(sizes)
        self.convs = nn.ModuleList(conv_of(kind, *pair, shape.heads, last=k == ends) for k, pair in enumerate(pairs))
        self.norms = nn.ModuleList(nn.BatchNorm1d(size) for size in sizes[1:-1] if shape.norm)
        self.dropout = dropout

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        for k, conv in enumerate(self.convs[:-1]):
            x = conv(x, edge_index)
            if self.norms:
                x = self.norms[k](x)
            x = functional.dropout(functional.relu(x), p=self.dropout, training=self.training)
        return self.convs[-1](x, edge_index)


def conv_of(kind: str, inputs: int, outputs: int, heads: int, last: bool) -> nn.Module:
    if kind == "gat":  # hidden layers concatenate their heads, the last takes their mean
        return pyg.GATConv(inputs, outputs if last else outputs // heads, heads, concat=not last)
    if kind == "gin":
        return pyg.GINConv(nn.Sequential(nn.Linear(inputs, outputs), nn.ReLU(), nn.Linear(outputs, outputs)))
    return (pyg.GCNConv if kind == "gcn" else pyg.SAGEConv)(inputs, outputs)


def make(case: Case, graph: Graph, dropout: float = 0.5) -> nn.Module:
    torch.manual_seed(0)
    shape = SHAPES[case.graph]
    inputs, width, outputs = graph.x.size(1), shape.width_of(case.model), int(graph.y.max()) + 1
    if case.written == "hand":
        return Handwritten(case.model, [inputs, *[width] * (shape.layers - 1), outputs], shape, dropout)
    options = {"norm": "batch_norm" if shape.norm else None} | ({"heads": shape.heads} if case.model == "gat" else {})
    return getattr(pyg.models, MODELS[case.model])(inputs, width, shape.layers, outputs, dropout=dropout, **options)


def backward(model: nn.Module, graph: Graph) -> float:
    model.train()
    out = model(graph.x, graph.edge_index)
    loss = functional.cross_entropy(out[graph.train_mask], graph.y[graph.train_mask])
    loss.backward()
    return loss.item()


def steps(gs: Any, case: Case, graph: Graph, count: int) -> tuple[nn.Module, list[float], list[float]]:
    """The trained model, the loss and the seconds of each step."""
    model = make(case, graph)
    gs.lighten_(model, gs.recipes[case.recipe])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses, seconds = [], []
    for _ in range(count):
        start = time.perf_counter()
        optimizer.zero_grad()
        losses.append(backward(model, graph))
        optimizer.step()
        seconds.append(time.perf_counter() - start)
    return model, losses, seconds


def epochs(gs: Any, case: Case, graph: Graph, options: dict[str, Any]) -> dict[str, Any]:
    """Seconds of the best epoch, and the highest resident memory above that at the start."""
    start = reset_peak()
    seconds = steps(gs, case, graph, options["epochs"] + 1)[2]  # the first builds graphs and takes memory
    return {"seconds": min(seconds[1:]), "peak_bytes": status("VmHWM") - start}


def reset_peak() -> int:
    """Set the kernel's record of resident memory back to what is resident now, and return that."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    return status("VmRSS")


def status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def weights(gs: Any, case: Case, graph: Graph, options: dict[str, Any]) -> dict[str, Any]:
    """A hash of parameters and buffers after training, and the losses on the way; the tensors go to a file."""
    model, losses, _ = steps(gs, case, graph, options["steps"])
    state = dict(sorted(model.state_dict().items()))
    digest = hashlib.sha256()
    for name, value in state.items():
        digest.update(name.encode() + value.contiguous().numpy().tobytes())
    torch.save(state, Path(options["folder"]) / weights_file(case))
    found = {"sha256": digest.hexdigest(), "losses": losses}
    if case.recipe == "float32":
        found["gradient_distance"] = gradient_distance(gs, case, graph)
    return found


def gradient_distance(gs: Any, case: Case, graph: Graph) -> float:
    """The worst |g - g64| / |g64| of all parameters; g64 is the gradient of PyG's own model in float64.

    Left out are parameters whose gradient is zero but for rounding, such as a bias before batch norm.
    """
    ours, exact = make(case, graph, dropout=0.0), make(case, graph, dropout=0.0).double()
    gs.lighten_(ours, gs.recipes[case.recipe])
    backward(ours, graph)
    backward(exact, graph._replace(x=graph.x.double()))
    wanted = {name: parameter.grad for name, parameter in exact.named_parameters()}
    size = {name: grad.norm().item() for name, grad in wanted.items()}
    counted = [(n, p) for n, p in ours.named_parameters() if size[n] > 1e-6 * max(size.values())]
    return max((parameter.grad.double() - wanted[name]).norm().item() / size[name] for name, parameter in counted)


def import_from(package: Path) -> Any:
    """The Gossamer in this folder, even where an editable install would give another."""
    sys.path.insert(0, str(package.parent))
    if not is_in(package, "gossamer"):
        finders = [f for f in sys.meta_path if "editable" not in getattr(f, "__module__", type(f).__module__)]
        sys.meta_path[:] = finders
    gs = importlib.import_module("gossamer")
    assert is_in(package, "gossamer"), f"imported {gs.__file__}, not {package}"
    importlib.import_module("gossamer._native")  # without it, references would be measured
    return gs


def is_in(package: Path, module: str) -> bool:
    spec = importlib.util.find_spec(module)
    return spec is not None and Path(str(spec.origin)).resolve().parent == package.resolve()


def main() -> None:
    warnings.simplefilter("ignore")
    request = json.loads(sys.argv[1])
    torch.set_num_threads(request["threads"])
    gs = import_from(Path(request["package"]))
    if request["job"] == "recipes":
        print(json.dumps(list(gs.recipes)))
        return
    job = {"epochs": epochs, "weights": weights}[request["job"]]
    graphs = {name: Graph(**torch.load(path)) for name, path in request["graphs"].items()}
    for case in (Case(*case) for case in request["cases"]):
        try:
            answer = job(gs, case, graphs[case.graph], request)
        except Exception as error:  # a case that fails is a finding; the others are wanted all the same
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
