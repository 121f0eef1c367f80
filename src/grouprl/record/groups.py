"""Reads groups from a rollout database."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from grouprl.record.layout import RunDirectory
from grouprl.record.rollouts import open_recorded, refuse_first_version
from grouprl.record.rows import checked_rows, parsed_columns, parsed_components, parsed_messages, parsed_steps
from grouprl.types import Completion, Group, Problem, RewardOutcome, StepReward, StopReason, TokenTrace


@dataclass(frozen=True)
class RecordedGroup:
    """A group of a run: completions, reward outcomes, advantages and traces."""

    group: Group  # log-probs as float32; columns that JSON does not have are text
    outcomes: tuple[RewardOutcome, ...]
    advantages: tuple[float, ...]  # mean over each completion's tokens
    token_advantages: tuple[tuple[float, ...], ...]
    traces: tuple[TokenTrace, ...]
    kept: bool | None = None  # whether the group entered the loss; None = not recorded


def read_rollouts(directory: Path, step: int) -> tuple[RecordedGroup, ...]:
    """Reads the groups of one step, in order; empty when the step is not recorded.

    Raises:
        UserError: `directory` has no rollouts.sqlite, or a row of it is damaged.
    """
    path = RunDirectory(directory).rollouts
    query = (
        "SELECT * FROM completions JOIN problems USING (problem_id) WHERE step = ? "
        "ORDER BY group_index, completion_index"
    )
    with closing(open_recorded(directory)) as database:
        database.row_factory = checked_rows(path)
        rows = database.execute(query, (step,)).fetchall()
    if rows:
        refuse_first_version(path, rows[0].keys())
    return tuple(
        recorded_group(path, list(members)) for _, members in groupby(rows, key=lambda row: row["group_index"])
    )


def recorded_group(path: Path, rows: Sequence[sqlite3.Row]) -> RecordedGroup:
    """Makes a group from rows of the database at `path`, which have all columns of its completions and its problem.

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
        kept=None if head["kept"] is None else bool(head["kept"]),
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
    components = parsed_components(path, row)
    penalty = components.get("soft_overlong") or 0.0
    earned = math.nan if row["reward"] is None else earned_reward(row["reward"], row["earned"], penalty)
    steps = tuple(StepReward(end, reward) for end, reward in parsed_steps(path, row) or ())
    correct = None if row["correct"] is None else bool(row["correct"])
    return RewardOutcome(earned, components, row["invalid_reason"] or "", steps, correct, penalty)


def earned_reward(reward: float, earned: float | None, penalty: float) -> float:
    """Returns a reward without its length penalty; computes it for runs that did not record `earned`."""
    if earned is not None:
        return earned
    # Equal rewards must stay equal, but 1 - 0.3 + 0.3 is not 1 in floating point.
    rounded = round(reward - penalty, 9)
    return rounded if rounded + penalty == reward else reward - penalty


def _token_advantages(row: sqlite3.Row) -> tuple[float, ...]:
    if row["token_advantages"] is None:
        return (float(row["advantage"]),) * int(row["length"])
    return _numbers(row["token_advantages"], "<f4")


def _trace(row: sqlite3.Row) -> TokenTrace:
    columns = ("learner_logprobs", "entropies", "reference_logprobs", "updated_logprobs")
    return TokenTrace(*(None if row[name] is None else _numbers(row[name], "<f4") for name in columns))


def _numbers(blob: bytes, dtype: str) -> tuple[Any, ...]:
    return tuple(np.frombuffer(blob, dtype).tolist())
