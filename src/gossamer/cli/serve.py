"""`gossamer serve`: an HTTP server for an integer model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..graph import Graph
from ..inference import load
from .errors import told_plainly
from .predict import read_features
from .train import _set_threads, numbers


def serve(
    model: Annotated[Path, typer.Argument(help="File of `gossamer export` or gs.export.")],
    graph: Annotated[Path | None, typer.Option(help="File of Graph.save, whose nodes can be asked for.")] = None,
    features: Annotated[Path | None, typer.Option(help="Its features: .npy, or .gsf of `gossamer compress`.")] = None,
    mmap: Annotated[
        bool, typer.Option("--mmap", help="Leave the graph in its file, which must then stay as it is.")
    ] = False,
    fanouts: Annotated[
        str | None,
        typer.Option(help="Sample neighbours for each request, as 15,10; by default all, once at the start."),
    ] = None,
    host: Annotated[str, typer.Option(help="Interface; 127.0.0.1 is this machine alone.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 takes any that is free.")] = 8000,
    max_mb: Annotated[float, typer.Option(help="Largest body of a request, megabytes.")] = 16.0,
    timeout: Annotated[float, typer.Option(help="Seconds until a request is given up.")] = 30.0,
    threads: Annotated[int | None, typer.Option(help="Threads; by default what torch chooses.")] = None,
) -> None:
    """Serve predictions for the nodes of a graph, and for graphs that are sent along."""
    with told_plainly():
        _set_threads(threads)
        try:
            import uvicorn

            from ..serving.app import make_app
            from ..serving.limits import Limits
            from ..serving.model import Served
        except ImportError as error:
            raise ValueError(f"`gossamer serve` needs the extra: pip install 'gossamer-gnn[serve]' ({error})") from None
        if (graph is None) != (features is None):
            raise ValueError("`--graph` and `--features` go together")
        engine = load(model)
        loaded = None if graph is None else Graph.load(graph, mmap=mmap)
        rows = None if features is None else read_features(features)
        served = Served(engine, loaded, rows, numbers("--fanouts", fanouts))
        limits = Limits(body_bytes=int(max_mb * 2**20), answer_seconds=timeout)
        print(f"{engine}\nhttp://{host}:{port or '...'}", flush=True)
        uvicorn.run(
            make_app(served, limits, model.name), host=host, port=port, log_level="warning", access_log=False,
            limit_concurrency=limits.concurrency, timeout_keep_alive=5, h11_max_incomplete_event_size=2**16,
            timeout_graceful_shutdown=5,
        )  # fmt: skip
