"""The manifest of a saved folder: size and SHA-256 of every file. It is written last and checked before a load."""

from __future__ import annotations

import hashlib
import json
import stat
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from grouprl.files import read_file
from grouprl.types import UserError

MANIFEST = "grouprl_manifest.json"
_MOST_BYTES = 1 << 24  # a file has a line or two of it
_AT_ONCE = 4  # hashing releases Python's lock: 1.5 GB/s a core with the processor's SHA instructions


def write_manifest(folder: Path) -> None:
    """Writes the manifest of all files in a folder, which must be complete."""
    text = json.dumps({"files": _found(folder)}, indent=2, sort_keys=True)
    (folder / MANIFEST).write_text(text + "\n", encoding="utf-8")


def has_manifest(folder: Path) -> bool:
    """Whether GroupRL saved this folder."""
    return (folder / MANIFEST).is_file()


def check_manifest(folder: Path) -> None:
    """Checks that a folder holds the files of its manifest, and nothing else.

    Raises:
        UserError: there is no manifest, or a file is missing, was added, has other bytes or is a link; the error names
            them.
    """
    entries = _found(folder)  # first, because it refuses a manifest that is a pipe
    recorded = _recorded(folder)
    missing = [f"no {name}" for name in recorded if name not in entries]
    added = [f"{name}, which was added" for name in entries if name not in recorded]
    changed = [
        f"{name} of {entry['bytes']} bytes with SHA-256 {entry['sha256'][:12]} instead of "
        f"{recorded[name].get('bytes')} bytes with {str(recorded[name].get('sha256'))[:12]}"
        for name, entry in entries.items()
        if name in recorded and entry != recorded[name]
    ]
    faults = [*(missing + changed + added)]
    if faults:
        raise UserError(
            f"{folder}: expected the files of {MANIFEST}, got {'; '.join(faults[:5])}: restore the folder, or remove "
            f"{MANIFEST} to use it as a model that others made"
        )


def _recorded(folder: Path) -> Mapping[str, Any]:
    data = read_file(folder / MANIFEST, _MOST_BYTES)
    if data is None:
        raise UserError(
            f"{folder}: expected {MANIFEST}, found none: it was deleted, or another version of GroupRL saved the folder"
        )
    try:
        return {str(name): dict(entry) for name, entry in json.loads(data)["files"].items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(f"{folder / MANIFEST}: expected a manifest ({error!r:.80}): restore the folder") from None


def _found(folder: Path) -> dict[str, dict[str, Any]]:
    paths = []
    for path in sorted(folder.rglob("*")):
        mode = path.lstat().st_mode
        # A link to a folder would bring in files that no manifest lists; a pipe would never end.
        if not stat.S_ISDIR(mode) and not stat.S_ISREG(mode):
            raise UserError(f"{path}: expected files and folders alone, got a link or a pipe: copy what it points to")
        if stat.S_ISREG(mode) and path != folder / MANIFEST:
            paths.append(path)
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        entries = list(threads.map(_entry, paths))
    return {path.relative_to(folder).as_posix(): entry for path, entry in zip(paths, entries, strict=True)}


def _entry(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            return {"sha256": hashlib.file_digest(file, "sha256").hexdigest(), "bytes": file.tell()}
    except OSError as error:
        raise UserError(f"{path}: expected a file that can be read, got '{error}': restore it") from None
