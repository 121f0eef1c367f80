"""The routes of what the policy wrote: groups, completions, search, problems."""

from __future__ import annotations

import re
import sqlite3
import time
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.routing import Route

from grouprl.lab.answers import Body, Query, changing, field_of, json_answer, run_folder, whole_number
from grouprl.lab.report.groups import MOST_GROUPS, MOST_VISITS, cut, groups_of_step, history, one_group
from grouprl.lab.report.prompts import shared_beginning
from grouprl.lab.report.tokens import one_completion
from grouprl.lab.runs import Runs
from grouprl.lab.trying import try_completion
from grouprl.record.queries import Key, keys_before, matching_rows, recorded
from grouprl.record.rows import truth
from grouprl.types import StopReason, UserError


def rollout_routes(runs: Runs) -> list[Route]:
    """The routes, for `create_app`."""
    return [
        Route("/api/runs/{run}/groups", json_answer(lambda request: _groups(runs, request))),
        Route(
            "/api/runs/{run}/groups/{step}/{group}",
            json_answer(lambda request: one_group(run_folder(runs, request), *_in_path(request, "step", "group"))),
        ),
        Route(
            "/api/runs/{run}/completions/{step}/{group}/{index}",
            json_answer(
                lambda request: one_completion(
                    run_folder(runs, request), *_in_path(request, "step", "group", "index"), root=runs.root
                )
            ),
        ),
        Route(
            "/api/runs/{run}/pushes/{step}/{group}",
            json_answer(lambda request: _pushes(run_folder(runs, request), *_in_path(request, "step", "group"))),
        ),
        Route("/api/runs/{run}/search", json_answer(lambda request: _search(runs, request))),
        Route("/api/runs/{run}/try", changing(lambda run, body: _try(runs, run, body)), methods=["POST"]),
        Route("/api/runs/{run}/history", json_answer(lambda request: _history(runs, request))),
    ]


def _groups(runs: Runs, request: Request) -> dict[str, Any]:
    query = Query(request, ("step", "offset", "limit"))
    step, offset = query.optional("step", query.whole), query.whole("offset", default=0)
    return groups_of_step(
        run_folder(runs, request), step, offset=offset, limit=query.whole("limit", 1, MOST_GROUPS, 50)
    )


def _search(runs: Runs, request: Request) -> dict[str, Any]:
    query = Query(request, (*vars(SearchTerms()), "step", "before", "limit"))
    # A step, or the first and the last of several: 7, 3-10, 3-, -10.
    steps = query.optional("step", query.text) or ""
    match = re.fullmatch("([0-9]{0,15})(?:(-)([0-9]{0,15}))?", steps)
    if match is None or steps == "-":
        raise UserError(f"step: expected a step such as 7 or a range such as 3-10, got {steps[:60]!r}")
    first, dash, last = match.groups()
    if first and not dash:
        last = first
    reasons = [reason.value for reason in StopReason]
    wanted = SearchTerms(
        text=query.optional("text", query.text) or "",
        prompt=query.optional("prompt", query.text) or "",
        min_reward=query.optional("min_reward", query.number),
        max_reward=query.optional("max_reward", query.number),
        stop=query.optional("stop", lambda name: query.choice(name, reasons, "")),
        invalid=query.optional("invalid", partial(_flag, query)),
        correct=query.optional("correct", partial(_flag, query)),
        first_step=int(first or 0),
        last_step=int(last) if last else None,
    )
    before = _cursor(query, 3)
    position = None if before is None else (before[0], before[1], before[2])
    return search(run_folder(runs, request), wanted, before=position, limit=query.whole("limit", 1, MOST_FOUND, 50))


def _try(runs: Runs, run: str, body: Body) -> dict[str, Any]:
    step, group = (whole_number(name, str(field_of(body, name, "a whole number"))) for name in ("step", "group"))
    return try_completion(runs.folder(run), step, group, field_of(body, "text", "a text"))


