"""The routes that change something: each starts or stops a process. `Guard` has let nobody else in."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from grouprl.lab.processes import Processes
from grouprl.lab.runs import Runs
from grouprl.record.files import json_text
from grouprl.types import UserError

_Body = Mapping[str, Any]
_KINDS = {"a text": str, "a whole number": int, "a list of texts": list}


def process_routes(runs: Runs) -> list[Route]:
    """Start, stop, resume and fork."""
    processes = Processes(runs)

    def start(_: str, body: _Body) -> dict[str, Any]:
        recipe, name = _field(body, "recipe", "a text"), _field(body, "name", "a text")
        return {"id": processes.start(recipe, name, _changes(body))}

    def stop(run: str, _: _Body) -> dict[str, Any]:
        processes.stop(run)
        return {"id": run}

    def resume(run: str, body: _Body) -> dict[str, Any]:
        return {"id": processes.resume(run, _changes(body))}

    def fork(run: str, body: _Body) -> dict[str, Any]:
        step, name = _field(body, "step", "a whole number"), _field(body, "name", "a text")
        return {"id": processes.fork(run, step, name, _changes(body))}

    return [
        Route("/api/runs", _change(start), methods=["POST"]),
        Route("/api/runs/{run}/stop", _change(stop), methods=["POST"]),
        Route("/api/runs/{run}/resume", _change(resume), methods=["POST"]),
        Route("/api/runs/{run}/fork", _change(fork), methods=["POST"]),
    ]


def _change(act: Callable[[str, _Body], dict[str, Any]]) -> Callable[[Request], Any]:
    async def endpoint(request: Request) -> Response:
        body = _body(await request.body())
        answer = await run_in_threadpool(act, request.path_params.get("run", ""), body)
        return Response(json_text(answer), media_type="application/json")

    return endpoint


def _body(given: bytes) -> _Body:
    try:
        body = json.loads(given)
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict):
        raise UserError(f"expected a JSON object, got {given[:60]!r}")
    return body


def _field(body: _Body, name: str, kind: str) -> Any:
    value = body.get(name)
    if type(value) is not _KINDS[kind]:
        raise UserError(f"{name}: expected {kind}, got {value!r:.60}")
    return value


def _changes(body: _Body) -> list[str]:
    given = _field({"changes": [], **body}, "changes", "a list of texts")
    if not all(isinstance(change, str) for change in given):
        raise UserError(f"changes: expected a list of texts, got {given!r:.60}")
    return [change.strip() for change in given if change.strip()]
