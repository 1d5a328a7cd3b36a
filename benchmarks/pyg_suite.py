"""PyG's own tests on lightened models: what passes with plain PyG and fails with every root module lightened.

    python benchmarks/pyg_suite.py path/to/pytorch_geometric/test --recipe tango nn loader

runs them twice, plain and with the plugin tests/plugins/pyg_suite.py at work, and prints the difference; exit code 1 if
there is any. Nothing is downloaded: take the tests from the version of PyG that is installed. Under a recipe that
rounds, tests that compare numbers with PyG's fail by design: they are listed apart and do not count.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import gossamer as gs

FOLDERS = ["nn", "explain", "loader", "utils"]
"""The tests that call modules."""
NUMBERS = ("allclose", "not close", "not equal", "torch.equal", "approx", "assert 0.", "assert tensor(")
"""What the message of a failed comparison of numbers says."""


def outcomes(tests: Path, selected: list[str], recipe: str, users_sizes: bool) -> dict[str, dict[str, str]]:
    """By test: what became of it, and the message of its failure."""
    plugins = Path(__file__).parents[1] / "tests" / "plugins"
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "outcomes"
        environment = os.environ | {
            "GOSSAMER_SUITE_RECIPE": recipe, "GOSSAMER_SUITE_OUT": str(out), "PYTHONDONTWRITEBYTECODE": "1",
            "GOSSAMER_SUITE_SIZES": "users" if users_sizes else "", "PYTHONPATH": str(plugins),
        }  # fmt: skip
        command = [sys.executable, "-m", "pytest", "-p", "pyg_suite", "-p", "no:cacheprovider", "-c", os.devnull]
        options = ["--rootdir", str(tests), "--quiet", "--disable-warnings", "--tb=no", "--no-summary"]
        subprocess.run([*command, *options, *selected], cwd=tests, env=environment, check=False)
        lines = out.read_text().splitlines() if out.exists() else []
    return {line["test"]: line for line in map(json.loads, lines)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tests", type=Path, help="the folder `test` of a checkout of PyG")
    parser.add_argument("selected", nargs="*", default=FOLDERS, help="folders, files or tests within it")
    parser.add_argument("--recipe", default="float32", choices=sorted(gs.recipes))
    parser.add_argument("--users-sizes", action="store_true", help="what is too small to gain runs as PyG runs it")
    chosen = parser.parse_args()
    if not (chosen.tests / "nn").is_dir():
        parser.error(f"`tests` must be the folder `test` of a checkout of PyG, with a folder nn (got {chosen.tests})")
    tests, selected = chosen.tests.resolve(), chosen.selected or FOLDERS
    print("plain PyG", flush=True)
    plain = outcomes(tests, selected, "", False)
    print(f"every root module lightened by {chosen.recipe!r}", flush=True)
    lightened = outcomes(tests, selected, chosen.recipe, chosen.users_sizes)
    passed = [test for test, found in plain.items() if found["outcome"] == "passed"]
    missing = {"outcome": "not run", "message": "the process had ended"}
    failed = [found | {"test": t} for t in passed if (found := lightened.get(t, missing))["outcome"] != "passed"]
    rounds = gs.recipes[chosen.recipe] != gs.Recipe()
    numbers = [f for f in failed if rounds and any(word in f.get("message", "") for word in NUMBERS)]
    others = [f for f in failed if f not in numbers]
    show(f"{len(numbers)} tests compare numbers and fail, as the recipe rounds", numbers)
    show(f"{len(others)} of {len(passed)} tests that pass with plain PyG fail lightened by {chosen.recipe!r}", others)
    return 1 if others or not passed else 0


def show(title: str, failed: list[dict[str, str]]) -> None:
    print(f"\n{title}")
    for found in failed:
        first = " ".join(found.get("message", "").split())[:200]
        print(f"  {found['test']}: {found['outcome']}: {first}")


if __name__ == "__main__":
    sys.exit(main())
