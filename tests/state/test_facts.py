"""Facts about tensors: known while the tensor lives and is not changed, void after."""

from __future__ import annotations

import copy
import gc
import io
import weakref

import pytest
import torch
from torch import nn
from torch_geometric import EdgeIndex

from gossamer.state import facts


class Fact:
    """Something that a weak reference can follow."""


def made(tensor, beside=None, key="fact"):
    return facts.remember(tensor, key, Fact, beside)


def test_made_once_per_tensor_and_key():
    x = torch.randn(5, 3)
    first = made(x)
    assert made(x) is first
    assert made(x, key="other") is not first and made(x, key=("fact", 3)) is not first
    assert made(x) is first


def test_equal_tensors_are_not_the_same():
    x = torch.randn(5, 3)
    first = made(x)
    for other in (x.clone(), x.view(5, 3), x.detach(), x[:]):  # those behind share its memory
        assert made(other) is not first
    assert made(x) is first


def test_noted_and_recalled():
    x = torch.randn(5, 3)
    assert facts.recall(x, "fact") is None
    facts.note(x, "fact", 1)
    facts.note(x, ("fact", 2), 2)
    assert (facts.recall(x, "fact"), facts.recall(x, ("fact", 2)), facts.recall(x, "third")) == (1, 2, None)
    assert facts.remember(x, "fact", Fact) == 1
    facts.note(x, "fact", 3)
    assert facts.recall(x, "fact") == 3


def test_an_error_leaves_nothing_behind():
    x = torch.randn(5, 3)

    def fail():
        raise KeyError("cannot be built")

    with pytest.raises(KeyError):
        facts.remember(x, "fact", fail)
    assert facts.recall(x, "fact") is None and made(x) is made(x)


CHANGES = {
    "in place": lambda x: x.add_(1),
    "through a view": lambda x: x[0].zero_(),
    "through detach": lambda x: x.detach().zero_(),
    "one element": lambda x: x.__setitem__((0, 0), 7.0),
    "resized": lambda x: x.resize_(4, 3),
    "reshaped in place": lambda x: x.unsqueeze_(0),
    "transposed in place": lambda x: x.t_(),
    "other memory": lambda x: x.set_(torch.zeros(5, 3)),
    "other memory through data": lambda x: setattr(x, "data", torch.zeros(5, 3)),
    "an out argument": lambda x: torch.add(x, 1, out=x),
}


@pytest.mark.parametrize("change", CHANGES)
def test_void_after_a_change(change):
    x = torch.randn(5, 3)
    first = made(x)
    facts.note(x, "noted", 1)
    CHANGES[change](x)
    assert facts.recall(x, "fact") is None and facts.recall(x, "noted") is None
    second = made(x)
    assert second is not first and made(x) is second


def test_void_after_a_step_of_an_optimizer():
    weight = nn.Parameter(torch.randn(5, 3))
    first = made(weight)
    weight.sum().backward()
    assert made(weight) is first  # its gradient is another tensor
    torch.optim.SGD([weight], 0.1).step()
    assert made(weight) is not first


def test_what_was_true_before_a_change_is_let_go():
    x = torch.randn(5, 3)
    reference = weakref.ref(made(x))
    x.add_(1)
    made(x)
    gc.collect()
    assert reference() is None


def test_dies_with_its_tensor():
    x = torch.randn(5, 3)
    reference = weakref.ref(made(x))
    gc.collect()
    assert reference() is not None
    del x
    gc.collect()
    assert reference() is None


def test_a_new_tensor_in_the_same_memory_is_another():
    memory = torch.randn(5, 3).numpy()
    first = made(torch.from_numpy(memory))
    assert made(torch.from_numpy(memory)) is not first


def test_inference_tensors_are_never_remembered():
    """They count no changes."""
    with torch.inference_mode():
        x = torch.randn(5, 3)
    plain = torch.randn(5, 3)
    for given in ((x,), (x, plain), (plain, x)):
        assert made(*given) is not made(*given)
    facts.note(x, "fact", 1)
    assert facts.recall(x, "fact") is None and facts.version_of(x) is None


def test_an_ordinary_tensor_is_remembered_within_inference_mode():
    x = torch.randn(5, 3)
    with torch.inference_mode():
        first = made(x)
    assert made(x) is first


def test_facts_of_two_tensors():
    x, one, two = torch.randn(5, 3), torch.rand(4), torch.rand(4)
    alone, first, second = made(x), made(x, one), made(x, two)
    assert len({id(f) for f in (alone, first, second)}) == 3
    assert (made(x), made(x, one), made(x, two)) == (alone, first, second)
    assert made(one, x) is not first


@pytest.mark.parametrize("changed", [0, 1])
def test_facts_of_two_tensors_are_void_after_a_change_of_either(changed):
    pair = torch.randn(5, 3), torch.rand(4)
    first, alone = made(*pair), made(pair[0])
    pair[changed].mul_(2)
    assert made(*pair) is not first
    assert (made(pair[0]) is alone) == (changed == 1)


@pytest.mark.parametrize("dead", [0, 1])
def test_facts_of_two_tensors_die_with_either(dead):
    pair = [torch.randn(5, 3), torch.rand(4)]
    reference = weakref.ref(made(*pair))
    gc.collect()
    assert reference() is not None
    del pair[dead]
    gc.collect()
    assert reference() is None


@pytest.mark.parametrize("through", ["EdgeIndex", "its tensor"])
def test_a_wrapped_tensor_that_changes(through):
    ids = torch.randint(0, 5, (2, 9))
    wrapped = EdgeIndex(ids, sparse_size=(5, 5))
    first = made(wrapped)
    assert made(wrapped) is first
    (wrapped if through == "EdgeIndex" else ids)[0, 0] = 3
    assert made(wrapped) is not first


def test_a_sparse_matrix_that_changes():
    matrix = torch.eye(5).to_sparse()
    first = made(matrix)
    assert made(matrix) is first
    matrix.values().mul_(2)
    assert made(matrix) is not first


def test_a_tensor_carries_nothing():
    """What is known is beside the tensor: copies and files of it do not hold it."""
    x = torch.randn(5, 3)
    facts.note(x, "fact", Fact())
    file = io.BytesIO()
    torch.save(x, file)
    file.seek(0)
    assert not vars(x)
    for again in (copy.deepcopy(x), torch.load(file)):
        assert torch.equal(again, x) and facts.recall(again, "fact") is None
