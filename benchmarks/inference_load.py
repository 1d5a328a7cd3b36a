"""A server under load, on this machine alone: `gossamer serve` in a process, requests from another, over loopback.

One after the other: nodes by number from outputs that were computed at the start; nodes by sampled neighbours; a small
graph that is sent along. Then the server is killed, started again, and must answer the same bits.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import inference_runs as runs
import numpy as np

import gossamer as gs

HOST = "127.0.0.1"
FANOUTS = ",".join(map(str, runs.FANOUTS))
NODES = 8
"""Asked for in one request."""


def prepare(dataset: str, folder: str) -> int:
    """Model, graph and features as files; returns the number of nodes."""
    runs.prepare_sampled_model(dataset, folder)
    data = gs.datasets.load(dataset)
    gs.Graph.from_edge_index(data.edge_index, data.num_nodes).save(f"{folder}/graph.gsg")
    np.save(f"{folder}/x.npy", data.x.numpy())
    return data.num_nodes


class Server:
    """`gossamer serve` in a process of its own, while the block runs."""

    def __init__(self, folder: str, options: list[str]) -> None:
        with socket.socket() as free:
            free.bind((HOST, 0))
            self.port = free.getsockname()[1]
        files = [f"{folder}/sampled.int8", "--graph", f"{folder}/graph.gsg", "--features", f"{folder}/x.npy"]
        self.command = [sys.executable, "-m", "gossamer", "serve", *files, "--port", str(self.port), *options]

    def __enter__(self) -> Server:
        self.process = subprocess.Popen(self.command, stdout=subprocess.DEVNULL)
        end = time.monotonic() + 120
        while time.monotonic() < end:
            try:
                socket.create_connection((HOST, self.port), 1).close()
                return self
            except OSError:
                if self.process.poll() is not None:
                    raise RuntimeError(f"the server ended with {self.process.returncode}") from None
                time.sleep(0.1)
        raise RuntimeError("the server did not start within two minutes")

    def __exit__(self, *_: object) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def peak_bytes(self) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) * 1024


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str, body: bytes) -> tuple[int, bytes]:
    """One request on a connection that stays open."""
    head = f"POST {path} HTTP/1.1\r\nhost: {HOST}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
    writer.write(head.encode() + b"\r\n" + body)
    await writer.drain()
    lines = (await reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
    length = next(int(line.split(":")[1]) for line in lines if line.startswith("content-length"))
    return int(lines[0].split()[1]), await reader.readexactly(length)


async def load(port: int, path: str, bodies: list[bytes], at_once: int, seconds: float) -> dict[str, Any]:
    """So many clients, each with its next request as soon as the last was answered."""
    latencies: list[float] = []
    errors: list[str] = []
    end = time.perf_counter() + seconds

    async def client(number: int) -> None:
        rng = random.Random(number)
        reader, writer = await asyncio.open_connection(HOST, port)
        while time.perf_counter() < end:
            begun = time.perf_counter()
            try:
                status, answer = await ask(reader, writer, path, rng.choice(bodies))
            except (OSError, EOFError) as error:
                errors.append(repr(error))
                return
            latencies.append(time.perf_counter() - begun)
            if status != 200:
                errors.append(answer.decode()[:200])
        writer.close()

    begun = time.perf_counter()
    await asyncio.gather(*(client(number) for number in range(at_once)))
    took = time.perf_counter() - begun
    ordered = sorted(latencies)
    return {
        "requests": len(ordered), "errors": len(errors), "first_error": errors[0] if errors else None,
        "per_second": len(ordered) / took, "median": ordered[len(ordered) // 2],
        "p99": ordered[int(0.99 * len(ordered))], "slowest": ordered[-1],
    }  # fmt: skip


async def answers(port: int, path: str, bodies: list[bytes]) -> list[bytes]:
    reader, writer = await asyncio.open_connection(HOST, port)
    found = [(await ask(reader, writer, path, body))[1] for body in bodies]
    writer.close()
    return found


def small_graphs(columns: int, count: int = 20) -> list[bytes]:
    """Rings of 20 nodes."""
    rng = random.Random(0)
    ring = [list(range(20)), [*range(1, 20), 0]]
    rows = [[[round(rng.gauss(0, 1), 3) for _ in range(columns)] for _ in range(20)] for _ in range(count)]
    return [json.dumps({"x": x, "edge_index": ring}).encode() for x in rows]


def run(dataset: str, at_once: int, seconds: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        nodes = gs.measure.in_fresh_process(prepare, dataset, folder).value
        rng = random.Random(0)
        by_number = [json.dumps({"nodes": rng.sample(range(nodes), NODES)}).encode() for _ in range(500)]
        sent = small_graphs(gs.load(f"{folder}/sampled.int8").num_features)
        parts = {
            f"{NODES} nodes, all neighbours": ([], "/predict/nodes", by_number),
            f"{NODES} nodes, fan-outs {FANOUTS}": (["--fanouts", FANOUTS], "/predict/nodes", by_number),
            "a graph of 20 nodes sent along": ([], "/predict/graph", sent),
        }
        results = []
        for name, (options, path, bodies) in parts.items():
            with Server(folder, options) as server:
                found = asyncio.run(load(server.port, path, bodies, at_once, seconds))
                before = asyncio.run(answers(server.port, path, bodies[:20]))
                found["peak_bytes"] = server.peak_bytes()
            with Server(folder, options) as server:
                found["same_after_kill"] = asyncio.run(answers(server.port, path, bodies[:20])) == before
            print(
                f"{name}: {found['requests']:,} requests, {found['errors']} errors, {found['per_second']:.0f} a "
                f"second, p99 {found['p99'] * 1e3:.0f} ms, the same after a kill: {found['same_after_kill']}",
                flush=True,
            )
            results.append({"case": name} | found)
    return {
        "graph": {"name": dataset},
        "at_once": at_once,
        "seconds": seconds,
        "cores": os.cpu_count(),
        "served": results,
    }
