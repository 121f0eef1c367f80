"""Reads rows of data files, JSON and CSV in core, Parquet and the Hugging Face hub through the extra `data`.

It checks columns: a prompt is text or chat messages, an answer is text or a finite number.
It reads the hub only for an address such as `hub:owner/name` or `hub:owner/name:configuration`.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
import re
import reprlib
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from numbers import Integral, Real
from pathlib import Path
from typing import Any, TypeVar

from grouprl.files import DATA_KINDS, data_kind
from grouprl.leaves import leaf
from grouprl.tasks.answers import LONGEST_ANSWER, final_answer
from grouprl.tasks.base import Split
from grouprl.types import Message, UserError, import_extra

HUB = "hub:"
LONGEST_ROW = 32 << 20  # characters; a longer line is a file in another form, and no model reads such a prompt
Row = tuple[str, Mapping[str, Any]]
"""The place of a row ("train.jsonl:7") and its columns."""

_Read = TypeVar("_Read")
_Item = TypeVar("_Item")
_SHOWN = 10  # errors of rows
_MOST_TEXT = 2 << 30  # bytes of a compressed file
_MOST_EXPANDED, _MOST_ROWS, _BATCH = 8 << 30, 20_000_000, 64  # of a Parquet file: bytes, rows; rows read at a time
_SPLITS: Mapping[Split, str] = {"train": "train", "validation": "validation|valid|val|dev", "test": "test"}
_SHARD = re.compile(r"-\d+-of-(\d+)\.")
ROLES = ("system", "user", "assistant", "tool")
MOST_DIGITS = 1000  # of a whole number; Python refuses to format very long ones
_MOST_BITS = int(MOST_DIGITS * math.log2(10))


def read_rows(address: str, split: str = "train") -> list[Row]:
    """All rows of a .jsonl, .json (a list), .csv or .parquet file, or of one split of a folder or a hub data set.

    A .json file may hold JSON lines, and a .jsonl file a list. Raises UserError for a missing, empty or unreadable
    file, another kind of file, or a row that is not an object or too long.
    """
    if address.startswith(HUB):
        repository, _, configuration = address.removeprefix(HUB).partition(":")
        datasets = import_extra("datasets", "data", f"the data set {repository}")
        datasets.config.HF_HUB_OFFLINE = datasets.config.HF_DATASETS_OFFLINE = leaf("received.hub").is_out_of_reach()
        try:
            rows = datasets.load_dataset(repository, configuration or None, split=split)
        except (OSError, ValueError, RuntimeError) as error:  # no network, offline without a cached copy, a hub error
            raise UserError(
                f"expected to load {repository} from the Hugging Face hub, got {type(error).__name__}: {error}: "
                "connect to the network once, or name a local copy with task.path=FILE.jsonl"
            ) from error
        return [(f"{repository}/{split}:{n}", row) for n, row in enumerate(rows, 1)]
    path = Path(address)
    if path.is_dir():
        parts = read_splits(address) or {}
        if split not in parts:
            raise UserError(f"expected a split {split} in {path}, got {', '.join(parts)}: name one of its files")
        return parts[split]
    if not path.is_file():
        raise UserError(f"expected a data file at {path}, found none: check the path")
    if (kind := data_kind(path)) not in DATA_KINDS:
        remedy = "convert it (a spreadsheet: save it as .csv), or rename it if it is one of them"
        raise UserError(f"expected a {', '.join(DATA_KINDS)} file, got {path}: {remedy}")
    rows = (_json_file if "json" in kind else _parquet if kind == ".parquet" else _csv)(path)
    if not rows:
        raise UserError(f"expected at least one row in {path}, got an empty file: check how it was made")
    for where, row in rows:
        _refuse_long(where, sum(len(value) for value in row.values() if isinstance(value, str)))
    return rows


def read_splits(address: str) -> dict[Split, list[Row]] | None:
    """The rows of each split of a folder, or of train and test of a data set on the hub; None = it is a single file.

    Files are found where the hub has them: `train.jsonl`, `main/train-00000-of-00002.parquet`, `data/train/0.parquet`.

    Raises UserError for a folder without files of train, with several data sets, or with a part of a split's files.
    """
    if address.startswith(HUB):
        return {"train": read_rows(address, "train"), "test": read_rows(address, "test")}
    folder = Path(address)
    if not folder.is_dir():
        return None
    if (folder / "dataset_dict.json").is_file() or (folder / "state.json").is_file():
        datasets = import_extra("datasets", "data", f"the data set {folder}")
        try:
            saved = datasets.load_from_disk(str(folder))
            parts = saved if isinstance(saved, Mapping) else {"train": saved}
            rows: dict[Split, list[Row]] = {
                split: [(f"{folder}/{name}:{n}", row) for n, row in enumerate(part, 1)]
                for split, words in _SPLITS.items()
                for name, part in parts.items()
                if re.fullmatch(words, name)
            }
        except Exception as error:  # whatever damaged files make the library raise
            got = f"{type(error).__name__}: {error}"
            raise UserError(f"expected a data set of save_to_disk in {folder}, got {got}: write it again") from error
        if "train" not in rows:
            raise UserError(f"expected a split train in {folder}, got {', '.join(parts)}: rename one of them")
        return rows
    inside = sorted(path for path in folder.iterdir() if path.is_dir() and "train" in _files_of_splits(path))
    usual = [path for path in (folder, folder / "data", folder / "main", folder / "default") if path.is_dir()]
    chosen = next((path for path in usual if "train" in _files_of_splits(path)), None)
    if chosen is None and len(inside) != 1:
        got = "none" if not inside else ", ".join(path.name for path in inside)
        raise UserError(
            f"expected a data file at {folder / 'train.jsonl'}, or one that the hub would name so "
            f"(main/train-00000-of-00001.parquet), got {got}: name the folder of one data set with task.path"
        )
    files = _files_of_splits(chosen or inside[0])
    return {split: [row for path in paths for row in read_rows(str(path))] for split, paths in files.items()}


def _files_of_splits(folder: Path) -> dict[Split, list[Path]]:
    """The files of each split directly in a folder, or in a folder with the name of the split; shards in order."""
    files_of: dict[Split, list[Path]] = {}
    for split, words in _SPLITS.items():
        named = re.compile(rf"(^|[^a-z])({words})([^a-z]|$)")
        entries = [path for path in folder.iterdir() if named.search(path.stem.lower())]
        files = [path for path in entries if path.is_file()]
        files += [path for entry in entries if entry.is_dir() for path in entry.iterdir() if path.is_file()]
        of_kind = [sorted(path for path in files if data_kind(path) == kind) for kind in DATA_KINDS]
        exact = [
            [path] for paths in of_kind for path in paths if path.name.removesuffix(".gz") == split + data_kind(path)
        ]
        if not (chosen := next(filter(None, (*exact, *of_kind)), None)):
            continue
        shards = [shard for path in chosen if (shard := _SHARD.search(path.name))]
        if shards and len(shards) != int(shards[0][1]):
            raise UserError(
                f"expected all {int(shards[0][1])} files of {split} in {chosen[0].parent}, got {len(shards)}: download "
                "the others"
            )
        files_of[split] = chosen
    return files_of


def _json_file(path: Path) -> list[Row]:
    """The rows of a list of objects, or of JSON lines, whatever the name of the file says."""
    text = _text(path)
    lines = text.split("\n")  # not splitlines: JSON strings may hold U+2028
    is_json = data_kind(path) == ".json"
    if is_json or text.lstrip().startswith("["):
        try:
            rows = _json(text, str(path))
        except json.JSONDecodeError as error:
            if is_json and error.msg != "Extra data":
                raise UserError(f"{path}:{error.lineno}: expected JSON, got {error.msg}: fix the line") from error
        except RecursionError as error:
            raise _too_deep(str(path)) from error
        else:
            if isinstance(rows, list):
                return read_each(enumerate(rows, 1), lambda item: _json_row(f"{path}, item {item[0]}", item[1]))
            raise UserError(f"expected a list of objects in {path}, got a {type(rows).__name__}: write [{{...}}, ...]")
    written = ((f"{path}:{number}", line) for number, line in enumerate(lines, 1) if line.strip())
    return read_each(written, lambda item: _json_object(*item))


def _csv(path: Path) -> list[Row]:
    csv.field_size_limit(LONGEST_ROW)  # of this process; Python's own limit is 131,072
    delimiter = "\t" if data_kind(path) == ".tsv" else ","
    reader = csv.DictReader(io.StringIO(_text(path), newline=""), strict=True, delimiter=delimiter)

    def checked(row: dict[Any, Any]) -> Row:
        values = [value for name, value in row.items() if name is not None and value is not None]
        names, count = reader.fieldnames or (), len(values) + len(row.get(None) or ())
        if count != len(names):
            remedy = (
                "fix the line" if delimiter == "\t" else "fix the line; put text that holds a comma in double quotes"
            )
            raise UserError(
                f"{path}:{reader.line_num}: expected {len(names)} values ({', '.join(names)}), got {count}: {remedy}"
            )
        return f"{path}:{reader.line_num}", row

    try:
        reader.fieldnames = [*_members(str(path), [(name.strip(), "") for name in reader.fieldnames or ()])]
        return read_each(reader, checked)
    except csv.Error as error:
        raise UserError(f"{path}:{reader.line_num}: expected CSV, got {error}: fix the line") from error


def read_each(items: Iterable[_Item], read: Callable[[_Item], _Read]) -> list[_Read]:
    """Reads all items; raises one UserError for those that are wrong, with the first ten of them."""
    rows, errors = [], []
    for item in items:
        try:
            rows.append(read(item))
        except UserError as error:
            errors.append(str(error))
    if errors:
        more = [f"and {len(errors) - _SHOWN} more rows with errors"] if len(errors) > _SHOWN else []
        raise UserError("\n".join(errors[:_SHOWN] + more))
    return rows


def _text(path: Path) -> str:
    try:
        if path.suffix != ".gz":
            return path.read_bytes().decode("utf-8-sig")
        with gzip.open(path) as file:
            data = file.read(_MOST_TEXT + 1)
        if len(data) > _MOST_TEXT:
            raise UserError(
                f"{path}: expected at most {_MOST_TEXT >> 30} GiB of text, got more: give a part of the data"
            )
        return data.decode("utf-8-sig")
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"{path}: expected a complete gzip file, got {error}: get it again") from error
    except UnicodeDecodeError as error:
        raise UserError(f"expected UTF-8 text in {path}, got {error}: convert the file") from error


def _refuse_long(where: str, length: int) -> None:
    if length > LONGEST_ROW:
        raise UserError(
            f"{where}: expected a row of at most {LONGEST_ROW:,} characters, got {length:,}: keep what prompts and "
            "rewards need, with one row in a line"
        )


def _json_object(where: str, line: str) -> Row:
    _refuse_long(where, len(line))
    try:
        row = _json(line, where)
    except json.JSONDecodeError as error:
        raise UserError(f"{where}: expected one JSON object, got {line[:60]!r} ({error}): fix the line") from error
    except RecursionError as error:
        raise _too_deep(where) from error
    return _json_row(where, row)


def _json(text: str, where: str) -> Any:
    # A number that is too long to parse becomes infinite; `_json_row` refuses it with its place.
    return json.loads(
        text,
        parse_int=lambda digits: int(digits) if len(digits) <= MOST_DIGITS else math.inf,
        object_pairs_hook=partial(_members, where),
    )


def _members(where: str, pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise UserError(f"{where}: expected each column once, got one of {', '.join(members)} twice: rename it")
    return members


def _json_row(where: str, row: object) -> Row:
    if not isinstance(row, dict):
        raise UserError(f"{where}: expected a JSON object, got {short_repr(row)}: write {{...}}")
    try:
        written = json.dumps(row, allow_nan=False)
    except ValueError as error:
        raise UserError(
            f"{where}: expected finite numbers, got NaN, Infinity or one that is too large: write null where a value "
            f"is missing, and a whole number of more than {MOST_DIGITS} digits as text"
        ) from error
    except RecursionError as error:
        raise _too_deep(where) from error
    _refuse_long(where, len(written))
    return where, row


def _too_deep(where: str) -> UserError:
    return UserError(f"{where}: expected JSON, got brackets nested too deeply: flatten it")


def _parquet(path: Path) -> list[Row]:
    parquet = import_extra("pyarrow.parquet", "data", str(path))
    try:
        rows: list[dict[str, Any]] = []
        expanded = 0
        with parquet.ParquetFile(path) as file:
            _members(str(path), [(name, "") for name in file.schema_arrow.names])
            # A value that is stored once can be repeated in every row: small batches, and a limit on all of them.
            for batch in file.iter_batches(batch_size=_BATCH):
                expanded += batch.nbytes
                if expanded > _MOST_EXPANDED or len(rows) > _MOST_ROWS:
                    raise UserError(
                        f"{path}: expected at most {_MOST_ROWS} rows of {_MOST_EXPANDED >> 30} GiB in all, got more: "
                        "give a part of the data"
                    )
                rows += batch.to_pylist()
    except (OSError, ValueError) as error:  # pyarrow's own errors are ValueErrors
        raise UserError(f"expected a Parquet file at {path}, got {error}: check how it was made") from error
    return [(f"{path}:{n}", row) for n, row in enumerate(rows, 1)]


def column(row: Row, name: str) -> str:
    """The text in a column of a row. Raises UserError when it is missing, and when it is not text."""
    value = _value(row, name)
    if not isinstance(value, str) or not value.strip():
        raise UserError(
            f"{row[0]}: expected text in column {name!r}, got {short_repr(value)}: write it as a non-empty string"
        )
    _refuse_half_characters(row[0], name, value)
    return value


def text_or_messages(row: Row, name: str, *, remedy: str = "rename or add") -> str | tuple[Message, ...]:
    """The text or the chat messages in a column of a row. Raises UserError when the column holds neither."""
    value = _value(row, name, remedy)
    if isinstance(value, str) or not isinstance(value, Sequence):
        return column(row, name)
    value = [_with_text(row[0], name, message) for message in value]
    if not value or not all(
        isinstance(item, Mapping) and item.get("role") in ROLES and isinstance(item.get("content"), str)
        for item in value
    ):
        raise UserError(
            f"{row[0]}: expected text in column {name!r}, got {short_repr(value)}: write text, or messages such as "
            f"[{{'role': 'user', 'content': '2 + 2 = ?'}}], with text and one of the roles {', '.join(ROLES)} in each"
        )
    _refuse_half_characters(row[0], name, "".join(message["content"] for message in value))
    return tuple(map(dict, value))


def check_answer(row: Row, name: str = "answer") -> None:
    """Raises UserError for an answer that no completion could equal.

    An answer is text or a finite number. The final answer, after `####` if there is one, has at most LONGEST_ANSWER
    characters.
    """
    where, value = row[0], row[1][name]
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if isinstance(value, Integral):
        is_number &= int(value).bit_length() <= _MOST_BITS  # a number that can be formatted
    elif isinstance(value, Real):
        is_number = math.isfinite(value)
    if not isinstance(value, str) and not is_number:
        raise UserError(
            f"{where}: expected text or a finite number in column {name!r}, got "
            f"{short_repr(value)}: write it as text such as '7'"
        )
    try:
        text = final_answer(value)
    except UserError as error:
        raise UserError(f"{where}, column {name!r}: {error}") from error
    if not 1 <= len(text) <= LONGEST_ANSWER:
        raise UserError(
            f"{where}: expected an answer of 1 to {LONGEST_ANSWER} characters in column {name!r}, got "
            f"{short_repr(value)}: write the final answer of a correct completion"
        )
    _refuse_half_characters(where, name, text)


def short_repr(value: object) -> str:
    """A value for an error message: at most 80 characters."""
    return _SHORT.repr(value)[:80]


class _Short(reprlib.Repr):
    maxstring = maxother = 80

    def repr_int(self, x: int, level: int) -> str:
        return repr(x) if x.bit_length() <= _MOST_BITS else f"a number of more than {MOST_DIGITS} digits"


_SHORT = _Short()


def _value(row: Row, name: str, remedy: str = "rename or add") -> Any:
    where, columns = row
    if name not in columns:
        got = ", ".join(map(str, columns)) or "none"
        raise UserError(f"{where}: expected a column {name!r}, got {got}: {remedy}")
    return columns[name]


def _with_text(where: str, name: str, message: Any) -> Any:
    """A message with text in place of a list of text parts, such as [{"type": "text", "text": "2 + 2 = ?"}], and of the
    null beside calls, as system's where it is a developer's."""
    if not isinstance(message, Mapping):
        return message
    if message.get("role") == "developer":  # the newer name of the system's, which few templates know
        message = {**message, "role": "system"}
    parts = message.get("content")
    if parts is None and message.get("tool_calls"):
        return {**message, "content": ""}
    if not isinstance(parts, Sequence) or isinstance(parts, str) or not parts:
        return message
    for part in parts:
        if not isinstance(part, Mapping) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            kind = part.get("type") if isinstance(part, Mapping) else None
            raise UserError(
                f"{where}: expected text in the messages of column {name!r}, got a part of type "
                f"{short_repr(kind)}: GroupRL trains on text alone; remove the part"
            )
    return {**message, "content": "".join(part["text"] for part in parts)}


def _refuse_half_characters(where: str, name: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UserError(
            f"{where}: expected Unicode text in column {name!r}, got half of a surrogate pair "
            f"({text[error.start]!a}): write the whole character, or remove it"
        ) from error
