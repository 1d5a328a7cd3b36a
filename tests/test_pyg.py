"""`lighten_` and `restore_`: what changes, what must not, and what the report says."""

from __future__ import annotations

import copy
import io
import json
import pickle
import random
import threading

import pytest
import torch
import torch.nn.functional as F
from rich.console import Console
from torch import nn
from torch_geometric import nn as pyg

import gossamer as gs
from gossamer import layers
from gossamer.pyg import NothingToLighten
from gossamer.recipe import UnknownRecipe
from support.pyg_models import Gcnii


class Own(nn.Module):
    """A model as users write them, with every kind of layer."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList([pyg.GCNConv(12, 8), pyg.SAGEConv(8, 8), pyg.GATConv(8, 8), pyg.GraphConv(8, 8)])
        self.gin = pyg.GINConv(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)))
        self.norm, self.head = nn.BatchNorm1d(8), pyg.MLP([8, 8, 3])

    def forward(self, x, edge_index):
        for conv in self.convs:
            x = F.elu(conv(x, edge_index))
        return self.head(self.norm(self.gin(x, edge_index)))


MODELS = {
    "own": Own,
    "gcn": lambda: pyg.GCN(12, 8, 2, 3, norm="batch_norm", jk="cat"),
    "sage": lambda: pyg.GraphSAGE(12, 8, 2, 3, norm="layer_norm"),
    "gin": lambda: pyg.GIN(12, 8, 2, 3),
    "gat": lambda: pyg.GAT(12, 8, 2, 3, heads=2, v2=True),
    "gcnii": lambda: Gcnii(12, 8, 2, 3),
    "sequence": lambda: pyg.Sequential("x, e", [(pyg.GCNConv(12, 8), "x, e -> x"), nn.ReLU(), nn.Linear(8, 3)]),
}


@pytest.fixture(params=MODELS)
def model(request):
    torch.manual_seed(0)
    random.seed()  # PyG names the code that it writes for a Sequential by it; another test may have left its seed
    return MODELS[request.param]()


@pytest.fixture
def graph():
    rng = torch.Generator().manual_seed(1)
    return torch.randn(40, 12, generator=rng), torch.randint(0, 40, (2, 200), generator=rng)


def facts(model: nn.Module) -> dict:
    """All that restoring must bring back: classes, attributes, hooks."""
    return {name: (type(m), sorted(m.__dict__), dict(m._forward_hooks)) for name, m in model.named_modules()}


def losses(model: nn.Module, optimizer, graph, steps: int = 5) -> list[float]:
    target = torch.arange(40) % 3
    seen = []
    for _ in range(steps):
        loss = F.cross_entropy(model(*graph), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.append(loss.item())
    return seen


# What stays -----------------------------------------------------------------------------------------------------


def test_parameters_keys_and_classes_stay(model):
    parameters, buffers = dict(model.named_parameters()), dict(model.named_buffers())
    kinds = {name: type(m) for name, m in model.named_modules()}
    keys = list(model.state_dict())
    gs.lighten_(model)
    assert list(model.state_dict()) == keys
    assert all(p is parameters[name] for name, p in model.named_parameters())
    assert all(b is buffers[name] for name, b in model.named_buffers())
    assert all(isinstance(m, kinds[name]) for name, m in model.named_modules())
    assert any(type(m) is not kinds[name] for name, m in model.named_modules())


def test_restoring_undoes_everything(model, graph):
    before = facts(model)
    shown = repr(model)
    gs.lighten_(model)
    assert repr(model) == shown
    model(*graph).sum().backward()
    assert gs.restore_(model) is model
    assert facts(model) == before


def test_restoring_what_was_never_lightened(model):
    before = facts(model)
    assert gs.restore_(model) is model and facts(model) == before


def test_lightened_twice_is_lightened_once(model, graph):
    before = facts(model)
    first = gs.lighten_(model)
    kinds = [type(m) for m in model.modules()]
    assert gs.lighten_(model) == first
    assert [type(m) for m in model.modules()] == kinds
    gs.restore_(model)
    assert facts(model) == before


def test_an_optimizer_made_before_stays_valid(model, graph):
    plain = copy.deepcopy(model)
    optimizer = torch.optim.Adam(model.parameters(), 0.02)
    gs.lighten_(model)
    ours = losses(model, optimizer, graph)
    want = losses(plain, torch.optim.Adam(plain.parameters(), 0.02), graph)
    assert ours == pytest.approx(want, rel=1e-3)
    gs.restore_(model)
    assert losses(model, optimizer, graph, 3)[-1] < ours[0]


def test_checkpoints_move_both_ways(model, graph):
    plain = copy.deepcopy(model)
    gs.lighten_(model)
    losses(model, torch.optim.Adam(model.parameters(), 0.02), graph)
    plain.load_state_dict(model.state_dict())
    torch.testing.assert_close(model.eval()(*graph), plain.eval()(*graph), rtol=1e-4, atol=1e-5)
    losses(plain.train(), torch.optim.Adam(plain.parameters(), 0.02), graph)
    model.load_state_dict(plain.state_dict())
    torch.testing.assert_close(model.eval()(*graph), plain.eval()(*graph), rtol=1e-4, atol=1e-5)


def test_hooks_fire(model, graph):
    fired = []
    model.register_forward_pre_hook(lambda *args: fired.append("before"))
    gs.lighten_(model)
    model.register_forward_hook(lambda *args: fired.append("after"))
    model(*graph)
    assert fired == ["before", "after"]
    gs.restore_(model)(*graph)
    assert fired == ["before", "after"] * 2


# Copies ---------------------------------------------------------------------------------------------------------


def test_copies_of_a_lightened_model(model, graph):
    gs.lighten_(model)
    copied = copy.deepcopy(model)
    assert [type(m) for m in copied.modules()] == [type(m) for m in model.modules()]
    assert not {id(p) for p in copied.parameters()} & {id(p) for p in model.parameters()}
    torch.testing.assert_close(copied.eval()(*graph), model.eval()(*graph))
    want = {name: kind for name, (kind, _, _) in facts(gs.restore_(model)).items()}
    assert {name: type(m) for name, m in gs.restore_(copied).named_modules()} == want


@pytest.mark.parametrize("lightened", [True, False])
@pytest.mark.parametrize("name", [name for name in MODELS if name != "sequence"])
def test_pickles(name, lightened, graph):
    model = MODELS[name]().eval()
    gs.lighten_(model)
    if not lightened:
        gs.restore_(model)
    again = pickle.loads(pickle.dumps(model))
    assert [type(m) for m in again.modules()] == [type(m) for m in model.modules()]
    torch.testing.assert_close(again(*graph), model(*graph))
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    torch.testing.assert_close(loaded(*graph), model(*graph))
    assert {type(m) for m in gs.restore_(loaded).modules()} == {type(m) for m in gs.restore_(model).modules()}


def test_an_explainer_works_on_a_copy(graph):
    """PyG rewrites methods of a copied module's class; the messages must stay maskable."""
    conv = pyg.GCNConv(12, 3)
    want = conv(*graph)
    gs.lighten_(conv)
    copied = copy.deepcopy(conv)
    for module in (conv, copied):
        module.explain = True
        module._edge_mask, module._apply_sigmoid = torch.zeros(200), False
        module._loop_mask = graph[1][0] != graph[1][1]
        assert not torch.allclose(module(*graph), want)


