"""The page of a server: the model's facts, and a form to try a node. One file, no script from elsewhere."""

from __future__ import annotations

import html
import json
from typing import Any

TEMPLATE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>{title}</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 46rem; margin: 2rem auto; padding: 0 1rem; color: #1c1e21 }}
h1 {{ font-size: 1.4rem }} table {{ border-collapse: collapse; width: 100% }}
td, th {{ border-bottom: 1px solid #ddd; padding: .35rem .5rem; text-align: left; vertical-align: top }}
input, button {{ font: inherit; padding: .3rem .6rem }} pre {{ background: #f5f5f5; padding: .8rem; overflow: auto }}
.bar {{ background: #4878a8; height: .9rem; display: inline-block; vertical-align: middle }} .error {{ color: #b00020 }}
</style>
<h1>{title}</h1>
<table>{rows}</table>
{form}
<p><a href="/model">/model</a> <a href="/metrics">/metrics</a> <a href="/health">/health</a></p>
"""
FORM = """<h2>Try a node</h2>
<form id="ask"><label>Nodes <input id="nodes" value="0, 1, 2" size="24"></label> <button>Predict</button></form>
<div id="answer" aria-live="polite"></div>
<script>
document.getElementById("ask").addEventListener("submit", async (event) => {
  event.preventDefault();
  const nodes = document.getElementById("nodes").value.split(",").map((text) => parseInt(text.trim(), 10));
  const place = document.getElementById("answer");
  const begun = performance.now();
  const reply = await fetch("/predict/nodes", {method: "POST", headers: {"content-type": "application/json"},
                                               body: JSON.stringify({nodes})});
  const found = await reply.json();
  place.replaceChildren();
  if (!reply.ok) {
    const told = document.createElement("p");
    told.className = "error";
    told.textContent = found.error;
    place.append(told);
    return;
  }
  const table = document.createElement("table");
  found.outputs.forEach((row, k) => {
    const top = Math.max(...row), weights = row.map((v) => Math.exp(v - top));
    const share = Math.max(...weights) / weights.reduce((a, b) => a + b, 0);
    const line = table.insertRow();
    line.insertCell().textContent = "node " + nodes[k];
    line.insertCell().textContent = found.prediction ? "class " + found.prediction[k] : row[0].toFixed(4);
    const bar = document.createElement("span");
    bar.className = "bar";
    bar.style.width = (share * 16).toFixed(2) + "rem";
    const cell = line.insertCell();
    cell.append(bar, " " + (100 * share).toFixed(1) + " %");
  });
  const took = document.createElement("p");
  took.textContent = (performance.now() - begun).toFixed(1) + " ms";
  place.append(table, took);
});
</script>
"""


def page(facts: dict[str, Any]) -> str:
    """HTML; everything that comes from a file is escaped."""
    shown = {
        "model": facts["engine"], "features": facts["features"], "outputs": facts["outputs"],
        "steps": ", ".join(facts["steps"]), "loaded graph": _graph(facts),
        "trained by": json.dumps((facts["recipe"] or {}).get("training")),
    }  # fmt: skip
    rows = "".join(f"<tr><th>{html.escape(k)}</th><td>{html.escape(str(v))}</td></tr>" for k, v in shown.items())
    form = FORM if facts["nodes"] is not None else "<p>No graph is loaded: send one to <code>/predict/graph</code>.</p>"
    return TEMPLATE.format(title=html.escape(facts["title"]), rows=rows, form=form)


def _graph(facts: dict[str, Any]) -> str:
    if facts["nodes"] is None:
        return "none"
    sampled = "all neighbours, computed at the start" if facts["fanouts"] is None else f"fan-outs {facts['fanouts']}"
    return f"{facts['nodes']:,} nodes, {facts['edges']:,} edges; {sampled}"
