"""How a policy's completions change: one typical completion of each of a few steps, for the first screen of a run."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

from grouprl.lab.report.groups import cut
from grouprl.lab.report.prompts import SharedBeginning, shared_beginning
from grouprl.lab.report.recorded import recorded
from grouprl.record.layout import COURSE_STEPS, RunDirectory
from grouprl.record.read import read_examples, read_summary
from grouprl.record.rows import truth

_VISITS = 3  # of a problem, from which on it is shown alone
_MOST = 2_000  # completions of a step that the typical one is chosen from
_PROMPT, _TEXT = 300, 500  # characters


def course_answer(folder: Path) -> dict[str, Any]:
    """One completion after each of a few steps: what the policy makes of one held-out problem, greedily.

    Of a run that recorded no such completions, the one with the median valid reward: where a problem of the first step
    came again often enough, all of that problem, at its visits nearest to these steps; else of any problem of the step.

    Returns:
        `same`, whether all are of one problem, and `steps`: `step`, `group_index`, `index`, `prompt`, `text`, `reward`,
        `correct` and `completions`, how many the median is of. A held-out problem has an `answer` as well ("" = none),
        and no group, index or median.

    Raises:
        UserError: examples.json is damaged; the database cannot be read.
    """
    if held_out := _held_out(folder):
        return {"same": True, "steps": held_out}
    with recorded(folder) as database:
        first, last = database.execute(
            "SELECT (SELECT MIN(step) FROM completions), (SELECT MAX(step) FROM completions)"
        ).fetchone()
        if first is None:
            return {"same": False, "steps": []}
        wanted = [step for step in COURSE_STEPS if first <= step < last] + [last]
        problem, visits = _revisited(database, first)
        same = len(visits) >= _VISITS
        steps = sorted({min(visits, key=lambda visit: abs(visit - step)) for step in wanted} if same else set(wanted))
        found = [_typical(database, step, problem if same else None) for step in steps]
    return {"same": same, "steps": [one for one in found if one is not None]}


def _held_out(folder: Path) -> list[dict[str, Any]]:
    """One of the problems of examples.json after each step that it has; nothing with fewer than two."""
    examples = read_examples(RunDirectory(folder).examples)
    found = {step: examples[f"step {step}"] for step in COURSE_STEPS if examples.get(f"step {step}")}
    last = read_summary(folder).get("steps")
    if isinstance(last, int) and last > max(found, default=last) and examples.get("after"):
        found[last] = examples["after"]
    if len(found) < 2:
        return []
    first, *_, final = found.values()
    # The first that the policy has learned; else the first that it completes in another way.
    turns = [
        (
            not start.correct and bool(end.correct),
            end.correct is None and (end.reward or 0.0) > (start.reward or 0.0),
            start.completion != end.completion,
        )
        for start, end in zip(first, final, strict=False)
    ]
    shown = max(range(len(turns)), key=lambda place: (turns[place], -place))
    problem, shared = first[shown].problem_id, SharedBeginning.of([row.prompt for row in first])
    rows = ((step, row) for step, examples in found.items() for row in examples if row.problem_id == problem)
    return [
        {
            "step": step,
            "group_index": None,
            "index": None,
            "prompt": cut(shared.own(row.prompt), _PROMPT),
            "answer": cut(row.answer, _PROMPT),
            "text": cut(row.completion, _TEXT),
            "reward": row.reward,
            "correct": row.correct,
            "completions": 1,
        }
        for step, row in rows
    ]


def _revisited(database: sqlite3.Connection, first: int) -> tuple[str, list[int]]:
    """The problem of the first step that came most often, and the steps when it did."""
    problem, _ = database.execute(
        "SELECT problem_id, (SELECT COUNT(*) FROM completions AS visit WHERE visit.problem_id = met.problem_id AND "
        "visit.completion_index = 0) AS times FROM completions AS met WHERE step = ? AND completion_index = 0 "
        "ORDER BY times DESC, group_index LIMIT 1",
        (first,),
    ).fetchone() or ("", 0)
    rows = database.execute(
        "SELECT DISTINCT step FROM completions WHERE problem_id = ? AND completion_index = 0", (problem,)
    )
    return problem, [row["step"] for row in rows]


def _typical(database: sqlite3.Connection, step: int, problem: str | None) -> dict[str, Any] | None:
    """The completion with the median reward; of equal ones that with the median length."""
    rows = database.execute(
        "SELECT group_index, completion_index FROM (SELECT * FROM completions "
        "WHERE step = ?1 AND reward IS NOT NULL AND (?2 IS NULL OR problem_id = ?2) LIMIT ?3) ORDER BY reward, length",
        (step, problem, _MOST),
    ).fetchall()
    if not rows:
        return None
    group, index = rows[(len(rows) - 1) // 2]
    row = database.execute(
        "SELECT completions.text, reward, correct, prompt FROM completions LEFT JOIN problems USING (problem_id) "
        "WHERE step = ? AND group_index = ? AND completion_index = ?",
        (step, group, index),
    ).fetchone()
    return {
        "step": step,
        "group_index": group,
        "index": index,
        "prompt": cut(shared_beginning(database).own(row["prompt"] or ""), _PROMPT),
        "text": cut(row["text"], _TEXT),
        "reward": row["reward"],
        "correct": truth(row["correct"]),
        "completions": len(rows),
    }
