"""No op allocates more than its output and a bounded workspace: the high-water mark of a fresh process, per call."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import gc, json, re, sys, torch, gossamer as gs
from gossamer import ops
torch.set_num_threads(2)
n, d, nnz = 60_000, 128, 300_000
x = torch.randn(n, d)
graph = gs.Graph.from_edge_index(torch.randint(0, n, (2, nnz)), n)
graph.max_degree
logits = torch.randn(nnz, 4)
codes, scale = ops.quantize_rows(x)
packed = ops.pack(x, 2, 256, 1)
w_codes, w_scale = ops.quantize_rows(torch.randn(d, d))
ids = torch.arange(n)
mask = ops.dropout_saving_mask(x, 0.5, 1)[1]
w, b, per_row = torch.randn(d, d), torch.randn(d), torch.rand(n)
diagonal = torch.tensor(1.5).expand(n)
a, att = torch.randn(n, 4), torch.randn(4, d // 4)
tail = (1e-5, 3, 1.0, 0.5, 1)  # eps, elu with its slope, dropout with its seed
backward = torch.ops.gossamer.norm_act_backward

def high_water_mark():
    return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) * 1024

def size(out):
    return sum(map(size, out)) if isinstance(out, tuple) else out.nbytes

for call in json.load(sys.stdin):
    gc.collect()
    gs.memory.trim()
    open("/proc/self/clear_refs", "w").write("5")  # the mark starts again from what is resident now
    before = high_water_mark()
    result = eval(call)
    print(json.dumps([call, high_water_mark() - before, size(result)]))
    del result
"""

CALLS = [
    "ops.spmm(graph, x)",
    "ops.spmm(graph, x, bias=b, diagonal=diagonal, rows=x)",
    "ops.spmm(graph, x, diagonal=per_row)",
    "ops.spmm(graph, x, reduce='max')",
    "ops.spmm_int8(graph, codes, scale)",
    "ops.sddmm(graph, x.view(n, 4, -1), x.view(n, 4, -1))",
    "ops.edge_softmax(graph, logits)",
    "ops.gat_attention(graph, a, a, logits)",
    "ops.gatv2_logits(graph, x, x, att)",
    "ops.head_mean_spmm(graph, x, logits)",
    "ops.norm_act(x, None, None, None, None, 0, *tail)",
    "ops.norm_act(x, b, b, None, None, 2, *tail)",
    "ops.norm_act(x, b, b, None, None, 3, *tail)",
    "ops.norm_act(x, b, b, None, None, 4, *tail)",
    "backward(x, x, b, b, b, b.abs(), 2, *tail)",
    "backward(x, x, b, b, per_row, per_row, 3, *tail)",
    "ops.linear(x, w, b)",
    "ops.linear(x, w, b, x)",
    "ops.quantize_rows(x, 1)",
    "ops.dequantize_rows(codes, scale)",
    "ops.pack(x, 2, 256, 1)",
    "ops.unpack(*packed, x.numel(), 2, 256)",
    "ops.relu_dropout(x, 0.5, 1)",
    "ops.dropout(x, 0.5, 1)",
    "ops.masked_scale(x, mask, 0.5)",
    "ops.gather_rows(x, ids)",
    "ops.gather_rows_int8(codes, scale, ids)",
    "ops.int8_linear(codes, scale, w_codes, w_scale)",
]

# Thread stacks, the huge pages of 2 MB that outputs are rounded up to, and the weights packed for a product.
WORKSPACE = 6 * 2**20


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux's resettable high-water mark")
def test_peak_is_output_plus_a_bounded_workspace() -> None:
    command = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(command, input=json.dumps(CALLS), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [call for call, _, _ in lines] == CALLS
    winners = 60_000 * 128  # a maximum keeps one byte per element beside its output
    for call, grown, output in lines:
        assert grown <= output + WORKSPACE + winners * ("max" in call), (call, grown, output)
        assert grown >= output // 2, f"{call}: the mark did not see the output, so it cannot see a workspace"
