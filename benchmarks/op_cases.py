"""What is measured: for each op a closure of ours, closures of the baselines, and the bytes that must move."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch_geometric.utils import scatter, softmax

import gossamer as gs
from gossamer import ops

Run = Callable[[], Any]


@dataclass
class Case:
    name: str
    ours: Run
    baselines: dict[str, Run]
    bytes_moved: int
    target: dict[str, float] = field(default_factory=dict)  # baseline -> ratio that we mean to reach

    def report(self, seconds: dict[str, float]) -> dict[str, Any]:
        ratios = {name: seconds[name] / seconds["ours"] for name in ("copy", *self.baselines)}
        return {
            "op": self.name,
            "seconds": seconds,
            "times_faster_than": ratios,
            "target": self.target,
            "bytes_moved": self.bytes_moved,
        }


class Bench:
    """One graph, and dense operands of its size, shared by all cases."""

    def __init__(self, graph: gs.Graph, edge_index: torch.Tensor, num_nodes: int, columns: int) -> None:
        self.graph, self.edge_index, self.n, self.d = graph, edge_index, num_nodes, columns
        self.x = torch.randn(num_nodes, columns)
        self.y = torch.empty_like(self.x)
        self.src, self.dst = graph.edge_index  # both sides see the same edge order
        self.csr = self.sparse(graph.value)
        self.codes, self.scale = ops.quantize_rows(self.x)

    def sparse(self, value: torch.Tensor) -> torch.Tensor:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.sparse_csr_tensor(self.graph.rowptr, self.graph.col.long(), value, (self.n, self.n))

    def copy(self) -> torch.Tensor:
        return self.y.copy_(self.x)

    def pyg_sum(self) -> torch.Tensor:
        """PyG's default path: gather, weigh, scatter."""
        messages = self.x.index_select(0, self.src) * self.graph.value.view(-1, 1)
        return scatter(messages, self.dst, dim=0, dim_size=self.n, reduce="sum")

    def torch_mm(self) -> torch.Tensor:
        return torch.sparse.mm(self.csr, self.x, "sum")

    @property
    def row_bytes(self) -> int:
        return 4 * self.d

    def gathered(self, bytes_per_value: int) -> int:
        """Bytes of an SpMM: a row per edge, index and weight, and the result."""
        return self.graph.num_edges * (self.d * bytes_per_value + 8) + self.n * self.row_bytes


def spmm(b: Bench) -> Case:
    baselines = {"torch.sparse.mm": b.torch_mm, "torch CSR @": lambda: b.csr @ b.x, "PyG gather+scatter": b.pyg_sum}
    targets = {"torch.sparse.mm": 2.0, "PyG gather+scatter": 15.0}
    return Case("spmm float32", lambda: ops.spmm(b.graph, b.x), baselines, b.gathered(4), targets)


def spmm_huge_pages(b: Bench) -> Case:
    """Both sides read x from huge pages; `Bench.x` itself stays on the pages torch gave it."""
    x = b.x.clone()
    gs.memory.use_huge_pages(x)
    baselines = {"torch.sparse.mm": lambda: torch.sparse.mm(b.csr, x, "sum")}
    return Case("spmm float32, x in huge pages", lambda: ops.spmm(b.graph, x), baselines, b.gathered(4))


def spmm_int8(b: Bench) -> Case:
    targets = {"torch.sparse.mm": 6.0, "PyG gather+scatter": 40.0}
    baselines = {"torch.sparse.mm": b.torch_mm, "PyG gather+scatter": b.pyg_sum}
    return Case("spmm int8 rows", lambda: ops.spmm_int8(b.graph, b.codes, b.scale), baselines, b.gathered(1), targets)


def spmm_bf16(b: Bench) -> Case:
    x = b.x.bfloat16()
    baselines = {"torch.sparse.mm": b.torch_mm, "PyG gather+scatter": b.pyg_sum}
    return Case("spmm bfloat16 (baselines float32)", lambda: ops.spmm(b.graph, x), baselines, b.gathered(2))


def spmm_backward(b: Bench) -> Case:
    x = b.x.clone().requires_grad_()
    b.graph.t()

    def both(f: Run) -> Run:
        def run() -> None:
            x.grad = None
            f().backward(b.y)

        return run

    def pyg() -> torch.Tensor:
        return scatter(x.index_select(0, b.src) * b.graph.value.view(-1, 1), b.dst, dim=0, dim_size=b.n, reduce="sum")

    baselines = {"torch CSR @": both(lambda: b.csr @ x), "PyG gather+scatter": both(pyg)}
    return Case("spmm float32, forward + backward", both(lambda: ops.spmm(b.graph, x)), baselines, 2 * b.gathered(4))


