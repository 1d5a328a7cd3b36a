"""`gs.compressed_activations` around models of every kind: the memory falls, the gradient stays right."""

from __future__ import annotations

import copy
import gc
import threading
import weakref

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import handle_torch_function, has_torch_function
from torch.utils import checkpoint

import gossamer as gs

N, D = 128, 32


@pytest.fixture(autouse=True)
def _same_numbers():
    torch.manual_seed(0)


def mlp(dropout: float = 0.5) -> nn.Module:
    hidden = [nn.Linear(D, D), nn.BatchNorm1d(D), nn.ReLU(), nn.Dropout(dropout), nn.Linear(D, D), nn.LeakyReLU()]
    return nn.Sequential(nn.Linear(D, D), *hidden, nn.Linear(D, 8))


def data() -> tuple[Tensor, Tensor]:
    return torch.randn(N, D), torch.randint(0, 8, (N,))


def flat_gradient(model: nn.Module, loss: Tensor, **named: bool) -> Tensor:
    model.zero_grad()
    loss.backward(**named)
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def hidden_of(*shape: int) -> tuple[Tensor, Tensor]:
    """A leaf and a tensor made of it: what is compressed is neither data nor a parameter."""
    leaf = torch.randn(*(shape or (N, D)), requires_grad=True)
    return leaf, leaf + 1


def close(found: Tensor, wanted: Tensor, share: float) -> bool:
    return bool((found - wanted).norm() < share * wanted.norm())


# ------------------------------------------------------------------ what it does


def test_mlp_is_unbiased() -> None:
    """Linear, BatchNorm, ReLU, dropout: the same masks, other noise, 120 times."""
    model, (x, y) = mlp(), data()
    wanted, draws = None, []
    for draw in range(-1, 120):
        state = copy.deepcopy(model.state_dict())
        torch.manual_seed(draw + 1000)
        if draw < 0:
            torch.manual_seed(7)
            wanted = flat_gradient(model, functional.cross_entropy(model(x), y))
        else:
            with gs.compressed_activations(gs.Blockwise(bits=4)):
                torch.manual_seed(7)
                loss = functional.cross_entropy(model(x), y)
            draws.append(flat_gradient(model, loss))
        model.load_state_dict(state)
    noisy = torch.stack(draws).double()
    off = noisy.mean(0) - wanted
    assert 0.01 < noisy.var(0).sum().sqrt() / wanted.norm() < 0.5
    assert 0.5 < off.square().sum() / (noisy.var(0).sum() / len(draws)) < 1.5
    for direction in (wanted, torch.ones_like(wanted)):
        along = noisy @ direction.double()
        z = (along.mean() - wanted.double() @ direction.double()) / (along.std() / len(draws) ** 0.5)
        assert abs(z) < 4


def test_bytes_and_account() -> None:
    model, (x, y) = mlp(), data()
    codec = gs.Blockwise(bits=4)
    with gs.compressed_activations(codec) as account:
        functional.cross_entropy(model(x), y)
    inputs, masks = 4, 3  # of the norm and of three linear layers; of ReLU, dropout and leaky ReLU
    assert account.tensors == inputs + masks
    assert account.bytes_before == (inputs + masks) * N * D * 4
    assert account.bytes_kept == inputs * codec.nbytes((N, D)) + masks * N * D // 8
    assert account.left["parameters"] == 2 and account.left["data"] == 1
    assert account.left["needed exactly"] == 1 and account.exact.total() == N * 8 * 4  # log-softmax
    text = str(account)
    assert "7 tensors of 114,688 bytes are saved in" in text
    assert "2 parameters" in text and "cross_entropy 4,096" in text


def test_forward_is_exact_and_backward_works_inside_and_outside() -> None:
    model, (x, y) = mlp(), data()
    torch.manual_seed(3)
    plain = model(x)
    with gs.compressed_activations(gs.Blockwise(bits=8)):
        torch.manual_seed(3)
        out = model(x)
        inside = flat_gradient(model, functional.cross_entropy(out, y))
    assert torch.equal(out, plain)
    with gs.compressed_activations(gs.Blockwise(bits=8)):
        torch.manual_seed(3)
        out = model(x)
    outside = flat_gradient(model, functional.cross_entropy(out, y))
    wanted = flat_gradient(model, functional.cross_entropy(plain, y))
    assert close(inside, wanted, 0.02) and close(outside, wanted, 0.02)
    assert not torch.equal(inside, wanted)
    assert torch.equal(inside, outside)  # the generator was in the same state when the blocks began


