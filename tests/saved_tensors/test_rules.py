"""Every op that keeps few bits has the right gradient on average, and every other op has torch's own, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import gossamer as gs
from gossamer.saved_tensors import rules, slopes

ROWS, COLUMNS, DRAWS = 64, 16, 40
LARGEST = 2.0
"""Mean square of z-scores: 1 without bias; norms have one degree of freedom per mean, hence the room."""


@dataclass(frozen=True)
class Shaken(gs.Codec):
    """x + amount or x - amount, each with probability 1/2: every element has the same noise, also at a range's end."""

    amount: float

    def encode(self, x: Tensor, seed: int | None = None) -> gs.Codes:
        signs = torch.randint(0, 2, x.shape, generator=torch.Generator().manual_seed(seed or 0)) * 2 - 1
        return gs.Codes((x.detach() + self.amount * signs,), x.shape, x.dtype)

    def decode(self, codes: gs.Codes) -> Tensor:
        return codes.tensors[0]

    def nbytes(self, shape: torch.Size | tuple[int, ...]) -> int:
        return torch.Size(shape).numel()  # what a codec worth its name would take

    def error_bound(self, codes: gs.Codes) -> Tensor:
        return torch.tensor(self.amount)


Function = Callable[[Tensor, Tensor], Tensor]

PRODUCTS: dict[str, Function] = {
    "addbmm": lambda x, y: torch.addbmm(torch.zeros(16, 16), x.view(4, 16, 16), y.view(4, 16, 16)),
    "addmm": lambda x, y: torch.addmm(torch.zeros(16, 16), x.t(), y),
    "addmv": lambda x, y: torch.addmv(torch.zeros(64), x, y[0]),
    "baddbmm": lambda x, y: torch.baddbmm(torch.zeros(4, 16, 16), x.view(4, 16, 16), y.view(4, 16, 16)),
    "bmm": lambda x, y: torch.bmm(x.view(4, 16, 16), y.view(4, 16, 16)),
    "einsum": lambda x, y: torch.einsum("bij,bkj->ik", x.view(4, 16, 16), y.view(4, 16, 16)),
    "linear": lambda x, y: functional.linear(x.view(4, 16, 16), y[:16], y[0]),
    "mm": lambda x, y: x.t() @ y,
    "mv": lambda x, y: x @ y[0],
    "own transpose": lambda x, y: x @ x.t(),
}
VALUES: dict[str, Function] = {
    "adaptive_avg_pool2d": lambda x, y: functional.adaptive_avg_pool2d(x.view(4, 4, 8, 8), (3, 2)),
    "adaptive_avg_pool3d": lambda x, y: functional.adaptive_avg_pool3d(x.view(2, 4, 2, 8, 8), (1, 3, 2)),
    "adaptive_max_pool2d": lambda x, y: functional.adaptive_max_pool2d(x.view(4, 4, 8, 8), (3, 2)),
    "adaptive_max_pool3d": lambda x, y: functional.adaptive_max_pool3d(x.view(2, 4, 2, 8, 8), (1, 3, 2)),
    "addcdiv": lambda x, y: torch.addcdiv(x, x, y.exp()),
    "addcmul": lambda x, y: torch.addcmul(x, x, y),
    "avg_pool2d": lambda x, y: functional.avg_pool2d(x.view(4, 4, 8, 8), 2),
    "avg_pool3d": lambda x, y: functional.avg_pool3d(x.view(2, 4, 2, 8, 8), 2),
    "batch_norm": lambda x, y: functional.batch_norm(x, None, None, y[0], y[1], training=True),
    "conv1d": lambda x, y: functional.conv1d(x.view(4, 16, 16), y[:48].view(16, 16, 3)),
    "conv2d": lambda x, y: functional.conv2d(x.view(4, 4, 8, 8), y[:9].view(4, 4, 3, 3)),
    "conv2d, channels last": lambda x, y: functional.conv2d(
        x.view(4, 4, 8, 8).to(memory_format=torch.channels_last), y[:9].view(4, 4, 3, 3)
    ),
    "cosine_similarity": lambda x, y: functional.cosine_similarity(x, y),
    "div": lambda x, y: x / y.exp(),
    "dot": lambda x, y: torch.dot(x.view(-1), y.view(-1)),
    "group_norm": lambda x, y: functional.group_norm(x.view(8, 8, 16), 2, y[0, :8], y[1, :8]),
    "layer_norm": lambda x, y: functional.layer_norm(x, (16,), y[0], y[1]),
    "lerp": lambda x, y: torch.lerp(x, y, x + y),
    "max_pool2d": lambda x, y: functional.max_pool2d(x.view(4, 4, 8, 8), 2),
    "max_pool3d": lambda x, y: functional.max_pool3d(x.view(2, 4, 2, 8, 8), 2),
    "mse_loss": lambda x, y: functional.mse_loss(x, y, reduction="none"),
    "mul": lambda x, y: x * y,
    "rms_norm": lambda x, y: functional.rms_norm(x, (16,), y[0]),
    "square": lambda x, y: x**2 + y.square(),
    "std": lambda x, y: x.std(0),
    "var": lambda x, y: x.var(0),
}
QUADRATIC = {
    "batch_norm",
    "cosine_similarity",
    "group_norm",
    "layer_norm",
    "rms_norm",
}  # a bias of Var/N: keep Var small
"""Unbiased up to one element in N."""

