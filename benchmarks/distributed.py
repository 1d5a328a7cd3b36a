"""Partitioned training with messages in few bits: bytes on the wire, and epochs at limited bandwidth.

    python benchmarks/distributed.py                     bytes per epoch, counted by the kernel and by the library
    python benchmarks/distributed.py --mbit 1000 100     seconds per epoch, too; on an idle machine

Each rank runs in a network namespace of its own, joined by a bridge (`ip netns`, as root), so that /proc/net/dev counts
what it sends (gradients of parameters apart); `tc tbf` limits the bandwidth. The graph is generated: planted
communities, cut by METIS where it is installed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

import gossamer as gs
from gossamer.distributed.costs import Model, every_layer_bytes

SETTINGS = {
    "float32, float32 messages": gs.Recipe(),
    "float32, int8 messages": gs.Recipe(messages=gs.Messages(8)),
    "float32, int4 messages": gs.Recipe(messages=gs.Messages(4)),
    "float32, int2 messages": gs.Recipe(messages=gs.Messages(2)),
    "tango, int8 messages": gs.Recipe(compute=gs.Int8(), messages=gs.Messages(8)),
}
NODES, DEGREE, COMMUNITIES, WIDTHS = 20_000, 12, 40, (128, 256, 256, 40)
EPOCHS, PORT, BRIDGE = 3, 29871, "gsbr"


# What a rank does -------------------------------------------------------------------------------------------------


def sent_by_kernel() -> int:
    """Bytes that this namespace's interfaces have sent, loopback apart."""
    lines = [line.split(":", 1) for line in Path("/proc/net/dev").read_text().splitlines() if ":" in line]
    alone = [fields for name, fields in lines if name.strip() == "lo"]
    others = [fields for name, fields in lines if name.strip() != "lo"]
    return sum(int(fields.split()[8]) for fields in others or alone)


def rank(folder: str) -> None:
    from torch_geometric.nn import GCN

    torch.set_num_threads(1)
    part = gs.distributed.load(folder, seconds=600)
    found: dict[str, Any] = {}
    for name, recipe in SETTINGS.items():
        torch.manual_seed(0)
        model = GCN(WIDTHS[0], WIDTHS[1], len(WIDTHS) - 1, WIDTHS[-1], norm=None, dropout=0.0)
        gs.lighten_(model, recipe)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        seconds, losses = [], []
        for epoch in range(EPOCHS + 1):  # the first also sends what is sent once
            before, counted, start = part.ranks.bytes_sent, sent_by_kernel(), time.perf_counter()
            out = model(part.x, part.graph)
            loss = part.mean(functional.cross_entropy(out[part.train], part.y[part.train], reduction="sum"))
            optimizer.zero_grad()
            loss.backward()
            rows, wire = part.ranks.bytes_sent - before, sent_by_kernel() - counted
            gs.distributed.sum_gradients(model)
            optimizer.step()
            losses.append(float(loss.detach()))
            if epoch:
                seconds.append(time.perf_counter() - start)
        found[name] = {"rows": rows, "kernel": wire, "seconds": min(seconds), "loss": losses[-1]}
    total = {name: float(part.sum(torch.tensor(float(each["rows"])))) for name, each in found.items()}
    kernel = {name: float(part.sum(torch.tensor(float(each["kernel"])))) for name, each in found.items()}
    slowest = {name: part.ranks.gather(torch.tensor([each["seconds"]])).max().item() for name, each in found.items()}
    if part.ranks.rank == 0:
        told = {
            name: {"rows": total[name], "kernel": kernel[name], "seconds": slowest[name], "loss": each["loss"]}
            for name, each in found.items()
        }
        Path(folder, "result.json").write_text(json.dumps(told))
    gs.distributed.stop()


# Namespaces -------------------------------------------------------------------------------------------------------


def sh(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)


