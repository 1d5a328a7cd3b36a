"""What the partitioners cut: METIS and the streaming one, on several graphs.

    python benchmarks/partition.py [--datasets amazon_computers,...] [--parts 4,16]

No times: the share of edges that is cut, halo rows per own row, and how much larger the largest part is than the mean.
"""

from __future__ import annotations

import argparse
import tempfile
from typing import Any

from harness import RESULTS, machine, require_green, write_json

import gossamer as gs
from gossamer.distributed.assign import METHODS


def measure(name: str, graph: gs.Graph, parts: int, method: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        found = gs.distributed.partition(graph, parts=parts, out=folder, method=method, progress=False)
        halo = sum(part.halo for part in found.manifest.parts)
        return {
            "graph": name,
            "nodes": graph.num_nodes,
            "edges": graph.num_edges,
            "parts": parts,
            "method": method,
            "cut": found.cut,
            "halo_per_node": halo / graph.num_nodes,
            "node_balance": found.node_balance,
            "edge_balance": found.edge_balance,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--datasets", default="pubmed,amazon_computers,musae_github,arxiv-like,web_google_structure")
    parser.add_argument("--parts", default="4,16")
    arguments = parser.parse_args()
    require_green(["distributed/test_assign.py"])
    results = []
    for name in arguments.datasets.split(","):
        graph = gs.Graph.from_data(gs.datasets.load(name))
        for parts in map(int, arguments.parts.split(",")):
            results += [measure(name, graph, parts, method) for method in METHODS]
            print(results[-2], results[-1], sep="\n", flush=True)
    write_json(RESULTS / "partition.json", {"machine": machine(), "results": results})


if __name__ == "__main__":
    main()
