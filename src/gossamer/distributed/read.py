"""Read the parts of one rank from a folder: mapped as they are, or merged where a rank has several.

    part = read("parts/", rank, ranks)          rank r of R has the parts r P / R .. (r + 1) P / R - 1

Of each file its size, its checksum and the partition that it belongs to are compared with the manifest.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from ..features import FeatureStore
from . import folder as files
from .folder import MANIFEST, BadPartFile, Entry, Manifest
from .merge import groups, merge
from .part import Part
from .write import METADATA, SIDE


def read(folder: str | os.PathLike[str], rank: int = 0, ranks: int = 1, *, verify: bool = True) -> Part:
    """The part of rank `rank` of `ranks`; other ranks' files are not read. `verify`: compare checksums."""
    folder = Path(folder)
    manifest = files.read_manifest(folder)
    bounds = groups(len(manifest.parts), ranks)
    if not 0 <= rank < ranks:
        raise ValueError(f"`rank` must lie between 0 and {ranks - 1} (got {rank})")
    own = range(bounds[rank], bounds[rank + 1])
    parts = [read_part(folder, manifest, p, f"rank {rank} of {ranks}", own, verify) for p in own]
    return parts[0] if ranks == len(manifest.parts) else merge(parts, bounds)


def read_part(folder: Path, manifest: Manifest, p: int, who: str, own: range, verify: bool) -> Part:
    """Part p as it was cut, mapped."""
    entry = manifest.parts[p]
    path = folder / entry.file
    if not path.is_file():
        needed = ", ".join(manifest.parts[q].file for q in own)
        raise FileNotFoundError(
            f"{path} is missing; copy it to this machine: {who} needs {needed} and {MANIFEST} in `folder`"
        )
    tensors, facts = _opened(path, entry)
    if facts.get("fingerprint") != manifest.fingerprint or facts.get("part") != p:
        raise BadPartFile(
            f"{path} must be part {p} of the partition {manifest.fingerprint[:12]} that {MANIFEST} names (it is part "
            f"{facts.get('part')} of {str(facts.get('fingerprint'))[:12]}); copy the whole folder again"
        )
    size = path.stat().st_size
    if size != entry.bytes or (verify and files.file_checksum(path) != entry.crc32):
        raise BadPartFile(
            f"{path} must have {entry.bytes} bytes and the checksum {entry.crc32}, as {MANIFEST} says (it has {size} "
            "bytes, and not that checksum): it is damaged; copy it again"
        )
    return _part(path, tensors, facts)


def _opened(path: Path, entry: Entry) -> tuple[dict[str, Tensor], dict[str, Any]]:
    try:
        with safe_open(path, framework="pt") as file:
            facts = json.loads((file.metadata() or {}).get(METADATA, "{}"))
            files.check_format(path, facts)
            return {name: file.get_tensor(name) for name in file.keys()}, facts  # noqa: SIM118 (not a dict)
    except SafetensorError as error:
        size = path.stat().st_size
        what = "truncated" if size < entry.bytes else "damaged"
        raise BadPartFile(
            f"{path} must have {entry.bytes} bytes, as {MANIFEST} says (got {size}): it is {what} ({error}); copy it "
            "again"
        ) from None


def _part(path: Path, tensors: dict[str, Tensor], facts: dict[str, Any]) -> Part:
    fields: dict[str, Any] = {name: facts[name] for name in facts if name not in ("format", "codes")}
    codes = {name.removeprefix("x."): tensor for name, tensor in tensors.items() if name.startswith("x.")}
    fields |= {name: tensor for name, tensor in tensors.items() if not name.startswith("x.")}
    if codes:
        fields["x"] = FeatureStore.packed(facts["codes"], codes)
    if facts["symmetric"]:
        fields |= {f"t_{name}": fields.get(name) for name in SIDE}
    return Part(**fields)
