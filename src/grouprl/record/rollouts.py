"""The database of a run's completions: one transaction per step, readable while the run writes it."""

from __future__ import annotations

import math
import re
import sqlite3
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from grouprl.files import read_end
from grouprl.record.files import json_text, utf8_text
from grouprl.record.layout import RunDirectory, refuse_links
from grouprl.types import StepRecord, TokenTrace, UserError

SCHEMA = """
CREATE TABLE IF NOT EXISTS problems (
  problem_id TEXT PRIMARY KEY,
  prompt TEXT NOT NULL,        -- as a person reads it
  messages TEXT,               -- JSON list of chat messages; NULL when the prompt is plain text
  prompt_ids BLOB NOT NULL,    -- token ids given to the policy, little-endian int32
  columns TEXT NOT NULL        -- JSON object: what the rewards get by name
);
CREATE TABLE IF NOT EXISTS completions (
  step INTEGER NOT NULL,
  group_index INTEGER NOT NULL,       -- place of the group in the step, from 0
  completion_index INTEGER NOT NULL,  -- place in the group, from 0
  problem_id TEXT NOT NULL REFERENCES problems,
  text TEXT NOT NULL,
  reward REAL,                        -- weighted total; NULL = invalid
  components TEXT NOT NULL,           -- JSON object: unweighted rewards by name; null = does not apply
  invalid_reason TEXT,                -- NULL when valid
  correct INTEGER,                    -- 1 or 0, what the task's verifier says; NULL = it failed, or there is none
  advantage REAL NOT NULL,            -- mean over its tokens
  length INTEGER NOT NULL,            -- tokens
  stop_reason TEXT NOT NULL,          -- end, stop_string or length
  weights_version INTEGER NOT NULL,   -- updates the sampling weights had seen
  token_ids BLOB NOT NULL,            -- little-endian int32
  logprobs BLOB NOT NULL,             -- little-endian float32, under the distribution drawn from
  plain_logprobs BLOB NOT NULL,       -- little-endian float32, under the plain softmax
  token_advantages BLOB,              -- little-endian float32; NULL when every token has the completion's
  step_rewards TEXT,                  -- JSON list of [last token, weighted reward]; NULL without process rewards
  learner_logprobs BLOB,              -- little-endian float32, of the policy in the last pass; NULL = not read
  entropies BLOB,                     -- little-endian float32, of the policy there; NULL = not read
  reference_logprobs BLOB,            -- little-endian float32; NULL = no reference
  updated_logprobs BLOB,              -- little-endian float32, after the update; NULL = not looked at again
  earned REAL,                        -- weighted sum of the reward functions; NULL = invalid
  kept INTEGER NOT NULL,              -- 1 = its group was learned from, 0 = dropped
  extra TEXT,                         -- JSON object: what rewards logged, by REWARD/COLUMN; NULL = nothing
  old_logprobs BLOB,                  -- little-endian float32, below the ratio; NULL = `logprobs`, the sampler's
  PRIMARY KEY (step, group_index, completion_index)
);
CREATE TABLE IF NOT EXISTS stages (
  step INTEGER NOT NULL,         -- 1, 11, 21, ...: of a step with a signal, its first group that has one
  group_index INTEGER NOT NULL,
  stage TEXT NOT NULL,           -- ratio, kl, loss, gradient, update
  value TEXT NOT NULL,           -- JSON object: what the learner computed of each completion in `completions`
  PRIMARY KEY (step, stage)
);
CREATE TABLE IF NOT EXISTS episodes (  -- completions of several turns, with tools or an environment
  step INTEGER NOT NULL,
  group_index INTEGER NOT NULL,
  completion_index INTEGER NOT NULL,
  episode TEXT NOT NULL,         -- JSON object: messages, calls, rewards of turns, and the tokens shown between turns
  PRIMARY KEY (step, group_index, completion_index)
);
-- One entry for each group: where a problem came, without reading every completion.
CREATE INDEX IF NOT EXISTS visits ON completions (problem_id, step, group_index) WHERE completion_index = 0;
CREATE VIEW IF NOT EXISTS groups AS
  SELECT step, group_index, problem_id, COUNT(*) AS completions, COUNT(reward) AS valid, AVG(reward) AS reward_mean,
    MIN(reward) AS reward_min, MAX(reward) AS reward_max,
    COALESCE(MAX(reward) > MIN(reward), 0) AS has_signal, AVG(length) AS mean_length
  FROM completions GROUP BY step, group_index;
CREATE VIEW IF NOT EXISTS rewards AS
  SELECT step, group_index, completion_index, problem_id, key AS name, value AS reward
  FROM completions, json_each(components);
CREATE VIEW IF NOT EXISTS steps AS
  SELECT step, COUNT(DISTINCT group_index) AS groups, COUNT(*) AS completions, AVG(reward) AS reward_mean,
    SUM(reward IS NULL) AS invalid, AVG(length) AS mean_length, AVG(stop_reason = 'length') AS clipped_ratio
  FROM completions GROUP BY step;
"""