def test_the_seed_governs_the_noise() -> None:
    model, (x, y) = mlp(0.0), data()

    def gradient(seed: int) -> Tensor:
        torch.manual_seed(seed)
        with gs.compressed_activations(gs.Blockwise(bits=2)):
            loss = functional.cross_entropy(model(x), y)
        return flat_gradient(model, loss)

    assert torch.equal(gradient(1), gradient(1)) and not torch.equal(gradient(1), gradient(2))


@pytest.mark.parametrize("function", [functional.relu, functional.gelu, torch.tanh, nn.LayerNorm(D), nn.Linear(D, D)])
def test_the_float_tensor_dies(function) -> None:
    leaf, x = hidden_of()
    with gs.compressed_activations(gs.Blockwise(bits=2)):
        y = function(x)
        z = nn.Linear(D, D)(y)
    dead = [weakref.ref(x), weakref.ref(y)]
    del x, y
    assert [ref() for ref in dead] == [None, None]
    z.sum().backward()
    assert leaf.grad is not None


def test_decorator() -> None:
    model, (x, y) = mlp(), data()

    @gs.compressed_activations(gs.Blockwise(bits=1))
    def step() -> Tensor:
        torch.manual_seed(3)
        return flat_gradient(model, functional.cross_entropy(model(x), y))

    assert not torch.equal(step(), step())  # each call is a block of its own


@pytest.mark.parametrize("codec", [gs.Blockwise(bits=8), gs.Uniform(bits=8), gs.RowInt8()])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_codecs_and_dtypes(codec: gs.Codec, dtype: torch.dtype) -> None:
    model, x = nn.Sequential(nn.Linear(D, D), nn.SiLU(), nn.Linear(D, D)).to(dtype), data()[0].to(dtype)
    wanted = flat_gradient(model, model(x).square().sum())
    with gs.compressed_activations(codec) as account:
        loss = model(x).square().sum()
    found = flat_gradient(model, loss)
    assert account.tensors == 3 and found.dtype == dtype
    assert close(found.double(), wanted.double(), 0.03)


def test_projection_only_where_its_noise_ends_in_a_parameter() -> None:
    _, x = hidden_of()
    weight = nn.Parameter(torch.randn(D, D))
    codec = gs.Projected(ratio=4, then=gs.Blockwise(bits=8))
    with gs.compressed_activations(codec) as account:
        y = x @ weight
    assert account.bytes_kept == codec.nbytes((N, D))
    y.sum().backward()
    with gs.compressed_activations(codec) as account:
        y = x @ (x + 1).t()
    assert account.bytes_kept == 2 * codec.then.nbytes((N, D))


# ------------------------------------------------------------------ what is left alone


def left_alone(function, **named) -> None:
    """Nothing is compressed, and the reason is told."""
    with gs.compressed_activations(gs.Blockwise(bits=2)) as account:
        function()
    assert account.tensors == 0
    for reason, count in named.items():
        assert account.left[reason.replace("_", " ")] == count


def test_parameters_and_their_views() -> None:
    weight = nn.Parameter(torch.randn(N, D))
    leaf = torch.randn(D, requires_grad=True)
    left_alone(lambda: weight @ leaf, parameters=1, small=1)
    left_alone(lambda: weight.t()[:, ::2] * torch.ones(1, requires_grad=True), parameters=1, small=1)
    weight.requires_grad_(False)  # frozen
    left_alone(lambda: weight.view(D, N).t() * leaf.repeat(1), parameters=1)
    module = nn.Linear(D, D).requires_grad_(False)
    with gs.compressed_activations(gs.Blockwise(bits=2)) as account:
        module(hidden_of()[1])
    assert account.tensors == 0 and account.left["parameters"] == 1


def test_autocast_weights_are_parameters() -> None:
    model, (x, _) = nn.Sequential(nn.Linear(D, D), nn.GELU(), nn.Linear(D, D)), data()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        wanted = flat_gradient(model, model(x).float().square().sum())
        with gs.compressed_activations(gs.Blockwise(bits=8)) as account:
            loss = model(x).float().square().sum()
    assert account.left["parameters"] == 1
    assert close(flat_gradient(model, loss), wanted, 0.03)


