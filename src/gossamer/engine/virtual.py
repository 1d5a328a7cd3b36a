"""Tensors whose numbers are elsewhere: whoever reads one gets them, from any thread of torch's machinery.

`gradient.QTensor` is there as int8 rows, a `Pending` as what is still to be computed (pending.py has the rules). Shape,
dtype and place in the autograd graph are those of any tensor. An op that gets one is given its numbers; one that writes
into it, too, and what the tensor stands for is from then on what has been written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from ..state import facts


class Virtual(Tensor):
    def numbers(self) -> Tensor:
        """The tensor's numbers; the graph does not see this."""
        raise NotImplementedError

    def own_numbers(self) -> Tensor:
        """The same for what changes them in place."""
        raise NotImplementedError

    def numpy(self, **named: Any) -> Any:
        return self.numbers().numpy(**named)

    def tolist(self) -> Any:
        return self.numbers().tolist()

    def __deepcopy__(self, memo: Any) -> Any:
        return self.numbers().clone()

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.numbers().__reduce_ex__(protocol)

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        given = dict(zip((a.name for a in func._schema.arguments), args, strict=False)) | (kwargs or {})
        written = [given.get(a.name) for a in func._schema.arguments if a.is_write]
        tree_map_only(Virtual, lambda tensor: tensor.own_numbers(), written)
        plain = tree_map_only(Virtual, lambda tensor: tensor.numbers(), (args, kwargs or {}))
        out = func(*plain[0], **plain[1])
        return written[0] if written and isinstance(written[0], Virtual) else out


FACTS = {
    Tensor.shape.__get__, Tensor.dtype.__get__, Tensor.device.__get__, Tensor.layout.__get__, Tensor.ndim.__get__,  # type: ignore[attr-defined]
    Tensor.requires_grad.__get__, Tensor.is_sparse.__get__, Tensor.is_cuda.__get__, Tensor.is_leaf.__get__,  # type: ignore[attr-defined]
    Tensor.size, Tensor.dim, Tensor.numel, Tensor.nelement, Tensor.ndimension, Tensor.__len__, Tensor.is_floating_point,
    Tensor.element_size, Tensor.is_contiguous, Tensor.stride, torch.is_floating_point, torch.numel, Tensor.get_device,
}  # fmt: skip
"""What may be asked of a tensor without its numbers being read."""


class Pending(Virtual):
    """A float32 matrix whose numbers `make` computes, without a gradient, when they are first read."""

    @staticmethod
    def __new__(cls: Any, shape: torch.Size, make: Callable[[], Tensor]) -> Pending:
        return Tensor._make_wrapper_subclass(cls, shape, dtype=torch.float32, device=torch.device("cpu"))

    def __init__(self, shape: torch.Size, make: Callable[[], Tensor]) -> None:
        self._make: Callable[[], Tensor] | None = make
        self._numbers: Tensor | None = None
        self._plain: Tensor | None = None
        self._made_by: tuple[int, bool] | None = None
        self.epilogue: Any = None

    def numbers(self) -> Tensor:
        if self._numbers is None:
            assert self._make is not None
            with torch._C.DisableTorchFunction(), torch.no_grad():
                self._numbers = self._make()
            self._make = None
        return self._numbers

    def own_numbers(self) -> Tensor:
        return self.numbers()

    def plain(self) -> Tensor:
        """The ordinary tensor that takes this one's place."""
        if self._plain is None:
            numbers = self.numbers()
            with torch._C.DisableTorchFunction(), torch.enable_grad():
                request = getattr(self.grad_fn, "request", None)
                self._plain = Plain.apply(self, numbers, request) if self.requires_grad else numbers
            if self.epilogue is not None and self.epilogue.saved is not None:
                facts.note(self._plain, "saved", self.epilogue.saved)
        return self._plain

    def settle_place(self) -> Pending:
        """To be called when the graph knows of it."""
        self._made_by = self._place()
        return self

    def _place(self) -> tuple[int, bool]:
        with torch._C.DisableTorchFunction():
            return id(self.grad_fn), torch.is_grad_enabled()

    @property
    def is_due(self) -> bool:
        """Whether no numbers have been computed."""
        return self._make is not None

    @property
    def is_open(self) -> bool:
        """Whether it may be continued: rule 4."""
        return self.is_due and self._plain is None and self._made_by == self._place()

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        kwargs = kwargs or {}
        if func in FACTS:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        args, kwargs = plain((args, kwargs))
        return func(*args, **kwargs)


def plain(given: Any) -> Any:
    """Whatever was given, with ordinary tensors in place of what is pending."""
    if isinstance(given, Tensor):  # a walk through nested structures takes as long as a small op
        return given.plain() if isinstance(given, Pending) else given
    return tree_map_only(Pending, Pending.plain, given)


class Plain(torch.autograd.Function):
    """The same numbers at the same place in the graph, in an ordinary tensor."""

    @staticmethod
    def forward(ctx: Any, x: Pending, numbers: Tensor, request: Any) -> Tensor:
        ctx.request = request
        return numbers.detach()

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        return dout, None, None
