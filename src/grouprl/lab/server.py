"""Serves the lab on this machine alone, and prints the link that opens it."""

from __future__ import annotations

import socket
import sys
import threading
import webbrowser
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import uvicorn

from grouprl.lab.guard import Guard, Sessions
from grouprl.record.layout import RunDirectory
from grouprl.types import UserError

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
    root, page = _folder_and_page(root)
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

        from grouprl.lab.app import create_app

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


def _folder_and_page(place: Path) -> tuple[Path, str]:
    """The folder of the runs, and the page to begin with; the first run of all has no folder `runs` yet."""
    if RunDirectory(place).exists:
        return place.absolute().parent, f"#/runs/{quote(place.absolute().name)}"
    if place != Path("runs") and not place.is_dir():
        raise UserError(f"{place}: expected a folder of runs, or a run, found no such folder: check the path")
    try:
        place.mkdir(exist_ok=True)
    except OSError as error:
        raise UserError(f"{place}: expected a folder for runs ({error}); name another") from None
    return place, ""


def _link(port: int, sessions: Sessions) -> str:
    return f"http://{_LOOPBACK}:{port}/?token={sessions.new_link()}"


def _links_on_demand(port: int, sessions: Sessions, say: Callable[[str], None]) -> None:
    while sys.stdin.readline():
        say(_link(port, sessions))