_LARGEST_VALUE = 64 << 20  # bytes of a text or blob: the token ids of 16 million tokens
_READ_SECONDS, _INSTRUCTIONS = 120.0, 100_000  # of a reader, however the file is damaged; and between two looks
# In the SQL of a table or an index: an expression that SQLite computes at each write.
_COMPUTES = re.compile(r"\bCHECK\b|\bDEFAULT\b(?!\s+[-\w.']+)", re.IGNORECASE)
_WHERE = re.compile(r"\bWHERE\b(?! completion_index = 0\Z)", re.IGNORECASE)
_SUPER_JOURNAL = bytes.fromhex("d9d505f920a163d7")  # sqlite.org/fileformat: the end of a journal that names another


def open_rollouts(location: str) -> sqlite3.Connection:
    """Opens or creates a rollout database (a path, or a `file:` URI) with its tables and views.

    Raises:
        UserError: it is the database of something else; it is not changed.
    """
    # A reader may hold a lock for seconds; the run waits for it.
    is_uri = location.startswith("file:")
    if not is_uri:
        _refuse_journal(Path(location))
    database = _connected(location, uri=is_uri, timeout=30.0)
    _has_completions(database, location)
    # WAL lets people read while a run writes. It needs shared memory, which network file systems do not have.
    if database.execute("PRAGMA journal_mode=WAL").fetchone()[0] != "wal":
        database.execute("PRAGMA journal_mode=TRUNCATE")
    database.execute("PRAGMA synchronous=FULL")  # a step is on the disk before a checkpoint depends on it
    database.executescript(SCHEMA)
    return database


def write_step(database: sqlite3.Connection, record: StepRecord) -> None:
    """Adds the groups of a step, all or none.

    Raises:
        ValueError: groups, outcomes and advantages differ in shape.
        sqlite3.IntegrityError: the step is recorded already.
    """
    traces = record.traces or [[TokenTrace()] * len(group.completions) for group in record.groups]
    kept = record.kept or [True] * len(record.groups)
    problems: list[tuple[Any, ...]] = []
    completions: list[tuple[Any, ...]] = []
    columns = (record.groups, record.outcomes, record.token_advantages, traces, kept)
    for group_index, (group, *scores, keep) in enumerate(zip(*columns, strict=True)):
        problem = group.problem
        messages = None if isinstance(problem.prompt, str) else json_text([dict(message) for message in problem.prompt])
        values = json_text(problem.columns, default=str)  # a user's columns may have any type
        texts = utf8_text(problem.id), utf8_text(problem.prompt_text)
        problems.append((*texts, messages, _blob(group.prompt_ids, "<i4"), values))
        for completion, outcome, advantages, trace in zip(group.completions, *scores, strict=True):
            traced = (trace.logprobs, trace.entropies, trace.reference, trace.updated, trace.old)
            for numbers in (advantages, *traced):
                if numbers is not None and len(numbers) != len(completion):
                    raise ValueError(f"expected a number for each of {len(completion)} tokens, got {len(numbers)}")
            *before_earned, old = (None if numbers is None else _blob(numbers, "<f4") for numbers in traced)
            same = min(advantages, default=0.0) == max(advantages, default=0.0)
            row = (
                record.step,
                group_index,
                completion.index,
                utf8_text(problem.id),
                utf8_text(completion.text),
                outcome.total if outcome.valid else None,
                json_text(outcome.components),
                None if outcome.valid else utf8_text(outcome.reason),
                None if outcome.correct is None else int(outcome.correct),
                float(max(advantages, default=0.0)) if same else math.fsum(advantages) / len(advantages),
                len(completion),
                completion.stop_reason.value,
                completion.weights_version,
                _blob(completion.token_ids, "<i4"),
                _blob(completion.logprobs, "<f4"),
                _blob(completion.plain_logprobs, "<f4"),
                None if same else _blob(advantages, "<f4"),
                json_text([(step.end, step.reward) for step in outcome.steps]) if outcome.steps else None,
                *before_earned,
                outcome.earned if outcome.valid else None,
                keep,
                json_text(outcome.extra) if outcome.extra else None,
                old,
            )
            completions.append(row)
    watched = next((index for index, row in enumerate(traces) if any(trace.updated is not None for trace in row)), None)
    with database:
        database.executemany("INSERT OR IGNORE INTO problems VALUES (?, ?, ?, ?, ?)", problems)
        database.executemany(f"INSERT INTO completions VALUES ({', '.join('?' * 26)})", completions)
        episodes = [
            (record.step, group_index, sampled.index, json_text({**asdict(sampled.episode), "held": None}))
            for group_index, group in enumerate(record.groups)
            for sampled in group.completions
            if sampled.episode is not None
        ]
        database.executemany("INSERT INTO episodes VALUES (?, ?, ?, ?)", episodes)
        stages = [(record.step, watched, stage, json_text(value)) for stage, value in record.stages.items()]
        database.executemany("INSERT INTO stages VALUES (?, ?, ?, ?)", stages)


def drop_after(database: sqlite3.Connection, step: int) -> None:
    """Removes all later steps, and the problems that only they have."""
    with database:
        for table in ("completions", "stages", "episodes"):
            database.execute(f"DELETE FROM {table} WHERE step > ?", (step,))
        database.execute("DELETE FROM problems WHERE problem_id NOT IN (SELECT problem_id FROM completions)")