def test_data_that_the_caller_holds() -> None:
    weight, x = nn.Parameter(torch.randn(D, D)), torch.randn(N, D)
    ones = (torch.rand(N, D) > 0.5).float()
    left_alone(lambda: x @ weight, data=1)
    left_alone(lambda: x[1:] @ weight, data=1)
    left_alone(lambda: ones @ weight, data=1)
    left_alone(lambda: x.clone().requires_grad_() @ weight, data=1, parameters=1)


def test_data_made_in_the_block_is_nobodys() -> None:
    weight, x = nn.Parameter(torch.randn(D, D)), torch.randn(N, D)
    with gs.compressed_activations(gs.Blockwise(bits=2)) as account:
        ((x - x.mean(0)) / x.std(0)) @ weight
    assert account.tensors == 1 and account.left.total() == 0


def test_small_integer_complex_sparse_and_meta() -> None:
    _, x = hidden_of()
    left_alone(lambda: hidden_of(D, D - 1)[1] ** 2, small=1)
    left_alone(lambda: x.gather(0, torch.randint(0, N, (N, D)).add(0)), integers=1)
    left_alone(lambda: x.to(torch.complex64) ** 2, of_other_kinds=1)
    left_alone(lambda: torch.view_as_complex(x.view(N, -1, 2)).conj().imag ** 2, of_other_kinds=1)  # lazily negated
    left_alone(lambda: torch.sparse.mm(torch.eye(N).to_sparse(), x))
    left_alone(lambda: (torch.empty(N, D, device="meta", requires_grad=True) + 1) ** 2, of_other_kinds=1)


def test_fake_tensors() -> None:
    with gs.compressed_activations(gs.Blockwise(bits=2)) as account, FakeTensorMode():
        functional.gelu(hidden_of()[1]) ** 2
    assert account.tensors == 0 and account.left["of other kinds"] == 2


def test_expanded_tensors_are_not_made_larger() -> None:
    _, x = hidden_of(1, D)
    left_alone(lambda: x.expand(10 * N, D) * torch.ones(1, requires_grad=True), no_smaller_in_bits=1)


def test_nothing_without_grad() -> None:
    model, (x, _) = mlp(), data()
    with gs.compressed_activations(gs.Blockwise(bits=2)) as account, torch.no_grad():
        model(x)
    assert (account.tensors, account.left.total()) == (0, 0)


def test_what_another_op_keeps_whole_is_not_kept_twice() -> None:
    _, x = hidden_of()
    value = hidden_of()[1]
    with gs.compressed_activations(gs.Blockwise(bits=2)) as account:
        weights = x.softmax(1)
        weights.t() @ value  # linear in the weights, which softmax holds anyway
    assert account.left["kept whole by another"] == 1 and account.left["needed exactly"] == 1
    assert account.tensors == 1  # the values


def test_what_is_needed_exactly_is_known_before_others_save_it() -> None:
    """Softmax and the product with its result happen in one call."""
    query, key, value = (hidden_of(1, N, D)[1] for _ in range(3))
    with gs.compressed_activations(gs.Blockwise(bits=2)) as account, sdpa_kernel(SDPBackend.MATH):
        functional.scaled_dot_product_attention(query, key, value)
    assert account.tensors == 3 and account.left["kept whole by another"] == 1


def test_attention_is_compressed_where_it_may_be() -> None:
    torch.manual_seed(0)
    model, x = nn.MultiheadAttention(D, 4, batch_first=True), torch.randn(4, N, D)
    wanted = flat_gradient(model, model(x, x, x)[0].square().sum())
    with gs.compressed_activations(gs.Blockwise(bits=8)) as account:
        loss = model(x, x, x)[0].square().sum()
    assert account.tensors > 0
    assert close(flat_gradient(model, loss), wanted, 0.03)


def test_lstm() -> None:
    model, x = nn.LSTM(D, D), torch.randn(5, N, D)
    wanted = flat_gradient(model, model(x)[0].square().sum())
    with gs.compressed_activations(gs.Blockwise(bits=8)):
        loss = model(x)[0].square().sum()
    assert close(flat_gradient(model, loss), wanted, 0.03)


