"""Native kernels of ops/edge_softmax.py."""

from __future__ import annotations

from torch import Tensor

from ... import memory
from ...native import library, num_threads
from ...ops._library import implement
from ...ops.edge_softmax import edge_softmax_backward, edge_softmax_op
from ._arguments import F32, at


def _edge_softmax(rowptr: Tensor, logits: Tensor) -> Tensor:
    if logits.dtype != F32:
        return edge_softmax_op.reference(rowptr, logits)
    rowptr, logits = rowptr.contiguous(), logits.contiguous()
    out = memory.empty(logits.shape, F32)
    library.edge_softmax(at(rowptr), rowptr.numel() - 1, at(logits), at(out), logits.size(1), num_threads())
    return out


def _edge_softmax_backward(rowptr: Tensor, p: Tensor, dp: Tensor) -> Tensor:
    if p.dtype != F32:
        return edge_softmax_backward.reference(rowptr, p, dp)
    rowptr, p, dp = rowptr.contiguous(), p.contiguous(), dp.contiguous()
    out = memory.empty(p.shape, F32)
    library.edge_softmax_backward(at(rowptr), rowptr.numel() - 1, at(p), at(dp), at(out), p.size(1), num_threads())
    return out


implement(edge_softmax_op, "cpu", _edge_softmax)
implement(edge_softmax_backward, "cpu", _edge_softmax_backward)
