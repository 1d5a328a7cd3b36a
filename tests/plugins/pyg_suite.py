"""pytest plugin: run any tests with every root module lightened before its first call.

A root module is the outermost `nn.Module` whose call is entered. It is converted by the recipe that
GOSSAMER_SUITE_RECIPE names (without one nothing is), if `lighten_` finds something in it; nothing else is checked or
changed. The graphs of tests are small: unless GOSSAMER_SUITE_SIZES is "users", nothing is too small for our kernels.
Outcomes are appended to the file that GOSSAMER_SUITE_OUT names, a JSON line per test, which survives a crash.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import gossamer as gs
from gossamer.pyg import NothingToLighten
from gossamer.quiet_pyg import importing_pyg
from gossamer.state import model_state_of

with importing_pyg():
    from gossamer.engine import rules

RECIPE = os.environ.get("GOSSAMER_SUITE_RECIPE", "")
OUT = Path(os.environ["GOSSAMER_SUITE_OUT"])
USERS_SIZES = os.environ.get("GOSSAMER_SUITE_SIZES") == "users"
OURS = {} if USERS_SIZES else dict.fromkeys(("fused", "activation", "dropout", "saved", "int8", "messages"), 0)

running = threading.local()


def lightening(call: Any) -> Any:
    @functools.wraps(call)
    def called(module: nn.Module, *args: Any, **named: Any) -> Any:
        if getattr(running, "inside", False):
            return call(module, *args, **named)
        running.inside = True
        try:
            if model_state_of(module) is None:
                lighten(module)
            return call(module, *args, **named)
        finally:
            running.inside = False

    return called


def lighten(module: nn.Module) -> None:
    with contextlib.suppress(NothingToLighten):
        gs.lighten_(module, RECIPE)


@pytest.fixture(autouse=True, scope="session")
def _every_root_module_lightened() -> Iterator[None]:
    if not RECIPE:
        yield
        return
    with pytest.MonkeyPatch.context() as patch, rules.forced(**OURS):
        patch.setattr(nn.Module, "__call__", lightening(nn.Module.__call__))
        yield


def pytest_runtest_logstart(nodeid: str) -> None:
    write({"test": nodeid, "outcome": "died"})  # until a later line says more


def pytest_runtest_logreport(report: Any) -> None:
    if report.when == "call" or report.outcome != "passed":
        crash = getattr(report.longrepr, "reprcrash", None)
        write({"test": report.nodeid, "outcome": report.outcome, "message": crash.message if crash else ""})


def write(line: dict[str, str]) -> None:
    with OUT.open("a") as file:
        file.write(json.dumps(line) + "\n")