class Locked(nn.Module):
    """Leaves out of its state what cannot be copied."""

    def __init__(self) -> None:
        super().__init__()
        self.lin, self.lock = nn.Linear(2, 2), threading.Lock()

    def __getstate__(self):
        return {name: value for name, value in self.__dict__.items() if name != "lock"}

    def __setstate__(self, state):
        super().__setstate__(state)
        self.lock = threading.Lock()

    def forward(self, x):
        return self.lin(x)


def test_a_model_that_says_what_its_state_is():
    model = Locked()
    gs.lighten_(model)
    for again in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert type(again) is type(model) and again.lock is not model.lock
        assert type(gs.restore_(again)) is Locked


@pytest.mark.parametrize("made", [*layers.CONVERTED], ids=lambda kind: f"{kind.__module__}.{kind.__name__}")
def test_names_are_those_of_the_originals(made):
    """What `repr` prints begins with it."""
    ours = layers.CONVERTED[made]
    assert ours.__name__ == made.__name__
    assert pickle.loads(pickle.dumps(ours)) is ours


def test_repr():
    model = nn.ModuleList([pyg.Linear(4, 4), pyg.LayerNorm(4), pyg.GATConv(4, 2), pyg.GIN(4, 4, 2), nn.Linear(4, 2)])
    before = repr(model)
    gs.lighten_(model)
    assert repr(model) == before


