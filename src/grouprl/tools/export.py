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
from grouprl.record.rollouts import open_recorded
from grouprl.types import UserError, import_extra

# Readers load or skip a row group at once: it must be large enough for speed and small enough for memory.
ROWS, MIB = 8192, 32

_QUERY = (
    "SELECT *, components AS rewards FROM completions JOIN problems USING (problem_id) "
    "ORDER BY step, group_index, completion_index"
)
_INTEGERS, _FLOATS = (lambda blob: np.frombuffer(blob, "<i4")), (lambda blob: np.frombuffer(blob, "<f4"))
_CONVERTED: Mapping[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("prompt_ids", "token_ids"), _INTEGERS),
    **dict.fromkeys(("logprobs", "plain_logprobs", "token_advantages", "learner_logprobs", "entropies"), _FLOATS),
    **dict.fromkeys(("reference_logprobs", "updated_logprobs", "old_logprobs"), _FLOATS),
    "rewards": lambda components: list(json.loads(components).items()),
    "correct": bool,
    "kept": bool,
    "step_rewards": lambda steps: [{"end": end, "reward": reward} for end, reward in json.loads(steps)],
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
    schema = _schema(pyarrow)
    with closing(open_recorded(run_directory)) as database:
        database.row_factory = sqlite3.Row
        database.set_progress_handler(None, 0)  # a long run takes its time
        rows = database.execute(_QUERY)  # one query reads one snapshot
        try:
            out.parent.mkdir(parents=True, exist_ok=True)
            with atomic_file(out) as unfinished, parquet.ParquetWriter(unfinished, schema, compression="zstd") as file:
                for batch in _batches(rows):
                    file.write_table(_table(pyarrow, schema, batch))
        except OSError as error:
            raise UserError(f"{out}: cannot be written ({error}): make room, or give another name") from None
    return out


def _schema(pa: ModuleType) -> Any:
    ids, numbers = pa.list_(pa.int32()), pa.list_(pa.float32())
    return pa.schema(
        [
            pa.field("step", pa.int32(), nullable=False),
            pa.field("group_index", pa.int32(), nullable=False),
            pa.field("completion_index", pa.int32(), nullable=False),
            pa.field("problem_id", pa.string(), nullable=False),
            pa.field("prompt", pa.string(), nullable=False),
            pa.field("messages", pa.string()),
            pa.field("columns", pa.string(), nullable=False),
            pa.field("text", pa.string(), nullable=False),
            pa.field("reward", pa.float64()),
            pa.field("rewards", pa.map_(pa.string(), pa.float64()), nullable=False),
            pa.field("invalid_reason", pa.string()),
            pa.field("correct", pa.bool_()),
            pa.field("advantage", pa.float64(), nullable=False),
            pa.field("length", pa.int32(), nullable=False),
            pa.field("stop_reason", pa.string(), nullable=False),
            pa.field("weights_version", pa.int32(), nullable=False),
            pa.field("prompt_ids", ids, nullable=False),
            pa.field("token_ids", ids, nullable=False),
            pa.field("logprobs", numbers, nullable=False),
            pa.field("plain_logprobs", numbers, nullable=False),
            pa.field("token_advantages", numbers),
            pa.field("step_rewards", pa.list_(pa.struct([("end", pa.int32()), ("reward", pa.float64())]))),
            pa.field("learner_logprobs", numbers),
            pa.field("entropies", numbers),
            pa.field("reference_logprobs", numbers),
            pa.field("updated_logprobs", numbers),
            pa.field("earned", pa.float64()),
            pa.field("kept", pa.bool_()),
            pa.field("extra", pa.string()),
            pa.field("old_logprobs", numbers),
        ]
    )


def _table(pa: ModuleType, schema: Any, rows: Sequence[sqlite3.Row]) -> Any:
    arrays = []
    for field in schema:
        values = [row[field.name] for row in rows]
        if convert := _CONVERTED.get(field.name):
            values = [None if value is None else convert(value) for value in values]
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
