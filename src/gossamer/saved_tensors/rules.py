"""What each of torch's backward nodes does with a tensor it saved, and hence how that tensor may be compressed.

A decoded tensor is the saved one plus noise of mean zero. Where a gradient is linear in the saved tensor it gets noise
of mean zero too; where it is not (a sign, a comparison, a power, a quotient) noise would become a wrong gradient that
nobody sees. So only what stands in these tables is compressed, and every other node saves its tensors exactly:

    PRODUCTS   operands of matrix products: linear; rows may be projected if the other operand is a parameter, so that
               their noise ends in its gradient
    VALUES     linear element by element, or only the shape is used (pooling); norms up to O(1/N), N the elements of a
               mean: x-hat times a sum over x-hat, of which one term in N meets its own noise
    SIGNS      only compared with zero: one bit per element, exact
    masks      bool, and integers of two values: one bit per element, exact, in any node

A node is known by its class name and a saved tensor by its name in torch's derivatives.yaml.
"""

from __future__ import annotations

import functools
from enum import Enum
from typing import Any

import torch
from torch import Tensor, nn

PRODUCTS: dict[str, tuple[str, ...]] = {
    "AddbmmBackward0": ("batch1", "batch2"),
    "AddmmBackward0": ("mat1", "mat2"),
    "AddmvBackward0": ("mat", "vec"),
    "BaddbmmBackward0": ("batch1", "batch2"),
    "BmmBackward0": ("self", "mat2"),
    "LinearBackward0": ("input", "weight"),
    "MmBackward0": ("self", "mat2"),
    "MvBackward0": ("self", "vec"),
}

VALUES: dict[str, tuple[str, ...]] = {
    "AdaptiveAvgPool2DBackward0": ("self",),
    "AdaptiveAvgPool3DBackward0": ("self",),
    "AdaptiveMaxPool2DBackward0": ("self",),
    "AdaptiveMaxPool3DBackward0": ("self",),
    "AddcdivBackward0": ("tensor1",),
    "AddcmulBackward0": ("tensor1", "tensor2"),
    "AvgPool2DBackward0": ("self",),
    "AvgPool3DBackward0": ("self",),
    "ConvolutionBackward0": ("input", "weight"),
    "CudnnBatchNormBackward0": ("input",),
    "DivBackward0": ("self",),
    "DotBackward0": ("self", "tensor"),
    "FusedRmsNormBackward0": ("input",),
    "LerpBackward1": ("self", "end", "weight"),
    "MaxPool2DWithIndicesBackward0": ("self",),
    "MaxPool3DWithIndicesBackward0": ("self",),
    "MseLossBackward0": ("self", "target"),
    "MulBackward0": ("self", "other"),
    "NativeBatchNormBackward0": ("input",),
    "NativeGroupNormBackward0": ("input",),
    "NativeLayerNormBackward0": ("input",),
    "PowBackward0": ("self",),  # a square; see `form_of`
    "StdBackward0": ("self",),
    "VarBackward0": ("self",),
}

SIGNS: dict[str, tuple[str, ...]] = {
    "LeakyReluBackward0": ("self",),
    "LeakyReluBackward1": ("result",),  # in place
    "ReluBackward0": ("result",),
}


VIEWS = {f"{name}Backward0" for name in ("Expand", "Permute", "T", "ToCopy", "Transpose", "Unsqueeze", "View")}
"""Through these a parameter remains one: views, and the casts of autocast."""

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
INTEGERS = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


class Form(Enum):
    WHOLE = "as it is"
    ROWS = "by the codec, rows may be projected"
    VALUES = "by the codec, element by element"
    SIGN = "one bit: whether positive"
    MASK = "one bit: which of two values"
    SLOPE = "by the codec, at four bits or more: its noise travels down"


def form_of(node: Any, name: str, saved: Tensor) -> Form:
    """How the tensor that `node` saved under `name` may be compressed."""
    kind = type(node).__name__
    if not saved.is_floating_point():
        return Form.MASK
    if name in SIGNS.get(kind, ()):
        return Form.SIGN
    if name in PRODUCTS.get(kind, ()):
        operands = [following for following, _ in node.next_functions[-2:]]
        return Form.ROWS if any(_leads_to_parameter(operand) for operand in operands) else Form.VALUES
    if name not in VALUES.get(kind, ()) or (kind == "PowBackward0" and node._saved_exponent != 2):
        return Form.WHOLE
    return Form.VALUES


def saved_names(node: Any) -> tuple[str, ...]:
    """What a node saves, by torch's own names; nothing if it belongs to a torch.autograd.Function."""
    kind: Any = type(node)
    return _saved_names(kind)


@functools.cache
def _saved_names(kind: type) -> tuple[str, ...]:
    prefix = "_raw_saved_"
    if issubclass(kind, torch.autograd.function.BackwardCFunction):
        return ()
    return tuple(name.removeprefix(prefix) for name in dir(kind) if name.startswith(prefix))


def nodes_since(start: int, results: list[Tensor]) -> list[Any]:
    """The nodes behind `results` with a sequence number from `start` on, oldest first: what is needed exactly by the
    node that made it is known before others save it."""
    nodes: list[Any] = [t.grad_fn for t in results]
    found = set()
    while nodes:
        node = nodes.pop()
        if node is not None and node not in found and node._sequence_nr() >= start:
            found.add(node)
            nodes += [following for following, _ in node.next_functions]
    return sorted(found, key=lambda node: node._sequence_nr())


def is_plain(x: Tensor) -> bool:
    """A tensor in memory, as torch makes them: no subclass, not sparse, not complex, not meta."""
    known = type(x) in (Tensor, nn.Parameter) and x.layout == torch.strided and x.device.type != "meta"
    return known and x.dtype in FLOATS + INTEGERS and not x.is_neg()


def is_parameter(x: Tensor) -> bool:
    """A parameter, a view of one, or one in the precision of autocast."""
    root = x if x._base is None else x._base
    return isinstance(root, nn.Parameter) or _leads_to_parameter(x.grad_fn)


def _leads_to_parameter(node: Any) -> bool:
    while type(node).__name__ in VIEWS:
        node = node.next_functions[0][0]
    return isinstance(getattr(node, "variable", None), nn.Parameter)
