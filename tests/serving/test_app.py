"""The server's endpoints: answers, limits, and clients that mean no good."""

from __future__ import annotations

import asyncio
import json
import time

import pytest
import torch

import gossamer as gs
from support.graphs import graph
from support.integer_models import CLASSES, COLUMNS, GRAPH_LEVEL, MODELS
from support.tensors import rand

pytest.importorskip("fastapi")
httpx = pytest.importorskip("httpx")

from gossamer.serving.app import make_app  # noqa: E402
from gossamer.serving.limits import Limits  # noqa: E402
from gossamer.serving.model import Served  # noqa: E402


def inputs():
    g = graph("power law")
    return rand(400, COLUMNS), g


def engine_of(name: str, path) -> gs.Engine:
    torch.manual_seed(0)
    if name in MODELS:
        model, (x, g) = MODELS[name]().eval(), inputs()
        gs.calibrate(model, (x, g.edge_index))
    else:
        model = GRAPH_LEVEL[name]().eval()
        gs.calibrate(model, (rand(9, COLUMNS), torch.randint(9, (2, 20)), torch.tensor([0] * 4 + [1] * 5)))
    gs.export(model, path)
    return gs.load(path)


@pytest.fixture(scope="module")
def engine(tmp_path_factory) -> gs.Engine:
    return engine_of("GraphSAGE", tmp_path_factory.mktemp("m") / "m")


class Client:
    """Requests to an application in this process."""

    def __init__(self, app) -> None:
        self.transport = httpx.ASGITransport(app=app)

    def request(self, method: str, path: str, **options):
        async def ask():
            async with httpx.AsyncClient(transport=self.transport, base_url="http://test") as client:
                return await client.request(method, path, **options)

        return asyncio.run(ask())

    def post(self, path: str, body=None, **options):
        return self.request("POST", path, **({"json": body} if body is not None else {}), **options)

    def get(self, path: str):
        return self.request("GET", path)


@pytest.fixture
def client(engine) -> Client:
    x, g = inputs()
    return Client(make_app(Served(engine, g, x), title="<b>model</b>"))


def test_nodes(client, engine):
    x, g = inputs()
    want = engine(x, g)
    reply = client.post("/predict/nodes", {"nodes": [3, 17, 3]})
    assert reply.status_code == 200
    outputs = torch.tensor(reply.json()["outputs"])
    assert torch.equal(outputs, want[[3, 17, 3]]) and reply.json()["prediction"] == want[[3, 17, 3]].argmax(1).tolist()
    assert client.post("/predict/nodes", {"nodes": []}).json() == {"outputs": [], "prediction": []}


def test_sampled_neighbours_answer_the_same_after_a_restart(engine):
    x, g = inputs()
    store = gs.compress(x, gs.Scalar(bits=8), progress=False)
    answers = [
        Client(make_app(Served(engine, g, features, [5, 5, 5]))).post("/predict/nodes", {"nodes": [9, 3, 9]}).json()
        for features in (x, x, store)
    ]
    assert answers[0] == answers[1] and len(answers[2]["outputs"]) == 3
    assert answers[0]["outputs"][0] == answers[0]["outputs"][2]
    whole = Served(engine, g, x, [-1, -1, -1])
    assert torch.equal(whole.of_nodes([5, 6]), engine(x, g)[[5, 6]])


def test_a_graph_that_is_sent_along(client, engine):
    x, edge_index = rand(5, COLUMNS), torch.tensor([[0, 1, 2, 4], [1, 2, 3, 4]])
    reply = client.post("/predict/graph", {"x": x.tolist(), "edge_index": edge_index.tolist()})
    assert reply.status_code == 200
    assert torch.allclose(torch.tensor(reply.json()["outputs"]), engine(x, edge_index))
    empty = client.post("/predict/graph", {"x": [], "edge_index": [[], []]})
    assert empty.json() == {"outputs": [], "prediction": []}
    no_edges = client.post("/predict/graph", {"x": x.tolist(), "edge_index": [[], []]})
    assert len(no_edges.json()["outputs"]) == 5


def test_graph_level(tmp_path):
    client = Client(make_app(Served(engine_of("mean", tmp_path / "m"))))
    body = {"x": rand(5, COLUMNS).tolist(), "edge_index": [[0], [1]], "batch": [0, 0, 0, 1, 1]}
    assert len(client.post("/predict/graph", body).json()["outputs"]) == 2
    assert client.post("/predict/nodes", {"nodes": [1]}).status_code == 422
    with pytest.raises(ValueError, match="`--graph` must be left out"):
        x, g = inputs()
        Served(gs.load(tmp_path / "m"), g, x)


def test_what_it_says_of_itself(client):
    assert client.get("/health").json()["status"] == "ok"
    model = client.get("/model").json()
    assert (model["features"], model["outputs"], model["nodes"]) == (COLUMNS, CLASSES, 400)
    shown = client.get("/")
    assert "&lt;b&gt;model&lt;/b&gt;" in shown.text and "<b>model</b>" not in shown.text and "Try a node" in shown.text
    client.post("/predict/nodes", {"nodes": [1]})
    client.get("/nowhere")
    metrics = client.get("/metrics").text
    assert 'gossamer_requests_total{path="/predict/nodes",status="200"} 1' in metrics
    assert 'path="other",status="404"' in metrics and "gossamer_request_seconds_count" in metrics


