"""Every test sees uninitialised memory as NaN, so that an element which a kernel forgets is noticed."""

from __future__ import annotations

import gc
import os
import random
from collections.abc import Iterator

import pytest
import torch
from hypothesis import settings
from torch_geometric.nn import sequential

from gossamer import native
from gossamer.measurement.machine import WITHOUT_AMX, amx_is_broken

if amx_is_broken():  # torch's own products would end the process
    os.environ.update(WITHOUT_AMX)

# PyG names the module that it generates for a Sequential by Python's random numbers, and takes an older one of that
# name; tests, and hypothesis, set their seed again and again.
sequential.random = random.Random(0)

# The same examples in every run, so that a red test is the change's doing; HYPOTHESIS_PROFILE=default draws new ones.
settings.register_profile("same", derandomize=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))


@pytest.fixture(autouse=True)
def _own_forward_of_sequential() -> Iterator[None]:
    """PyG puts the forward that it generates for one Sequential onto the class of all: not beyond a test."""
    before = sequential.Sequential.forward
    yield
    sequential.Sequential.forward = before


def pytest_collection_finish() -> None:
    """Takes fourteen thousand tests and all of torch out of garbage collection, which many tests ask for."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def _nan_filled_empty() -> None:
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True


@pytest.fixture(autouse=True, scope="session")
def _small_graphs_on_our_kernels() -> Iterator[None]:
    """The graphs of tests are small; so that tests see our kernels on them, nothing is too small, unless a test asks
    for `sizes_in_use`. Norms, activations and dropout are the exception: `fused` and `paths` choose for them.
    """
    from support.paths import nothing_too_small

    with nothing_too_small():
        yield


@pytest.fixture
def sizes_in_use() -> Iterator[None]:
    """The sizes that users meet."""
    from support.paths import sizes_of_users

    with sizes_of_users():
        yield


@pytest.fixture(autouse=True)
def _one_thread(request: pytest.FixtureRequest):
    """One thread unless a test asks for `threads` or sets them: tensors are small, and waking threads is not."""
    before = torch.get_num_threads()
    if "threads" not in request.fixturenames:
        torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(params=native.available_isas() or [native.REFERENCE])
def isa(request: pytest.FixtureRequest):
    """Runs the test once per instruction set that this processor has."""
    if request.param == native.REFERENCE:
        yield request.param
        return
    with native.using_isa(request.param):
        yield request.param


@pytest.fixture(params=[1, 2, 5])
def threads(request: pytest.FixtureRequest):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.fixture(params=["fused", "torch's own"])
def paths(request: pytest.FixtureRequest) -> Iterator[str]:
    """Runs the test with small tensors on fused ops, and as they are, on torch's."""
    from support.paths import forced  # needs PyG, which takes a second or two

    with forced(least=1 if request.param == "fused" else None):
        yield request.param


@pytest.fixture
def fused() -> Iterator[None]:
    """Small tensors take the fused ops."""
    from support.paths import forced

    with forced(least=1):
        yield