def test_two_sequences_of_pyg_keep_their_own_forward(graph):
    """PyG puts what it generates for one on the class of all, too."""
    random.seed()
    x, edge_index = graph
    weight = torch.rand(edge_index.size(1))
    short = pyg.Sequential("x, e", [(pyg.GCNConv(12, 8), "x, e -> x"), nn.ReLU(), nn.Linear(8, 3)])
    long = pyg.Sequential("x, e, w", [(pyg.GCNConv(12, 8), "x, e, w -> x"), nn.Sigmoid()])
    want = short(x, edge_index), long(x, edge_index, weight)
    for model in (short, long):
        gs.lighten_(model)
    for one, other in ((short, long), (copy.deepcopy(short), copy.deepcopy(long)), (short, long)):
        torch.testing.assert_close((one(x, edge_index), other(x, edge_index, weight)), want, rtol=1e-4, atol=1e-5)
    for model in (short, long):
        gs.restore_(model)
    torch.testing.assert_close((short(x, edge_index), long(x, edge_index, weight)), want)


# What a model may be put through --------------------------------------------------------------------------------


@pytest.mark.parametrize("recipe", ["float32", "exact-int2"])
@pytest.mark.parametrize("name", ["gcn", "sage", "gin", "gat"])
def test_functional_calls_shared_memory_and_wrappers(name, recipe, graph):
    plain = MODELS[name]().eval()
    model = copy.deepcopy(plain)
    gs.lighten_(model, recipe)
    other = {key: 1.5 * p.detach() for key, p in plain.named_parameters()}
    close = {"rtol": 1e-4, "atol": 1e-5}
    ours = torch.func.functional_call(model, other, graph)
    torch.testing.assert_close(ours, torch.func.functional_call(plain, other, graph), **close)
    wrapped = nn.DataParallel(torch.optim.swa_utils.AveragedModel(model.share_memory()))
    torch.testing.assert_close(wrapped(*graph), plain(*graph), **close)
    gs.restore_(wrapped)
    torch.testing.assert_close(wrapped(*graph), plain(*graph))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", ["gcn", "sage", "gin", "gat"])
def test_other_precisions_run_as_in_pyg(name, dtype, graph):
    plain = MODELS[name]().to(dtype)
    model, (x, edge_index) = copy.deepcopy(plain), graph
    gs.lighten_(model, "tango")
    torch.testing.assert_close(model(x.to(dtype), edge_index), plain(x.to(dtype), edge_index))


@pytest.mark.parametrize("dtype", [torch.float16])
def test_half_precision_with_a_graph_names_the_remedy(dtype, graph):
    model = MODELS["gcn"]()
    gs.lighten_(model)
    with pytest.raises(TypeError, match=r"`x` must be float32 or float64 where .* a gs\.Graph .*call model\.float\(\)"):
        model.to(dtype)(graph[0].to(dtype), gs.Graph.from_edge_index(graph[1], 40))


def test_a_parametrized_weight_is_seen(graph):
    class Double(nn.Module):
        def forward(self, weight):
            return 2 * weight

    plain = pyg.GCN(12, 8, 2, 3)
    model = copy.deepcopy(plain)
    gs.lighten_(model)
    for each in (plain, model):
        nn.utils.parametrize.register_parametrization(each.convs[0].lin, "weight", Double())
    torch.testing.assert_close(model(*graph), plain(*graph), rtol=1e-4, atol=1e-5)