# ------------------------------------------------------------------ sharing


def test_a_tensor_saved_by_several_is_kept_once() -> None:
    _, x = hidden_of(4, N, D)
    layers = [nn.Linear(D, D) for _ in range(3)]
    with gs.compressed_activations(gs.Blockwise(bits=8)) as account:
        out = [layer(x) for layer in layers]  # each makes a view of its own
    assert (account.tensors, account.shared) == (1, 2)
    torch.cat(out).sum().backward()
    for layer in layers:
        assert close(layer.weight.grad, x.detach().sum((0, 1)).expand(D, D), 0.01)


def test_views_in_another_order_share_too() -> None:
    leaf, x = hidden_of()
    with gs.compressed_activations(gs.Blockwise(bits=8)) as account:
        y = x @ x.t()
    assert (account.tensors, account.shared) == (1, 1)
    y.backward(torch.ones_like(y))
    assert close(leaf.grad, 2 * x.detach().sum(0).expand(N, D), 0.01)


def test_slices_of_one_storage_are_different_tensors() -> None:
    leaf, x = hidden_of(2 * N, D)
    with gs.compressed_activations(gs.Blockwise(bits=8)) as account:
        out = x[:N] ** 2 + x[N:] ** 2 + x.view(N, 2, D)[:, 1] ** 2
    assert (account.tensors, account.shared) == (3, 0)
    out.sum().backward()
    wanted = 2 * x.detach()
    wanted.view(N, 2, D)[:, 1] *= 2
    assert close(leaf.grad, wanted, 0.01)


def test_a_new_version_is_another_tensor() -> None:
    leaf, x = hidden_of()
    with gs.compressed_activations(gs.Blockwise(bits=8)) as account:
        squares = x**2
        before = x.detach().clone()
        x.mul_(10)  # the bits hold what it was
        squares = squares + x**2
    assert (account.tensors, account.shared) == (2, 0)
    squares.sum().backward()
    assert close(leaf.grad, 2 * before + 200 * before, 0.01)


def test_memory_that_is_used_again_is_another_tensor() -> None:
    leaf = torch.randn(N, D, requires_grad=True)
    total, addresses = torch.zeros(()), set()
    with gs.compressed_activations(gs.Blockwise(bits=8)) as account:
        for factor in range(1, 9):
            x = leaf * factor
            addresses.add(x.data_ptr())
            total = total + (x**2).sum()
            del x
    assert len(addresses) < 8 and (account.tensors, account.shared) == (8, 0)
    total.backward()
    assert close(leaf.grad, 2 * leaf.detach() * sum(f * f for f in range(1, 9)), 0.01)


def test_codes_die_with_the_graph() -> None:
    _, x = hidden_of()
    with gs.compressed_activations(gs.Blockwise(bits=8)):
        y = x**2
        codes = [weakref.ref(found) for found in gc.get_objects() if type(found).__name__ == "Coded"]
        y.sum().backward()
        assert len(codes) == 1 and codes[0]() is None


# ------------------------------------------------------------------ autograd's own promises


def test_changed_in_place_after_saving() -> None:
    leaf, x = hidden_of()
    with gs.compressed_activations(gs.Blockwise(bits=8)):
        whole = x.exp()
        few = x @ nn.Parameter(torch.eye(D))
    x.zero_()
    few.sum().backward(retain_graph=True)  # right: parameters are exact, and so is this gradient
    assert close(leaf.grad, torch.ones(N, D), 1e-6)
    whole.add_(1)  # exp needs its result
    with pytest.raises(RuntimeError, match=r"modified by an inplace operation.*\[128, 32\]"):
        whole.sum().backward()


