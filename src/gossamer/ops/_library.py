"""How an op is made known to PyTorch, once for all of them.

An op is a schema, a check of its arguments, a reference in plain PyTorch that defines it on every device, a shape rule
(`fake`) and a gradient. `backends` add faster implementations for a device. `gossamer doctor` and the tests read `OPS`
and `IMPLEMENTED`.

A schema may name structures (ops/_structure.py). PyTorch sees their fields as arguments of their own; the functions of
an op take and return the structures.

PyTorch's dispatcher costs a call some twenty microseconds, as much as a kernel on a small graph. Where it would only
call the CPU kernel (plain CPU tensors, no gradient, no mode of any kind), `Op.__call__` does so itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .. import native
from ._structure import Signature

NAMESPACE = "gossamer"
_library = torch.library.Library(NAMESPACE, "DEF")


@dataclass(frozen=True)
class Op:
    """One registered op. Calling it goes through PyTorch's dispatcher or, where that adds nothing, straight to the
    kernel; structures may be given field by field.
    """

    name: str
    signature: Signature
    overload: Callable[..., Any]
    _check: Callable[..., None]
    _reference: Callable[..., Any]
    _arguments: tuple[_Argument, ...]

    def __call__(self, *args: Any, **named: Any) -> Any:
        flat, result = self.signature.flatten(args), self.signature.result
        if not named and not torch.compiler.is_compiling() and self.name in _kernels and _needs_no_dispatch(self, flat):
            left_out = [argument.default for argument in self._arguments[len(flat) :]]
            out = _kernels[self.name](*flat, *left_out)
        else:
            out = self.overload(*flat, **named)
        return out if result is None or type(out) is result else result(*out)

    def trusted(self, *args: Any) -> Any:
        """For plain CPU tensors that the caller has checked: the kernel alone, unless something listens."""
        run = _unchecked.get(self.name)
        if run is None or torch.compiler.is_compiling() or _is_in_mode():
            return self(*args)
        try:
            return run(*args)
        except (TypeError, AttributeError) as error:
            native.explain(error)
            raise

    def flatten(self, *args: Any) -> tuple[Any, ...]:
        """The arguments as PyTorch sees them."""
        return tuple(self.signature.flatten(args))

    def check(self, *args: Any) -> None:
        """Raise for arguments that the op does not take."""
        self._check(*self.signature.group(self.signature.flatten(args)))

    def reference(self, *args: Any) -> Any:
        """What defines the op, in plain PyTorch."""
        return self._reference(*self.signature.group(self.signature.flatten(args)))

    def followed(self, *args: Any) -> Any:
        """For use inside a backward: the op, or its reference if that backward is to be differentiated itself."""
        return self.reference(*args) if torch.is_grad_enabled() else self(*args)


class _Argument(NamedTuple):
    """A flat argument: the exact types that are passed on as they are, and its default."""

    types: tuple[type, ...]
    required: bool
    default: Any


_TYPES: dict[str, tuple[type, ...]] = {
    "Tensor": (Tensor, nn.Parameter), "int": (int,), "float": (float,), "bool": (bool,),
}  # fmt: skip


def _argument_of(argument: Any) -> _Argument:
    name = str(argument.real_type)
    inner = name.removeprefix("Optional[").removesuffix("]")
    types = _TYPES.get(inner, ())  # none for lists: the dispatcher takes them
    optional = () if inner == name else (type(None),)
    return _Argument((*types, *optional), not argument.has_default_value(), argument.default_value)


_BACKEND_SELECT = torch._C.DispatchKeySet(torch._C.DispatchKey.BackendSelect)
_NO_MODE = {
    _BACKEND_SELECT.raw_repr(),  # in torch.inference_mode
    (_BACKEND_SELECT | torch._C.DispatchKeySet(torch._C.DispatchKey.ADInplaceOrView)).raw_repr(),
}
"""What the dispatcher adds to every call where no mode (tracing, `torch.func`, a TorchDispatchMode) is active. Not read
off the running process: this module may be imported while a mode is active."""


def _is_in_mode() -> bool:
    """Whether something listens to calls. A torch function mode would also see what a kernel does inside, and a default
    device (`with torch.device("meta")` is such a mode) would be that of its buffers."""
    if torch._C._is_torch_function_mode_enabled() or torch.autograd._profiler_enabled():
        return True
    return torch._C._dispatch_tls_local_include_set().raw_repr() not in _NO_MODE


def _needs_no_dispatch(op: Op, flat: Sequence[Any]) -> bool:
    if _is_in_mode():
        return False
    followed = torch.is_grad_enabled()
    for given, argument in zip(flat, op._arguments, strict=False):
        kind = type(given)
        if kind not in argument.types:
            return False
        if kind is Tensor or kind is nn.Parameter:
            plain = given.is_cpu and given.layout is torch.strided and not given.is_neg() and not given._is_zerotensor()
            if not plain or (followed and given.requires_grad):
                return False
    return len(flat) <= len(op._arguments) and not any(a.required for a in op._arguments[len(flat) :])


OPS: dict[str, Op] = {}
IMPLEMENTED: dict[str, set[str]] = {}
"""Names of the ops that have a kernel of their own, by device."""
_kernels: dict[str, Callable[..., Any]] = {}
"""Those for the CPU, with their checks."""
_unchecked: dict[str, Callable[..., Any]] = {}
"""The same without."""


def define(
    schema: str,
    *,
    check: Callable[..., None],
    reference: Callable[..., Any],
    fake: Callable[..., Any],
    backward: Callable[..., Any] | None = None,
    setup_context: Callable[..., None] | None = None,
) -> Op:
    """Register an op; without `backward`, asking for its gradient is an error that says so.

    `backward` finds in `ctx.needs` which arguments need a gradient, in the structures that it returns gradients in.
    """
    signature = Signature.of(schema)
    name = signature.name
    _library.define(signature.schema, tags=(torch.Tag.pt2_compliant_tag,))
    overload = getattr(getattr(torch.ops, NAMESPACE), name).default
    tensors = _tensors_of(overload)
    run = _on_one_device(tensors, _checked(signature, check, reference))
    _library.impl(name, run, "CompositeExplicitAutograd")
    rule = _on_one_device(tensors, _grouped(signature, fake))
    torch.library.register_fake(f"{NAMESPACE}::{name}", rule, lib=_library)
    if "!" not in schema:  # an op that writes into its arguments is for use inside a backward
        torch.library.register_autograd(
            f"{NAMESPACE}::{name}",
            _no_gradient(name) if backward is None else _backward(signature, backward),
            setup_context=None if setup_context is None else _setup(signature, setup_context),
            lib=_library,
        )
    arguments = tuple(map(_argument_of, overload._schema.arguments))
    op = Op(name, signature, overload, check, reference, arguments)
    OPS[name] = op
    return op


def implement(op: Op, device: str, function: Callable[..., Any]) -> None:
    """Let `function` compute `op` on a type of device ("cpu", "cuda"); it is called with checked arguments."""
    run = _checked(op.signature, op._check, function)
    _library.impl(op.name, _on_one_device(_tensors_of(op.overload), run), device.upper())
    if device == "cpu":
        _kernels[op.name], _unchecked[op.name] = run, function
    IMPLEMENTED.setdefault(device, set()).add(op.name)


def _checked(signature: Signature, check: Callable[..., None], function: Callable[..., Any]) -> Callable[..., Any]:
    def run(*flat: Any) -> Any:
        args = signature.group(flat)
        check(*args)
        try:
            return function(*args)
        except (TypeError, AttributeError) as error:
            native.explain(error)
            raise

    return run


def _tensors_of(overload: Any) -> tuple[tuple[int, str], ...]:
    """Position and name of each argument that is a tensor, or a list of them."""
    named = enumerate(overload._schema.arguments)
    return tuple((k, argument.name) for k, argument in named if "Tensor" in str(argument.type))


def _on_one_device(tensors: tuple[tuple[int, str], ...], run: Callable[..., Any]) -> Callable[..., Any]:
    """`run`, for tensors of one device. A shape rule must check it, too: if one tensor is on the meta device, PyTorch
    asks the rule for the result, whose memory nobody then writes.
    """

    def checked(*flat: Any) -> Any:
        first = None
        for k, name in tensors:
            if k >= len(flat):
                break
            given = flat[k]
            if given is None:
                continue
            for tensor in given if isinstance(given, list) else (given,):
                if tensor is None:
                    continue
                device = tensor.device
                if first is None:
                    first, first_name = device, name
                elif device != first:
                    raise ValueError(
                        f"`{first_name}` and `{name}` must be on one device (got {first} and {device}); move one of "
                        "them with `.to(...)`"
                    )
        return run(*flat)

    return checked


def _grouped(signature: Signature, function: Callable[..., Any]) -> Callable[..., Any]:
    def run(*flat: Any) -> Any:
        return function(*signature.group(flat))

    return run


def _setup(signature: Signature, setup_context: Callable[..., None]) -> Callable[..., None]:
    def run(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        left_out = [None] * (signature.count - len(inputs))  # torch leaves out last arguments that equal their default
        setup_context(ctx, signature.group((*inputs, *left_out)), output)

    return run


def _backward(signature: Signature, backward: Callable[..., Any]) -> Callable[..., Any]:
    def run(ctx: Any, *grads: torch.Tensor) -> Any:
        needs = ctx.needs_input_grad  # without last arguments that equal their defaults
        ctx.needs = signature.group((*needs, *[False] * (signature.count - len(needs))))
        return signature.flatten_gradients(backward(ctx, *grads))

    return run


def _no_gradient(name: str) -> Callable[..., Any]:
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        raise RuntimeError(f"`{name}` has no gradient: detach its input (rounding), or differentiate only once")

    return backward
