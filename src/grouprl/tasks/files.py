"""Rows of data files: JSON and CSV in core, Parquet and the Hugging Face hub through the extra `data`.

The hub is read only where an address asks for it: `hub:owner/name`, `hub:owner/name:configuration`.
"""

from __future__ import annotations

import csv
import importlib
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from grouprl.types import Message, UserError

Row = tuple[str, Mapping[str, Any]]
"""Where a row stands ("train.jsonl:7") and its columns."""


HUB = "hub:"


def read_rows(path: str | Path, split: str = "train") -> list[Row]:
    """All rows of a .jsonl, .json (a list), .csv or .parquet file, or of one split of a data set on the hub.

    Raises UserError for a missing, empty or unreadable file, for another kind of file, and for a row that is no object.
    """
    if is_hub(path):
        return _hub_rows(str(path), split)
    path = Path(path)
    readers = {".jsonl": _json_lines, ".json": _json_list, ".csv": _csv, ".parquet": _parquet}
    if path.suffix not in readers:
        raise UserError(
            f"expected a {', '.join(readers)} file, got {path}: convert it, or rename it if it is one of them"
        )
    if not path.is_file():
        raise UserError(f"expected a data file at {path}, found none: check the path")
    rows = readers[path.suffix](path)
    if not rows:
        raise UserError(f"expected at least one row in {path}, got an empty file: check how it was made")
    return rows


def read_splits(path: str | Path, names: Sequence[str]) -> dict[str, list[Row]] | None:
    """Rows of every name: `NAME.jsonl` (or another kind of file) in a folder, or splits of a data set on the hub.

    None when the path is a single file. Raises UserError when one of them is missing.
    """
    if is_hub(path):
        return {name: read_rows(path, name) for name in names}
    folder = Path(path)
    if not folder.is_dir():
        return None
    found = {name: [folder / f"{name}{end}" for end in (".jsonl", ".parquet", ".json", ".csv")] for name in names}
    return {
        name: read_rows(next((path for path in paths if path.is_file()), paths[0])) for name, paths in found.items()
    }


def is_hub(path: str | Path) -> bool:
    """Whether it is the address of a data set on the hub."""
    return str(path).startswith(HUB)


def _hub_rows(address: str, split: str) -> list[Row]:
    """From the hub, or from its cache when there is no network. No code of the data set is run."""
    repository, _, configuration = address.removeprefix(HUB).partition(":")
    datasets = _extra("datasets", f"the data set {repository}")
    try:
        rows = datasets.load_dataset(repository, configuration or None, split=split)
    except (OSError, ValueError, RuntimeError) as error:  # no network, offline without a cached copy, a hub error
        raise UserError(
            f"expected to load {repository} from the Hugging Face hub, got {type(error).__name__}: {error}: "
            "connect to the network once, or name a local copy with task.path=FILE.jsonl"
        ) from error
    return [(f"{repository}/{split}:{n}", row) for n, row in enumerate(rows, 1)]


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
    lines = _text(path).split("\n")  # not splitlines: JSON strings may hold U+2028
    return [(f"{path}:{n}", _json_object(f"{path}:{n}", line)) for n, line in enumerate(lines, 1) if line.strip()]


def _json_list(path: Path) -> list[Row]:
    try:
        rows = json.loads(_text(path))
    except json.JSONDecodeError as error:
        raise UserError(f"{path}:{error.lineno}: expected JSON, got {error.msg}: mend the line") from error
    if not isinstance(rows, list):
        raise UserError(f"expected a list of objects in {path}, got a {type(rows).__name__}: write [{{...}}, ...]")
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict):
            raise UserError(f"{path}, item {number}: expected a JSON object, got {row!r:.60}: write {{...}}")
    return [(f"{path}, item {number}", row) for number, row in enumerate(rows, 1)]


def _csv(path: Path) -> list[Row]:
    reader = csv.DictReader(io.StringIO(_text(path), newline=""), strict=True)
    rows: list[Row] = []
    try:
        for row in reader:
            if None in row or None in row.values():
                names = ", ".join(reader.fieldnames or ())
                raise UserError(f"{path}:{reader.line_num}: expected the columns {names}, got another number: mend it")
            rows.append((f"{path}:{reader.line_num}", row))
    except csv.Error as error:
        raise UserError(f"{path}:{reader.line_num}: expected CSV, got {error}: mend the line") from error
    return rows


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"expected UTF-8 text in {path}, got {error}: convert the file") from error


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
