"""Gradients of parameters over all ranks: their sum, in float64 and in the order of ranks, in one message.

Parts hold different numbers of training nodes, so gradients are summed, never averaged: `RankPart.mean` has divided by
the number of nodes of all ranks.
"""

from __future__ import annotations

import hashlib
import weakref
from typing import Any

import torch
from torch import Tensor, nn

from ..ranks import Ranks
from ..state import state_of
from .start import start

_checked: weakref.WeakSet[nn.Module] = weakref.WeakSet()
"""Models whose weights were the same on all ranks."""


@torch.no_grad()
def sum_gradients(model: nn.Module, ranks: Ranks | None = None) -> None:
    """Replace each gradient by its sum over all ranks; to be called after every backward, before the optimizer's step.

    The first call makes sure that all ranks have the same weights, and no norm whose statistics would be a rank's own.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"`model` must be a torch.nn.Module (got {type(model).__name__})")
    ranks = start() if ranks is None else ranks
    if ranks.size == 1:
        return
    if model not in _checked:
        _check_norms(model)
        _check_weights(model, ranks)
        _checked.add(model)
    parameters = [p for p in model.parameters() if p.requires_grad]
    if not parameters:
        return
    flat = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).reshape(-1).double() for p in parameters])
    total = ranks.sum(flat)
    for parameter, part in zip(parameters, total.split([p.numel() for p in parameters]), strict=True):
        made = part.view_as(parameter).to(parameter.dtype)
        if parameter.grad is None:
            parameter.grad = made
        else:
            parameter.grad.copy_(made)


OWN_ROWS = ("GraphNorm", "InstanceNorm", "PairNorm", "DiffGroupNorm", "MeanSubtractionNorm", "GraphSizeNorm")
"""PyG's norms over all nodes, which see those of one rank."""


def _check_norms(model: nn.Module) -> None:
    for name, module in model.named_modules():
        kind = type(module)
        alone = isinstance(module, nn.modules.batchnorm._BatchNorm) and state_of(module) is None
        if alone or (kind.__name__ in OWN_ROWS and kind.__module__.startswith("torch_geometric")):
            raise ValueError(
                f"`model` must have no norm that takes its statistics over the nodes of one rank ({name or 'it'} is a "
                f"{kind.__name__}); take nn.BatchNorm1d in a model converted by gs.lighten_, whose statistics are of "
                "all ranks, or a layer norm with mode='node'"
            )


def _check_weights(model: nn.Module, ranks: Ranks) -> None:
    digest = hashlib.blake2b(digest_size=8)
    for name, parameter in model.named_parameters():
        digest.update(
            name.encode() + parameter.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        )
    try:
        ranks.agree("weights", f"weights {digest.hexdigest()}")
    except ValueError as error:
        raise ValueError(
            f"{error}: call torch.manual_seed with one seed on every rank before the model is built, or load the same "
            "weights"
        ) from None


def data_parallel(model: nn.Module, **named: Any) -> nn.Module:
    """torch's DistributedDataParallel, with gradients summed and not averaged, as `RankPart.mean` needs them.

    It sends rank 0's weights to all. Without other processes the model itself.
    """
    ranks = start()
    if ranks.size == 1:
        return model
    from torch.nn.parallel import DistributedDataParallel

    wrapped = DistributedDataParallel(model, **named)
    wrapped.register_comm_hook(None, _summed)
    return wrapped


def _summed(state: None, bucket: Any) -> Any:
    import torch.distributed as dist

    work: Any = dist.all_reduce(bucket.buffer(), async_op=True)

    def first(future: Any) -> Tensor:
        return future.value()[0]

    return work.get_future().then(first)