@contextlib.contextmanager
def namespaces(ranks: int, mbit: int | None) -> Iterator[None]:
    """A namespace gs0, gs1, ... for each rank, with the address 10.77.0.1, ... and so much bandwidth."""
    try:
        sh("ip", "link", "add", BRIDGE, "type", "bridge")
        sh("ip", "link", "set", BRIDGE, "up")
        for r in range(ranks):
            sh("ip", "netns", "add", f"gs{r}")
            sh("ip", "link", "add", f"gsv{r}", "type", "veth", "peer", "name", f"gsp{r}")
            sh("ip", "link", "set", f"gsp{r}", "master", BRIDGE, "up")
            sh("ip", "link", "set", f"gsv{r}", "netns", f"gs{r}")
            inside = ("ip", "netns", "exec", f"gs{r}")
            sh(*inside, "ip", "addr", "add", f"10.77.0.{r + 1}/24", "dev", f"gsv{r}")
            sh(*inside, "ip", "link", "set", f"gsv{r}", "up")
            sh(*inside, "ip", "link", "set", "lo", "up")
            if mbit is not None:
                limit = ("rate", f"{mbit}mbit", "burst", "1mb", "limit", "64mb")
                sh(*inside, "tc", "qdisc", "add", "dev", f"gsv{r}", "root", "tbf", *limit)
        yield
    finally:
        for r in range(ranks):
            subprocess.run(("ip", "netns", "del", f"gs{r}"), capture_output=True, check=False)
        subprocess.run(("ip", "link", "del", BRIDGE), capture_output=True, check=False)


def start(ranks: int, folder: str, apart: bool) -> None:
    processes = []
    for r in range(ranks):
        where = {"RANK": str(r), "WORLD_SIZE": str(ranks), "MASTER_PORT": str(PORT)}
        where |= {"MASTER_ADDR": "10.77.0.1" if apart else "127.0.0.1"}
        where |= {"GLOO_SOCKET_IFNAME": f"gsv{r}" if apart else "lo"}
        before = ["ip", "netns", "exec", f"gs{r}"] if apart else []
        command = [*before, sys.executable, __file__, "--rank", folder]
        processes.append(subprocess.Popen(command, env=os.environ | where))
    codes = [process.wait() for process in processes]
    if any(codes):
        raise SystemExit(f"ranks ended with {codes}")


def graph_of() -> tuple[gs.Graph, Any]:
    """Planted communities: four fifths of the edges stay inside."""
    rng = torch.Generator().manual_seed(0)
    y = torch.randint(COMMUNITIES, (NODES,), generator=rng)
    order, sizes = torch.argsort(y), torch.bincount(y, minlength=COMMUNITIES)
    first = sizes.cumsum(0) - sizes
    src = torch.randint(NODES, (NODES * DEGREE // 2,), generator=rng)
    offset = (torch.rand(len(src), generator=rng) * sizes[y[src]]).long()
    inside = order[first[y[src]] + offset]
    anywhere = torch.randint(NODES, (len(src),), generator=rng)
    dst = torch.where(torch.rand(len(src), generator=rng) < 0.8, inside, anywhere)
    ends = torch.unique(torch.cat([torch.stack([src, dst]), torch.stack([dst, src])], dim=1), dim=1)
    x = torch.randn(NODES, WIDTHS[0], generator=rng) + 0.3 * torch.nn.functional.one_hot(y, WIDTHS[0])
    return gs.Graph.from_edge_index(ends, NODES), (x, y)


def measure(ranks: int, mbit: int | None, apart: bool) -> dict[str, Any]:
    graph, (x, y) = graph_of()
    train = torch.rand(NODES, generator=torch.Generator().manual_seed(1)) < 0.5
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        parts = str(Path(folder) / "parts")
        made = gs.distributed.partition(graph, x, y, train, train, train, parts=ranks, out=parts, progress=False)
        vanilla = every_layer_bytes(made.counts(ranks), Model("gcn", WIDTHS))
        if apart:
            stack.enter_context(namespaces(ranks, mbit))
        start(ranks, parts, apart)
        found = json.loads(Path(parts, "result.json").read_text())
    plain = found["float32, float32 messages"]
    for each in found.values():
        each["of_float32"] = each["rows"] / plain["rows"]
        each["kernel_of_float32"] = each["kernel"] / plain["kernel"]
        each["of_every_layer"] = each["rows"] / vanilla
    return {"ranks": ranks, "mbit": mbit, "namespaces": apart, "partition": repr(made), "settings": found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--mbit", type=int, nargs="*", default=[], help="bandwidths to time epochs at")
    parser.add_argument("--loopback", action="store_true", help="without namespaces, as any user")
    parser.add_argument("--rank", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rank:
        rank(given.rank)
        return
    from harness import RESULTS, machine, write_json

    results = [measure(ranks, mbit, not given.loopback) for ranks in given.ranks for mbit in given.mbit or [None]]
    if not given.mbit:
        for each in results:
            for setting in each["settings"].values():
                del setting["seconds"]
    print(json.dumps(results, indent=1))
    write_json(RESULTS / "distributed.json", {"machine": machine(), "results": results})


if __name__ == "__main__":
    main()
