"""Rows of data files: JSON lines in core, Parquet and the Hugging Face hub through the extra `data`."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from grouprl.types import Message, UserError

Row = tuple[str, Mapping[str, Any]]
"""Where a row stands ("train.jsonl:7") and its columns."""


def read_rows(path: Path) -> list[Row]:
    """All rows of a .jsonl or .parquet file.

    Raises UserError for a missing, empty or unreadable file, for another kind of file, and for a line of .jsonl that is
    no JSON object.
    """
    readers = {".jsonl": _json_lines, ".parquet": _parquet}
    if path.suffix not in readers:
        raise UserError(f"expected a .jsonl or .parquet file, got {path}: convert it, or rename it if it is one")
    if not path.is_file():
        raise UserError(f"expected a data file at {path}, found none: check the path")
    rows = readers[path.suffix](path)
    if not rows:
        raise UserError(f"expected at least one row in {path}, got an empty file: check how it was made")
    return rows


def read_folder(folder: Path, names: Sequence[str]) -> dict[str, list[Row]]:
    """Rows of `NAME.jsonl` or `NAME.parquet` for every name. Raises UserError when one of them is missing."""
    found = {name: [folder / f"{name}{end}" for end in (".jsonl", ".parquet")] for name in names}
    return {
        name: read_rows(next((path for path in paths if path.is_file()), paths[0])) for name, paths in found.items()
    }


def read_hub(repository: str, configuration: str, names: Sequence[str]) -> dict[str, list[Row]]:
    """Rows of the named splits of a data set on the Hugging Face hub, from its cache when there is no network.

    Raises UserError without the extra `data`, and when the data set cannot be reached.
    """
    datasets = _extra("datasets", f"the data set {repository}")
    try:
        loaded = {name: datasets.load_dataset(repository, configuration, split=name) for name in names}
    except (OSError, ValueError) as error:  # no network, offline mode without a cached copy, or a hub error
        raise UserError(
            f"expected to load {repository} from the Hugging Face hub, got {type(error).__name__}: {error}: "
            "connect to the network once, or name a local copy with task.path=FILE.jsonl"
        ) from error
    return {name: [(f"{repository}/{name}:{n}", row) for n, row in enumerate(rows, 1)] for name, rows in loaded.items()}


def column(row: Row, name: str) -> str:
    """A text column of a row. Raises UserError when it is missing, empty or no text."""
    where, columns = row
    if name not in columns:
        raise UserError(
            f"{where}: expected a column {name!r}, got {', '.join(map(str, columns)) or 'none'}: rename or add"
        )
    value = columns[name]
    if not isinstance(value, str) or not value.strip():
        raise UserError(f"{where}: expected text in column {name!r}, got {value!r}: write it as a non-empty string")
    return value


def text_or_messages(row: Row, name: str) -> str | tuple[Message, ...]:
    """A column that holds text, or chat messages. Raises UserError when it holds neither."""
    value = row[1].get(name)
    if isinstance(value, list) and value and all(map(_is_message, value)):
        return tuple(value)
    return column(row, name)


def _is_message(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(value.get(key), str) for key in ("role", "content"))


def _json_lines(path: Path) -> list[Row]:
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")  # not splitlines: JSON strings may hold U+2028
    except UnicodeDecodeError as error:
        raise UserError(f"expected UTF-8 text in {path}, got {error}: convert the file") from error
    return [(f"{path}:{n}", _json_object(f"{path}:{n}", line)) for n, line in enumerate(lines, 1) if line.strip()]


def _json_object(where: str, line: str) -> Mapping[str, Any]:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise UserError(f"{where}: expected one JSON object, got {line[:60]!r} ({error}): mend the line") from error
    if not isinstance(row, dict):
        raise UserError(f"{where}: expected one JSON object, got {line[:60]!r}: write {{...}} on every line")
    return row


def _parquet(path: Path) -> list[Row]:
    parquet = _extra("pyarrow.parquet", str(path))
    try:
        rows = parquet.read_table(path).to_pylist()
    except (OSError, ValueError) as error:  # pyarrow's own errors are ValueErrors
        raise UserError(f"expected a Parquet file at {path}, got {error}: check how it was made") from error
    return [(f"{path}:{n}", row) for n, row in enumerate(rows, 1)]


def _extra(module: str, needed_for: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UserError(
            f"expected the package {module.split('.')[0]} for {needed_for}, it is not installed: "
            "run pip install 'grouprl[data]'"
        ) from error
