"""What the routes of the lab have in common: an answer as JSON, and the run that a request is about."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from grouprl.lab.runs import Runs
from grouprl.record.files import json_text

Answer = Callable[[Request], Any]


def json_answer(answer: Answer) -> Callable[[Request], Response]:
    """An endpoint that answers with this function's value as strict JSON; NaN and infinity are null.

    It is not a coroutine: Starlette runs it in a thread, where it may read files without holding up the others.
    """

    def endpoint(request: Request) -> Response:
        return Response(json_text(answer(request)), media_type="application/json")

    return endpoint


def run_folder(runs: Runs, request: Request) -> Path:
    """The directory of the run in a request's path.

    Raises:
        NoSuchRun: there is none.
    """
    return runs.folder(request.path_params["run"])
