"""Errors of the command line: one clear message and exit code 2 instead of a traceback.

An error of the user (a ValueError or TypeError that this library raised itself, any OSError, and this library's own
subclasses of RuntimeError) is shown as its message alone. Anything else is a bug, and is shown with its traceback.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Any

import typer
from rich.console import Console

EXIT_CODE, INTERRUPTED, TERMINATED = 2, 130, 143


class Terminated(KeyboardInterrupt):
    """SIGTERM, which a scheduler or a container sends some seconds before it kills: ends a command as Ctrl-C does."""


@contextlib.contextmanager
def told_plainly(after_interrupt: str = "") -> Iterator[None]:
    """Show user errors that the block raises as a message; `after_interrupt` is shown after Ctrl-C and SIGTERM."""
    try:
        with _hearing_sigterm():
            yield
    except Exception as error:
        if not is_users(error):
            raise
        say(f"Error: {error}", "red")
        raise typer.Exit(EXIT_CODE) from None
    except KeyboardInterrupt as stop:
        say(f"Stopped. {after_interrupt}".strip(), "yellow")
        raise typer.Exit(TERMINATED if isinstance(stop, Terminated) else INTERRUPTED) from None


@contextlib.contextmanager
def _hearing_sigterm() -> Iterator[None]:
    """Where nobody else listens to it, and only the main thread can."""
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    def terminate(number: int, frame: Any) -> None:
        raise Terminated

    signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def is_users(error: Exception) -> bool:
    """Whether the message of `error` was written for the user."""
    ours = type(error).__module__.split(".")[0] == __name__.split(".")[0]
    if isinstance(error, OSError) or (ours and isinstance(error, (ValueError, TypeError, RuntimeError))):
        return True
    return isinstance(error, (ValueError, TypeError)) and _raised_here(error.__traceback__)


def say(text: str, style: str) -> None:
    """One line on standard error, unbroken where it is no terminal, and with brackets left as they are."""
    console = Console(stderr=True)
    console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)


def _raised_here(trace: TracebackType | None) -> bool:
    package = ""
    while trace is not None:
        package = str(trace.tb_frame.f_globals.get("__name__", "")).split(".")[0]
        trace = trace.tb_next
    return package == __name__.split(".")[0]
