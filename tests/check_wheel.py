"""Exits with a message unless a wheel holds the package, one library, and nothing bundled: check_wheel.py WHEEL."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile


def faults(wheel: str) -> list[str]:
    with zipfile.ZipFile(wheel) as archive, tempfile.TemporaryDirectory() as folder:
        names = archive.namelist()
        libraries = [name for name in names if ".so" in name]
        needed = [
            subprocess.run(
                ["readelf", "-d", archive.extract(name, folder)], capture_output=True, text=True, check=True
            ).stdout
            for name in libraries
        ]
    found = {
        f"one library, gossamer/_native*.so, was expected (got {libraries})": len(libraries) != 1
        or not libraries[0].startswith("gossamer/_native"),
        "gossamer/__init__.py is missing": "gossamer/__init__.py" not in names,
        "data or sources are bundled": any(name.endswith((".npz", ".cpp", ".h")) for name in names),
        "libgomp.so.1 is not linked dynamically": not all("libgomp.so.1" in text for text in needed),
        "torch is linked, or a search path is set": any("torch" in text or "RUNPATH" in text for text in needed),
    }
    return [fault for fault, is_there in found.items() if is_there]


if __name__ == "__main__":
    if found := faults(sys.argv[1]):
        sys.exit(f"{sys.argv[1]}: " + "; ".join(found))
    print(f"{sys.argv[1]} is complete, and bundles nothing")
