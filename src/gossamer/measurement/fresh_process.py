"""Run a function in a new interpreter: it reuses no memory of earlier work, and a crash ends only that process.

The child is started anew, not forked, and imports only what the function's module imports; unlike a child of
`multiprocessing` it does not run the main script again, so scripts need no `if __name__ == "__main__"`. Function,
arguments and value travel as pickles through pipes, between a process and its own child. The child ends when its parent
does; if memory runs out, the kernel is told to kill the child first.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Generic, TypeVar

Value = TypeVar("Value")

BOOT = """
import pickle, sys
sys.path[:] = pickle.load(sys.stdin.buffer)
from gossamer.measurement.fresh_process import child
child({descriptor})
"""


@dataclass(frozen=True)
class Fresh(Generic[Value]):
    """What came back: the function's value, its peak memory above the start (imports done), and its time."""

    value: Value
    peak_bytes: int
    seconds: float


class FreshProcessError(RuntimeError):
    """The function raised, or its process died; `reason` says so, `child_traceback` is empty if nothing was raised."""

    def __init__(self, name: str, reason: str, child_traceback: str = "") -> None:
        super().__init__(f"{name} gave no result: {reason}")
        self.reason, self.child_traceback = reason, child_traceback


def in_fresh_process(function: Callable[..., Value], *args: Any, **kwargs: Any) -> Fresh[Value]:
    """function(*args, **kwargs) in a new interpreter; what it prints goes to this process's standard error."""
    return listen(function, args, kwargs, lambda message: None)


def listen(
    function: Callable[..., Value],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    on_message: Callable[[Any], None],
) -> Fresh[Value]:
    """`in_fresh_process`, handing everything that the function gives to `tell` to `on_message` as it comes."""
    _check_importable(function)
    reading, writing = os.pipe()
    command = [sys.executable, "-c", BOOT.format(descriptor=writing)]
    with open(reading, "rb") as answers:
        try:
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=_stderr(), pass_fds=[writing])
        finally:
            os.close(writing)
        try:
            _send(process, sys.path, (function, args, kwargs))
            ending = _receive(answers, on_message)
            process.wait()
        finally:
            process.kill()
            process.communicate()
    return _result(function.__qualname__, ending, process.returncode)


def tell(message: Any) -> None:
    """In the child: send a message to the parent's `on_message`. Elsewhere it does nothing."""
    if _answers is not None:
        _write("message", message)


def _check_importable(function: Callable[..., Any]) -> None:
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    if module in (None, "__main__") or not name.isidentifier():
        raise ValueError(
            "`function` must be a top-level function of an importable module, because a new interpreter has to find it "
            f"by name (got {module}.{name or function!r}); move it into a file of its own and import it from there"
        )


def _stderr() -> int:
    try:
        return sys.stderr.fileno()
    except (AttributeError, OSError, ValueError):  # replaced, for instance in a notebook
        return subprocess.DEVNULL


def _send(process: subprocess.Popen[bytes], *messages: Any) -> None:
    assert process.stdin is not None
    pickled = b"".join(pickle.dumps(message) for message in messages)
    with contextlib.suppress(BrokenPipeError):  # it died on starting: the return code tells more
        process.stdin.write(pickled)
        process.stdin.flush()  # and stays open: its end tells the child that this process is gone


def _receive(answers: BinaryIO, on_message: Callable[[Any], None]) -> tuple[str, Any] | None:
    """The last answer, "value" or "error"; None if the child went without one."""
    while True:
        try:
            kind, content = pickle.load(answers)
        except EOFError:
            return None
        except pickle.UnpicklingError:  # cut off in the middle
            return None
        if kind != "message":
            return kind, content
        on_message(content)


def _result(name: str, ending: tuple[str, Any] | None, code: int) -> Fresh[Any]:
    if ending is None:
        raise FreshProcessError(name, f"its process {_death(code)}")
    kind, content = ending
    if kind == "error":
        raise FreshProcessError(name, *content)
    return Fresh(*content)


def _death(code: int) -> str:
    if code == -signal.SIGKILL:
        return "was killed (SIGKILL), as the kernel does when memory runs out; use a smaller graph or model"
    if code < 0:
        return f"was ended by signal {-code} ({signal.Signals(-code).name})"
    return f"ended with exit code {code}"


# In the child ---------------------------------------------------------------------------------------------------------

_answers: BinaryIO | None = None


def _write(kind: str, content: Any) -> None:
    assert _answers is not None
    _answers.write(pickle.dumps((kind, content)))
    _answers.flush()


def child(descriptor: int) -> None:
    """Run the function that stands on the standard input, and answer on `descriptor`."""
    global _answers
    _answers = open(descriptor, "wb")  # noqa: SIM115  open until the process ends
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends this process
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    try:
        function, args, kwargs = pickle.load(sys.stdin.buffer)
        threading.Thread(target=_end_with_parent, daemon=True).start()
        _write("value", _measured(function, args, kwargs))
    except BaseException as error:
        what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        _write("error", (what, traceback.format_exc()))


def _measured(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, int, float]:
    from .peak_memory import peak

    with peak() as highest:
        start = time.perf_counter()
        value = function(*args, **kwargs)
        seconds = time.perf_counter() - start
    return value, highest.bytes, seconds


def _end_with_parent() -> None:
    os.read(0, 1)  # returns when the parent has closed its end
    os._exit(1)
