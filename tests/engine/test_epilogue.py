"""Norm, activation and dropout as one: the same numbers, and never past a hook or a user's own class; Deferred."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
from torch import nn
from torch_geometric import nn as pyg

import gossamer as gs
from gossamer.engine import epilogue
from gossamer.engine.choice import lower
from gossamer.engine.epilogue import Deferred
from gossamer.ops.norm_act import Over
from support.pyg_models import assert_same, random_input
from support.traces import Calls

NORMS = {
    "none": lambda: None,
    "batch": lambda: nn.BatchNorm1d(8),
    "pyg batch": lambda: pyg.BatchNorm(8),
    "layer": lambda: nn.LayerNorm(8),
    "graph": lambda: pyg.LayerNorm(8),
}
ACTS = {"none": lambda: None, "relu": nn.ReLU, "elu": nn.ELU, "leaky": nn.LeakyReLU, "gelu": nn.GELU, "tanh": nn.Tanh}


@pytest.fixture(autouse=True)
def _same_numbers():
    torch.manual_seed(0)


@pytest.fixture
def graph():
    return random_input()


def sequence(*modules: nn.Module | None) -> nn.Sequential:
    return nn.Sequential(nn.Linear(12, 8), *[m for m in modules if m is not None], nn.Linear(8, 3))


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("norm", NORMS)
def test_a_sequence(norm, act, paths):
    model = sequence(NORMS[norm](), ACTS[act](), nn.Dropout(0.0))
    assert_same(model, torch.randn(50, 12, requires_grad=True))


@pytest.mark.parametrize("order", list(itertools.permutations(["norm", "act", "drop"])))
def test_any_order(order, paths):
    made = {"norm": nn.BatchNorm1d(8), "act": nn.ReLU(), "drop": nn.Dropout(0.0)}
    assert_same(sequence(*(made[name] for name in order), nn.ReLU(), nn.ELU()), torch.randn(50, 12))


def test_the_last_run_of_a_sequence_is_fused_too(fused):
    assert_same(nn.Sequential(nn.Linear(12, 8), nn.LayerNorm(8), nn.GELU()), torch.randn(50, 12))
    assert_same(nn.Sequential(nn.Sequential(nn.Linear(12, 8), nn.LayerNorm(8)), nn.GELU()), torch.randn(50, 12))


RUNS = {
    "all three": ([nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5)], ["norm_act"]),
    "no norm": ([nn.ReLU(), nn.Dropout(0.5)], ["relu_dropout"]),
    "norm after the activation": ([nn.ELU(), nn.BatchNorm1d(8)], ["norm_act", "norm_act"]),
    "two activations": ([nn.LayerNorm(8), nn.ReLU(), nn.ReLU()], ["norm_act", "relu_dropout"]),
    "dropout alone": ([nn.Dropout(0.5)], ["dropout"]),
}


@pytest.mark.parametrize("run", RUNS)
def test_a_run_in_order_is_one_op(run, fused):
    modules, want = RUNS[run]
    model = sequence(*copy.deepcopy(modules))
    gs.lighten_(model)
    with Calls() as calls:
        model(torch.randn(50, 12))
    assert [name for name in calls.names if name in ("norm_act", "relu_dropout", "dropout")] == want


@pytest.mark.parametrize("norm", [None, "batch_norm", "layer"])
def test_dropout_within_an_epilogue(norm, fused):
    """Where an element is kept it is that of the epilogue without dropout, divided by 1 - p; and so is its gradient."""
    x = torch.randn(300, 40, requires_grad=True)
    made = {None: None, "batch_norm": nn.BatchNorm1d(40), "layer": nn.LayerNorm(40)}[norm]
    modules = [m for m in (made, nn.ELU()) if m is not None]
    model = nn.Sequential(*modules, nn.Dropout(0.25))
    plain = nn.Sequential(*copy.deepcopy(modules))
    gs.lighten_(model)
    out, whole = model(x), plain(x)
    kept = out != 0
    assert abs(kept.float().mean().item() - 0.75) < 5 * (0.25 * 0.75 / x.numel()) ** 0.5
    torch.testing.assert_close(out, whole * kept / 0.75)
    noise = torch.randn_like(out)
    torch.testing.assert_close(
        torch.autograd.grad((out * noise).sum(), x)[0],
        torch.autograd.grad((whole * kept / 0.75 * noise).sum(), x)[0],
        rtol=1e-4, atol=1e-5,
    )  # fmt: skip


class PlusOneReLU(nn.ReLU):
    def forward(self, x):
        return super().forward(x) + 1


class PlusOneNorm(nn.BatchNorm1d):
    def forward(self, x):
        return super().forward(x) + 1


class PlusOneLayerNorm(nn.LayerNorm):
    def forward(self, x):
        return super().forward(x) + 1


class PlusOneDropout(nn.Dropout):
    def forward(self, x):
        return super().forward(x) + 1


@pytest.mark.parametrize(
    "modules",
    [
        (nn.BatchNorm1d(8), PlusOneReLU(), nn.Dropout(0.0)),
        (PlusOneNorm(8), nn.ReLU(), nn.Dropout(0.0)),
        (PlusOneLayerNorm(8), nn.ReLU()),
        (nn.LayerNorm(8), nn.ReLU(), PlusOneDropout(0.0)),
        (nn.BatchNorm1d(8), nn.PReLU(), nn.AlphaDropout(0.0)),
    ],
)
def test_a_subclass_computes_what_it_says(modules, fused):
    assert_same(sequence(*modules), torch.randn(50, 12))


@pytest.mark.parametrize("where", ["norm", "act", "dropout"])
def test_a_subclass_inside_a_ready_model(where, graph, fused):
    model = pyg.GCN(12, 8, 2, 3, norm="batch_norm")
    if where == "norm":
        model.norms[0] = PlusOneNorm(8)
    else:
        setattr(model, where, PlusOneReLU() if where == "act" else PlusOneDropout(0.0))
    assert_same(model, *graph)


def test_a_forward_replaced_on_the_module_runs(fused):
    model = sequence(nn.BatchNorm1d(8), nn.ReLU())
    gs.lighten_(model)
    model[2].forward = lambda x: torch.zeros_like(x)
    assert torch.equal(model(torch.randn(50, 12)), model[3](torch.zeros(50, 8)))


class Residual(nn.Module):
    """Reads what a module in place has changed."""

    def __init__(self, *modules: nn.Module) -> None:
        super().__init__()
        self.lin, self.tail = nn.Linear(12, 8), nn.Sequential(*modules)

    def forward(self, x):
        h = self.lin(x)
        return self.tail(h) + h


@pytest.mark.parametrize(
    "modules",
    [
        (nn.ReLU(inplace=True), nn.Dropout(0.0)),
        (nn.ELU(inplace=True), nn.Dropout(0.0)),
        (nn.Identity(), nn.ReLU(inplace=True), nn.Dropout(0.0)),
    ],
)
def test_an_epilogue_that_begins_in_place_changes_its_input(modules, fused):
    assert_same(Residual(*modules), torch.randn(50, 12), train=False)


HOOKS = ["register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook"]


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize("part", ["norms.0", "norms.0.module", "act", "dropout", "convs.0", "convs.0.lin", ""])
def test_hooks_fire_inside_a_ready_model(hook, part, graph, fused):
    model = pyg.GCN(12, 8, 2, 3, norm="batch_norm", dropout=0.5)
    fired = []
    getattr(model.get_submodule(part), hook)(lambda module, *args: fired.append(part))
    gs.lighten_(model)
    model(*graph).sum().backward()
    assert fired == [part]


@pytest.mark.parametrize("part", [1, 2, 3])
def test_hooks_fire_inside_a_sequence(part, fused):
    model = sequence(nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5))
    gs.lighten_(model)
    fired = []
    handle = model[part].register_forward_hook(lambda module, args, out: fired.append(type(module).__name__))
    model(torch.randn(50, 12))
    assert len(fired) == 1
    handle.remove()
    model(torch.randn(50, 12))
    assert len(fired) == 1


@pytest.mark.parametrize(
    "register",
    [
        nn.modules.module.register_module_forward_hook,
        nn.modules.module.register_module_forward_pre_hook,
        nn.modules.module.register_module_full_backward_hook,
    ],
)
def test_hooks_on_all_modules_fire(register, graph, fused):
    model = pyg.GCN(12, 8, 2, 3, norm="batch_norm")
    seen = {}
    for lighter in (False, True):
        if lighter:
            gs.lighten_(model)
        names = seen[lighter] = []
        handle = register(lambda module, *args, names=names: names.append(module))
        try:
            model(*graph).sum().backward()
        finally:
            handle.remove()
    expected = {id(m) for m in seen[False] if not isinstance(m, pyg.Aggregation)}  # our sums need no such module
    assert {id(m) for m in seen[True]} == expected


@pytest.mark.parametrize("act", [torch.tanh, torch.relu, lambda x: x.sin()])
def test_an_activation_that_is_a_function(act, graph, fused):
    assert_same(pyg.GCN(12, 8, 2, 3, act=act, norm="batch_norm"), *graph)


class CentredPerGraph(nn.Module):
    """A user's norm that asks which rows are one graph."""

    def __init__(self, in_channels: int) -> None:
        super().__init__()

    def forward(self, x, batch=None, batch_size=None):
        return x - x.mean() if batch is None else x - batch.unsqueeze(1)


