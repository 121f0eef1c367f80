"""The groups of a run, page by page, one with its statistics worked out, and a problem's groups through training."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from grouprl.algorithms.advantages import Std
from grouprl.config.algorithm import options
from grouprl.lab.report.episodes import conversation
from grouprl.lab.report.prompts import SharedBeginning, asked_by, shared_beginning
from grouprl.lab.report.recorded import read_config, run_algorithm
from grouprl.lab.report.worked import CompletionParts, Spread, against_record, deviation_kind, of_step
from grouprl.record.layout import RunDirectory
from grouprl.record.queries import (
    completion_rows,
    first_and_last_step,
    page_of_groups,
    problem_rows,
    recorded,
    stage_rows,
    visits,
)
from grouprl.record.read import read_rewards
from grouprl.record.rows import parsed, truth
from grouprl.types import UserError

Place = tuple[int, int]
"""A group: its step and its index there."""

MOST_GROUPS = 200  # in a page
MOST_VISITS = 100
_PROMPT, _TEXT = 200, 600  # characters of a prompt and of a completion in a list
_EPISODE = 20_000  # characters of an episode in a group, which may have hundreds of them
_NEWEST = 1 << 62  # after every step


def groups_of_step(folder: Path, step: int | None, *, offset: int, limit: int) -> dict[str, Any]:
    """A page of a step's groups, in the order of the step.

    Args:
        folder: the run directory.
        step: None = the last recorded one.
        offset: groups before the page.
        limit: groups in it, at most MOST_GROUPS.

    Returns:
        `step`, `steps` (first and last recorded; None before the first), `total` groups of the step, and `groups`: each
        with mean and deviation of its valid rewards (None without any; the deviation is the algorithm's), `signal`
        (whether two of them differ), and its completions without their texts.

    Raises:
        UserError: the database cannot be read.
    """
    std = deviation_kind(run_algorithm(read_config(folder)))
    with recorded(folder) as database:
        first, last = first_and_last_step(database)
        step = last if step is None else step
        total, rows = page_of_groups(database, step, offset=offset, limit=limit)
        problems = problem_rows(database, "prompt", {row["problem_id"] for row in rows})
        prompts = {problem: row["prompt"] for problem, row in problems.items()}
        shared = shared_beginning(database)
    groups = [
        _listed(list(members), prompts, shared, std) for _, members in groupby(rows, key=itemgetter("group_index"))
    ]
    return {"step": step, "steps": None if first is None else [first, last], "total": total, "groups": groups}


def one_group(folder: Path, step: int, group: int, *, most: int = _EPISODE) -> dict[str, Any]:
    """A group with everything but its tokens, and its statistics by `against_record`.

    Of each completion `weights` gives the factor of each reward in the total, None where the run recorded none, and
    `episode` its `conversation`, with at most so many characters.
    `watched`: whether the run recorded the stages of this group, see `lab.explain_group`.

    Raises:
        UserError: it is not recorded, or the database cannot be read.
    """
    database_path, algorithm = RunDirectory(folder).rollouts, run_algorithm(read_config(folder))
    with recorded(folder) as database:
        rows = completion_rows(
            database,
            "completion_index, problem_id, text, reward, components, invalid_reason, correct, advantage, length, "
            "stop_reason, weights_version, step_rewards, extra, token_advantages, episode",
            step,
            group,
        )
        if not rows:
            raise UserError(
                f"step {step}, group {group}: expected a group that {folder.name} recorded, found none: "
                "choose one of the list (a resumed run repeats its last steps)"
            )
        problem = problem_rows(database, "columns", [rows[0]["problem_id"]]).get(rows[0]["problem_id"])
        if problem is None:
            raise UserError(
                f"{database_path}: expected the problem of step {step}, group {group}, found none: restore the file"
            )
        # A statistic of the whole batch needs every group of the step.
        scored = [
            CompletionParts(row["group_index"], row["reward"], bool(row["kept"]), row["length"])
            for row in completion_rows(
                database, "group_index, reward, kept, length", step, None if of_step(algorithm) else group
            )
        ]
        is_watched = any(row["group_index"] == group for row in stage_rows(database, step))
    rewards = read_rewards(folder)
    return {
        "step": step,
        "group_index": group,
        "problem_id": rows[0]["problem_id"],
        **asked_by(folder, rows[0]["problem_id"]),
        "columns": parsed(database_path, problem, "columns"),
        "algorithm": {"name": algorithm.name, **options(algorithm)},
        "statistics": against_record(group, scored, [row["advantage"] for row in rows], algorithm),
        "watched": is_watched,
        "completions": [_whole(database_path, row, {**rewards.process, **rewards.weights}, most) for row in rows],
    }


def history(folder: Path, problem: str, *, before: Place | None, limit: int) -> dict[str, Any]:
    """The groups of one problem through training, newest first: what the policy made of it each time.

    Args:
        folder: the run directory.
        problem: its id.
        before: the visits continue after this one; None = they begin with the newest.
        limit: visits, at most MOST_VISITS.

    Returns:
        `prompt` and `messages` (None when the problem is not recorded), `total` visits of the run, `visits` with the
        mean of the valid rewards, the share of the judged completions that are correct (None where there are none) and
        the completions, long texts cut; `next`, what `before` has to be for those that follow, None at the end.

    Raises:
        UserError: the database cannot be read.
    """
    with recorded(folder) as database:
        total, rows = visits(database, problem, before=before or (_NEWEST, 0), limit=limit + 1)
    groups = [_visit(list(members)) for _, members in groupby(rows, key=itemgetter("step", "group_index"))]
    last = groups[limit - 1] if len(groups) > limit else None
    return {
        "problem_id": problem,
        **asked_by(folder, problem),
        "total": total,
        "visits": groups[:limit],
        "next": None if last is None else f"{last['step']}-{last['group_index']}",
    }


def cut(text: str, most: int) -> str:
    """The text, its end replaced by an ellipsis where it has more than this many characters."""
    return text if len(text) <= most else text[: most - 1] + "…"


def _listed(
    rows: Sequence[sqlite3.Row], prompts: Mapping[str, str], shared: SharedBeginning, std: Std
) -> dict[str, Any]:
    head, spread = rows[0], Spread.of([row["reward"] for row in rows], std)
    return {
        "group_index": head["group_index"],
        "problem_id": head["problem_id"],
        "prompt": cut(shared.own(prompts.get(head["problem_id"], "")), _PROMPT),
        "mean": spread.mean,
        "deviation": spread.deviation,
        "signal": spread.signal,
        "completions": [_completion(row, "advantage") | {"invalid": row["reward"] is None} for row in rows],
    }


def _whole(path: Path, row: sqlite3.Row, weights: Mapping[str, float], most: int) -> dict[str, Any]:
    components = parsed(path, row, "components")
    return {
        **_completion(row, "text", "invalid_reason", "advantage", "weights_version"),
        "components": components,
        "weights": {name: weights.get(name) for name in components},
        "step_rewards": parsed(path, row, "step_rewards"),
        "extra": parsed(path, row, "extra"),
        "episode": conversation(path, row, most=most),
    }


def _visit(rows: Sequence[sqlite3.Row]) -> dict[str, Any]:
    judged = [row["correct"] for row in rows if row["correct"] is not None]
    return {
        "step": rows[0]["step"],
        "group_index": rows[0]["group_index"],
        "mean": Spread.of([row["reward"] for row in rows], "population").mean,
        "correct": sum(judged) / len(judged) if judged else None,
        "completions": [_completion(row, "invalid_reason") | {"text": cut(row["text"], _TEXT)} for row in rows],
    }


def _completion(row: sqlite3.Row, *more: str) -> dict[str, Any]:
    """What every answer has of a completion, and more columns."""
    shown = {name: row[name] for name in ("reward", "length", "stop_reason", *more)}
    return {"index": row["completion_index"], "correct": truth(row["correct"]), **shown}
