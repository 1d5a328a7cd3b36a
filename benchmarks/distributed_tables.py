"""Tables of docs/distributed.md."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from activation_tables import table

Results = Mapping[str, Any]


def partition_table(results: Results) -> str:
    """METIS beside the streaming partitioner, a row per graph and number of parts."""
    content, rows = results["partition"], []
    by_case: dict[tuple[str, int], dict[str, Any]] = {}
    for one in content["results"]:
        by_case.setdefault((one["graph"], one["parts"]), {})[one["method"]] = one
    for (graph, parts), methods in by_case.items():
        pair = [methods["metis"], methods["stream"]]
        cells = [f"{one['cut']:.1%}" for one in pair] + [f"{one['halo_per_node']:.2f}" for one in pair]
        cells += [f"{one['node_balance']:.2f}, {one['edge_balance']:.2f}" for one in pair]
        rows.append([f"`{graph}`, {pair[0]['edges']:,} edges", str(parts), *cells])
    heads = ["graph", "parts", "cut: METIS", "stream", "halo per node: METIS", "stream"]
    heads += ["largest / mean (nodes, edges): METIS", "stream"]
    return f"{table(heads, rows, 1)}\n\nCommit {content['machine']['commit']}."


def message_table(results: Results) -> str:
    """Bytes that all ranks send in an epoch, beside float32 messages of the same plan and of every layer."""
    content, rows = results["distributed"], []
    for one in content["results"]:
        for name, found in one["settings"].items():
            cells = [f"{found['kernel'] / 1e6:.1f} MB", f"{found['kernel_of_float32']:.3f}"]
            rows.append([str(one["ranks"]), name, *cells, f"{found['of_every_layer']:.3f}"])
    heads = ["ranks", "products, messages", "sent per epoch", "of float32 messages", "of float32 rows of every layer"]
    return f"{table(heads, rows, 2)}\n\nCommit {content['machine']['commit']}."


TABLES: dict[str, Callable[[Results], str]] = {"partition": partition_table, "messages": message_table}