SIGNS: dict[str, Function] = {
    "leaky_relu": lambda x, y: functional.leaky_relu(x, 0.1),
    "leaky_relu in place": lambda x, y: functional.leaky_relu(x + y, 0.1, inplace=True),
    "relu": lambda x, y: functional.relu(x),
    "relu in place": lambda x, y: (x + y).relu_(),
}
MASKS: dict[str, Function] = {
    "dropout": lambda x, y: functional.dropout(x, 0.3),
    "integers times": lambda x, y: x * (y > 0).long(),
    "masked_fill": lambda x, y: x.masked_fill(y > 0, 3.0),
    "two numbers times": lambda x, y: x * torch.where(y.detach() > 0, 0.1, -3.7),
    "where": lambda x, y: torch.where(y > 0, x, y),
}
STEPS: dict[str, Function] = {
    "abs": lambda x, y: x.abs(),
    "clamp": lambda x, y: x.clamp(-0.5, 0.5),
    "hardshrink": lambda x, y: functional.hardshrink(x),
    "hardsigmoid": lambda x, y: functional.hardsigmoid(4 * x),
    "hardtanh": lambda x, y: functional.hardtanh(x),
    "relu6": lambda x, y: functional.relu6(8 * x),
    "softshrink": lambda x, y: functional.softshrink(x),
    "threshold": lambda x, y: functional.threshold(x, 0.1, 20.0),
}
SLOPES: dict[str, Function] = {
    "celu": lambda x, y: functional.celu(x),
    "cos": lambda x, y: torch.cos(input=x),
    "elu": lambda x, y: functional.elu(x, alpha=0.7),
    "erf": lambda x, y: x.erf(),
    "gelu": lambda x, y: functional.gelu(x),
    "gelu by tanh": lambda x, y: functional.gelu(x, approximate="tanh"),
    "hardswish": lambda x, y: functional.hardswish(x),
    "logsigmoid": lambda x, y: functional.logsigmoid(x),
    "mish": lambda x, y: functional.mish(x),
    "selu": lambda x, y: functional.selu(x),
    "sigmoid": lambda x, y: x.sigmoid(),
    "silu": lambda x, y: functional.silu(x),
    "sin": lambda x, y: x.sin(),
    "softplus": lambda x, y: functional.softplus(x, beta=2),
    "tanh": lambda x, y: torch.tanh(x),
}
EXACT: dict[str, Function] = {
    "amax": lambda x, y: x.amax(1),
    "atan2": lambda x, y: torch.atan2(x, y),
    "cdist": lambda x, y: torch.cdist(x, y),
    "clamp by tensors": lambda x, y: torch.clamp(x, max=y),
    "cross_entropy": lambda x, y: functional.cross_entropy(x, torch.arange(64) % 16),
    "cumprod": lambda x, y: x.cumprod(1),
    "elu in place": lambda x, y: functional.elu(x + y, inplace=True),
    "exp": lambda x, y: x.exp(),
    "glu": lambda x, y: functional.glu(x),
    "huber_loss": lambda x, y: functional.huber_loss(x, y),
    "log": lambda x, y: torch.log(x.abs() + 1),
    "logsumexp": lambda x, y: x.logsumexp(1),
    "max": lambda x, y: torch.max(x, 1).values,
    "maximum": lambda x, y: torch.maximum(x, y),
    "norm": lambda x, y: x.norm(dim=1),
    "pow 3": lambda x, y: x**3,
    "prelu": lambda x, y: functional.prelu(x, torch.tensor([0.2])),
    "prod": lambda x, y: x.prod(1),
    "rrelu": lambda x, y: functional.rrelu(x, training=True),
    "scatter max": lambda x, y: torch.zeros(8, 16).scatter_reduce(
        0, (torch.arange(64) % 8).view(-1, 1).expand(64, 16), x, "amax"
    ),
    "softmax": lambda x, y: x.softmax(1),
    "sqrt": lambda x, y: (x * 0 + y.detach().abs() + 1).sqrt(),
    "square of a power": lambda x, y: torch.pow(2.0, x),
}


