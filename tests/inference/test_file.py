"""Files that are truncated, forged, too new, or of another program: an error that says so, never a crash."""

from __future__ import annotations

import json

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save_file

import gossamer as gs
from gossamer.checksums import of_contents
from gossamer.inference import BadProgram, Program
from support.graphs import graph
from support.integer_models import COLUMNS, MODELS
from support.tensors import rand


@pytest.fixture(scope="module", params=["GCN, batch norm", "GraphSAGE", "GIN", "GAT", "residual"])
def written(request, tmp_path_factory):
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("model") / "m"
    model = MODELS[request.param]().eval()
    gs.calibrate(model, inputs())
    gs.export(model, path)
    return path


def inputs():
    g = graph("power law")
    return rand(400, COLUMNS), g.edge_index


def parts(path):
    with safe_open(path, "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, dict(file.metadata())  # noqa: SIM118


def forged(path, tensors, metadata, mend=True):
    """A file with these contents, and a checksum that is right for them."""
    if mend:
        metadata["checksum"] = of_contents(tensors, metadata["program"], metadata["recipe"])
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path, metadata=metadata)
    return path


def test_no_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"`path` must be a file written by gs.export"):
        gs.load(tmp_path / "none")
    with pytest.raises(FileNotFoundError, match="`path` must be a file"):
        gs.load(tmp_path)


@pytest.mark.parametrize("length", [0, 1, 8, 100, 500, -1, -100])
def test_truncated(written, tmp_path, length):
    data = written.read_bytes()
    path = tmp_path / "cut"
    path.write_bytes(data[:length])
    with pytest.raises(gs.BadModelFile, match="truncated or of another kind"):
        gs.load(path)


def test_every_flipped_bit_is_noticed(written, tmp_path):
    data, path = bytearray(written.read_bytes()), tmp_path / "flipped"
    rng, version = torch.Generator().manual_seed(0), data.index(b"gossamer.model.1") + len("gossamer.model.1") - 1
    for at in [*torch.randint(len(data), (150,), generator=rng).tolist(), *[version] * 20]:
        bit = 1 << int(torch.randint(8, (), generator=rng))
        data[at] ^= bit
        path.write_bytes(bytes(data))
        with pytest.raises(gs.BadModelFile):
            gs.load(path)
        data[at] ^= bit


def test_versions(written, tmp_path):
    tensors, metadata = parts(written)
    for named, message in (
        ("gossamer.model.2", "written by a newer gossamer.*update gossamer"),
        ("gossamer.graph.1", "must be a file written by gs.export"),
        ("gossamer.model.0", "must be a file written by gs.export"),
        ("", "must be a file written by gs.export"),
    ):
        path = forged(tmp_path / "other", tensors, metadata | {"format": named}, mend=False)
        with pytest.raises(gs.BadModelFile, match=message):
            gs.load(path)


def test_another_safetensors_file(tmp_path):
    save_file({"weight": torch.ones(3)}, tmp_path / "other")
    with pytest.raises(gs.BadModelFile, match="has the format None"):
        gs.load(tmp_path / "other")


def test_a_tensor_of_another_shape_or_missing(written, tmp_path):
    tensors, metadata = parts(written)
    x, edge_index = inputs()
    for name in tensors:
        for changed in (
            tensors[name][:-1], tensors[name].double(), torch.cat([tensors[name], tensors[name]]), None,
        ):  # fmt: skip
            others = {key: value for key, value in tensors.items() if key != name}
            path = forged(tmp_path / "forged", others if changed is None else others | {name: changed}, dict(metadata))
            try:
                engine = gs.load(path)
            except gs.BadModelFile:
                continue
            try:
                engine(x, edge_index)  # a vector of one number more stands for all columns, a table may have more rows
            except (ValueError, TypeError, IndexError, RuntimeError):
                continue


def test_absurd_numbers(written, tmp_path):
    tensors, metadata = parts(written)
    spoiled = {name: t if not t.is_floating_point() else torch.full_like(t, torch.nan) for name, t in tensors.items()}
    with pytest.raises(gs.BadModelFile, match="must be finite"):
        gs.load(forged(tmp_path / "forged", spoiled, dict(metadata)))


LEAVES = st.sampled_from([None, -1, 0, 3, 2**40, 1e30, "x", "v1", "none", [], {}, True, [1, 2], {"op": "sum"}])


def spoil(draw, value):
    """One leaf or branch of a JSON value replaced, removed or doubled."""
    if isinstance(value, dict) and value and draw(st.booleans()):
        key = draw(st.sampled_from(sorted(value)))
        if draw(st.integers(0, 4)) == 0:
            return {k: v for k, v in value.items() if k != key}
        return value | {key: spoil(draw, value[key])}
    if isinstance(value, list) and value and draw(st.booleans()):
        k = draw(st.integers(0, len(value) - 1))
        if draw(st.integers(0, 4)) == 0:
            return value[:k] + value[k + 1 :]
        return [*value[:k], spoil(draw, value[k]), *value[k + 1 :]]
    return draw(LEAVES)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_forged_program_is_refused_or_runs(written, tmp_path, data):
    """Never a crash: an error that is ours, or floats of some shape."""
    tensors, metadata = parts(written)
    program = spoil(data.draw, json.loads(metadata["program"]))
    path = forged(tmp_path / "forged", tensors, metadata | {"program": json.dumps(program)})
    x, edge_index = inputs()
    try:
        engine = gs.load(path)
    except gs.BadModelFile:
        return
    try:
        out = engine(x[:, :1].expand(-1, engine.num_features), edge_index)
    except (ValueError, TypeError, IndexError, RuntimeError, KeyError):
        return
    assert out.dtype == torch.float32


@pytest.mark.parametrize("text", ["[]", "3", '"x"', "{}", '{"steps": 3}', "nonsense", "[" * 5000])
def test_a_program_that_is_none(written, tmp_path, text):
    tensors, metadata = parts(written)
    with pytest.raises(gs.BadModelFile, match="do not fit each other"):
        gs.load(forged(tmp_path / "forged", tensors, metadata | {"program": text}))


def test_registers_are_written_before_they_are_read():
    plain = {"columns": 4, "graph_level": False, "convolutions": 0, "output": "v1"}
    step = {"op": "quantise", "out": "v1", "x": "v0", "result": {"mult": "f"}}
    with pytest.raises(BadProgram, match="reads 'v0', which no step before it writes"):
        Program.from_plain(plain | {"steps": [step]})
    with pytest.raises(BadProgram, match="written twice"):
        Program.from_plain(plain | {"steps": [step | {"x": "x"}, step | {"x": "x"}]})
    with pytest.raises(BadProgram, match="the output 'v1' is written by no step"):
        Program.from_plain(plain | {"steps": []})
    with pytest.raises(BadProgram, match="there is no step 'explode'"):
        Program.from_plain(plain | {"steps": [{"op": "explode"}]})