def _history(runs: Runs, request: Request) -> dict[str, Any]:
    query = Query(request, ("problem", "before", "limit"))
    before = _cursor(query, 2)
    position = None if before is None else (before[0], before[1])
    problem = query.optional("problem", query.text) or ""  # in a path a browser would take . and .. away
    return history(run_folder(runs, request), problem, before=position, limit=query.whole("limit", 1, MOST_VISITS, 20))


def _pushes(folder: Path, step: int, group: int) -> dict[str, Any]:
    from grouprl.lab.explain_pushes import token_pushes  # loads transformers, which stands beside a run

    return token_pushes(folder, step, group)


def _in_path(request: Request, *names: str) -> Iterator[int]:
    return (whole_number(name, request.path_params[name]) for name in names)


def _flag(query: Query, name: str) -> bool:
    return query.choice(name, ("1", "0"), "0") == "1"


def _cursor(query: Query, numbers: int) -> list[int] | None:
    text = query.optional("before", query.text) or ""
    if text and not re.fullmatch("-".join(["[0-9]{1,15}"] * numbers), text):
        raise UserError(f"before: expected what another call gave as `next`, got {text[:60]!r}")
    return [int(part) for part in text.split("-")] if text else None


# Search


MOST_FOUND = 200  # in a page
_SECONDS = 0.1  # that a call may look; five million completions of 15 words take 7 s, in 70 calls
_ROWS = 1000  # looked at between two looks at the clock
_TEXT, _LEAD = 300, 80  # characters shown of a completion, and of those before what was searched
_NEWEST: Key = (1 << 62, 0, 0)  # after every completion


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

    def conditions(self) -> dict[str, Any]:
        """As terms of `matching_rows`; `holds` is a function of a text, `asks` of a prompt."""
        terms = {
            "holds(text)": self.text or None,
            "asks(PROMPT)": self.prompt or None,
            "reward >= :value": self.min_reward,
            "reward <= :value": self.max_reward,
            "stop_reason = :value": self.stop,
            "(reward IS NULL) = :value": self.invalid,
            "correct = :value": self.correct,
        }
        return {term: value for term, value in terms.items() if value is not None}


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
    folded, asked = wanted.text.casefold(), wanted.prompt.casefold()
    at = min(before or _NEWEST, _NEWEST if wanted.last_step is None else (wanted.last_step + 1, 0, 0))
    rows, looked, steps, more = list[sqlite3.Row](), 0, set[int](), True
    ends = time.monotonic() + seconds
    with recorded(folder) as database:
        database.create_function("own", 1, shared_beginning(database).own, deterministic=True)
        database.create_function("holds", 1, lambda text: folded in text.casefold(), deterministic=True)
        # A damaged run may have lost a problem: its completions are found by what they say, not by its prompt.
        database.create_function("asks", 1, lambda p: p is not None and asked in p.casefold(), deterministic=True)
        while more:
            keys = keys_before(database, at, first_step=wanted.first_step, limit=_ROWS)
            if keys:
                rows += matching_rows(database, at, keys[-1], wanted.conditions(), limit + 1 - len(rows))
            more = len(keys) == _ROWS
            if full := len(rows) > limit:
                del rows[limit:]
                last = tuple(rows[-1][name] for name in ("step", "group_index", "completion_index"))
                keys, more = [key for key in keys if key >= last], True
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


def _shown(row: sqlite3.Row, folded: str, asked: str) -> dict[str, Any]:
    prompt = _excerpt(row["prompt"], asked) if asked else None
    return {**dict(row), "text": _excerpt(row["text"], folded), "correct": truth(row["correct"]), "prompt": prompt}


def _excerpt(text: str, folded: str) -> str:
    # A letter may become several: ß is ss, and İ is an i with a dot of its own.
    folded_text = text.casefold()
    same = len(folded_text) == len(text)
    ends = range(1, len(text) + 1) if same else list(accumulate(len(sign.casefold()) for sign in text))
    start_of_match = folded_text.find(folded)
    position = bisect_right(ends, start_of_match)
    start = max(position - _LEAD, 0) if bisect_left(ends, start_of_match + len(folded)) >= _TEXT else 0
    return cut("…" + text[start + 1 :] if start else text, _TEXT)