@pytest.fixture(autouse=True)
def _same_numbers():
    torch.manual_seed(0)


def gradients(function: Function, codec: gs.Codec | None = None) -> tuple[Tensor, list[Tensor], object]:
    """Output, gradients and account of a function of two hidden tensors, always with the same random numbers."""
    generator = torch.Generator().manual_seed(1)
    leaves = [torch.randn(ROWS, COLUMNS, generator=generator).requires_grad_() for _ in range(2)]
    hidden = [leaf + 0.5 for leaf in leaves]
    account = None
    if codec is None:
        torch.manual_seed(2)
        out = function(*hidden)
    else:
        with gs.compressed_activations(codec, least=16) as account:
            torch.manual_seed(2)
            out = function(*hidden)
    dout = torch.randn(out.shape, generator=generator)
    grads = torch.autograd.grad(out, leaves, dout, allow_unused=True)
    return out.detach(), [grad for grad in grads if grad is not None], account


def z_scores(function: Function, amount: float) -> Tensor:
    """(mean - exact) / standard error of each gradient; elements without noise are compared and left out."""
    _, exact, _ = gradients(function)
    draws = []
    for draw in range(DRAWS):
        torch.manual_seed(draw)
        draws.append(gradients(function, Shaken(amount))[1])
    scores = []
    for wanted, *found in zip(exact, *draws, strict=True):
        noisy = torch.stack(found).double()
        mean, error = noisy.mean(0), noisy.std(0) / DRAWS**0.5
        rounding = 1e-6 * float(wanted.abs().max())
        still = error <= rounding
        torch.testing.assert_close(mean[still].float(), wanted[still], rtol=0, atol=10 * rounding)
        scores.append(((mean - wanted) / error)[~still])
    return torch.cat(scores)


@pytest.mark.parametrize("name", PRODUCTS | VALUES | SLOPES)
def test_unbiased(name: str) -> None:
    function = (PRODUCTS | VALUES | SLOPES)[name]
    scores = z_scores(function, 0.03 if name in QUADRATIC else 0.5)
    if "pool" in name:  # they save their input for its shape alone
        assert scores.numel() == 0
    else:
        assert scores.numel() >= COLUMNS
        assert scores.square().mean() < LARGEST and scores.abs().max() < 6


@pytest.mark.parametrize("name", PRODUCTS | VALUES | SLOPES)
def test_fewer_bytes_and_the_same_output(name: str) -> None:
    function = (PRODUCTS | VALUES | SLOPES)[name]
    out, _, account = gradients(function, gs.Blockwise(bits=2))
    assert torch.equal(out, gradients(function)[0])
    assert 0 < 4 * account.bytes_kept < account.bytes_before


def test_would_be_biased_without_the_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(rules.VALUES, "LogBackward0", ("self",))
    monkeypatch.setattr(slopes, "ELEMENTWISE", frozenset())
    assert z_scores(EXACT["log"], 0.5).square().mean() > 2 * LARGEST


@pytest.mark.parametrize("name", SIGNS | MASKS | STEPS)
def test_one_bit_is_exact(name: str) -> None:
    function = (SIGNS | MASKS | STEPS)[name]
    out, exact, _ = gradients(function)
    same, found, account = gradients(function, gs.Blockwise(bits=2))
    assert torch.equal(same, out)
    assert account.tensors > 0 and account.bytes_kept == account.tensors * ROWS * COLUMNS // 8
    for one, other in zip(exact, found, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-6, atol=0)  # 1/6 of hardsigmoid is rounded at another place


@pytest.mark.parametrize("name", EXACT)
def test_others_are_left_to_torch(name: str) -> None:
    out, exact, _ = gradients(EXACT[name])
    same, found, _ = gradients(EXACT[name], Shaken(0.5))
    assert torch.equal(same, out)
    assert all(torch.equal(one, other) for one, other in zip(exact, found, strict=True))


def test_every_rule_is_tested() -> None:
    """The nodes in the tables are those that this torch makes, except where another device makes them."""
    made = set()
    for function in (PRODUCTS | VALUES | SIGNS).values():
        x, y = (torch.randn(ROWS, COLUMNS, requires_grad=True) + 0.5 for _ in range(2))
        made |= {type(node).__name__ for node in rules.nodes_since(0, [function(x, y)])}
    elsewhere = {"CudnnBatchNormBackward0", "FusedRmsNormBackward0", "LinearBackward0"}
    assert (rules.PRODUCTS | rules.VALUES | rules.SIGNS).keys() - made == elsewhere


def test_every_elementwise_function_is_tested() -> None:
    tested = {name.split()[0] for name in STEPS | SLOPES}
    assert {function.__name__.strip("_") for function in slopes.ELEMENTWISE} <= tested | {"log_sigmoid"}
