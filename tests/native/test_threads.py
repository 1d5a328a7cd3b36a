"""The native module in a process with other threads: one OpenMP runtime, no lock held while a kernel runs."""

from __future__ import annotations

import concurrent.futures
import threading
import time

import pytest
import torch

from gossamer import Graph, native
from gossamer.ops import edge_softmax, gat_attention, gatv2_logits, norm_act, random_bits, spmm
from support.processes import run_python

pytestmark = pytest.mark.skipif(native.library is None, reason="the native module is not in use")

OPENMP_FILES = """
import gossamer, torch
gossamer.ops.random_bits(0, 1_000_000)
(torch.rand(1000, 1000) @ torch.rand(1000, 1000)).sum()
files = {line.split()[-1] for line in open("/proc/self/maps") if "/" in line}
print("\\n".join(sorted(f for f in files if any(name in f for name in ("libgomp", "libiomp", "libomp")))))
"""


def test_one_openmp_runtime_is_mapped():
    result = run_python(OPENMP_FILES)
    assert result.returncode == 0, result.stderr
    assert len(result.stdout.split()) == 1, result.stdout


def test_other_threads_run_while_a_kernel_does():
    """A kernel of a second or so, and a thread that counts meanwhile: with the lock held it would stand still."""
    ticks: list[float] = []
    done = threading.Event()

    def count():
        while not done.is_set():
            ticks.append(time.perf_counter())
            time.sleep(0.001)

    def longest_kernel():
        """Start and end of a kernel long enough to be noticed, whatever this machine's speed."""
        numel = 2**24
        while True:
            start = time.perf_counter()
            random_bits(0, numel)
            end = time.perf_counter()
            if end - start > 0.2:
                return start, end
            numel *= 2

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    counter = threading.Thread(target=count)
    counter.start()
    try:
        start, end = longest_kernel()
    finally:
        done.set()
        counter.join()
        torch.set_num_threads(threads)
    during = [tick for tick in ticks if start + 0.02 < tick < end - 0.02]
    assert len(during) >= 10, f"{len(during)} ticks in {end - start:.2f} s"


def test_kernels_called_from_many_threads_at_once():
    rng = torch.Generator().manual_seed(0)
    graph = Graph.from_edge_index(torch.randint(0, 500, (2, 5000), generator=rng), 500)
    x, logits = torch.randn(500, 64, generator=rng), torch.randn(5000, 4, generator=rng)

    def work(_):
        attention = gat_attention(graph, x[:, :4], a_edge=logits), gatv2_logits(graph, x, x, x[:4, :16])
        normalised = norm_act(x, None, None, None, None, 2, 1e-5, 1, 0.0, 0.5, 3)
        return spmm(graph, x), edge_softmax(graph, logits), *attention, *normalised

    want = work(None)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for got in pool.map(work, range(40)):
            assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


def test_backward_on_another_thread_than_forward():
    graph = Graph.from_edge_index(torch.tensor([[0, 1, 2], [1, 2, 2]]), 3)
    x = torch.ones(3, 4, requires_grad=True)
    out = spmm(graph, x).sum()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        pool.submit(out.backward).result()
    assert torch.equal(x.grad, torch.ones(3, 4))


def test_a_forked_child_may_use_one_thread():
    """As the workers of a DataLoader do; OpenMP's threads do not survive a fork."""
    code = """
import os, torch, gossamer
want = gossamer.ops.random_bits(0, 1_000_000)
if (child := os.fork()) == 0:
    torch.set_num_threads(1)
    os._exit(0 if torch.equal(gossamer.ops.random_bits(0, 1_000_000), want) else 1)
print(os.waitpid(child, 0)[1])
"""
    result = run_python(code)
    assert result.stdout.split() == ["0"], result.stderr
