"""The routes of what the policy wrote: groups, completions, search, problems."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.routing import Route

from grouprl.lab.answers import Body, Query, changing, field_of, json_answer, run_folder, whole_number
from grouprl.lab.report.groups import MOST_GROUPS, MOST_VISITS, groups_of_step, history, one_group
from grouprl.lab.report.tokens import one_completion
from grouprl.lab.runs import Runs
from grouprl.lab.search import MOST_FOUND, SearchTerms, search
from grouprl.lab.trying import try_completion
from grouprl.types import StopReason, UserError


def rollout_routes(runs: Runs) -> list[Route]:
    """The routes, for `create_app`."""
    return [
        Route("/api/runs/{run}/groups", json_answer(lambda request: _groups(runs, request))),
        Route("/api/runs/{run}/groups/{step}/{group}", json_answer(lambda request: _group(runs, request))),
        Route(
            "/api/runs/{run}/completions/{step}/{group}/{index}",
            json_answer(lambda request: _completion(runs, request)),
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


def _group(runs: Runs, request: Request) -> dict[str, Any]:
    return one_group(run_folder(runs, request), *_in_path(request, "step", "group"))


def _completion(runs: Runs, request: Request) -> dict[str, Any]:
    return one_completion(run_folder(runs, request), *_in_path(request, "step", "group", "index"), root=runs.root)


def _search(runs: Runs, request: Request) -> dict[str, Any]:
    query = Query(request, (*vars(SearchTerms()), "step", "before", "limit"))
    first, last = _steps(query)
    reasons = [reason.value for reason in StopReason]
    wanted = SearchTerms(
        text=query.optional("text", query.text) or "",
        prompt=query.optional("prompt", query.text) or "",
        min_reward=query.optional("min_reward", query.number),
        max_reward=query.optional("max_reward", query.number),
        stop=query.optional("stop", lambda name: query.choice(name, reasons, "")),
        invalid=query.optional("invalid", partial(_flag, query)),
        correct=query.optional("correct", partial(_flag, query)),
        first_step=first,
        last_step=last,
    )
    before = _cursor(query, 3)
    place = None if before is None else (before[0], before[1], before[2])
    return search(run_folder(runs, request), wanted, before=place, limit=query.whole("limit", 1, MOST_FOUND, 50))


def _try(runs: Runs, run: str, body: Body) -> dict[str, Any]:
    step, group = (whole_number(name, str(field_of(body, name, "a whole number"))) for name in ("step", "group"))
    return try_completion(runs.folder(run), step, group, field_of(body, "text", "a text"))


def _history(runs: Runs, request: Request) -> dict[str, Any]:
    query = Query(request, ("problem", "before", "limit"))
    before = _cursor(query, 2)
    place = None if before is None else (before[0], before[1])
    problem = query.optional("problem", query.text) or ""  # in a path a browser would take . and .. away
    return history(run_folder(runs, request), problem, before=place, limit=query.whole("limit", 1, MOST_VISITS, 20))


def _in_path(request: Request, *names: str) -> Iterator[int]:
    return (whole_number(name, request.path_params[name]) for name in names)


def _flag(query: Query, name: str) -> bool:
    return query.choice(name, ("1", "0"), "0") == "1"


def _steps(query: Query) -> tuple[int, int | None]:
    """`step` is a step, or the first and the last of several: 7, 3-10, 3-, -10."""
    given = query.optional("step", query.text) or ""
    found = re.fullmatch("([0-9]{0,15})(?:(-)([0-9]{0,15}))?", given)
    if found is None or given == "-":
        raise UserError(f"step: expected a step such as 7 or a range such as 3-10, got {given[:60]!r}")
    first, dash, last = found.groups()
    if first and not dash:
        last = first
    return int(first or 0), int(last) if last else None


def _cursor(query: Query, numbers: int) -> list[int] | None:
    given = query.optional("before", query.text) or ""
    if given and not re.fullmatch("-".join(["[0-9]{1,15}"] * numbers), given):
        raise UserError(f"before: expected what another call gave as `next`, got {given[:60]!r}")
    return [int(part) for part in given.split("-")] if given else None
