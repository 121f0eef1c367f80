"""The routes of the lab, each one call into the files beside this one, served on this machine alone."""

from __future__ import annotations

import socket
import sys
import threading
import webbrowser
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from grouprl.lab.answers import json_answer, run_folder
from grouprl.lab.events import run_events
from grouprl.lab.explain_routes import explain_routes
from grouprl.lab.guard import Guard, Sessions
from grouprl.lab.processes import Processes, keeping_routes, lists, process_routes, recipes
from grouprl.lab.report.page import STATIC
from grouprl.lab.report.run_data import invalid_answer, run_answer, series_answer
from grouprl.lab.report.tokens import kl_jumps
from grouprl.lab.report.write import with_rounded_series
from grouprl.lab.rollout_routes import rollout_routes
from grouprl.lab.runs import NoSuchRun, Runs
from grouprl.record.files import json_text
from grouprl.record.layout import RunDirectory
from grouprl.record.metrics import FILE
from grouprl.tools.compare.read import COMPARISON_FILE, read_comparison
from grouprl.tools.compare.report import comparison_answer
from grouprl.types import UserError


def create_app(root: Path, closing: Callable[[], bool] = lambda: False) -> Starlette:
    """The application, unprotected: `Guard` belongs before it.

    Args:
        root: the folder of runs. Nothing outside it is ever read.
        closing: whether the server is about to end, and with it the streams of events.
    """
    runs = Runs(root)
    processes = Processes(runs)
    routes = [
        Route("/", lambda _: FileResponse(STATIC / "index.html")),
        Route("/static/metrics.json", lambda _: FileResponse(FILE)),
        Mount("/static", StaticFiles(directory=STATIC)),
        Route("/api/session", json_answer(lambda request: {"token": request.state.page_token, "root": str(runs.root)})),
        Route("/api/runs", json_answer(lambda _: {"runs": [runs.overview(folder) for folder in runs.folders()]})),
        Route("/api/runs/{run}", json_answer(lambda request: _run(runs, run_folder(runs, request)))),
        Route(
            "/api/runs/{run}/series",
            json_answer(lambda request: series_answer(runs.metrics(run_folder(runs, request)))),
        ),
        Route("/api/runs/{run}/invalid", json_answer(lambda request: invalid_answer(run_folder(runs, request)))),
        Route(
            "/api/runs/{run}/jumps",
            json_answer(lambda request: kl_jumps(folder := run_folder(runs, request), runs.metrics(folder))),
        ),
        Route("/api/runs/{run}/events", lambda request: run_events(runs, request, closing)),
        Route("/api/recipes", json_answer(lambda _: {"recipes": recipes(), "lists": lists()})),
        Route("/api/comparisons/{name}", json_answer(lambda request: _comparison(runs.root, request))),
        *explain_routes(runs),
        *process_routes(processes),
        *keeping_routes(runs, processes),
        *rollout_routes(runs),
    ]
    handlers: Mapping[Any, Any] = {NoSuchRun: _sentence(404), UserError: _sentence(400), Exception: _unforeseen}
    return Starlette(routes=routes, exception_handlers=handlers)


def _run(runs: Runs, folder: Path) -> dict[str, Any]:
    return run_answer(runs.identifier(folder), folder, runs.files(folder))


def _sentence(code: int) -> Callable[[Request, Exception], Response]:
    return lambda _, error: _error(code, str(error))


def _unforeseen(request: Request, error: Exception) -> Response:
    """Starlette raises the error again, so that the server writes where it came from to the terminal."""
    what = request.path_params.get("run") or request.url.path
    return _error(500, f"{what} cannot be read: {type(error).__name__}; see the lab's terminal for the place")


def _error(code: int, sentence: str) -> Response:
    return Response(json_text({"error": sentence}), code, media_type="application/json")


# Comparisons below the root


def _comparison(root: Path, request: Request) -> dict[str, Any]:
    """The comparison that a request names.

    Raises:
        NoSuchRun: there is none below the root.
        UserError: a file of it is damaged.
    """
    name = request.path_params["name"]
    if name not in {folder.name for folder in _folders(root)}:
        raise NoSuchRun(f"{name[:60]}: expected a comparison below {root}, found none")
    return with_rounded_series(comparison_answer(read_comparison(root / name)))


def _folders(root: Path) -> Iterator[Path]:
    """Folders of comparisons directly below the root; none with a link in it, which may lead out of the root."""
    for file in sorted(root.glob(f"*/{COMPARISON_FILE}")):
        folder = file.parent
        if not any(path.is_symlink() for path in (folder, *folder.glob("*"), *folder.glob("*/*"))):
            yield folder


_LOOPBACK = "127.0.0.1"


def serve(root: Path, *, port: int, open_browser: bool, say: Callable[[str], None]) -> None:
    """Serves until Ctrl-C. Runs that were started from the page continue without it.

    Args:
        root: folder of the runs, or one of them, whose page the link opens then.
        port: 0 = a free one.
        open_browser: whether to open the link in the user's browser.
        say: where sentences go.

    Raises:
        UserError: the port is taken, there is no such folder, or `runs` cannot be made.
    """
    page = ""
    if RunDirectory(root).exists:
        root, page = root.absolute().parent, f"#/runs/{quote(root.absolute().name)}"
    elif root != Path("runs") and not root.is_dir():
        raise UserError(f"{root}: expected a folder of runs, or a run, found no such folder: check the path")
    try:
        root.mkdir(exist_ok=True)  # the first run of all has no folder `runs` yet
    except OSError as error:
        raise UserError(f"{root}: expected a folder for runs ({error}); name another") from None
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((_LOOPBACK, port))
        except OSError as error:
            raise UserError(f"port {port} is not available ({error}): omit --port for a free one") from None
        listening.listen()  # a browser that is quicker than the imports below waits here
        port = listening.getsockname()[1]
        sessions = Sessions()
        say(f"{root.resolve()}: open this link; it works once. Ctrl-C ends the lab, not its runs.")
        link = _link(port, sessions)
        say(link)
        if open_browser:
            webbrowser.open(link)
        if sys.stdin.isatty():
            say("Enter gives another link.")
            threading.Thread(target=_links_on_demand, args=(port, sessions, say), daemon=True).start()
        # Takes a second or more.
        import torch

        from grouprl.lab.server import create_app

        torch.set_num_threads(1)  # the processors belong to the runs
        app = Guard(create_app(root, lambda: server.should_exit), sessions, port, page)
        server = uvicorn.Server(
            uvicorn.Config(
                app,
                http="h11",
                log_level="warning",
                timeout_graceful_shutdown=5,
                server_header=False,
                proxy_headers=False,
            )
        )
        server.run(sockets=[listening])


def _link(port: int, sessions: Sessions) -> str:
    return f"http://{_LOOPBACK}:{port}/?token={sessions.new_link()}"


def _links_on_demand(port: int, sessions: Sessions, say: Callable[[str], None]) -> None:
    while sys.stdin.readline():
        say(_link(port, sessions))
