"""A PyG model for ONNX Runtime: torch's exporter, then dynamic quantisation of its products to eight bits.

    write(model, (x, edge_index), "model.onnx")
    run = load("model.onnx", threads=2)
    out = run(x, edge_index)

GAT is exported for the sizes of these inputs: torch.export cannot trace its self-loops with sizes left open.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn


def normalised(x: Tensor, edge_index: Tensor) -> tuple[Tensor, ...]:
    """The arguments of a GCN whose edges are normalised beforehand."""
    from torch_geometric.nn.conv.gcn_conv import gcn_norm

    return x, *gcn_norm(edge_index, None, len(x))


def write(model: nn.Module, inputs: tuple[Tensor, ...], path: Path) -> None:
    """The model with weights in eight bits, for arguments such as `inputs`."""
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from torch_geometric.nn import GATConv

    fixed = any(isinstance(module, GATConv) for module in model.modules())
    with torch.no_grad():
        program: Any = torch.onnx.export(
            model, inputs, dynamo=True, verbose=False, input_names=_names(len(inputs)),
            dynamic_shapes=None if fixed else tuple(_open_sizes(tensor) for tensor in inputs),
        )  # fmt: skip
    found = program.model_proto
    found.graph.ClearField("value_info")  # sizes of weights that quantisation transposes: it would trip over them
    for node in found.graph.node:
        node.ClearField("metadata_props")  # stack traces, which would count as bytes of the model
    quantize_dynamic(found, path, weight_type=QuantType.QInt8)


def load(path: Path, threads: int) -> Callable[..., Tensor]:
    """A function of the tensors that the model was exported for."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 3
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    def run(*inputs: Tensor) -> Tensor:
        arrays = [tensor.numpy() for tensor in inputs]
        return torch.from_numpy(session.run(None, dict(zip(_names(len(inputs)), arrays, strict=True)))[0])

    return run


def _names(count: int) -> list[str]:
    return [f"input_{i}" for i in range(count)]


def _open_sizes(tensor: Tensor) -> dict[int, Any]:
    """Nodes or edges: the last dimension of an `edge_index`, the first of everything else."""
    is_edge_index = tensor.dtype == torch.int64 and tensor.dim() == 2
    return {1 if is_edge_index else 0: torch.export.Dim.DYNAMIC}