def test_a_part_of_a_lightened_sequence_can_be_restored():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    gs.lighten_(model)
    part = gs.restore_(model[:2])
    assert [type(m) for m in part.modules()] == [nn.Sequential, nn.Linear, nn.ReLU]


def test_restore_names_what_was_put_over_a_lightened_module() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    gs.lighten_(model)
    nn.utils.parametrizations.spectral_norm(model[0])
    with pytest.raises(RuntimeError, match=r"0 has become ParametrizedLinear.*remove what was put over it"):
        gs.restore_(model)


# What is left alone ---------------------------------------------------------------------------------------------


class OwnMessages(pyg.GCNConv):
    def message(self, x_j, edge_weight):
        return 2 * super().message(x_j, edge_weight)


class OwnConv(pyg.MessagePassing):
    def __init__(self) -> None:
        super().__init__(aggr="add")
        self.lin = nn.Linear(12, 8)

    def forward(self, x, edge_index):
        return F.relu(self.propagate(edge_index, x=self.lin(x)))


def row_of(report, name):
    return next(row for row in report.rows if row.name == name)


@pytest.mark.parametrize(
    "made,reason",
    [
        (lambda: OwnMessages(12, 8), "a subclass of GCNConv may compute otherwise"),
        (lambda: pyg.ChebConv(12, 8, 2), "no counterpart; runs unchanged"),
        (lambda: pyg.GCNConv(12, 8, aggr="mean"), "aggr='mean': GCNConv has kernels for sums only"),
        (lambda: pyg.GCN2Conv(12, 0.1, aggr="mean"), "aggr='mean': GCN2Conv has kernels for sums only"),
        (lambda: pyg.SAGEConv(12, 8, aggr="lstm"), "aggr='lstm': only mean, sum and max have kernels"),
        (lambda: pyg.SAGEConv(12, 8, aggr=["mean", "max"]), "only mean, sum and max have kernels"),
        (lambda: pyg.GraphConv(12, 8, flow="target_to_source"), "flow='target_to_source': only source_to_target"),
        (lambda: pyg.SAGEConv(12, 8, decomposed_layers=2), "decomposed_layers > 1"),
        (lambda: pyg.GATConv(12, 8, aggr="max"), "aggr='max': GATConv has kernels for sums only"),
        (lambda: pyg.GATv2Conv(12, 8, edge_dim=2), "edge features enter every column"),
        (lambda: nn.GELU(approximate="tanh"), "approximate='tanh': only the exact form has a kernel"),
    ],
)
def test_left_alone_with_a_reason(made, reason):
    model = nn.ModuleDict({"it": made(), "other": nn.Linear(2, 2)})
    report = gs.lighten_(model)
    row = row_of(report, "it")
    assert row.became is None and reason in row.note
    assert not type(model["it"]).__module__.startswith("gossamer")
    assert row_of(report, "other").became == "gossamer Linear"


def test_a_listener_to_messages_keeps_its_layer(graph):
    conv = pyg.GCNConv(12, 8)
    heard = []
    conv.register_propagate_forward_pre_hook(lambda *args: heard.append(1))
    report = gs.lighten_(nn.ModuleList([conv, nn.Linear(2, 2)]))
    assert "someone listens to its messages" in row_of(report, "0").note
    conv(*graph)
    assert heard == [1]


def test_own_messages_and_own_convolutions_compute_as_before(graph):
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.third = OwnConv(), OwnMessages(8, 8), pyg.SAGEConv(8, 3)

        def forward(self, x, edge_index):
            return self.third(self.second(self.first(x, edge_index), edge_index), edge_index)

    model = Mixed()
    want = model(*graph)
    report = gs.lighten_(model)
    torch.testing.assert_close(model(*graph), want)
    assert row_of(report, "first").became == "OwnConv, following"
    assert row_of(report, "second").became is None and row_of(report, "third").became == "gossamer SAGEConv"


