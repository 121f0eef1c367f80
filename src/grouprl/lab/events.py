"""What a page that follows a run is sent: each step as it comes, evaluations and status as they change."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
from anyio import to_thread
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Message, Send

from grouprl.lab.answers import run_folder
from grouprl.lab.report.run_data import warning_rows
from grouprl.lab.runs import Runs
from grouprl.record.files import json_text
from grouprl.record.layout import RunDirectory
from grouprl.types import UserError

_POLL_SECONDS = 1.0  # a look takes 0.2 ms, which are taken from the run
_QUIET_SECONDS = 15.0  # after which a connection says that it is alive
_UNREAD_SECONDS = 60.0  # after which a page that takes nothing is dropped
_MOST_STREAMS = 64  # a browser opens six to one server
_OPEN: list[anyio.CancelScope] = []  # the streams, oldest first
_ROWS = 100  # in a piece: what is sent at once holds up every other answer
_ID = re.compile("([0-9]{1,15})(?:-([0-9]{1,20}))?")


def run_events(runs: Runs, request: Request, closing: Callable[[], bool]) -> Response:
    """The stream of a run's events after a step, which `after` names, or the id of the last event that came.

    Raises:
        NoSuchRun: there is none.
        UserError: `after` is no step.
    """
    folder, after = (
        run_folder(runs, request),
        request.headers.get("last-event-id") or request.query_params.get("after"),
    )
    match = _ID.fullmatch(after or "0")
    if match is None:
        raise UserError(f"after: expected the number of a step, got {after!r:.60}")
    generation = None if match[2] is None else int(match[2])
    follower = Follower(runs, folder, int(match[1]), generation)
    return _Stream(stream(follower, closing), media_type="text/event-stream")


class _Stream(StreamingResponse):
    """Ends when nobody reads it, or as the oldest of too many; a page that is still there asks again."""

    async def stream_response(self, send: Send) -> None:
        """Sends the events, each within _UNREAD_SECONDS."""

        async def sending(message: Message) -> None:
            with anyio.fail_after(_UNREAD_SECONDS):
                await send(message)

        with anyio.CancelScope() as scope, suppress(TimeoutError):
            _OPEN.append(scope)
            try:
                for oldest in _OPEN[:-_MOST_STREAMS]:
                    oldest.cancel()
                await super().stream_response(sending)
            finally:
                _OPEN.remove(scope)


async def stream(follower: Follower, closing: Callable[[], bool]) -> AsyncIterator[str]:
    """What the follower finds, once a second. It continues to look at a damaged run, which may be fixed."""
    quiet = 0.0
    while not closing():
        quiet, pieces = quiet + _POLL_SECONDS, iter(follower.look())
        # One by one: the pieces of a long run, made at once for each page that does not read them, fill the memory.
        while (piece := await to_thread.run_sync(next, pieces, None)) is not None:
            quiet = 0.0
            yield piece
        if quiet >= _QUIET_SECONDS:
            quiet = 0.0
            yield ": here\n\n"
        await anyio.sleep(_POLL_SECONDS)


class Follower:
    """One page's place in a run. The id of a step's event holds the generation of the rows, see `Runs.fresh`."""

    def __init__(self, runs: Runs, folder: Path, after: int, generation: int | None) -> None:
        self._runs, self._folder = runs, folder
        self._after, self._generation = after, generation
        self._count = 0
        self._said: dict[str, Any] = {}

    def look(self) -> Iterator[str]:
        """Makes the events since the last look, in pieces to send one by one."""
        try:
            evaluations = self._runs.evaluations(self._folder)  # first: what raises later loses steps that were counted
            warnings = warning_rows(self._folder)
            warned = self._changed("warnings", warnings) if warnings or "warnings" in self._said else ()
            runs, folder = self._runs, self._folder
            summary = runs.summary(folder)
            config, fresh = runs.config(folder), runs.fresh(folder, self._generation, self._count)
            # A resumed run drops the steps after its checkpoint, and makes them again; that may be quicker than a look.
            if self._generation not in (None, fresh.generation) or fresh.step < self._after:
                self._after = 0
                yield _event("restart", {})
            self._generation, self._count = fresh.generation, fresh.count
            rows = [row for row in fresh.rows if row["step"] > self._after]
            for first in range(0, len(rows), _ROWS):
                piece = rows[first : first + _ROWS]
                yield "".join(_event("step", row, f"{row['step']}-{fresh.generation}") for row in piece)
            self._after = fresh.step
            yield from self._changed("status", RunDirectory(folder).status(summary, config.get("steps")))
            yield from self._changed("evaluations", evaluations)
            yield from warned
        except UserError as error:
            # A stream that ends is asked for again at once, for ever.
            yield from self._changed("status", "broken", error=str(error))

    def _changed(self, name: str, value: Any, error: str | None = None) -> Iterator[str]:
        sent = self._said.get(name)
        if sent is not value and sent != value:
            self._said[name] = value
            yield _event(name, {name: value} if error is None else {name: value, "error": error})


def _event(name: str, value: Any, identity: str | None = None) -> str:
    line = "" if identity is None else f"id: {identity}\n"
    return f"event: {name}\n{line}data: {json_text(value)}\n\n"
