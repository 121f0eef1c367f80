"""The routes of what the policy wrote: groups, completions, search, problems."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.routing import Route

from grouprl.lab.answers import json_answer, run_folder
from grouprl.lab.processes import Body, changing, field_of
from grouprl.lab.report.groups import MOST_GROUPS, MOST_VISITS, groups_of_step, history, one_group
from grouprl.lab.report.tokens import one_completion
from grouprl.lab.runs import Runs
from grouprl.lab.search import MOST_FOUND, Wanted, search
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
    return groups_of_step(
        run_folder(runs, request),
        _whole(request, "step"),
        offset=_whole(request, "offset") or 0,
        limit=_limit(request, MOST_GROUPS),
    )


def _group(runs: Runs, request: Request) -> dict[str, Any]:
    return one_group(run_folder(runs, request), *(_in_path(request, name) for name in ("step", "group")))


def _completion(runs: Runs, request: Request) -> dict[str, Any]:
    place = (_in_path(request, name) for name in ("step", "group", "index"))
    return one_completion(run_folder(runs, request), *place, root=runs.root)


def _search(runs: Runs, request: Request) -> dict[str, Any]:
    first, last = _steps(request)
    wanted = Wanted(
        text=request.query_params.get("text", ""),
        prompt=request.query_params.get("prompt", ""),
        min_reward=_number(request, "min_reward"),
        max_reward=_number(request, "max_reward"),
        stop=_one_of(request, "stop", [reason.value for reason in StopReason]),
        invalid=_flag(request, "invalid"),
        correct=_flag(request, "correct"),
        first_step=first,
        last_step=last,
    )
    before = _cursor(request, 3)
    place = None if before is None else (before[0], before[1], before[2])
    return search(run_folder(runs, request), wanted, before=place, limit=_limit(request, MOST_FOUND))


def _try(runs: Runs, run: str, body: Body) -> dict[str, Any]:
    step, group = (_parsed(name, str(field_of(body, name, "a whole number"))) for name in ("step", "group"))
    return try_completion(runs.folder(run), step, group, field_of(body, "text", "a text"))


def _history(runs: Runs, request: Request) -> dict[str, Any]:
    before = _cursor(request, 2)
    place = None if before is None else (before[0], before[1])
    problem = request.query_params.get("problem", "")  # in a path a browser would take . and .. away
    return history(run_folder(runs, request), problem, before=place, limit=_limit(request, MOST_VISITS, usual=20))


def _in_path(request: Request, name: str) -> int:
    return _parsed(name, request.path_params[name])


def _whole(request: Request, name: str) -> int | None:
    given = request.query_params.get(name, "")
    return _parsed(name, given) if given else None


def _parsed(name: str, given: str) -> int:
    if not re.fullmatch("[0-9]{1,15}", given):  # SQLite's integers end at 2 ** 63
        raise UserError(f"{name}: expected a whole number from 0, got {given[:60]!r}")
    return int(given)


def _limit(request: Request, most: int, *, usual: int = 50) -> int:
    limit = _whole(request, "limit")
    if limit is not None and not 1 <= limit <= most:
        raise UserError(f"limit: expected 1 to {most}, got {limit}: ask for the rest with another call")
    return usual if limit is None else limit


def _number(request: Request, name: str) -> float | None:
    given = request.query_params.get(name, "")
    try:
        number = float(given) if given else None
    except ValueError:
        number = math.nan
    if number is not None and not math.isfinite(number):
        raise UserError(f"{name}: expected a number such as 0.5, got {given[:60]!r}")
    return number


def _one_of(request: Request, name: str, known: Sequence[str]) -> str | None:
    given = request.query_params.get(name, "")
    if given and given not in known:
        raise UserError(f"{name}: expected one of {', '.join(known)}, got {given[:60]!r}")
    return given or None


def _flag(request: Request, name: str) -> bool | None:
    given = _one_of(request, name, ("1", "0"))
    return None if given is None else given == "1"


def _steps(request: Request) -> tuple[int, int | None]:
    """`step` is a step, or the first and the last of several: 7, 3-10, 3-, -10."""
    given = request.query_params.get("step", "")
    found = re.fullmatch("([0-9]{0,15})(?:(-)([0-9]{0,15}))?", given)
    if found is None or given == "-":
        raise UserError(f"step: expected a step such as 7 or a range such as 3-10, got {given[:60]!r}")
    first, dash, last = found.groups()
    if first and not dash:
        last = first
    return int(first or 0), int(last) if last else None


def _cursor(request: Request, numbers: int) -> list[int] | None:
    given = request.query_params.get("before", "")
    if given and not re.fullmatch("-".join(["[0-9]{1,15}"] * numbers), given):
        raise UserError(f"before: expected what another call gave as `next`, got {given[:60]!r}")
    return [int(part) for part in given.split("-")] if given else None