def test_a_ready_model_with_a_forward_of_its_own(graph):
    class Scaled(pyg.GCN):
        def forward(self, *args, **named):
            return 2 * super().forward(*args, **named)

    for wrap in (lambda m: m, lambda m: nn.ModuleList([m])[0]):
        model = wrap(Scaled(12, 8, 2, 3))
        want = model(*graph)
        gs.lighten_(model)
        torch.testing.assert_close(model(*graph), want)


def test_a_class_that_refuses_subclasses():
    class Final(nn.Module):
        def __init_subclass__(cls) -> None:
            raise TypeError("this class is final")

        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(12, 3)

        def forward(self, x):
            return self.lin(x)

    model = Final()
    report = gs.lighten_(model)
    assert "its class refuses a subclass (TypeError: this class is final)" in row_of(report, "").note
    assert type(model) is Final and row_of(report, "lin").became == "gossamer Linear"


def test_shared_modules_are_converted_once(graph):
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = pyg.GCNConv(12, 12)
            self.second, self.act = self.first, nn.ReLU()

        def forward(self, x, edge_index):
            return self.second(self.act(self.first(x, edge_index)), edge_index)

    model = Shared()
    want = model(*graph)
    report = gs.lighten_(model)
    assert [row.kind for row in report.rows].count("GCNConv") == 1
    assert model.first is model.second
    torch.testing.assert_close(model(*graph), want)
    assert type(gs.restore_(model).second) is pyg.GCNConv


def test_each_kind_has_a_counterpart_that_is_a_subclass():
    for original, ours in layers.CONVERTED.items():
        assert issubclass(ours, original) and ours is not original


# Errors ---------------------------------------------------------------------------------------------------------


class Bare(nn.Module):
    def forward(self, x):
        return F.relu(x)


@pytest.mark.parametrize("made", [Bare, nn.Tanh, nn.Sequential, lambda: pyg.ChebConv(3, 3, 1).aggr_module])
def test_nothing_to_lighten(made):
    model = made()
    before = facts(model)
    with pytest.raises(NothingToLighten, match=r"`model` must hold at least one module .*GCNConv.*got "):
        gs.lighten_(model)
    assert facts(model) == before


def test_nothing_to_lighten_tells_the_reasons():
    model = nn.ModuleDict({"cheb": nn.ModuleDict({"gelu": nn.GELU(approximate="tanh")})})
    with pytest.raises(NothingToLighten, match=r"cheb.gelu: approximate='tanh'"):
        gs.lighten_(model)


@pytest.mark.parametrize("bad", [None, pyg.GCN, "model", torch.randn(3)])
def test_what_is_no_model(bad):
    with pytest.raises(TypeError, match=rf"`model` must be a torch.nn.Module \(got {type(bad).__name__}\)"):
        gs.lighten_(bad)


def test_an_unknown_recipe_changes_nothing(model):
    before = facts(model)
    with pytest.raises(UnknownRecipe, match="Did you mean 'float32'"):
        gs.lighten_(model, "float23")
    with pytest.raises(TypeError, match=r"`recipe` must be a gs\.Recipe"):
        gs.lighten_(model, 32)
    assert facts(model) == before


# The report -----------------------------------------------------------------------------------------------------


def test_the_report(model):
    kinds = {name: type(m).__name__ for name, m in model.named_modules()}
    report = gs.lighten_(model, gs.recipes["float32"])
    assert report.recipe == gs.Recipe()
    assert {row.name: row.kind for row in report.rows} == kinds
    assert report.converted == tuple(row for row in report.rows if row.became)
    assert all(row.became or row.note for row in report.rows)


def test_the_report_in_words():
    report = gs.lighten_(pyg.GCN(12, 8, 2, 3, norm="batch_norm"))
    text = str(report)
    for word in ("Recipe()", "(model)", "convs.0", "GCNConv", "gossamer GCNConv", "BatchNorm", "gossamer BatchNorm1d"):
        assert word in text
    assert max(len(line) for line in text.splitlines()) <= 110
    assert "\x1b" not in text


