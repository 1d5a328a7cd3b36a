"""norm_act beside the modules it stands for, and what it refuses."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch_geometric.nn import LayerNorm as GraphLayerNorm

from gossamer.ops import OPS, norm_act
from gossamer.ops.activation import ACTIVATIONS
from gossamer.ops.dropout import kept
from gossamer.ops.norm_act import Over
from support.norm_act import act, differentiated, inputs
from support.tensors import rand

NORMS = {
    "BatchNorm1d": (lambda: nn.BatchNorm1d(17), Over.COLUMNS),
    "BatchNorm1d, evaluation": (lambda: nn.BatchNorm1d(17).eval(), Over.FIXED),
    "LayerNorm": (lambda: nn.LayerNorm(17), Over.ROWS),
    "PyG's LayerNorm of nodes": (lambda: GraphLayerNorm(17, mode="node"), Over.ROWS),
    "PyG's LayerNorm of a graph": (lambda: GraphLayerNorm(17, mode="graph"), Over.ALL),
    "Identity": (nn.Identity, Over.NOTHING),
}
MODULES = {
    "identity": nn.Identity(),
    "relu": nn.ReLU(),
    "leaky_relu": nn.LeakyReLU(0.2),
    "elu": nn.ELU(1.3),
    "gelu": nn.GELU(),
}


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_equals_the_modules_with_their_gradients(norm, name, dtype):
    """float64 is the reference and agrees to a few of its roundings; float32 is the kernel, with sums of 300 terms."""
    make, over = NORMS[norm]
    module = make().to(dtype)
    x, weight, bias, mean, var = inputs(300, 17, over, dtype)
    dout = rand(300, 17, seed=9, dtype=dtype)
    with torch.no_grad():
        for own, value in zip(module.parameters(), (weight, bias), strict=False):
            own.copy_(value)
        if mean is not None:
            module.running_mean.copy_(mean), module.running_var.copy_(var)
    eps = getattr(module, "eps", 0.0)
    (out, own_mean, own_var), grads = differentiated([x, weight, bias, mean, var], act(name, over=over, eps=eps), dout)
    leaf = x.clone().requires_grad_()
    want = MODULES[name](module(leaf))
    want_grads = torch.autograd.grad(want, [leaf, *module.parameters()], dout)
    near = {"rtol": 1e-10, "atol": 1e-11} if dtype == torch.float64 else {"rtol": 1e-4, "atol": 2e-4}
    torch.testing.assert_close(out, want.detach(), **near)
    torch.testing.assert_close([g for g in grads if g is not None], list(want_grads), **near)
    if norm == "BatchNorm1d":  # its running statistics move by a tenth, towards the unbiased variance
        torch.testing.assert_close(own_mean * 0.1, module.running_mean, **near)
        torch.testing.assert_close(0.9 + own_var * 0.1 * 300 / 299, module.running_var, **near)


@pytest.mark.parametrize("over", list(Over), ids=lambda o: o.name)
def test_dropout_comes_last_as_in_torch(over, isa):
    """E[out] is the result without dropout: a z-test over seeds. torch.nn.functional.dropout has the same variance."""
    args, draws, p = inputs(6, 17, over), 2000, 0.4
    plain = norm_act(*args, *act("leaky_relu", over=over))[0]
    drawn = torch.stack([norm_act(*args, *act("leaky_relu", p, over)._replace(seed=seed))[0] for seed in range(draws)])
    survived = drawn != 0
    torch.testing.assert_close(drawn, torch.where(survived, plain / (1 - p), 0.0))
    z = (drawn.double().mean(0) - plain) / (plain.double().abs() * (p / (1 - p) / draws) ** 0.5)
    assert abs(z.square().mean() - 1) < 5 * (2 / z.numel()) ** 0.5 and z.abs().max() < 5.5
    torch.manual_seed(0)
    torchs = torch.stack([functional.dropout(plain, p) for _ in range(draws)])
    spread = (torchs.var(0) / drawn.var(0)).mean()
    assert abs(spread - 1) < 0.05


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_dropout_rate_and_scale(p, isa):
    """The mask is `dropout`'s own; survivors are binomial, and divided by 1 - p."""
    x = torch.ones(2000, 64)
    out = norm_act(x, None, None, None, None, *act("identity", p, 0))[0]
    survivors = int((out != 0).sum())
    assert torch.equal(out != 0, kept(x, p, 11))
    assert abs(survivors - x.numel() * (1 - p)) < 5 * (x.numel() * p * (1 - p)) ** 0.5
    assert torch.equal(out[out != 0], torch.full((survivors,), 1 / (1 - p)))


@pytest.mark.parametrize("over", list(Over), ids=lambda over: over.name)
@pytest.mark.parametrize("name", ["elu", "gelu", "identity"])
def test_second_gradients(name, over):
    args = [None if t is None else t.double() for t in inputs(5, 3, over)]
    leaves = [t.requires_grad_() for t in args[:3] if t is not None]

    def run(*given):
        given = iter(given)
        first = [next(given) if t is not None else None for t in args[:3]]
        return norm_act(*first, *args[3:], *act(name, over=over))[0]

    assert torch.autograd.gradgradcheck(run, leaves)


