"""The routes of the lab: what each answers is one call into the files beside this one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import anyio
from anyio import to_thread
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from grouprl.lab.files import json_text
from grouprl.lab.read import read_json, read_json_lines
from grouprl.lab.web.answers import json_answer, run_folder
from grouprl.lab.web.explain_routes import explain_routes
from grouprl.lab.web.process_routes import process_routes
from grouprl.lab.web.processes import recipes
from grouprl.lab.web.rollout_routes import rollout_routes
from grouprl.lab.web.runs import NoSuchRun, Runs, status
from grouprl.types import UserError

STATIC = Path(__file__).parent / "static"
_POLL_SECONDS = 0.5
_QUIET_SECONDS = 15.0  # after which a connection says that it is alive


def create_app(root: Path, closing: Callable[[], bool] = lambda: False) -> Starlette:
    """The application, unprotected: `Guard` belongs before it.

    Args:
        root: the folder of runs. Nothing outside it is ever read.
        closing: whether the server is about to end, and with it the streams of events.
    """
    runs = Runs(root)
    routes = [
        Route("/", lambda _: FileResponse(STATIC / "index.html")),
        Mount("/static", StaticFiles(directory=STATIC)),
        Route("/api/session", json_answer(lambda request: {"token": request.state.page_token, "root": str(runs.root)})),
        Route("/api/runs", json_answer(lambda _: {"runs": [runs.overview(folder) for folder in runs.folders()]})),
        Route("/api/runs/{run}", json_answer(lambda request: _one(runs, request))),
        Route("/api/runs/{run}/series", json_answer(lambda request: _series(runs, request))),
        Route("/api/runs/{run}/events", lambda request: _events(runs, request, closing)),
        Route("/api/recipes", json_answer(lambda _: {"recipes": recipes()})),
        *explain_routes(runs),
        *process_routes(runs),
        *rollout_routes(runs),
    ]
    handlers: Mapping[Any, Any] = {NoSuchRun: _sentence(404), UserError: _sentence(400)}
    return Starlette(routes=routes, exception_handlers=handlers)


def _sentence(code: int) -> Callable[[Request, Exception], Response]:
    def answer(_: Request, error: Exception) -> Response:
        return Response(json_text({"error": str(error)}), code, media_type="application/json")

    return answer


def _one(runs: Runs, request: Request) -> dict[str, Any]:
    folder = run_folder(runs, request)
    rows = runs.metrics(folder)
    return {
        **runs.overview(folder),
        "config": runs.config(folder),
        "config_yaml": (folder / "config.yaml").read_text(encoding="utf-8", errors="replace"),
        "summary": read_json(folder / "summary.json"),
        "evaluations": read_json_lines(folder / "evaluations.jsonl"),
        "checkpoints": sorted(int(path.name[5:]) for path in (folder / "checkpoints").glob("step-*[0-9]")),
        "metrics": list(
            dict.fromkeys(name for row in rows for name in row if name not in ("step", "tokens", "seconds"))
        ),
    }


def _series(runs: Runs, request: Request) -> dict[str, Any]:
    rows = runs.metrics(run_folder(runs, request))
    names = [name for name in request.query_params.get("names", "").split(",") if name]
    axes = {axis: [row[axis] for row in rows] for axis in ("step", "tokens", "seconds")}
    return {**axes, "columns": {name: [row.get(name) for row in rows] for name in names}}


def _events(runs: Runs, request: Request, closing: Callable[[], bool]) -> Response:
    folder, given = run_folder(runs, request), request.headers.get("last-event-id") or request.query_params.get("after")
    if given is not None and not given.isdecimal():
        raise UserError(f"after: expected the number of a step, got {given!r}")
    return StreamingResponse(_stream(runs, folder, int(given or 0), closing), media_type="text/event-stream")


async def _stream(runs: Runs, folder: Path, after: int, closing: Callable[[], bool]) -> AsyncIterator[str]:
    """Every row of metrics after a step, then each as it comes; evaluations and the run's status as they change."""
    said: dict[str, Any] = {}
    quiet = 0.0
    while not closing():
        rows = await to_thread.run_sync(runs.metrics, folder)
        # A resumed run drops the steps after its checkpoint, and makes them again.
        if rows and rows[-1]["step"] < after:
            after = 0
            yield _event("restart", {})
        fresh = [row for row in rows if row["step"] > after]
        for row in fresh:
            yield _event("step", row, identity=row["step"])
        after = fresh[-1]["step"] if fresh else after
        state = await to_thread.run_sync(_state, runs, folder, after)
        for name, value in state.items():
            if said.get(name) != value:
                said[name] = value
                yield _event(name, value)
        quiet = 0.0 if fresh else quiet + _POLL_SECONDS
        if quiet >= _QUIET_SECONDS:
            quiet = 0.0
            yield ": here\n\n"
        await anyio.sleep(_POLL_SECONDS)


def _state(runs: Runs, folder: Path, step: int) -> dict[str, Any]:
    if not (folder / "config.yaml").is_file():
        return {"status": {"status": "broken"}}
    return {
        "status": {"status": status(folder, step, runs.config(folder).get("steps"))},
        "evaluations": {"evaluations": read_json_lines(folder / "evaluations.jsonl")},
    }


def _event(name: str, value: Any, identity: int | None = None) -> str:
    line = "" if identity is None else f"id: {identity}\n"
    return f"event: {name}\n{line}data: {json_text(value)}\n\n"
