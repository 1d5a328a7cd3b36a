"""Items computed by a thread while the caller works on earlier ones."""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar, final

Item = TypeVar("Item")


class _Done:
    """Nothing more comes; `error` is why, unless all items were computed."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error


@final
class Prefetched(Generic[Item], Iterator[Item]):
    """make(k) for each k of `numbers`, in order, computed up to `depth` items ahead.

    An exception in `make` is raised where the item would have been returned. The thread knows nothing of this iterator,
    and ends when the iterator is closed or dropped; a `depth` of 0 computes each item when it is asked for.
    """

    def __init__(self, make: Callable[[int], Item], numbers: Iterable[int], depth: int) -> None:
        self._make, self._numbers = make, iter(numbers)
        self._close: Callable[[], Any] = lambda: None
        self._items: queue.SimpleQueue[Any] | None = None
        if depth == 0:
            return
        self._items, self._free, stop = queue.SimpleQueue(), threading.Semaphore(depth), threading.Event()
        work = (make, self._numbers, self._items, self._free, stop)
        thread = threading.Thread(target=_work, args=work, name="gossamer-prefetch", daemon=True)
        self._close = weakref.finalize(self, _stop, thread, self._free, stop)
        thread.start()

    def __next__(self) -> Item:
        if self._items is None:
            return self._make(next(self._numbers))
        item = self._items.get()
        if isinstance(item, _Done):
            self._items.put(_Done())  # asked once more, the iterator is still at its end
            self.close()
            if item.error is not None:
                raise item.error
            raise StopIteration
        self._free.release()
        return item

    def close(self) -> None:
        self._close()


def _work(
    make: Callable[[int], Any],
    numbers: Iterator[int],
    items: queue.SimpleQueue[Any],
    free: threading.Semaphore,
    stop: threading.Event,
) -> None:
    try:
        for k in numbers:
            free.acquire()
            if stop.is_set():
                return
            items.put(make(k))
        items.put(_Done())
    except BaseException as error:
        items.put(_Done(error))


def _stop(thread: threading.Thread, free: threading.Semaphore, stop: threading.Event) -> None:
    stop.set()
    free.release()
    if thread is not threading.current_thread() and thread.ident is not None:
        thread.join()
