"""Which kernels are in use, and how that is changed."""

from __future__ import annotations

import re

import pytest
import torch

import gossamer as gs
from gossamer import native
from gossamer.ops import IMPLEMENTED, OPS
from support.paths import needs_native
from support.processes import run_python

LEVELS = ["baseline", "avx2", "avx512", "avx512vnni"]


@needs_native
def test_available_levels_are_known_and_ordered():
    available = native.available_isas()
    assert available == [level for level in LEVELS if level in available]
    assert available[0] == "baseline"


@needs_native
def test_the_fastest_level_is_the_default():
    result = run_python("from gossamer import native; print(native.isa())")
    assert result.stdout.split() == [native.available_isas()[-1]], result.stderr


@needs_native
def test_every_op_has_a_native_kernel():
    assert {"cpu": set(OPS)} == IMPLEMENTED


@needs_native
def test_using_isa_restores_the_level_also_after_an_error():
    before = native.isa()
    for level in native.available_isas():
        with pytest.raises(KeyError), native.using_isa(level):
            assert native.isa() == level
            raise KeyError
        assert native.isa() == before


@needs_native
@pytest.mark.parametrize("name", ["", "AVX2", "sse9", "reference", "avx512 "])
def test_unknown_levels_are_refused(name):
    before = native.isa()
    with pytest.raises(ValueError, match=rf"`isa` must be one of \['baseline'.*got '{name}'"):
        native.use_isa(name)
    assert native.isa() == before


@needs_native
@pytest.mark.parametrize("level", sorted({*native.available_isas()[:1], *native.available_isas()[-2:-1]}))
def test_environment_chooses_the_level(level):
    result = run_python("import gossamer as gs; print(gs.kernels.isa())", GOSSAMER_ISA=level)
    assert result.stdout.split() == [level], result.stderr


@needs_native
def test_environment_with_an_unknown_level_is_an_error():
    result = run_python("import gossamer", GOSSAMER_ISA="mmx")
    assert result.returncode != 0
    expected = r"ValueError: the environment variable GOSSAMER_ISA must be one of reference, .*'mmx'\); unset it"
    assert re.search(expected, result.stderr)


WITHOUT_KERNELS = """
import torch, gossamer as gs
from gossamer import native, memory, ops
assert native.library is None and native.isa() == "reference" and native.available_isas() == []
assert native.why_missing == "GOSSAMER_ISA=reference" and not ops.IMPLEMENTED
assert memory.stats()["limit_bytes"] == 0
graph = gs.Graph.from_edge_index(torch.tensor([[0, 1, 2], [1, 2, 2]]), 3)
x = torch.arange(6.0).view(3, 2).requires_grad_()
out = ops.spmm(graph, x)
out.sum().backward()
assert out.tolist() == [[0, 0], [0, 1], [6, 8]] and x.grad.tolist() == [[1, 1]] * 3
codes, zero, spread = ops.pack(x.detach(), 8, 4, 1)
assert (ops.unpack(codes, zero, spread, 6, 8, 4).view(3, 2) - x).abs().max() < 0.05
try:
    native.use_isa("avx2")
except RuntimeError as error:
    print(error)
"""


def test_reference_level_works_without_any_kernel():
    result = run_python(WITHOUT_KERNELS, GOSSAMER_ISA="reference")
    assert result.returncode == 0, result.stderr
    assert "use_isa('avx2')" in result.stdout and "GOSSAMER_ISA=reference" in result.stdout


def test_threads_are_those_of_torch(threads):
    assert native.num_threads() == torch.get_num_threads() == threads


OLDER = r"the native module .*_native.* is of another version .*`pip install \.` in the source tree"


@needs_native
def test_a_native_module_of_another_version(monkeypatch):
    """Whose kernel takes other arguments, or is missing: by dispatch, without it, and from a layer of ours."""
    from gossamer.backends.cpu import csr, spmm

    class Older:
        """The module before some change of its functions."""

        coo_to_csr = native.library.check_ids
        spmm = native.library.check_rowptr

        def __getattr__(self, name):
            raise AttributeError(f"module 'gossamer._native' has no attribute {name!r}")

    edges = torch.tensor([[0, 1, 2], [1, 2, 0]])
    graph = gs.Graph.from_edge_index(edges, 3)
    monkeypatch.setattr(csr, "library", Older())
    monkeypatch.setattr(spmm, "library", Older())
    for call in (
        lambda: gs.Graph.from_edge_index(edges, 3),
        graph.t,
        lambda: gs.ops.spmm(graph, torch.ones(3, 4)),
        lambda: gs.ops.spmm(graph, torch.ones(3, 4, requires_grad=True)),
    ):
        with pytest.raises(RuntimeError, match=OLDER):
            call()


def test_other_errors_of_a_kernel_are_left_as_they_are():
    for error in (TypeError("unsupported operand"), AttributeError("'NoneType' object has no attribute 'size'")):
        native.explain(error)
