"""The routes of the lab: what each answers is one call into the files beside this one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from grouprl.lab.answers import json_answer, run_folder
from grouprl.lab.comparisons import critic_comparisons, one_comparison
from grouprl.lab.events import run_events
from grouprl.lab.explain_routes import explain_routes
from grouprl.lab.process_routes import process_routes
from grouprl.lab.processes import recipes
from grouprl.lab.rollout_routes import rollout_routes
from grouprl.lab.runs import NoSuchRun, Runs
from grouprl.record.files import json_text
from grouprl.report.page import STATIC
from grouprl.report.run_data import invalid_answer
from grouprl.types import UserError


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
        Route("/api/runs/{run}", json_answer(lambda request: runs.one(run_folder(runs, request)))),
        Route("/api/runs/{run}/series", json_answer(lambda request: runs.series(run_folder(runs, request)))),
        Route("/api/runs/{run}/invalid", json_answer(lambda request: invalid_answer(run_folder(runs, request)))),
        Route("/api/runs/{run}/events", lambda request: run_events(runs, request, closing)),
        Route("/api/recipes", json_answer(lambda _: {"recipes": recipes()})),
        Route("/api/comparisons", json_answer(lambda _: {"comparisons": critic_comparisons(runs.root)})),
        Route("/api/comparisons/{name}", json_answer(lambda request: one_comparison(runs.root, request))),
        *explain_routes(runs),
        *process_routes(runs),
        *rollout_routes(runs),
    ]
    handlers: Mapping[Any, Any] = {NoSuchRun: _sentence(404), UserError: _sentence(400), Exception: _unforeseen}
    return Starlette(routes=routes, exception_handlers=handlers)


def _sentence(code: int) -> Callable[[Request, Exception], Response]:
    return lambda _, error: _error(code, str(error))


def _unforeseen(request: Request, error: Exception) -> Response:
    """Starlette raises the error again, so that the server writes where it came from to the terminal."""
    what = request.path_params.get("run") or request.url.path
    return _error(500, f"{what} cannot be read: {type(error).__name__}; the terminal that runs the lab says where")


def _error(code: int, sentence: str) -> Response:
    return Response(json_text({"error": sentence}), code, media_type="application/json")
