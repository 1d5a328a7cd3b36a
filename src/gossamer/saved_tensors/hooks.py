"""Save the activations of any PyTorch model for backward in few bits.

    with gs.compressed_activations(gs.Blockwise(bits=4)) as account:
        loss = model(x)
    loss.backward()                     inside the block or after it
    print(account)                      how many tensors, in how many bytes, and what was left alone

The forward pass stays exact, bit for bit, and gradients carry noise of mean zero. For layers that `gs.lighten_` knows,
its recipes save less; this is for all others.

After each call of a torch function the backward nodes that it created are visited, and a saved tensor is replaced by
few bits (`SavedTensor.register_hooks`) if the node is known to use it linearly, for its sign alone, or as a mask:
rules.py. Elementwise functions such as GELU save their slope: slopes.py. **Everything else is saved as it is**, by
torch and with torch's own checks: softmax, exp, divisors, maxima, most losses, fused attention, custom
`torch.autograd.Function`s, `torch.jit` and `torch.compile`d code. So are parameters with their views and casts, inputs
that the caller holds, complex and sparse tensors, tensors with less than `least` elements, and tensors that another op
saves exactly anyway.

A tensor that several ops save is stored once, so its noise is the same for all of them: in x * f(x W) the gradient of W
meets it twice, and one element in D is off by its variance. What is compressed may be changed in place afterwards: the
bits hold what it was. Where other saved-tensor hooks are active (checkpointing, `save_on_cpu`, `gs.measure.kept`) they
take precedence, and what backward itself computes is not compressed. Of nested blocks the innermost
counts, and a block is active in its own thread only. All noise comes from one draw of torch's default generator when
the block begins; enter it once per step if a resumed run is to repeat the noise.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import random
import sys
import threading
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ..codecs import Codec
from ..engine.saved.policy import LEAST, saving_of
from ..state.location import layer_here
from . import slopes
from .account import Account
from .codes import Bits, Coded, Shelf, Storages, restore, share_memory
from .rules import Form, form_of, is_parameter, is_plain, nodes_since, saved_names

_here = threading.local()  # .active: the innermost block of this thread


def compressed_activations(codec: Codec, least: int = LEAST) -> contextlib._GeneratorContextManager[Account]:
    """A `with` block, or a decorator, in which autograd saves tensors encoded by `codec`; see the module's docstring.

    Tensors with less than `least` elements are left alone. The block gives an `Account`, which can be printed.
    """
    if not isinstance(codec, Codec):
        raise TypeError(f"`codec` must be a codec such as gs.Blockwise(bits=4) (got {codec!r})")
    if not isinstance(least, int) or least < 1:
        raise ValueError(f"`least` must be a positive number of elements (got {least!r})")
    if "torch._dynamo" in sys.modules:  # else nothing is compiled
        from .compiled import refuse_when_compiled

        refuse_when_compiled()
    return _block(codec, least)


@contextlib.contextmanager
def _block(codec: Codec, least: int) -> Iterator[Account]:
    mode, outer = _Compressing(codec, least), getattr(_here, "active", None)
    _here.active = mode
    try:
        with mode:
            yield mode.account
    finally:
        _here.active = outer


class _Compressing(TorchFunctionMode):
    def __init__(self, codec: Codec, least: int) -> None:
        super().__init__()
        plan = saving_of(codec)
        assert plan is not None  # it is for settings that keep everything
        values: Any = plan.values
        of_slopes = dataclasses.replace(values, bits=plan.slopes) if hasattr(values, "bits") else values
        self._codecs = {Form.ROWS: plan.rows, Form.VALUES: plan.values, Form.SLOPE: of_slopes}
        self._least = least
        self._random = random.Random(int(torch.randint(2**63 - 1, ())))
        self._shelf = Shelf()
        self._exact = Storages()  # saved exactly by some node
        self._made = Storages()  # without a gradient, and made in the block: the caller does not hold them
        self.account = Account()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        if torch.compiler.is_compiling() or not self._watching():
            return func(*args, **named)
        if func in slopes.ELEMENTWISE:
            x = slopes.operand(args, named)
            if x is not None and x.requires_grad and self._why_left(x, Form.SLOPE, func, ()) is None:
                return self._with_slope(slopes.apply(func, x, args, named), func)
        start = torch._C._autograd._get_sequence_nr()
        result = func(*args, **named)
        if isinstance(result, (Tensor, tuple, list)):
            with torch._C.DisableTorchFunction():
                self._look(result, start, func, (args, named))
        return result

    def _watching(self) -> bool:
        if getattr(_here, "active", None) is not self or not torch.is_grad_enabled():
            return False
        if torch._C._get_tracing_state() is not None or torch._C._are_functorch_transforms_active():
            return False
        if torch._C._autograd._top_saved_tensors_default_hooks(True) is not None:
            self.account.other_hooks = True
            return False
        return True

    def _look(self, result: Any, start: int, func: Any, inputs: Any) -> None:
        """Visit the nodes that a call made, and note its results that need no gradient."""
        results = [t for t in ([result] if isinstance(result, Tensor) else result) if isinstance(t, Tensor)]
        for node in nodes_since(start, results):
            for name in saved_names(node):
                self._consider(node, name, func, inputs)
        for t in results:
            if not t.requires_grad and is_plain(t) and t.numel() >= self._least and not share_memory(t, inputs):
                self._made.add(t)

    def _with_slope(self, y: Tensor, func: Any) -> Tensor:
        with torch._C.DisableTorchFunction():
            node: Any = y.grad_fn
            self._save(node.saved_tensors[0], node._raw_saved_tensors[0], Form.SLOPE, func)
        return y

    def _consider(self, node: Any, name: str, func: Any, inputs: Any) -> None:
        try:
            saved = getattr(node, f"_saved_{name}")
        except RuntimeError:  # changed in place since it was saved: backward will say so
            return
        if not isinstance(saved, Tensor):
            return
        form = form_of(node, name, saved)
        left = self._why_left(saved, form, func, inputs)
        if left is None and not self._save(saved, getattr(node, f"_raw_saved_{name}"), form, func):
            left = "integers"
        if left is not None:
            self.account.left[left] += 1

    def _why_left(self, x: Tensor, form: Form, func: Any, inputs: Any) -> str | None:
        """Why x is saved as it is, or None."""
        if not is_plain(x):
            return "of other kinds"
        if x.numel() < self._least:
            return "small"
        if is_parameter(x):
            return "parameters"
        if form is not Form.SLOPE and x.grad_fn is None and (x.requires_grad or self._is_data(x, inputs)):
            return "data"
        if x in self._exact:
            return "kept whole by another"
        if form is Form.WHOLE:
            self._exact.add(x)
            self.account.exact[_name(func)] += x.untyped_storage().nbytes()
            return "needed exactly"
        codec = self._codecs.get(form)
        bytes_kept = codec.nbytes(x.shape) if codec else -(-x.numel() // 8)
        bytes_before = min(x.numel() * x.element_size(), x.untyped_storage().nbytes())  # less memory: expanded
        return None if bytes_kept < bytes_before else "no smaller in bits"

    def _is_data(self, x: Tensor, inputs: Any) -> bool:
        """Whether x came into the block from outside: someone holds it anyway."""
        return share_memory(x, inputs) and x not in self._made

    def _save(self, x: Tensor, saved: Any, form: Form, func: Any) -> bool:
        """Replace x by its codes in a node's SavedTensor; False if that is not possible."""
        autocast = torch.is_autocast_enabled(x.device.type)
        with torch.no_grad(), torch.autocast(x.device.type, enabled=False) if autocast else contextlib.nullcontext():
            found = self._shelf.keep(
                x, self._codecs.get(form, form), functools.partial(self._make, form, func, x.shape)
            )
        if found is None:
            return False
        saved_as, new = found
        if new:
            self.account.add(x, saved_as[0].content.nbytes)
        else:
            self.account.shared += 1
        saved.register_hooks(lambda _: saved_as, restore)
        return True

    def _make(self, form: Form, func: Any, shape: torch.Size, rows: Tensor) -> Bits | Coded | None:
        if form is Form.SIGN:
            return Bits.of_sign(rows)
        two = Bits.of_two_values(rows)
        if two is not None or form is Form.MASK:
            return two
        try:
            return Coded(self._codecs[form], rows, self._random.getrandbits(63))
        except ValueError as error:
            what = f"the tensor of shape {list(shape)} that `{_name(func)}` saves for backward"
            raise ValueError(f"{layer_here()}, {what} cannot be compressed: {error}") from error


def _name(func: Any) -> str:
    return str(getattr(func, "__name__", func))
