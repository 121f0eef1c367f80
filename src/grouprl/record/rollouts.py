"""The database of every completion of a run: one step = one transaction, readable while the run writes it."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Sequence, Set
from contextlib import closing
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from grouprl.record.files import json_text, utf8_text
from grouprl.record.layout import RunDirectory
from grouprl.record.rows import checked_rows, parsed_columns, parsed_components, parsed_messages, parsed_steps
from grouprl.types import Completion, Group, Problem, RewardOutcome, StepReward, StopReason, TokenTrace, UserError

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


# Columns that the first version did not have.
_ADDED = {"token_advantages", "step_rewards", "correct", "learner_logprobs", "updated_logprobs"}


@dataclass(frozen=True)
class RecordedGroup:
    """A group as it was trained on: completions, what the rewards said of each, and the advantages."""

    group: Group  # log-probs as float32; columns that JSON cannot hold come back as text
    outcomes: tuple[RewardOutcome, ...]
    advantages: tuple[float, ...]  # of each completion, the mean over its tokens
    token_advantages: tuple[tuple[float, ...], ...]
    traces: tuple[TokenTrace, ...]


def open_rollouts(location: str) -> sqlite3.Connection:
    """Opens or makes a rollout database (a path, or a `file:` URI) with its tables and views.

    Raises:
        UserError: an older version made it; nothing of it is changed.
    """
    # Who reads may hold a lock for seconds, and a run had better wait than end.
    database = sqlite3.connect(location, timeout=30.0, uri=location.startswith("file:"))
    found = {name for _, name, *_ in database.execute("PRAGMA table_info(completions)")}
    if found and _ADDED - found:
        database.close()
        raise _too_old(location, _ADDED - found)
    # WAL lets people read while a run writes. It needs shared memory, which network file systems do not have.
    if database.execute("PRAGMA journal_mode=WAL").fetchone()[0] != "wal":
        database.execute("PRAGMA journal_mode=TRUNCATE")
    database.execute("PRAGMA synchronous=NORMAL")
    database.executescript(SCHEMA)
    return database


def write_step(
    database: sqlite3.Connection,
    step: int,
    groups: Sequence[Group],
    outcomes: Sequence[Sequence[RewardOutcome]],
    token_advantages: Sequence[Sequence[Sequence[float]]],
    traces: Sequence[Sequence[TokenTrace]] | None = None,
) -> None:
    """Adds the groups [P] of a step with outcomes [P][G], advantages [P][G][tokens] and traces [P][G], all or none.

    Raises:
        ValueError: when they differ in shape.
        sqlite3.IntegrityError: when the step is there already.
    """
    if traces is None:
        traces = [[TokenTrace()] * len(group.completions) for group in groups]
    problems = [_problem_row(group) for group in groups]
    completions = [
        _completion_row(step, group_index, group.problem.id, *member)
        for group_index, (group, *scores) in enumerate(zip(groups, outcomes, token_advantages, traces, strict=True))
        for member in zip(group.completions, *scores, strict=True)
    ]
    with database:
        database.executemany("INSERT OR IGNORE INTO problems VALUES (?, ?, ?, ?, ?)", problems)
        database.executemany(f"INSERT INTO completions VALUES ({', '.join('?' * 22)})", completions)


def drop_after(database: sqlite3.Connection, step: int) -> None:
    """Removes every later step, and the problems that only those had."""
    with database:
        database.execute("DELETE FROM completions WHERE step > ?", (step,))
        database.execute("DELETE FROM problems WHERE problem_id NOT IN (SELECT problem_id FROM completions)")


def open_recorded(directory: Path) -> sqlite3.Connection:
    """The rollouts of a run, to read; a run may go on meanwhile.

    Raises:
        UserError: when `directory` has no rollouts.sqlite.
    """
    path = RunDirectory(directory).rollouts
    if not path.is_file():
        raise UserError(f"{path}: expected the rollouts of a run, found no such file: give a run directory")
    for side in RunDirectory(directory).rollout_side_files:
        if side.exists() and not side.is_file():  # SQLite would wait for what a pipe says
            raise UserError(f"{side}: expected a file of SQLite, got a folder or a pipe: remove it")
    return _read_only(path)


def read_rollouts(directory: Path, step: int) -> tuple[RecordedGroup, ...]:
    """The groups of one step in the order of that step; empty when it is not recorded.

    Raises:
        UserError: when `directory` has no rollouts.sqlite, or a row of it is damaged.
    """
    path = RunDirectory(directory).rollouts
    query = (
        "SELECT * FROM completions JOIN problems USING (problem_id) WHERE step = ? "
        "ORDER BY group_index, completion_index"
    )
    with closing(open_recorded(directory)) as database:
        database.row_factory = checked_rows(path)
        rows = database.execute(query, (step,)).fetchall()
    missing = _ADDED - set(rows[0].keys() if rows else _ADDED)
    if missing:
        raise _too_old(path, missing)
    return tuple(
        recorded_group(path, list(members)) for _, members in groupby(rows, key=lambda row: row["group_index"])
    )


@dataclass(frozen=True)
class InvalidReason:
    """Why completions were invalid, and when that began and ended."""

    reason: str
    completions: int
    first_step: int
    last_step: int


def invalid_reasons(directory: Path, most: int = 20) -> tuple[InvalidReason, ...]:
    """The most frequent reasons of a run's invalid completions; empty without rollouts."""
    path = RunDirectory(directory).rollouts
    if not path.is_file():
        return ()
    query = (
        "SELECT invalid_reason, COUNT(*), MIN(step), MAX(step) FROM completions WHERE invalid_reason IS NOT NULL "
        "GROUP BY 1 ORDER BY 2 DESC LIMIT ?"
    )
    with closing(_read_only(path)) as database:
        return tuple(InvalidReason(*row) for row in database.execute(query, (most,)))