class Mixture(nn.Module):
    """Some that are converted, some that run unchanged though they compute, and many that only hold others."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.cheb = pyg.GIN(12, 8, 2, 8, norm="batch_norm"), pyg.ChebConv(8, 8, 2)
        self.norm, self.pool = pyg.GraphNorm(8), pyg.SumAggregation()
        self.lstm, self.head = pyg.SAGEConv(8, 8, aggr="lstm"), nn.Sequential(nn.Identity(), nn.Linear(8, 3), nn.Tanh())

    def forward(self, x, edge_index):
        return x


def lines_of(report):
    """The module, class, and fate of each line of the table."""
    cells = [line.strip("│").split("│") for line in str(report).splitlines() if line.startswith("│")]
    return [tuple(cell.strip() for cell in line[:3]) for line in cells if line[0].strip()]


def test_the_report_begins_with_convolutions_and_norms():
    kinds = [kind for _, kind, _ in lines_of(gs.lighten_(Mixture()))]
    assert kinds[:4] == ["GINConv", "GINConv", "ChebConv", "SAGEConv"]
    assert kinds[4:8] == ["BatchNorm"] * 3 + ["GraphNorm"]  # GIN has one in each MLP


def test_the_report_leaves_out_what_has_no_arithmetic_of_its_own():
    report = gs.lighten_(Mixture())
    lines = lines_of(report)
    assert not {"ModuleList", "Identity", "Sequential", "MLP", "TrimToLayer", "LSTMAggregation"} & {
        k for _, k, _ in lines
    }
    assert "body.norms.0.module" not in [name for name, _, _ in lines]
    assert f"and {len(report.rows) - len(lines)} modules" in str(report)
    assert len(report.rows) == len(list(Mixture().modules()))
    assert {row.role for row in report.rows} == {"convolution", "norm", "other", "part"}


def test_the_report_shows_what_computes_unchanged():
    text = str(gs.lighten_(Mixture()))
    left = {name: kind for name, kind, became in lines_of(gs.lighten_(Mixture())) if became == "left alone"}
    assert left == {
        "cheb": "ChebConv", "lstm": "SAGEConv", "norm": "GraphNorm", "pool": "SumAggregation", "head.2": "Tanh",
        "lstm.aggr_module.lstm": "LSTM",
    }  # fmt: skip
    assert "aggr='lstm': only mean, sum and max" in text


def test_the_report_does_not_call_a_fused_norm_left_alone():
    report = gs.lighten_(pyg.GCN(12, 8, 2, 3, norm="batch_norm"))
    assert ("norms.0", "BatchNorm", "gossamer BatchNorm1d") in lines_of(report)
    assert "left alone" not in str(report)
    assert row_of(report, "norms.0").note == "its BatchNorm1d does its work"


def test_the_report_as_json():
    report = gs.lighten_(pyg.GCN(12, 8, 2, 3))
    plain = json.loads(report.to_json())
    assert gs.Recipe.from_json(json.dumps(plain["recipe"])) == report.recipe
    assert [gs.pyg.Row(**row) for row in plain["modules"]] == list(report.rows)


def test_the_report_for_rich():
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(gs.lighten_(pyg.GCN(12, 8, 2, 3)))
    assert "gossamer GCNConv" in console.export_text()


def test_a_scripted_model_is_left_alone():
    """TorchScript runs without Python, so nothing of it can be replaced; `restore_` takes it as well."""
    scripted = torch.jit.script(nn.Sequential(nn.Linear(4, 4), nn.ReLU()))
    with pytest.raises(NothingToLighten, match="TorchScript runs without Python; lighten_ the model"):
        gs.lighten_(scripted)
    assert gs.restore_(scripted) is scripted
    model = nn.ModuleList([scripted, nn.Linear(4, 4)])
    assert [row.name for row in gs.lighten_(model).converted if row.name] == ["1"]


def test_a_traced_model_is_saved():
    """torch.fx makes a class for each model and pickles it in its own way: as a GraphModule with lightened children."""
    traced = torch.fx.symbolic_trace(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)))
    x = torch.randn(5, 4)
    want = traced(x)
    gs.lighten_(traced)
    file = io.BytesIO()
    torch.save(traced, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    torch.testing.assert_close(loaded(x), want)
    torch.testing.assert_close(gs.restore_(loaded)(x), want)