@pytest.mark.parametrize("name, at", [("mean", 3), ("var", 4)])
def test_fixed_statistics_that_require_grad_are_refused(name, at):
    args = inputs(5, 3, Over.FIXED)
    args[at].requires_grad_()
    with pytest.raises(ValueError, match=f"`{name}` must not require grad.*Detach"):
        norm_act(*args, *act("relu", over=Over.FIXED))


V, FIXED, COLUMNS = rand(3), Over.FIXED, Over.COLUMNS
BAD = [
    (TypeError, "`x` must be float32 or float64.*bfloat16", (rand(5, 3).bfloat16(), None, None, None, None), {}),
    (ValueError, r"`x` must have the shape \[rows, columns\].*\(5,\)", (rand(5), None, None, None, None), {}),
    (ValueError, r"`over`.*FIXED = 1.*got 5", (rand(5, 3), None, None, None, None), {"over": 5}),
    (ValueError, r"`over`.*got -1", (rand(5, 3), None, None, None, None), {"over": -1}),
    (TypeError, "`weight` must be float32.*float64", (rand(5, 3), V.double(), None, None, None), {}),
    (ValueError, r"`weight`.*\[3\], one number per column.*\(4,\)", (rand(5, 3), rand(4), None, None, None), {}),
    (ValueError, r"`bias`.*\[3\].*\(1, 3\)", (rand(5, 3), V, rand(1, 3), None, None), {}),
    (TypeError, "`bias`.*int64", (rand(5, 3), V, V.long(), None, None), {}),
    (ValueError, r"`var`.*\[3\]", (rand(5, 3), V, V, V, rand(2)), {"over": FIXED}),
    (TypeError, "`mean`.*float64", (rand(5, 3), V, V, V.double(), V), {"over": FIXED}),
    (ValueError, "`mean` and `var` must be given if", (rand(5, 3), V, V, None, None), {"over": FIXED}),
    (ValueError, "`mean` and `var`.*FIXED", (rand(5, 3), V, V, V, None), {"over": FIXED}),
    (ValueError, "`mean` and `var`.*only then", (rand(5, 3), V, V, V, V), {"over": COLUMNS}),
    (ValueError, "`weight` and `bias` need a normalisation", (rand(5, 3), V, None, None, None), {"over": Over.NOTHING}),
    (ValueError, r"`x` must not be empty.*\(0, 3\)", (rand(0, 3), V, V, None, None), {"over": COLUMNS}),
    (ValueError, r"`x` must not be empty.*\(5, 0\)", (rand(5, 0), None, None, None, None), {"over": Over.ALL}),
    (ValueError, "`eps`.*0 or more.*got -1e-05", (rand(5, 3), V, V, None, None), {"eps": -1e-5}),
    (ValueError, "`eps`.*finite.*got nan", (rand(5, 3), V, V, None, None), {"eps": float("nan")}),
    (ValueError, "`act` must be the number of one of.*gelu.*got 5", (rand(5, 3), V, V, None, None), {"act": 5}),
    (ValueError, "`act`.*got -1", (rand(5, 3), V, V, None, None), {"act": -1}),
    (ValueError, "`slope`.*finite.*got nan", (rand(5, 3), V, V, None, None), {"slope": float("nan")}),
    (ValueError, "`slope`.*finite.*got inf", (rand(5, 3), V, V, None, None), {"slope": float("inf")}),
    (ValueError, "`p`.*probability.*got 1.5", (rand(5, 3), V, V, None, None), {"p": 1.5}),
    (ValueError, "`p`.*got nan", (rand(5, 3), V, V, None, None), {"p": float("nan")}),
]


@pytest.mark.parametrize("error, message, args, changed", BAD)
def test_bad_arguments(error, message, args, changed):
    with pytest.raises(error, match=message):
        norm_act(*args, *act("elu")._replace(**changed))


@pytest.mark.parametrize(
    "error, message, changed",
    [
        (ValueError, r"`dout`.*of x, \(5, 3\).*\(3, 5\)", {0: rand(3, 5)}),
        (TypeError, "`dout`.*float64", {0: rand(5, 3).double()}),
        (ValueError, r"`mean`.*\[3\].*\(1,\)", {4: rand(1)}),
        (ValueError, r"`var`.*\[3\].*\(5,\)", {5: rand(5)}),
        (TypeError, "`var` must be float32.*float64", {5: V.double()}),
        (ValueError, r"`weight`.*\[3\]", {2: rand(5)}),
    ],
)
def test_bad_arguments_of_backward(error, message, changed):
    args = [rand(5, 3), rand(5, 3), V, V, V, V, *act("elu")]
    for at, value in changed.items():
        args[at] = value
    with pytest.raises(error, match=message):
        OPS["norm_act_backward"](*args)