def open_recorded(directory: Path) -> sqlite3.Connection:
    """Opens the rollouts of a run for reading; the run may write meanwhile.

    Raises:
        UserError: `directory` has no rollouts.sqlite, or that of something else.
    """
    path = RunDirectory(directory).rollouts
    if not path.is_file():
        raise UserError(f"{path}: expected the rollouts of a run, found no such file: give a run directory")
    refuse_links(directory)  # SQLite would follow a link, and block on a pipe
    database = _read_only(path)
    if not _has_completions(database, path):  # the run has just made the file, and no table in it yet
        database.close()
        return empty_rollouts()
    return database


def empty_rollouts() -> sqlite3.Connection:
    """Opens a database in memory with all tables and no rows, for a run that has recorded nothing yet."""
    database = sqlite3.connect(":memory:")
    database.executescript(SCHEMA)
    return database


def _has_completions(database: sqlite3.Connection, where: object) -> bool:
    """Whether there is a table of completions; closes the database when it raises.

    Raises:
        UserError: the table lacks columns.
    """
    with ExitStack() as on_error:
        on_error.callback(database.close)
        _refuse_programs(database, where)
        columns = _columns(database)
        missing = _all_columns() - columns
        if columns and missing:
            raise UserError(
                f"{where}: expected a table of completions with the columns {', '.join(sorted(missing))}, found none: "
                "restore the file"
            )
        on_error.pop_all()
    return bool(columns)


@cache
def _all_columns() -> frozenset[str]:
    with closing(empty_rollouts()) as database:
        return _columns(database)


def _columns(database: sqlite3.Connection) -> frozenset[str]:
    return frozenset(name for _, name, *_ in database.execute("PRAGMA table_info(completions)"))


def holds_steps(path: Path) -> bool:
    """Whether a rollout database has a step; True also for a file that is not such a database."""
    try:
        with closing(_read_only(path)) as database:
            _refuse_programs(database, path)
            return database.execute("SELECT 1 FROM completions LIMIT 1").fetchone() is not None
    except (sqlite3.DatabaseError, UserError):  # a foreign file, which must not be overwritten
        return True


def _read_only(path: Path) -> sqlite3.Connection:
    _refuse_journal(path)
    location = f"file:{quote(str(path.resolve()))}"
    database = _connected(f"{location}?mode=ro", uri=True)
    try:
        database.execute("PRAGMA schema_version")
    except sqlite3.OperationalError:  # a kill at the end of a run left a journal, which only a writer rolls back
        database.close()
        with closing(_connected(f"{location}?mode=rw", uri=True)) as writer:
            writer.execute("PRAGMA schema_version")
        database = _connected(f"{location}?mode=ro", uri=True)
    until = time.monotonic() + _READ_SECONDS
    database.set_progress_handler(lambda: time.monotonic() > until, _INSTRUCTIONS)
    return database


def _refuse_journal(path: Path) -> None:
    """Checks that the journal of a killed writer names no other journal: SQLite would delete the file of that name.

    Raises:
        UserError: it names one, which no run writes.
    """
    journal = path.with_name(f"{path.name}-journal")
    if read_end(journal, len(_SUPER_JOURNAL)) == _SUPER_JOURNAL:
        raise UserError(f"{journal}: expected the journal of one database, got one that names others: remove it")


def _connected(location: str, *, uri: bool, timeout: float = 5.0) -> sqlite3.Connection:
    """Connects to a database that can come from anybody: no value is larger than _LARGEST_VALUE."""
    database = sqlite3.connect(location, timeout=timeout, uri=uri)
    database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LARGEST_VALUE)
    database.execute("PRAGMA trusted_schema=OFF")
    return database


def _refuse_programs(database: sqlite3.Connection, where: object) -> None:
    """Checks that the tables of a database are tables, and that nothing in it computes but the views of a run.

    A trigger, a view, a virtual table, a generated column, a check or an index of an expression is a program, which
    may never end. The views of a run compute only where somebody asks for them by name.

    Raises:
        UserError: there is such a program.
    """
    views = ("groups", "rewards", "steps")
    for kind, name, text in database.execute("SELECT type, name, coalesce(sql, '') FROM main.sqlite_master"):
        is_plain = kind == "view" and name in views
        if kind == "table" and not text.upper().startswith("CREATE VIRTUAL"):
            hidden = database.execute("SELECT 1 FROM pragma_table_xinfo(?) WHERE hidden", (name,)).fetchall()
            is_plain = not hidden and not _COMPUTES.search(text)
        elif kind == "index":
            computed = database.execute("SELECT 1 FROM pragma_index_xinfo(?) WHERE cid = -2", (name,)).fetchall()
            is_plain = not computed and not _WHERE.search(text)
        if not is_plain:
            raise UserError(f"{where}: expected the tables and views of a run, got the {kind} {name!r:.60}: remove it")


def _blob(numbers: Sequence[float], dtype: str) -> bytes:
    return np.asarray(numbers, dtype).tobytes()