def test_a_users_norm_is_told_of_the_batch(graph, paths):
    model = pyg.GCN(12, 8, 2, 3, norm=CentredPerGraph(8))
    assert_same(model, *graph, batch=torch.arange(50) // 10)
    assert_same(model, *graph)


# Matching -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "norm,over",
    [
        (None, Over.NOTHING), (nn.Identity(), Over.NOTHING), (nn.BatchNorm1d(8), Over.COLUMNS),
        (pyg.BatchNorm(8), Over.COLUMNS), (nn.BatchNorm1d(8).eval(), Over.FIXED), (nn.LayerNorm(8), Over.ROWS),
        (pyg.LayerNorm(8), Over.ALL), (pyg.LayerNorm(8, mode="node"), Over.ROWS),
    ],
)  # fmt: skip
def test_what_a_norm_is_taken_over(norm, over):
    found = epilogue.match(torch.randn(50, 8), norm, nn.LeakyReLU(0.3), 0.25, None)
    assert found.norm.over == over and found.act == ("leaky_relu", 0.3) and found.p == 0.25
    assert (found.running is not None) == (over == Over.COLUMNS)


def hooked(module):
    module.register_forward_hook(lambda *args: None)
    return module


@pytest.mark.parametrize(
    "norm,act,drop,batch",
    [
        (nn.BatchNorm1d(8), nn.ReLU(), 0.0, (torch.arange(50) // 10, None)),
        (nn.BatchNorm1d(7), nn.ReLU(), 0.0, None),
        (nn.LayerNorm((50, 8)), None, 0.0, None),
        (pyg.GraphNorm(8), nn.ReLU(), 0.0, None),
        (nn.BatchNorm1d(8), nn.Tanh(), 0.0, None),
        (nn.BatchNorm1d(8), PlusOneReLU(), 0.0, None),
        (None, nn.ReLU(inplace=True), 0.0, None),
        (nn.BatchNorm1d(8), nn.ReLU(), nn.AlphaDropout(0.1), None),
        (hooked(nn.BatchNorm1d(8)), nn.ReLU(), 0.0, None),
        (nn.BatchNorm1d(8), hooked(nn.ReLU()), 0.0, None),
        (nn.BatchNorm1d(8), nn.ReLU(), hooked(nn.Dropout(0.1)), None),
    ],
)
def test_what_is_called_module_by_module(norm, act, drop, batch):
    assert epilogue.match(torch.randn(50, 8), norm, act, drop, batch) is None


def test_dropout_that_is_off():
    x = torch.randn(50, 8)
    assert epilogue.match(x, None, nn.ReLU(), nn.Dropout(0.5), None).p == 0.5
    assert epilogue.match(x, None, nn.ReLU(), nn.Dropout(0.5).eval(), None).p == 0.0


# Deferred -------------------------------------------------------------------------------------------------------

DEFERRING = {
    "few bits": (gs.Float32(), gs.Blockwise(bits=8)),
    "int8": (gs.Int8(), gs.Keep()),
    "int8, few bits": (gs.Int8(), gs.Blockwise(bits=8)),
}
TAILS = {
    "batch": lambda: (nn.BatchNorm1d(40), nn.ReLU(), 0.0),
    "layer": lambda: (nn.LayerNorm(40), nn.LeakyReLU(), 0.0),
    "dropout": lambda: (nn.BatchNorm1d(40), nn.ReLU(), 0.5),
}


def deferred_of(recipe, x, tail):
    found = lower(*DEFERRING[recipe]).epilogue(x, *tail, defer=True)
    assert isinstance(found, Deferred)
    return found


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("recipe", DEFERRING)
def test_a_deferred_epilogue_runs_as_it_would_have(recipe, tail):
    """Same result, same masks, same running statistics, only later."""
    made, x = TAILS[tail](), torch.randn(300, 40, requires_grad=True)
    again = copy.deepcopy(made)
    deferred = deferred_of(recipe, x, made)
    assert deferred.x is x and [deferred.size(k) for k in (0, 1)] == [300, 40]
    torch.manual_seed(4)
    out = epilogue.ready(deferred)
    torch.manual_seed(4)
    assert torch.equal(out, lower(*DEFERRING[recipe]).epilogue(x, *again))
    assert all(torch.equal(a, b) for a, b in zip(made[0].buffers(), again[0].buffers(), strict=True))


@pytest.mark.parametrize("recipe", DEFERRING)
def test_a_deferred_epilogue_runs_once(recipe):
    """It holds the only reference to its input, and lets go of it."""
    x = torch.randn(300, 40, requires_grad=True)
    deferred = deferred_of(recipe, x, TAILS["batch"]())
    deferred.run()
    with pytest.raises(AssertionError, match="the epilogue has run"):
        deferred.run()


@pytest.mark.parametrize("recipe", ["few bits", "int8, few bits"])
def test_products_of_a_deferred_epilogue(recipe):
    """Those of its result, up to the rounding of sums in another order."""
    made, x = TAILS["batch"](), torch.randn(300, 40, requires_grad=True)
    again, weights = copy.deepcopy(made), [torch.randn(7, 40), torch.randn(3, 40)]
    deferred = deferred_of(recipe, x, made)
    assert deferred.multiplies
    outs = deferred.products(weights, [torch.ones(7), None])
    whole = again[1](again[0](x))
    torch.testing.assert_close(outs, (whole @ weights[0].t() + 1, whole @ weights[1].t()), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(dict(made[0].named_buffers()), dict(again[0].named_buffers()))


def test_float32_never_defers():
    x = torch.randn(300, 40, requires_grad=True)
    assert isinstance(lower(gs.Float32(), gs.Keep()).epilogue(x, *TAILS["batch"](), defer=True), torch.Tensor)


@pytest.mark.parametrize("recipe", DEFERRING)
def test_small_tensors_are_not_deferred(recipe):
    x = torch.randn(3, 8, requires_grad=True)
    tail = (nn.BatchNorm1d(8), nn.ReLU(), 0.0)
    assert isinstance(lower(*DEFERRING[recipe]).epilogue(x, *tail, defer=True), torch.Tensor)


def test_what_is_no_epilogue_is_ready():
    x = torch.randn(3, 8)
    assert epilogue.ready(x) is x and epilogue.input_of(x) is x
