"""Closes connections that ask nothing, so that they cannot use up the lab's file descriptors."""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import cache
from logging import Logger

from uvicorn.protocols.http.h11_impl import H11Protocol

MOST = 200  # connections at once; a page has 2 or 3, and a process usually 1,024 files
BACKLOG = 64  # asyncio accepts as many connections before it handles the first of them
REQUEST_SECONDS = 10.0  # from a connection, or the first byte of its next request, to the end of the headers


class PatientProtocol(H11Protocol):
    """HTTP as uvicorn speaks it, with a time limit for the headers of a request, and a limit on connections.

    A new connection beyond the limit takes the place of the oldest of whoever has the most: of a browser, whose streams
    of events never end, or of those without a request. So nobody locks out anybody.
    """

    _since = 0.0  # when it was made, or its last request began
    _timed = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Starts the time of the first request."""
        super().connection_made(transport)
        self._since = self.loop.time()
        self._start_time()
        if len(self.connections) > MOST:
            others = [one for one in self.connections if isinstance(one, PatientProtocol) and one is not self]
            (most, _), *_ = Counter(one._browser for one in others).most_common(1)
            oldest = min((one for one in others if one._browser == most), key=lambda one: one._since)
            _warn_once(self.logger, self.server)
            self.connections.discard(oldest)  # now, because its end comes in a later round of the event loop
            oldest.transport.abort()

    def data_received(self, data: bytes) -> None:
        """Starts the time of the next request with its first byte; further bytes do not extend it."""
        if self._waits and not self._timed:
            self._since = self.loop.time()
        super().data_received(data)
        if self._waits and not self._timed:
            self._start_time()

    @property
    def _waits(self) -> bool:
        """Whether no request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    @property
    def _browser(self) -> str:
        """Whose request is being answered, as `Guard` has found it; empty without a request or a session."""
        return "" if self._waits else str(self.scope["state"].get("page_token", ""))

    def _start_time(self) -> None:
        self._timed, before = True, self.cycle

        def end() -> None:
            self._timed = False
            if self.cycle is before and self._waits:
                self.transport.abort()

        self.loop.call_later(REQUEST_SECONDS, end)


@cache
def _warn_once(logger: Logger, _server: tuple[str, int | None] | None) -> None:
    logger.warning("more than %d connections at once: whoever has the most loses the oldest", MOST)
