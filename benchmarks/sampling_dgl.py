"""The other side of benchmarks/sampling.py: DGL's CPU sampler, in a process of its own.

    PYTHON benchmarks/sampling_dgl.py FOLDER FANOUTS THREADS

Needs torch and DGL alone. Reads rowptr.npy, col.npy and seeds.npy [batches, size] from FOLDER, prints a line of JSON
with versions, and then, for every line on its input, samples all batches in each of DGL's ways and prints the seconds
and edges of each.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import dgl
import numpy as np
import torch


def main() -> None:
    folder, fanouts, threads = Path(sys.argv[1]), [int(k) for k in sys.argv[2].split(",")], int(sys.argv[3])
    torch.set_num_threads(threads)
    dgl.utils.set_num_threads(threads)
    rowptr, col, seeds = (torch.from_numpy(np.load(folder / f"{name}.npy")) for name in ("rowptr", "col", "seeds"))
    ways = {}
    for ids in (torch.int64, torch.int32):
        csc = rowptr.to(ids), col.to(ids), torch.empty(0, dtype=ids)
        graph = dgl.graph(("csc", csc), num_nodes=rowptr.numel() - 1)
        for fused in (True, False):
            sampler = dgl.dataloading.NeighborSampler(fanouts[::-1], fused=fused)  # DGL's first is the outermost layer
            name = str(ids).removeprefix("torch.") + (", fused" if fused else "")
            ways[name] = (sampler, graph, seeds.to(ids))
    print(json.dumps({"dgl": dgl.__version__, "torch": torch.__version__}), flush=True)
    for _ in sys.stdin:
        print(json.dumps({name: measure(*way) for name, way in ways.items()}), flush=True)


def measure(sampler: dgl.dataloading.NeighborSampler, graph: dgl.DGLGraph, seeds: torch.Tensor) -> dict[str, float]:
    start, edges = time.perf_counter(), 0
    for batch in seeds:
        _, _, blocks = sampler.sample_blocks(graph, batch)
        edges += sum(block.num_edges() for block in blocks)
    return {"seconds": time.perf_counter() - start, "edges": edges}


if __name__ == "__main__":
    main()
