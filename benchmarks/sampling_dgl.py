"""The other side of benchmarks/sampling.py: DGL's CPU sampler, in a process of its own.

    PYTHON benchmarks/sampling_dgl.py FOLDER FANOUTS THREADS

Needs torch and DGL alone. Reads rowptr.npy, col.npy and seeds.npy [batches, size] from FOLDER, prints a line of JSON
with versions, and then, for every line on its input, samples all batches and prints their seconds and edges.
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
    rowptr, col = (torch.from_numpy(np.load(folder / f"{name}.npy")) for name in ("rowptr", "col"))
    batches = torch.from_numpy(np.load(folder / "seeds.npy"))
    ids = torch.int64  # DGL wants one type for all; its default, and the faster of the two here
    graph = dgl.graph(("csc", (rowptr.to(ids), col.to(ids), torch.empty(0, dtype=ids))), num_nodes=rowptr.numel() - 1)
    sampler = dgl.dataloading.NeighborSampler(fanouts[::-1])  # DGL lists the outermost layer first
    print(json.dumps({"dgl": dgl.__version__, "torch": torch.__version__}), flush=True)
    for _ in sys.stdin:
        start, edges = time.perf_counter(), 0
        for seeds in batches:
            _, _, blocks = sampler.sample_blocks(graph, seeds)
            edges += sum(block.num_edges() for block in blocks)
        print(json.dumps({"seconds": time.perf_counter() - start, "edges": edges}), flush=True)


if __name__ == "__main__":
    main()
