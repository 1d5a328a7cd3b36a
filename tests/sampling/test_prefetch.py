"""The prefetching thread: order, errors, how far it runs ahead, and that it ends."""

from __future__ import annotations

import gc
import os
import threading
import time

import numpy as np
import pytest
import torch

from gossamer.sampling.epochs import prefetched
from gossamer.sampling.prefetch import Prefetched


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "gossamer-prefetch"]


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_items_come_in_order(depth):
    items = Prefetched(lambda k: k * k, range(3, 9), depth)
    assert list(items) == [k * k for k in range(3, 9)]
    assert list(items) == [] and not threads()


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_an_exception_is_raised_in_the_callers_thread_in_its_place(depth):
    def make(k):
        if k == 2:
            raise KeyError("two")
        return k

    items, found = Prefetched(make, range(5), depth), []
    with pytest.raises(KeyError, match="two"):
        for k in items:
            found.append(k)
    assert found == [0, 1] and not threads()


def test_no_more_is_computed_ahead_than_asked_for():
    made = []
    items = Prefetched(lambda k: made.append(k), range(100), 2)
    next(items)
    deadline = time.monotonic() + 10
    while len(made) < 3 and time.monotonic() < deadline:
        time.sleep(0.001)
    time.sleep(0.05)
    assert made == [0, 1, 2]
    items.close()
    assert not threads()


def test_the_thread_ends_when_the_iterator_is_dropped():
    items = Prefetched(lambda k: k, range(100), 2)
    next(items)
    assert len(threads()) == 1
    del items
    gc.collect()
    assert not threads()


def test_closing_twice_and_before_the_end():
    items = Prefetched(lambda k: k, range(100), 1)
    items.close()
    items.close()
    assert not threads()


def test_how_many_are_prefetched_by_default(monkeypatch, tmp_path):
    """None where the model needs all cores, unless rows come from a file."""
    plain, mapped = torch.zeros(2, 2), np.memmap(tmp_path / "x", np.float32, "w+", shape=(2, 2))
    monkeypatch.setattr(os, "cpu_count", lambda: torch.get_num_threads())
    assert prefetched(None, plain) == prefetched(None, {"a": plain, "b": None}) == 0
    assert prefetched(None, mapped) == prefetched(None, {"a": plain, "b": mapped}) == 2
    monkeypatch.setattr(os, "cpu_count", lambda: torch.get_num_threads() + 1)
    assert prefetched(None, plain) == 2 and prefetched(0, mapped) == 0 and prefetched(5, plain) == 5
