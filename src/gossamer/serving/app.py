"""The endpoints.

    GET  /                  a page that shows the model and lets one try a node
    GET  /health            {"status": "ok", ...}
    GET  /model             what the model is and takes
    GET  /metrics           counters and latencies, for Prometheus
    POST /predict/nodes     {"nodes": [3, 17]}                                  of the loaded graph
    POST /predict/graph     {"x": [[...]], "edge_index": [[...], [...]], "batch": [...]}      of a graph sent along

Answers are {"outputs": [[...]], "prediction": [...]}, errors {"error": "..."} with a status of 4xx.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from torch import Tensor

from .limits import Limits
from .metrics import Metrics
from .model import BadRequest, Served
from .page import page


class _Refused(Exception):
    """A request that is answered with a status and a message."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def make_app(served: Served, limits: Limits | None = None, title: str = "") -> FastAPI:
    """The application, for uvicorn or any other ASGI server."""
    limits = Limits() if limits is None else limits
    metrics, pool = Metrics(), ThreadPoolExecutor(limits.workers)
    app = FastAPI(title="gossamer", docs_url=None, redoc_url=None, openapi_url=None)
    app.state.metrics = metrics
    facts = describe(served, title)

    @app.middleware("http")
    async def measured(request: Request, call: Callable[[Request], Awaitable[Response]]) -> Response:
        begun = time.perf_counter()
        metrics.begin()
        status = 500
        try:
            response = await call(request)
            status = response.status_code
            return response
        finally:
            known = request.scope["path"] if request.scope["path"] in PATHS else "other"
            metrics.end(known, status, time.perf_counter() - begun)

    @app.get("/health")
    async def health() -> dict[str, Any]:
        return {"status": "ok", "model": facts["title"], "nodes": served.num_nodes}

    @app.get("/model")
    async def model() -> dict[str, Any]:
        return facts

    @app.get("/metrics")
    async def told() -> Response:
        return PlainTextResponse(metrics.text())

    @app.get("/")
    async def shown() -> Response:
        return HTMLResponse(page(facts))

    async def answered(request: Request, compute: Callable[[dict[str, Any]], Tensor]) -> Response:
        try:
            body = await _read(request, limits)
            loop = asyncio.get_running_loop()
            work = loop.run_in_executor(pool, _computed, compute, body)
            return Response(await asyncio.wait_for(work, limits.answer_seconds), media_type="application/json")
        except _Refused as refused:
            return JSONResponse({"error": str(refused)}, refused.status)
        except BadRequest as error:
            return JSONResponse({"error": str(error)}, 422)
        except (asyncio.TimeoutError, TimeoutError):
            return JSONResponse({"error": f"no answer within {limits.answer_seconds} s; ask for fewer nodes"}, 503)

    @app.post("/predict/nodes")
    async def nodes(request: Request) -> Response:
        return await answered(request, lambda body: served.of_nodes(_numbers(body, "nodes", limits.nodes)))

    @app.post("/predict/graph")
    async def graph(request: Request) -> Response:
        return await answered(request, lambda body: served.of_graph(*_graph(body, limits)))

    return app


PATHS = ("/", "/health", "/model", "/metrics", "/predict/nodes", "/predict/graph")


def describe(served: Served, title: str) -> dict[str, Any]:
    """What the model is, as plain values."""
    engine = served.engine
    return {
        "title": title or str(engine.facts.get("path", "model")), "engine": repr(engine),
        "features": engine.num_features, "outputs": engine.num_outputs, "graph_level": engine.program.graph_level,
        "steps": [step.kind_name for step in engine.program], "recipe": engine.facts.get("recipe"),
        "nodes": served.num_nodes, "edges": None if served.graph is None else served.graph.num_edges,
        "fanouts": None if served.fanouts is None else list(served.fanouts),
    }  # fmt: skip


async def _read(request: Request, limits: Limits) -> dict[str, Any]:
    """The body as a JSON object, read within the limits."""
    told = request.headers.get("content-length", "")
    if told.isdigit() and int(told) > limits.body_bytes:
        raise _Refused(413, f"the body must have at most {limits.body_bytes} bytes (it says {told})")

    async def whole() -> bytes:
        parts, size = [], 0
        async for part in request.stream():
            size += len(part)
            if size > limits.body_bytes:
                raise _Refused(413, f"the body must have at most {limits.body_bytes} bytes")
            parts.append(part)
        return b"".join(parts)

    try:
        data = await asyncio.wait_for(whole(), limits.read_seconds)
    except (asyncio.TimeoutError, TimeoutError):
        raise _Refused(408, f"the body must arrive within {limits.read_seconds} s") from None
    try:
        body = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise _Refused(400, f"the body must be JSON ({error})") from None
    if not isinstance(body, dict):
        raise _Refused(400, f"the body must be a JSON object (got {type(body).__name__})")
    return body


def _numbers(body: dict[str, Any], name: str, most: int) -> list[int]:
    found = body.get(name)
    if not isinstance(found, list) or not all(type(n) is int and abs(n) < 2**62 for n in found):
        raise BadRequest(f"`{name}` must be a list of whole numbers (got {str(found)[:80]})")
    if len(found) > most:
        raise BadRequest(f"`{name}` must have at most {most} entries (got {len(found)})")
    return found


def _graph(body: dict[str, Any], limits: Limits) -> tuple[Any, Any, Any]:
    x, edges, batch = body.get("x"), body.get("edge_index"), body.get("batch")
    if not isinstance(x, list) or not all(isinstance(row, list) for row in x):
        raise BadRequest("`x` must be a list of rows, each a list of numbers")
    if not isinstance(edges, list) or len(edges) != 2 or not all(isinstance(end, list) for end in edges):
        raise BadRequest("`edge_index` must be two lists of node numbers, sources and destinations")
    if len(edges[0]) != len(edges[1]):
        raise BadRequest(
            f"`edge_index` must have as many sources as destinations (got {len(edges[0])}, {len(edges[1])})"
        )
    if len(x) > limits.nodes or len(edges[0]) > limits.edges:
        raise BadRequest(f"a graph must have at most {limits.nodes} nodes and {limits.edges} edges")
    if batch is not None:
        batch = _numbers(body, "batch", limits.nodes)
    return x, edges, batch


def _computed(compute: Callable[[dict[str, Any]], Tensor], body: dict[str, Any]) -> bytes:
    """The answer as bytes; in a thread of its own, so that others are served meanwhile."""
    outputs = compute(body)
    answer: dict[str, Any] = {"outputs": outputs.tolist()}
    if outputs.size(1) > 1:
        answer["prediction"] = outputs.argmax(1).tolist()
    return json.dumps(answer).encode()