def spmm_max(b: Bench) -> Case:
    plain = b.graph.with_value(None)
    ones = b.sparse(torch.ones_like(b.graph.value))

    def pyg() -> torch.Tensor:
        return scatter(b.x.index_select(0, b.src), b.dst, dim=0, dim_size=b.n, reduce="max")

    baselines = {"torch.sparse.mm": lambda: torch.sparse.mm(ones, b.x, "amax"), "PyG gather+scatter": pyg}
    return Case("spmm max", lambda: ops.spmm(plain, b.x, reduce="max"), baselines, b.gathered(4))


def spmm_mean(b: Bench) -> Case:
    plain = b.graph.with_value(None)

    def pyg() -> torch.Tensor:
        return scatter(b.x.index_select(0, b.src), b.dst, dim=0, dim_size=b.n, reduce="mean")

    baselines = {"torch.sparse.mm": lambda: torch.sparse.mm(b.csr, b.x, "mean"), "PyG gather+scatter": pyg}
    return Case("spmm mean", lambda: ops.spmm(plain, b.x, reduce="mean"), baselines, b.gathered(4))


def edge_softmax(b: Bench) -> Case:
    logits = torch.randn(b.graph.num_edges, 4)
    baselines = {"PyG softmax": lambda: softmax(logits, b.dst, num_nodes=b.n)}
    return Case("edge_softmax, 4 heads", lambda: ops.edge_softmax(b.graph, logits), baselines, 2 * logits.nbytes)


def sddmm(b: Bench) -> Case:
    heads = b.x.view(b.n, 4, -1)

    def pyg() -> torch.Tensor:
        return (heads.index_select(0, b.dst) * heads.index_select(0, b.src)).sum(-1)

    moved = b.graph.num_edges * (b.row_bytes + 4 + 16) + b.n * b.row_bytes
    return Case("sddmm, 4 heads", lambda: ops.sddmm(b.graph, heads, heads), {"PyG gather": pyg}, moved)


def attention(b: Bench) -> Case:
    logits, heads = torch.randn(b.graph.num_edges, 4), b.x.view(b.n, 4, -1)

    def ours() -> torch.Tensor:
        return ops.spmm(b.graph, heads, value=ops.edge_softmax(b.graph, logits))

    def pyg() -> torch.Tensor:
        alpha = softmax(logits, b.dst, num_nodes=b.n)
        messages = heads.index_select(0, b.src) * alpha.unsqueeze(-1)
        return scatter(messages, b.dst, dim=0, dim_size=b.n, reduce="sum")

    moved = b.gathered(4) + b.graph.num_edges * 4 * 4 * 3
    return Case("edge_softmax + spmm, 4 heads", ours, {"PyG softmax+scatter": pyg}, moved, {"PyG softmax+scatter": 4.0})


def quantize_nearest(b: Bench) -> Case:
    return _quantize(b, "quantize_rows, nearest", None)


def quantize_stochastic(b: Bench) -> Case:
    return _quantize(b, "quantize_rows, stochastic", 1)


def _quantize(b: Bench, name: str, seed: int | None) -> Case:
    def plain_torch() -> torch.Tensor:
        scale = b.x.abs().amax(1, keepdim=True) / 127
        noise = torch.rand_like(b.x) if seed is not None else 0.5
        return (b.x / scale + noise).floor_().clamp_(-127, 127).to(torch.int8)

    moved = b.n * (b.row_bytes + b.d + 4)
    return Case(name, lambda: ops.quantize_rows(b.x, seed), {"plain torch": plain_torch}, moved, {"copy": 1.0})


def dequantize(b: Bench) -> Case:
    baselines = {"plain torch": lambda: b.codes.float() * b.scale.unsqueeze(1)}
    return Case("dequantize_rows", lambda: ops.dequantize_rows(b.codes, b.scale), baselines, b.n * (b.row_bytes + b.d))


def pack(b: Bench) -> Case:
    moved = b.n * b.row_bytes + b.n * b.d // 4
    return Case("pack, 2 bits, stochastic", lambda: ops.pack(b.x, 2, 256, 1), {}, moved, {"copy": 0.5})


def unpack(b: Bench) -> Case:
    packed = ops.pack(b.x, 2, 256, 1)
    moved = b.n * b.row_bytes + b.n * b.d // 4
    return Case("unpack, 2 bits", lambda: ops.unpack(*packed, b.x.numel(), 2, 256), {}, moved, {"copy": 0.5})


