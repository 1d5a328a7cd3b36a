from __future__ import annotations

import gc
import os
import random
import threading

import pytest
import torch

from gossamer import memory, native
from gossamer.ops import random_bits
from support.processes import run_python

pytestmark = pytest.mark.skipif(native.library is None, reason="the pool is part of the native module")

MB = 2**20
HUGE_PAGE = 2 * MB  # buffers are whole ones


@pytest.fixture(autouse=True)
def _clean_pool():
    """An empty pool with a limit of 64 MB; the old limit returns afterwards."""
    before = memory.stats()["limit_bytes"]
    gc.collect()
    memory.set_limit(64 * MB)
    memory.trim()
    yield
    memory.set_limit(before)


def floats(num_bytes: int) -> torch.Tensor:
    return memory.empty([num_bytes // 4], torch.float32)


def test_a_freed_buffer_is_used_again():
    before = memory.stats()
    x = floats(8 * MB)
    address = x.data_ptr()
    del x
    y = floats(8 * MB)
    after = memory.stats()
    assert y.data_ptr() == address
    assert (after["hits"] - before["hits"], after["misses"] - before["misses"]) == (1, 1)


def test_results_of_kernels_come_from_the_pool():
    random_bits(0, 2**20)
    hits = memory.stats()["hits"]
    for _ in range(5):
        random_bits(0, 2**20)
    assert memory.stats()["hits"] == hits + 5


def test_a_buffer_in_use_is_never_given_twice():
    x, y = floats(8 * MB).fill_(1.0), floats(8 * MB).fill_(2.0)
    view = x[5:10]
    del x
    z = floats(8 * MB).fill_(3.0)
    assert torch.equal(view, torch.ones(5)) and (y == 2).all() and (z == 3).all()


def test_bytes_are_counted():
    used = memory.stats()["used_bytes"]
    x = floats(7 * MB)
    assert memory.stats()["used_bytes"] - used == 8 * MB  # rounded up to whole huge pages
    del x
    assert memory.stats()["used_bytes"] == used
    assert memory.stats()["free_bytes"] == 8 * MB


def held() -> int:
    return memory.stats()["used_bytes"] + memory.stats()["free_bytes"]


def counted(before: dict[str, int]) -> tuple[int, int]:
    """Hits and misses since then."""
    now = memory.stats()
    return now["hits"] - before["hits"], now["misses"] - before["misses"]


@pytest.fixture
def _unfilled(monkeypatch):
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", False)


@pytest.mark.usefixtures("_unfilled")
def test_pages_of_several_buffers_become_one():
    parts = [floats(8 * MB).fill_(1.0), floats(6 * MB).fill_(2.0), floats(10 * MB).fill_(3.0)]
    parts.clear()
    before = memory.stats()
    whole = floats(24 * MB)
    assert counted(before) == (1, 0) and memory.stats()["free_bytes"] == 0
    assert whole.unique(return_counts=True)[1].tolist() == [2 * MB, 3 * MB // 2, 5 * MB // 2]  # the very pages
    whole.fill_(4.0)
    del whole
    again = floats(24 * MB)  # as one buffer, though it is three mappings
    assert counted(before) == (2, 0) and (again == 4).all()


@pytest.mark.usefixtures("_unfilled")
def test_a_large_buffer_serves_several_smaller_requests():
    whole = floats(32 * MB)
    whole.copy_(torch.arange(whole.numel()))
    del whole
    before = memory.stats()
    parts = [floats(8 * MB), floats(20 * MB), floats(4 * MB)]
    assert counted(before) == (3, 0) and memory.stats()["free_bytes"] == 0
    assert torch.equal(torch.cat(parts).sort().values, torch.arange(8 * MB, dtype=torch.float32))


def test_only_what_is_missing_is_asked_of_the_system():
    others = held()  # caches of other tests in this process
    x = floats(16 * MB).fill_(1.0)
    del x
    before = memory.stats()
    y = floats(40 * MB).fill_(2.0)
    assert counted(before) == (0, 1) and (held() - others, memory.stats()["free_bytes"]) == (40 * MB, 0)
    del y


def test_no_order_of_requests_holds_more_than_was_in_use_at_once():
    draw = random.Random(0)
    used, most, alive, others = 0, 0, [], held()
    for step in range(300):
        if alive and (used > 40 * MB or draw.random() < 0.4):
            gone = alive.pop(draw.randrange(len(alive)))
            assert (gone == gone[0]).all()
            used -= gone.nbytes
            del gone
        else:
            alive.append(floats(draw.randrange(1, 8) * HUGE_PAGE).fill_(float(step)))
            used += alive[-1].nbytes
        most = max(most, used)
        assert held() - others == most and memory.stats()["used_bytes"] - others == used


def test_a_system_without_addresses_to_spare_still_gives_memory():
    code = """if True:
        import resource, torch
        from gossamer import memory
        memory.set_limit(2**40)
        now = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (now + 150 * 2**20,) * 2)
        x = memory.empty([100 * 2**18], torch.float32).fill_(1.0)
        del x
        y = memory.empty([110 * 2**18], torch.float32).fill_(2.0)  # not beside the free 100 MB
        assert (y == 2).all() and memory.stats()["free_bytes"] == 0
        try:
            memory.empty([110 * 2**18], torch.float32)
        except (MemoryError, RuntimeError):
            print("refused")
        del y
        z = memory.empty([110 * 2**18], torch.float32).fill_(3.0)
        print((z == 3).all().item())"""
    result = run_python(code)
    assert result.stdout.split() == ["refused", "True"], result.stderr


def test_room_is_left_below_what_was_once_in_use():
    others = held()
    x, y = floats(10 * MB), floats(40 * MB)
    del y
    memory.leave_room(16 * MB)
    assert (memory.stats()["used_bytes"] - others, memory.stats()["free_bytes"]) == (10 * MB, 24 * MB)
    memory.leave_room(16 * MB)
    assert memory.stats()["free_bytes"] == 24 * MB, "the room is there already"
    memory.leave_room(2**70)
    assert memory.stats()["free_bytes"] == 0
    memory.leave_room(0)
    del x


def test_the_limit_bounds_what_is_kept():
    memory.set_limit(20 * MB)
    held = [floats(8 * MB) for _ in range(5)]
    held.clear()
    assert 0 < memory.stats()["free_bytes"] <= 20 * MB
    memory.set_limit(8 * MB)
    assert memory.stats()["free_bytes"] <= 8 * MB
    assert memory.stats()["limit_bytes"] == 8 * MB


def test_trim_gives_everything_back_and_keeps_the_limit():
    x = floats(8 * MB)
    del x
    assert memory.stats()["free_bytes"] > 0
    memory.trim()
    assert memory.stats()["free_bytes"] == 0 and memory.stats()["limit_bytes"] == 64 * MB
    before = memory.stats()["misses"]
    floats(8 * MB)
    assert memory.stats()["misses"] == before + 1


def test_a_limit_of_zero_gives_plain_tensors():
    memory.set_limit(0)
    before = memory.stats()
    x = floats(8 * MB)
    words = random_bits(3, 2**20)
    assert memory.stats() == before
    assert x.shape == (2 * MB,) and words.untyped_storage().resizable()  # torch's own memory, not a borrowed buffer


def test_small_tensors_are_plain():
    before = memory.stats()
    floats(memory.SMALLEST_POOLED_BYTES - 4)
    assert memory.stats() == before
    floats(memory.SMALLEST_POOLED_BYTES)
    assert memory.stats()["misses"] == before["misses"] + 1


def test_tensors_outlive_the_pool():
    x = floats(8 * MB).fill_(7.0)
    memory.set_limit(0)
    assert (x == 7).all()
    del x
    assert memory.stats()["free_bytes"] == 0


@pytest.mark.parametrize("dtype", sorted(memory.POOLED_DTYPES, key=str))
def test_every_dtype(dtype):
    x = memory.empty([3, 500, 1001], dtype)
    assert x.dtype == dtype and x.shape == (3, 500, 1001) and x.is_contiguous() and x.device.type == "cpu"
    x.fill_(1)
    assert x.sum(dtype=torch.float64) == 3 * 500 * 1001


def test_tensors_behave_as_any_other():
    x = floats(8 * MB).fill_(1.0).requires_grad_()
    (x * 2).sum().backward()
    assert (x.grad == 2).all()
    assert x.detach().numpy().base is not None
    assert x.data_ptr() % 64 == 0


@pytest.mark.parametrize("shape", [[0], [0, 2**40], [2**18, 0], []])
def test_empty_and_scalar_shapes(shape):
    assert memory.empty(shape, torch.float32).shape == torch.Size(shape)


def test_freed_from_another_thread():
    box = [floats(8 * MB)]
    used = memory.stats()["used_bytes"]
    thread = threading.Thread(target=box.clear)
    thread.start()
    thread.join()
    assert memory.stats()["used_bytes"] == used - 8 * MB


def test_many_threads_at_once():
    errors = []

    def work(number):
        draw = random.Random(number)
        for _ in range(50):
            x = floats(draw.randrange(1, 6) * HUGE_PAGE).fill_(number)
            if not (x == number).all():
                errors.append(number)

    used = memory.stats()["used_bytes"]
    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors and memory.stats()["used_bytes"] == used


def test_uninitialised_memory_is_filled_in_deterministic_mode():
    assert torch.utils.deterministic.fill_uninitialized_memory and torch.are_deterministic_algorithms_enabled()
    assert floats(8 * MB).isnan().all()
    assert (memory.empty([8 * MB], torch.uint8) == 255).all()
    torch.utils.deterministic.fill_uninitialized_memory = False
    try:
        x = floats(8 * MB).fill_(5.0)
        del x
        assert (floats(8 * MB) == 5).all()  # what the last owner left
    finally:
        torch.utils.deterministic.fill_uninitialized_memory = True


def test_a_request_that_no_machine_can_meet():
    with pytest.raises((MemoryError, RuntimeError)):
        memory.empty([2**50], torch.float32)
    assert floats(8 * MB).numel() == 2 * MB  # and the pool works on


def test_negative_limit():
    with pytest.raises(ValueError, match=r"`num_bytes`.*got -1"):
        memory.set_limit(-1)
    assert memory.stats()["limit_bytes"] == 64 * MB


def test_a_limit_beyond_any_machine_is_as_good_as_none():
    memory.set_limit(2**70)
    assert memory.stats()["limit_bytes"] > 2**60
    x = floats(8 * MB)
    del x
    assert memory.stats()["free_bytes"] == 8 * MB


def test_environment_sets_the_limit(monkeypatch):
    result = run_python("import gossamer; print(gossamer.memory.stats()['limit_bytes'])", GOSSAMER_POOL_BYTES="12345")
    assert result.stdout.split() == ["12345"], result.stderr
    monkeypatch.setenv("GOSSAMER_POOL_BYTES", "0")
    assert memory.default_limit() == 0
    monkeypatch.delenv("GOSSAMER_POOL_BYTES")
    assert 0 < memory.default_limit() < os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def test_bad_environment_is_an_error_on_import():
    result = run_python("import gossamer", GOSSAMER_POOL_BYTES="1 GB")
    assert result.returncode != 0
    assert "`GOSSAMER_POOL_BYTES` must be a whole number of bytes, 0 for no pool (got '1 GB')" in result.stderr


@pytest.mark.parametrize("text", ["", "-1", "1e9", "many", "²"])
def test_bad_environment(text, monkeypatch):
    monkeypatch.setenv("GOSSAMER_POOL_BYTES", text)
    with pytest.raises(ValueError, match=f"`GOSSAMER_POOL_BYTES` must be a whole number.*got '{text}'"):
        memory.default_limit()


def test_tensors_alive_at_exit_do_no_harm():
    code = "import gossamer, builtins; builtins.kept = gossamer.ops.random_bits(0, 2**22); kept.grad_like = kept[3:]"
    result = run_python(code)
    assert (result.returncode, result.stderr) == (0, "")


def test_without_pool_leaves_the_pool_as_it_is():
    memory.empty([2**20], torch.float32)
    before = memory.stats()
    with memory.without_pool():
        memory.empty([2**20], torch.float32)
    after = memory.stats()
    assert (after["hits"], after["misses"], after["free_bytes"]) == (
        before["hits"],
        before["misses"],
        before["free_bytes"],
    )
    memory.empty([2**20], torch.float32)
    assert memory.stats()["hits"] == before["hits"] + 1


def test_huge_pages_change_nothing_but_the_pages():
    x = torch.arange(2**21, dtype=torch.float32)
    address = x.data_ptr()
    assert memory.use_huge_pages(x) in (True, False)  # not every system has some to give
    assert x.data_ptr() == address and torch.equal(x, torch.arange(2**21, dtype=torch.float32))
    assert memory.use_huge_pages(torch.zeros(3)) is False  # less than a page


def test_sizes_beyond_any_machine_are_refused_before_anything_is_written():
    with pytest.raises((RuntimeError, ValueError)):
        random_bits(1, 2**62 + 2**19)  # its bytes, modulo 2^64, would be 2 MB
    with pytest.raises(ValueError, match="`offset`"):
        random_bits(1, 10, offset=2**63 - 5)
