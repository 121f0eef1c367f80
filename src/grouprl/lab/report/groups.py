"""The groups of a run, page by page, one with its statistics worked out, and a problem's groups through training."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from grouprl.algorithms.advantages import Std
from grouprl.algorithms.spec import Algorithm
from grouprl.config.algorithm import options
from grouprl.lab.report.episodes import conversation
from grouprl.lab.report.prompts import SharedBeginning, asked_by, shared_beginning
from grouprl.lab.report.recorded import missing_problem, read_config, recorded, run_algorithm
from grouprl.lab.report.worked import CompletionParts, Spread, against_record, deviation_kind, of_step
from grouprl.record.layout import RunDirectory
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
        first, last = database.execute(
            "SELECT (SELECT MIN(step) FROM completions), (SELECT MAX(step) FROM completions)"
        ).fetchone()
        step = last if step is None else step
        total = database.execute(
            "SELECT COUNT(DISTINCT group_index) FROM completions WHERE step = ?", (step,)
        ).fetchone()[0]
        rows = database.execute(
            "WITH page AS (SELECT DISTINCT group_index FROM completions WHERE step = ?1 ORDER BY 1 LIMIT ?2 OFFSET ?3) "
            "SELECT group_index, completion_index, problem_id, reward, advantage, correct, length, stop_reason, "
            "invalid_reason FROM page CROSS JOIN completions USING (group_index) WHERE step = ?1 "
            "ORDER BY group_index, completion_index",
            (step, limit, offset),
        ).fetchall()
        prompts = _prompts(database, {row["problem_id"] for row in rows})
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
        rows = database.execute(
            "SELECT completion_index, problem_id, text, reward, components, invalid_reason, correct, advantage, "
            "length, stop_reason, weights_version, step_rewards, extra, token_advantages, episode FROM completions "
            "LEFT JOIN episodes USING (step, group_index, completion_index) "
            "WHERE step = ? AND group_index = ? ORDER BY completion_index",
            (step, group),
        ).fetchall()
        if not rows:
            raise UserError(
                f"step {step}, group {group}: expected a group that {folder.name} recorded, found none: "
                "choose one of the list (a resumed run repeats its last steps)"
            )
        problem = database.execute(
            "SELECT columns FROM problems WHERE problem_id = ?", (rows[0]["problem_id"],)
        ).fetchone()
        if problem is None:
            raise missing_problem(database_path, step, group)
        scored = list(_scored(database, step, group, algorithm))
        watched = database.execute("SELECT 1 FROM stages WHERE step = ? AND group_index = ?", (step, group)).fetchone()
    rewards = read_rewards(folder)
    return {
        "step": step,
        "group_index": group,
        "problem_id": rows[0]["problem_id"],
        **asked_by(folder, rows[0]["problem_id"]),
        "columns": parsed(database_path, problem, "columns"),
        "algorithm": {"name": algorithm.name, **options(algorithm)},
        "statistics": against_record(group, scored, [row["advantage"] for row in rows], algorithm),
        "watched": watched is not None,
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
        # Every group has a completion 0: the index of those alone is a G-th as large.
        of_problem = "FROM completions WHERE problem_id = ? AND completion_index = 0"
        total = database.execute(f"SELECT COUNT(*) {of_problem}", (problem,)).fetchone()[0]
        rows = database.execute(
            f"WITH visits AS (SELECT step, group_index {of_problem} AND (step, group_index) < (?, ?) "
            "ORDER BY step DESC, group_index DESC LIMIT ?) "
            "SELECT step, group_index, completion_index, text, reward, correct, length, stop_reason, invalid_reason "
            "FROM visits CROSS JOIN completions USING (step, group_index) "
            "ORDER BY step DESC, group_index DESC, completion_index",
            (problem, *(before or (_NEWEST, 0)), limit + 1),
        ).fetchall()
    visits = [_visit(list(members)) for _, members in groupby(rows, key=itemgetter("step", "group_index"))]
    last = visits[limit - 1] if len(visits) > limit else None
    return {
        "problem_id": problem,
        **asked_by(folder, problem),
        "total": total,
        "visits": visits[:limit],
        "next": None if last is None else f"{last['step']}-{last['group_index']}",
    }


def cut(text: str, most: int) -> str:
    """The text, its end replaced by an ellipsis where it has more than this many characters."""
    return text if len(text) <= most else text[: most - 1] + "…"


def _prompts(database: sqlite3.Connection, problems: set[str]) -> dict[str, str]:
    found = database.execute(
        f"SELECT problem_id, prompt FROM problems WHERE problem_id IN ({', '.join('?' * len(problems))})",
        tuple(problems),
    )
    return {row["problem_id"]: row["prompt"] for row in found}


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


def _scored(database: sqlite3.Connection, step: int, group: int, algorithm: Algorithm) -> Iterator[CompletionParts]:
    one, which = ("", (step,)) if of_step(algorithm) else ("AND group_index = ?", (step, group))
    for row in database.execute(
        f"SELECT group_index, reward, kept FROM completions WHERE step = ? {one} "
        "ORDER BY group_index, completion_index",
        which,
    ):
        yield CompletionParts(row["group_index"], row["reward"], bool(row["kept"]))