def relu_dropout(b: Bench) -> Case:
    baselines = {"F.dropout(F.relu)": lambda: F.dropout(F.relu(b.x), 0.5)}
    moved = 2 * b.n * b.row_bytes + b.n * b.d // 8
    targets = {"F.dropout(F.relu)": 30.0}
    return Case("relu_dropout", lambda: ops.relu_dropout(b.x, 0.5, 1), baselines, moved, targets)


def relu_dropout_backward(b: Bench) -> Case:
    _, mask = ops.dropout_saving_mask(b.x, 0.5, 1)
    kept = torch.rand_like(b.x) > 0.5
    baselines = {"bool mask, scaled": lambda: b.x * kept * 2.0}
    moved = 2 * b.n * b.row_bytes + b.n * b.d // 8
    return Case("relu_dropout, backward", lambda: ops.masked_scale(b.x, mask, 0.5), baselines, moved)


def dropout(b: Bench) -> Case:
    baselines = {"F.dropout": lambda: F.dropout(b.x, 0.5)}
    return Case("dropout", lambda: ops.dropout(b.x, 0.5, 1), baselines, 2 * b.n * b.row_bytes)


def gather(b: Bench) -> Case:
    ids = torch.randperm(b.n)
    baselines = {"index_select": lambda: b.x.index_select(0, ids)}
    return Case("gather_rows", lambda: ops.gather_rows(b.x, ids), baselines, 2 * b.n * b.row_bytes)


def gather_codes(b: Bench) -> Case:
    ids = torch.randperm(b.n)
    codec = gs.Uniform(bits=2)
    codes = codec.encode(b.x, 1)
    baselines = {"index_select float32": lambda: b.x.index_select(0, ids)}
    moved = b.n * (b.row_bytes + b.d // 4)
    return Case("gather_rows from 2-bit codes", lambda: codec.decode_rows(codes, ids), baselines, moved)


def int8_linear(b: Bench) -> Case:
    w = torch.randn(b.d, b.d)
    w_codes, w_scale = ops.quantize_rows(w)
    x16, w16 = b.x.bfloat16(), w.bfloat16()
    baselines: dict[str, Run] = {
        "X @ W float32": lambda: F.linear(b.x, w),
        "X @ W bfloat16": lambda: F.linear(x16, w16),
        "torch._int_mm (int32 out)": lambda: torch._int_mm(b.codes, w_codes.t()),
    }
    moved = b.n * (b.row_bytes + b.d)

    def ours() -> torch.Tensor:
        return ops.int8_linear(b.codes, b.scale, w_codes, w_scale)

    return Case(f"int8_linear {b.d}x{b.d}", ours, baselines, moved, {"X @ W float32": 4.0})


def row_products(b: Bench) -> Case:
    """As features of twice the columns are decoded from their components."""
    x, w, bias = b.x[:, : b.d // 2].contiguous(), torch.randn(b.d, b.d // 2), torch.randn(b.d)
    baselines: dict[str, Run] = {"X @ W float32": lambda: F.linear(x, w, bias)}
    moved = b.n * (b.row_bytes + b.row_bytes // 2)
    name = f"row_products {b.d // 2}x{b.d}"
    return Case(name, lambda: ops.row_products(x, w, bias), baselines, moved, {"X @ W float32": 1.0})


def build_graph(b: Bench) -> Case:
    def ours() -> gs.Graph:
        graph = gs.Graph.from_edge_index(b.edge_index, b.n)
        graph.t()
        return graph

    def by_argsort() -> tuple[torch.Tensor, ...]:
        return tuple(torch.argsort(b.edge_index[k], stable=True) for k in (0, 1))

    baselines = {"two argsorts alone": by_argsort, "PyG gather+scatter": b.pyg_sum}
    moved = b.graph.num_edges * (16 + 12 + 12)
    return Case("Graph + transpose from edge_index", ours, baselines, moved, {"PyG gather+scatter": 1.0})


def fresh_buffers(b: Bench) -> Case:
    """The effect of the buffer pool: the same op with and without it."""

    def without_pool() -> torch.Tensor:
        with gs.memory.without_pool():
            return ops.dequantize_rows(b.codes, b.scale)

    moved = b.n * (b.row_bytes + b.d)
    return Case(
        "buffer pool (dequantize_rows)",
        lambda: ops.dequantize_rows(b.codes, b.scale),
        {"without pool": without_pool},
        moved,
    )


CASES: list[Callable[[Bench], Case]] = [
    spmm, spmm_huge_pages, spmm_int8, spmm_bf16, spmm_backward, spmm_mean, spmm_max, sddmm, edge_softmax, attention,
    quantize_nearest, quantize_stochastic, dequantize, pack, unpack, relu_dropout, relu_dropout_backward, dropout,
    gather, gather_codes, int8_linear, row_products, build_graph, fresh_buffers,
]  # fmt: skip