def test_parameters_changed_in_place_are_an_error_too() -> None:
    weight = nn.Parameter(torch.randn(D, D))
    with gs.compressed_activations(gs.Blockwise(bits=8)):
        y = hidden_of()[1] @ weight
    with torch.no_grad():
        weight.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_changed_in_place_within_one_call() -> None:
    """What was changed before it could be looked at stays with torch, which says so in backward."""

    def careless(x: Tensor) -> Tensor:
        if has_torch_function((x,)):
            return handle_torch_function(careless, (x,), x)
        x = x + 1
        squares = x**2
        x.zero_()
        return squares

    with gs.compressed_activations(gs.Blockwise(bits=8)):
        y = careless(hidden_of()[1])
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_two_backwards_are_equal() -> None:
    model, (x, y) = mlp(), data()
    with gs.compressed_activations(gs.Blockwise(bits=2)):
        loss = functional.cross_entropy(model(x), y)
    first = flat_gradient(model, loss, retain_graph=True).clone()
    assert torch.equal(flat_gradient(model, loss), first)
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


@pytest.mark.parametrize("function", [lambda x: x**2, functional.gelu, functional.relu])
def test_second_derivatives_are_refused(function) -> None:
    leaf, x = hidden_of()
    with gs.compressed_activations(gs.Blockwise(bits=8)):
        y = function(x).sum()
    with pytest.raises(RuntimeError, match=r"allow one derivative \(got create_graph=True\).*outside of the block"):
        torch.autograd.grad(y, leaf, create_graph=True)


def test_saved_tensors_can_be_looked_at() -> None:
    _, x = hidden_of()
    with gs.compressed_activations(gs.Blockwise(bits=8)):
        y = x**2
    assert close(y.grad_fn._saved_self, x, 0.01)


def test_nothing_stays_behind_after_an_error() -> None:
    model, (x, y) = mlp(0.0), data()
    with pytest.raises(ZeroDivisionError), gs.compressed_activations(gs.Blockwise(bits=2)):
        model(x)
        1 / 0  # noqa: B018
    gradients = [flat_gradient(model, functional.cross_entropy(model(x), y)) for _ in range(2)]
    assert torch.equal(*gradients)  # no noise


def test_nested_blocks_the_innermost_counts() -> None:
    leaf, x = hidden_of()
    with gs.compressed_activations(gs.Blockwise(bits=8)) as outer:
        before = x**2
        with gs.compressed_activations(gs.Blockwise(bits=2)) as inner:
            inside = (x + 1) ** 2
        after = (x + 2) ** 2
    assert (outer.tensors, inner.tensors) == (2, 1)
    assert inner.bytes_kept == gs.Blockwise(bits=2).nbytes((N, D))
    (before + inside + after).sum().backward()
    assert leaf.grad is not None


def test_threads_have_their_own_blocks() -> None:
    gradients = []

    def run() -> None:
        leaf, hidden = hidden_of()
        out = hidden**2
        gradients.append((torch.autograd.grad(out.sum(), leaf)[0], 2 * hidden.detach()))

    with gs.compressed_activations(gs.Blockwise(bits=1)) as account:
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    assert account.tensors == 0 and torch.equal(*gradients[0])


# ------------------------------------------------------------------ other machinery


@pytest.mark.parametrize("backward_inside", [True, False])
@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpointing(use_reentrant: bool, backward_inside: bool) -> None:
    """What is run again in backward is not compressed, and draws the same dropout masks."""
    model, (x, y) = mlp(), data()
    first, rest = model[:1], model[1:]

    def gradient(codec: gs.Codec | None) -> Tensor:
        torch.manual_seed(3)
        if codec is None:
            return flat_gradient(model, functional.cross_entropy(rest(first(x)), y))
        with gs.compressed_activations(codec):
            torch.manual_seed(3)
            out = checkpoint.checkpoint(rest, first(x), use_reentrant=use_reentrant)
            loss = functional.cross_entropy(out, y)
            if backward_inside:
                return flat_gradient(model, loss)
        return flat_gradient(model, loss)

    assert torch.equal(gradient(gs.Blockwise(bits=1)), gradient(None))  # neither run has noise


def test_other_hooks_go_first() -> None:
    _, x = hidden_of()
    with gs.measure.kept() as kept, gs.compressed_activations(gs.Blockwise(bits=2)) as account:
        y = functional.gelu(x) ** 2
    assert account.tensors == 0 and account.other_hooks and "gs.measure.kept" in str(account)
    assert kept.bytes == 2 * N * D * 4
    y.sum().backward()