@pytest.mark.parametrize(
    "path, body, message",
    [
        ("/predict/nodes", {"nodes": [400]}, "numbers from 0 to 399 (got 400)"),
        ("/predict/nodes", {"nodes": [-1]}, "got -1"),
        ("/predict/nodes", {"nodes": "all"}, "`nodes` must be a list of whole numbers"),
        ("/predict/nodes", {"nodes": [1.5]}, "whole numbers"),
        ("/predict/nodes", {"nodes": [True]}, "whole numbers"),
        ("/predict/nodes", {}, "`nodes` must be a list"),
        ("/predict/nodes", {"nodes": [10**30]}, "`nodes`"),
        ("/predict/graph", {"x": [[1.0]], "edge_index": [[], []]}, "`x` must have the shape [nodes, 12]"),
        ("/predict/graph", {"x": [[1.0], [1.0, 2.0]], "edge_index": [[], []]}, ""),
        ("/predict/graph", {"x": "x", "edge_index": [[], []]}, "`x` must be a list of rows"),
        ("/predict/graph", {"x": [["a"] * 12], "edge_index": [[], []]}, ""),
        ("/predict/graph", {"x": [[0.0] * 12], "edge_index": [[0], [1]]}, "ids of the 1 nodes"),
        ("/predict/graph", {"x": [[0.0] * 12], "edge_index": [[0]]}, "two lists"),
        ("/predict/graph", {"x": [[0.0] * 12], "edge_index": [[0], []]}, "as many sources as destinations"),
        ("/predict/graph", {"x": [[0.0] * 12], "edge_index": [["a"], ["b"]]}, ""),
        ("/predict/graph", {"x": [[1e39] + [0.0] * 11], "edge_index": [[], []]}, "must be finite"),
        ("/predict/graph", {"x": [[0.0] * 12], "edge_index": [[], []], "batch": [0]}, "`batch` must be left out"),
    ],
)
def test_bad_contents(client, path, body, message):
    reply = client.post(path, body)
    assert reply.status_code == 422 and message in reply.json()["error"]


@pytest.mark.parametrize("data", [b"", b"nonsense", b"[1, 2]", b"3", b"\xff\xfe", b"[" * 100_000, b'{"nodes": NaN'])
def test_bodies_that_are_no_object(client, data):
    reply = client.post("/predict/nodes", content=data)
    assert reply.status_code == 400 and "the body must be" in reply.json()["error"]


def test_bodies_that_are_too_large(engine):
    x, g = inputs()
    client = Client(make_app(Served(engine, g, x), Limits(body_bytes=1000, nodes=10, edges=5)))
    assert client.post("/predict/nodes", content=b" " * 1001).status_code == 413
    chunks = client.post("/predict/nodes", content=_slowly(b" " * 300, 5, 0.0))
    assert chunks.status_code == 413
    many = client.post("/predict/nodes", {"nodes": list(range(11))})
    assert many.status_code == 422 and "at most 10" in many.json()["error"]
    assert client.post("/predict/nodes", {"nodes": [1]}).status_code == 200


async def _slowly(part: bytes, count: int, seconds: float):
    for _ in range(count):
        await asyncio.sleep(seconds)
        yield part


def test_bodies_that_trickle(engine):
    x, g = inputs()
    client = Client(make_app(Served(engine, g, x), Limits(read_seconds=0.1)))
    begun = time.perf_counter()
    reply = client.post("/predict/nodes", content=_slowly(b" ", 100, 0.05))
    assert reply.status_code == 408 and time.perf_counter() - begun < 3


def test_answers_that_take_too_long(engine):
    class Slow:
        def __init__(self, engine) -> None:
            self.engine, self.graph, self.fanouts, self.num_nodes = engine, None, None, 3

        def of_nodes(self, nodes):
            time.sleep(0.5)
            return torch.zeros(len(nodes), 2)

    client = Client(make_app(Slow(engine), Limits(answer_seconds=0.05)))
    reply = client.post("/predict/nodes", {"nodes": [1]})
    assert reply.status_code == 503 and "no answer within" in reply.json()["error"]


def test_methods_and_paths_that_are_none(client):
    assert client.get("/predict/nodes").status_code == 405
    assert client.get("/nowhere").status_code == 404
    assert client.request("DELETE", "/").status_code == 405


def test_limits_are_checked():
    with pytest.raises(ValueError, match="`body_bytes` must be above 0"):
        Limits(body_bytes=0)


def test_json_is_what_json_can_hold(client):
    reply = client.post("/predict/nodes", {"nodes": [1, 2]})
    assert json.loads(reply.text)["outputs"][0] and reply.headers["content-type"] == "application/json"
