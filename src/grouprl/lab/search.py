"""Finds completions of a run by what they say and what came of them, newest first, in pieces of a tenth of a second."""

from __future__ import annotations

import sqlite3
import time
from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from grouprl.lab.report.groups import cut
from grouprl.lab.report.prompts import shared_beginning
from grouprl.lab.report.recorded import recorded

Key = tuple[int, int, int]
"""The place of a completion: its step, its group there and its index in the group."""

MOST_FOUND = 200  # in a page
_SECONDS = 0.1  # that a call may look; five million completions of 15 words take 7 s, in 70 calls
_ROWS = 1000  # looked at between two looks at the clock
_TEXT, _LEAD = 300, 80  # characters shown of a completion, and of those before what was searched
_NEWEST: Key = (1 << 62, 0, 0)  # after every completion
_BACKWARDS = "ORDER BY step DESC, group_index DESC, completion_index DESC"
_PLACE = "(step, group_index, completion_index)"
_PROMPT = "(SELECT own(prompt) FROM problems WHERE problems.problem_id = completions.problem_id)"


@dataclass(frozen=True)
class SearchTerms:
    """What a completion has to be; None and the empty text ask for nothing."""

    text: str = ""  # somewhere in it, in capital or small letters
    prompt: str = ""  # somewhere in what it answers, behind what all prompts begin with
    min_reward: float | None = None
    max_reward: float | None = None
    stop: str | None = None  # why it ended
    invalid: bool | None = None
    correct: bool | None = None
    first_step: int = 0
    last_step: int | None = None

    def condition(self) -> tuple[str, dict[str, Any]]:
        """As SQL, and the values in it; `holds` is a function of a text, `asks` of a prompt."""
        terms = {
            "holds(text)": self.text or None,
            f"asks({_PROMPT})": self.prompt or None,
            "reward >= :min_reward": self.min_reward,
            "reward <= :max_reward": self.max_reward,
            "stop_reason = :stop": self.stop,
            "(reward IS NULL) = :invalid": self.invalid,
            "correct = :correct": self.correct,
        }
        return " AND ".join(term for term, value in terms.items() if value is not None) or "TRUE", vars(self)


def search(
    folder: Path, wanted: SearchTerms, *, before: Key | None, limit: int, seconds: float = _SECONDS
) -> dict[str, Any]:
    """The newest completions that are as wanted, as far as they are found in the time.

    Args:
        folder: the run directory.
        wanted: which.
        before: the search continues after this completion; None = it begins with the newest of the last step.
        limit: completions at most, at most MOST_FOUND.
        seconds: after which the call answers with what it has found.

    Returns:
        `rows`, of long texts the part around what was searched, with the `prompt` when that was searched too; `next`,
        the `before` that continues it, None when everything was looked at; `searched` steps and `looked_at` completions
        in this call, back to the step `back_to` (None when there was nothing to look at).

    Raises:
        UserError: the database cannot be read.
    """
    # casefold knows the letters of all languages, LIKE those of English.
    folded, asked, terms, values = wanted.text.casefold(), wanted.prompt.casefold(), *wanted.condition()
    at = min(before or _NEWEST, _NEWEST if wanted.last_step is None else (wanted.last_step + 1, 0, 0))
    rows, looked, steps, more = list[sqlite3.Row](), 0, set[int](), True
    ends = time.monotonic() + seconds
    with recorded(folder) as database:
        database.create_function("own", 1, shared_beginning(database).own, deterministic=True)
        database.create_function("holds", 1, lambda text: folded in text.casefold(), deterministic=True)
        # A damaged run may have lost a problem: its completions are found by what they say, not by its prompt.
        database.create_function("asks", 1, lambda p: p is not None and asked in p.casefold(), deterministic=True)
        while more:
            keys = _next_keys(database, at, wanted.first_step)
            found = _found(database, at, keys[-1], terms, values, limit + 1 - len(rows)) if keys else []
            rows, more = rows + found, len(keys) == _ROWS
            if full := len(rows) > limit:
                del rows[limit:]
                keys, more = [key for key in keys if key >= _key(rows[-1])], True
            at, looked = (keys[-1] if keys else at), looked + len(keys)
            steps |= {step for step, *_ in keys}
            if full or time.monotonic() > ends:
                break
    return {
        "rows": [_shown(row, folded, asked) for row in rows],
        "next": "-".join(map(str, at)) if more else None,
        "searched": len(steps),
        "looked_at": looked,
        "back_to": min(steps, default=None),
    }


def _next_keys(database: sqlite3.Connection, before: Key, first_step: int) -> list[Key]:
    rows = database.execute(
        f"SELECT step, group_index, completion_index FROM completions WHERE {_PLACE} < (?, ?, ?) AND step >= ? "
        f"{_BACKWARDS} LIMIT ?",
        (*before, first_step, _ROWS),
    )
    return [_key(row) for row in rows]


def _found(
    database: sqlite3.Connection, before: Key, last: Key, terms: str, values: Mapping[str, Any], most: int
) -> list[sqlite3.Row]:
    bounds = dict(zip(("b0", "b1", "b2", "l0", "l1", "l2"), (*before, *last), strict=True))
    return database.execute(
        "SELECT step, group_index, completion_index, problem_id, text, reward, advantage, length, stop_reason, "
        f"invalid_reason, correct{f', {_PROMPT} AS prompt' if values['prompt'] else ''} FROM completions "
        f"WHERE {_PLACE} < (:b0, :b1, :b2) AND {_PLACE} >= (:l0, :l1, :l2) AND {terms} {_BACKWARDS} LIMIT :most",
        {**values, **bounds, "most": most},
    ).fetchall()


def _key(row: sqlite3.Row) -> Key:
    return row["step"], row["group_index"], row["completion_index"]


def _shown(row: sqlite3.Row, folded: str, asked: str) -> dict[str, Any]:
    correct = None if row["correct"] is None else bool(row["correct"])
    prompt = _excerpt(row["prompt"], asked) if asked else None
    return {**dict(row), "text": _excerpt(row["text"], folded), "correct": correct, "prompt": prompt}


def _excerpt(text: str, folded: str) -> str:
    # A letter may become several: ß is ss, and İ is an i with a dot of its own.
    whole = text.casefold()
    same = len(whole) == len(text)
    ends = range(1, len(text) + 1) if same else list(accumulate(len(sign.casefold()) for sign in text))
    found = whole.find(folded)
    place = bisect_right(ends, found)
    start = max(place - _LEAD, 0) if bisect_left(ends, found + len(folded)) >= _TEXT else 0
    return cut("…" + text[start + 1 :] if start else text, _TEXT)
