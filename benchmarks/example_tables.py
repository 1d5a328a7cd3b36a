"""The table of small models (benchmarks/examples.py)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from activation_tables import table

Results = Mapping[str, Any]
NOISE = 0.97
"""What is slower by less is noise."""


def examples_table(results: Results) -> str:
    """Times faster than plain PyG, by median, training / evaluation; bold where it is slower by more than noise."""
    content = results["examples"]
    rows = content["results"]
    pyg, *recipes = rows[0]["seconds"]["train"]
    lines = []
    for row in rows:
        times = [row["seconds"][job] for job in ("train", "evaluate")]
        base = " / ".join(f"{1e3 * job[pyg]['median']:.1f}" for job in times)
        ratios = [[job[pyg]["median"] / job[recipe]["median"] for job in times] for recipe in recipes]
        cells = [" / ".join(f"**{r:.2f}**" if r < NOISE else f"{r:.2f}" for r in pair) for pair in ratios]
        lines.append([row["case"], base, *cells])
    m = content["machine"]
    made = (
        f"An epoch's training / evaluation, medians of {content['rounds']} turns; {m['cpu']}, {m['threads']} threads, "
        f"{m['isa']}; torch {m['torch']}, PyG {m['torch_geometric']}; commit {m['commit']}."
    )
    return f"{table(['model', 'PyG, ms', *(f'`{recipe}`' for recipe in recipes)], lines, 1)}\n\n{made}"


TABLES: dict[str, Callable[[Results], str]] = {"examples": examples_table}
