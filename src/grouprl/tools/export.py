"""Exports the rollouts of a run as one Parquet file for DuckDB, pyarrow, polars and pandas."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from grouprl.record.files import atomic_file
from grouprl.record.queries import all_rows
from grouprl.record.rollouts import open_recorded
from grouprl.types import UserError, import_extra

# Readers load or skip a row group at once: it must be large enough for speed and small enough for memory.
ROWS, MIB = 8192, 32

# The kinds of columns, "!" = never null, and the columns in their order.
_COLUMNS = (
    *(("int32!", "step group_index completion_index"), ("string!", "problem_id prompt"), ("string", "messages")),
    *(("string!", "columns text"), ("float64", "reward"), ("by_name!", "rewards"), ("string", "invalid_reason")),
    *(("bool", "correct"), ("float64!", "advantage"), ("int32!", "length"), ("string!", "stop_reason")),
    *(("int32!", "weights_version"), ("ids!", "prompt_ids token_ids"), ("numbers!", "logprobs plain_logprobs")),
    *(("numbers", "token_advantages"), ("steps", "step_rewards")),
    ("numbers", "learner_logprobs entropies reference_logprobs updated_logprobs"),
    *(("float64", "earned"), ("bool", "kept"), ("string", "extra"), ("numbers", "old_logprobs")),
)
_CONVERTED: Mapping[str, Callable[[Any], Any]] = {
    "ids": lambda blob: np.frombuffer(blob, "<i4"),
    "numbers": lambda blob: np.frombuffer(blob, "<f4"),
    "by_name": lambda components: list(json.loads(components).items()),
    "bool": bool,
    "steps": lambda steps: [{"end": end, "reward": reward} for end, reward in json.loads(steps)],
}


def export(run_directory: Path, out: Path) -> Path:
    """Writes every completion of a run as a row, with its problem, in the order of the run; returns `out`.

    The run may continue meanwhile: the file has the complete steps that were recorded when the export began. Memory
    is bounded, whatever the size of the run. `out` appears when it is complete, or not at all.

    Raises:
        UserError: the extra `data` is missing; `out` does not end in .parquet, exists or cannot be written; the run
            has no rollouts.
    """
    if out.suffix != ".parquet":
        raise UserError(f"{out}: expected a file name that ends in .parquet, got {out.name!r}: give such a name")
    pyarrow, parquet = (import_extra(name, "data", "export") for name in ("pyarrow", "pyarrow.parquet"))
    if out.exists():
        raise UserError(f"{out}: expected a new file, but it exists: remove it, or give another name")
    types = {
        **{kind: pyarrow.type_for_alias(kind) for kind in ("int32", "string", "float64", "bool")},
        "ids": pyarrow.list_(pyarrow.int32()),
        "numbers": pyarrow.list_(pyarrow.float32()),
        "by_name": pyarrow.map_(pyarrow.string(), pyarrow.float64()),
        "steps": pyarrow.list_(pyarrow.struct([("end", pyarrow.int32()), ("reward", pyarrow.float64())])),
    }
    columns = [(name, kind) for kind, names in _COLUMNS for name in names.split()]
    schema = pyarrow.schema(
        [pyarrow.field(name, types[kind.rstrip("!")], nullable="!" not in kind) for name, kind in columns]
    )
    with closing(open_recorded(run_directory)) as database:
        database.row_factory = sqlite3.Row
        database.set_progress_handler(None, 0)  # a long run takes its time
        rows = all_rows(database)
        try:
            out.parent.mkdir(parents=True, exist_ok=True)
            with atomic_file(out) as unfinished, parquet.ParquetWriter(unfinished, schema, compression="zstd") as file:
                for batch in _batches(rows):
                    file.write_table(_table(pyarrow, schema, batch))
        except OSError as error:
            raise UserError(f"{out}: cannot be written ({error}): make room, or give another name") from None
    return out


def _table(pa: ModuleType, schema: Any, rows: Sequence[sqlite3.Row]) -> Any:
    arrays = []
    kinds = [kind.rstrip("!") for kind, names in _COLUMNS for _ in names.split()]
    for field, kind in zip(schema, kinds, strict=True):
        convert = _CONVERTED.get(kind, lambda value: value)
        values = [None if row[field.name] is None else convert(row[field.name]) for row in rows]
        arrays.append(pa.array(values, field.type))
    return pa.Table.from_arrays(arrays, schema=schema)


def _batches(rows: Iterator[sqlite3.Row]) -> Iterator[list[sqlite3.Row]]:
    """Yields lists of at most ROWS rows; a list ends early when its texts and blobs reach MIB."""
    batch: list[sqlite3.Row] = []
    size = 0
    for row in rows:
        batch.append(row)
        size += sum(len(value) for value in row if isinstance(value, str | bytes))
        if len(batch) == ROWS or size >= MIB * 2**20:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