def holds_steps(path: Path) -> bool:
    """Whether a rollout database has a step; also True for a file that is no such database."""
    try:
        with closing(_read_only(path)) as database:
            return database.execute("SELECT 1 FROM completions LIMIT 1").fetchone() is not None
    except sqlite3.DatabaseError:  # not ours to judge, so not to be overwritten either
        return True


def _too_old(place: object, missing: Set[str]) -> UserError:
    return UserError(
        f"{place}: expected a table of completions with the columns {', '.join(sorted(missing))}, found none: "
        "an older version of GroupRL recorded this run; read it with that one, or go on with it"
    )


def _read_only(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"file:{quote(str(path.resolve()))}?mode=ro", uri=True)


def _problem_row(group: Group) -> tuple[Any, ...]:
    problem = group.problem
    messages = None if isinstance(problem.prompt, str) else json_text([dict(message) for message in problem.prompt])
    columns = json_text(problem.columns, default=str)  # a user's columns may hold anything
    return utf8_text(problem.id), utf8_text(problem.prompt_text), messages, _blob(group.prompt_ids, "<i4"), columns


def _completion_row(
    step: int,
    group_index: int,
    problem_id: str,
    completion: Completion,
    outcome: RewardOutcome,
    advantages: Sequence[float],
    trace: TokenTrace,
) -> tuple[Any, ...]:
    traced = (trace.logprobs, trace.entropies, trace.reference, trace.updated)
    for numbers in (advantages, *traced):
        if numbers is not None and len(numbers) != len(completion):
            raise ValueError(f"expected a number for each of {len(completion)} tokens, got {len(numbers)}")
    same = min(advantages, default=0.0) == max(advantages, default=0.0)
    return (
        step,
        group_index,
        completion.index,
        utf8_text(problem_id),
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
        *(None if numbers is None else _blob(numbers, "<f4") for numbers in traced),
    )


def _blob(numbers: Sequence[float], dtype: str) -> bytes:
    return np.asarray(numbers, dtype).tobytes()


def recorded_group(path: Path, rows: Sequence[sqlite3.Row]) -> RecordedGroup:
    """The group of some rows of the database at `path`: all columns of its completions and of its problem.

    Raises:
        UserError: the JSON in a column is damaged.
    """
    head = rows[0]
    messages = parsed_messages(path, head)
    prompt = head["prompt"] if messages is None else tuple(messages)
    problem = Problem(head["problem_id"], prompt, parsed_columns(path, head))
    return RecordedGroup(
        group=Group(problem, _numbers(head["prompt_ids"], "<i4"), tuple(_completion(row) for row in rows)),
        outcomes=tuple(_outcome(path, row) for row in rows),
        advantages=tuple(row["advantage"] for row in rows),
        token_advantages=tuple(_token_advantages(row) for row in rows),
        traces=tuple(_trace(row) for row in rows),
    )


def _completion(row: sqlite3.Row) -> Completion:
    return Completion(
        index=row["completion_index"],
        token_ids=_numbers(row["token_ids"], "<i4"),
        logprobs=_numbers(row["logprobs"], "<f4"),
        plain_logprobs=_numbers(row["plain_logprobs"], "<f4"),
        text=row["text"],
        stop_reason=StopReason(row["stop_reason"]),
        weights_version=row["weights_version"],
    )


def _outcome(path: Path, row: sqlite3.Row) -> RewardOutcome:
    total = math.nan if row["reward"] is None else row["reward"]
    steps = tuple(StepReward(end, reward) for end, reward in parsed_steps(path, row) or ())
    correct = None if row["correct"] is None else bool(row["correct"])
    return RewardOutcome(total, parsed_components(path, row), row["invalid_reason"] or "", steps, correct)


def _token_advantages(row: sqlite3.Row) -> tuple[float, ...]:
    if row["token_advantages"] is None:
        return (float(row["advantage"]),) * int(row["length"])
    return _numbers(row["token_advantages"], "<f4")


def _trace(row: sqlite3.Row) -> TokenTrace:
    columns = ("learner_logprobs", "entropies", "reference_logprobs", "updated_logprobs")
    return TokenTrace(*(None if row[name] is None else _numbers(row[name], "<f4") for name in columns))


def _numbers(blob: bytes, dtype: str) -> tuple[Any, ...]:
    return tuple(np.frombuffer(blob, dtype).tolist())
