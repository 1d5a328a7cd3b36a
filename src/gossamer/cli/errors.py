"""Errors of the command line: one clear message and exit code 2 instead of a traceback.

An error of the user (a ValueError or TypeError that this library raised itself, any OSError, and this library's own
subclasses of RuntimeError) is shown as its message alone. Anything else is a bug, and is shown with its traceback.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import TracebackType

import typer
from rich.console import Console

EXIT_CODE, INTERRUPTED = 2, 130


@contextlib.contextmanager
def told_plainly(after_interrupt: str = "") -> Iterator[None]:
    """Show user errors that the block raises as a message; `after_interrupt` is shown after Ctrl-C."""
    try:
        yield
    except Exception as error:
        if not is_users(error):
            raise
        say(f"Error: {error}", "red")
        raise typer.Exit(EXIT_CODE) from None
    except KeyboardInterrupt:
        say(f"Stopped. {after_interrupt}".strip(), "yellow")
        raise typer.Exit(INTERRUPTED) from None


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