def test_compiled_models_keep_what_they_keep() -> None:
    model, (x, y) = mlp(0.0), data()
    compiled = torch.compile(model, backend="aot_eager")
    wanted = flat_gradient(model, functional.cross_entropy(compiled(x), y))
    for _ in range(2):
        with gs.compressed_activations(gs.Blockwise(bits=1)):
            loss = functional.cross_entropy(compiled(x), y)
        assert close(flat_gradient(model, loss), wanted, 1e-5)


def test_blocks_in_compiled_functions_are_refused() -> None:
    model, (x, _) = nn.Linear(D, D), data()

    def step() -> int:
        with gs.compressed_activations(gs.Blockwise(bits=8)) as account:
            model(model(x))
        return account.tensors

    message = r"must not be entered in a function that torch.compile compiles: .*torch.compiler.disable"
    with pytest.raises(RuntimeError, match=message):
        torch.compile(step, backend="eager")()
    left_out = torch.compiler.disable(step)
    assert torch.compile(lambda: left_out() + 1, backend="eager")() == 2


def test_functional_transforms_are_left_alone() -> None:
    x = torch.randn(N, D)
    with gs.compressed_activations(gs.Blockwise(bits=1)):
        found = torch.func.grad(lambda t: (functional.gelu(t) ** 2).sum())(x)
    assert torch.equal(found, torch.func.grad(lambda t: (functional.gelu(t) ** 2).sum())(x))


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_tracing_is_left_alone() -> None:
    model, (x, _) = nn.Sequential(nn.Linear(D, D), nn.GELU(), nn.Linear(D, D)), data()
    with gs.compressed_activations(gs.Blockwise(bits=1)) as account:
        traced = torch.jit.trace(model, x, check_trace=False)
    assert account.tensors == 0 and "aten::gelu" in str(traced.inlined_graph)


def test_custom_functions_keep_what_they_keep() -> None:
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, dout: Tensor) -> Tensor:
            return 2 * ctx.saved_tensors[0] * dout

    leaf, x = hidden_of()
    with gs.compressed_activations(gs.Blockwise(bits=1)):
        Square.apply(x).sum().backward()
    assert torch.equal(leaf.grad, 2 * x)


def test_a_lightened_model() -> None:
    graph_data = gs.datasets.load("digits")
    from torch_geometric.nn import GraphSAGE

    model = GraphSAGE(graph_data.num_features, D, 2, graph_data.num_classes, norm="batch_norm")
    wanted = flat_gradient(model, model(graph_data.x, graph_data.edge_index).square().mean())
    gs.lighten_(model)
    with gs.compressed_activations(gs.Blockwise(bits=8)):
        loss = model(graph_data.x, graph_data.edge_index).square().mean()
    assert close(flat_gradient(model, loss), wanted, 0.03)


# ------------------------------------------------------------------ errors


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_not_finite_names_the_layer(value: float) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = nn.ModuleList([nn.Linear(D, D), nn.Linear(D, D)])

        def forward(self, x: Tensor) -> Tensor:
            hidden = self.encoder[0](x)
            return self.encoder[1](hidden * torch.tensor(value))

    model, (x, _) = Net(), data()
    message = r"in layer 'encoder.1' \(Linear\), the tensor of shape \[128, 32\] that `linear` saves .* must be finite"
    with pytest.raises(ValueError, match=message), gs.compressed_activations(gs.Blockwise(bits=2)):
        model(x)
    assert model.encoder[0](x).isfinite().all()


def test_not_finite_outside_of_a_module() -> None:
    _, x = hidden_of()
    message = r"outside of any module, the tensor of shape \[128, 32\] that `gelu` saves"
    with pytest.raises(ValueError, match=message), gs.compressed_activations(gs.Blockwise(bits=2)):
        functional.gelu(x / 0)


@pytest.mark.parametrize("codec", ["exact-int2", None, gs.Blockwise, gs.Recipe()])
def test_bad_codec(codec: object) -> None:
    with pytest.raises(TypeError, match=r"`codec` must be a codec such as gs.Blockwise\(bits=4\) \(got "):
        gs.compressed_activations(codec)


@pytest.mark.parametrize("least", [0, -1, 1.5])
def test_bad_least(least: float) -> None:
    with pytest.raises(ValueError, match=r"`least` must be a positive number of elements \(got "):
        gs.compressed_activations(gs.Blockwise(), least=least)
