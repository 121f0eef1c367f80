"""Calls a vLLM server: every call has one deadline, in which lost connections and faults of the server are retried."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from grouprl.config.run import EngineConfig
from grouprl.forward.progress import PROGRESS
from grouprl.rewards.http import is_loopback, parsed_json, printable, read_bounded, secret, words_of
from grouprl.types import UserError

if TYPE_CHECKING:
    import httpx2  # otherwise imported inside functions: most runs need none

LONGEST_REPLY = 1 << 30  # bytes; a token takes about 120
FIRST_WAIT, LONGEST_WAIT = 0.25, 5.0  # seconds between two requests, before jitter
RETRIES = 5  # after status 5xx; a server that loads its model takes minutes, in which it is not reached
_NOT_REACHED = (502, 503, 504)  # what a proxy replies in these minutes
_QUIET = 15.0  # seconds of waiting between two lines about it
_REMEDIES = {
    401: "export the token that the server was started with, and name its variable in rollout.engine.token_env",
    403: "start the server with --enable-scale-out (docs/scale.md)",
    404: "start the server as docs/scale.md says, with VLLM_SERVER_DEV_MODE=1",
}


class VllmClient:
    """One server and this run's settings of it; it can be used in one event loop after another."""

    def __init__(self, settings: EngineConfig, address: str) -> None:
        """Reads the token from the environment.

        Raises:
            UserError: the variable that the configuration names holds no token.
        """
        self.address = address.rstrip("/")
        self._seconds = settings.seconds
        self._token = (
            "" if settings.token_env is None else secret(settings.token_env, "rollout.engine.token_env", "token")
        )
        self._chance = random.Random()  # a separate generator, so that the run's random numbers do not change

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[Connection]:
        """Opens a connection pool for the block; what is still under way at its end is dropped."""
        import httpx2

        headers = {"Accept-Encoding": "identity", "Content-Type": "application/json"}  # bounds memory
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        async with httpx2.AsyncClient(
            headers=headers,
            verify=self.address.startswith("https:"),  # to read the certificates takes as long as a small step
            timeout=None,  # one limit for the whole call instead, which a slow server cannot extend byte by byte
            limits=httpx2.Limits(max_connections=None),
            trust_env=not is_loopback(httpx2.URL(self.address).host),
        ) as pool:
            yield Connection(self, pool)

    def say(self, text: str) -> None:
        """Shows a line about this server."""
        print(f"vLLM server {self.address}: {printable(text)}", file=sys.stderr, flush=True)

    def wrong(self, expected: str, got: str, remedy: str) -> UserError:
        """Makes the error of this server; the token is not shown."""
        shown = printable(got.replace(self._token, "[token]") if self._token else got)
        return UserError(f"vLLM server {self.address}: expected {expected}, got {shown}: {remedy}")


class NotFoundError(UserError):
    """The server has no such path, or no such model."""


class _AgainError(Exception):
    """A request that may succeed when it is sent again."""

    def __init__(self, reason: str, *, lost: bool) -> None:
        super().__init__(reason)
        self.lost = lost  # no whole reply came from the server; otherwise it answered that it failed


class Connection:
    """The connections of one event loop."""

    def __init__(self, client: VllmClient, pool: httpx2.AsyncClient) -> None:
        self._client, self._pool = client, pool

    async def call(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        what: str,
        before_retry: Callable[[], Awaitable[None]] | None = None,
        is_json: bool = True,
    ) -> Any:
        """Returns the object in JSON that is the reply.

        Args:
            method: GET or POST.
            path: with its query.
            body: sent as JSON.
            what: description of the reply, for errors.
            before_retry: called before the request is sent again, within the same deadline.
            is_json: False for an endpoint that replies with a text, which is not read.

        Raises:
            UserError: the server refuses the request, gives no whole reply of JSON within the time or the retries.
        """
        client, last, failures, started = self._client, "no reply", 0, time.monotonic()
        said = started - _QUIET + 2 * FIRST_WAIT  # soon: the address may be wrong
        expected = f"{what} ({method} {path.partition('?')[0]}) within {client._seconds:g} s"
        try:
            async with asyncio.timeout(client._seconds):
                for attempt in itertools.count():
                    if attempt and before_retry is not None:
                        await before_retry()
                    try:
                        return await self._attempt(method, path, body, expected, is_json)
                    except _AgainError as error:
                        last = str(error)
                        failures += not error.lost  # else it still loads, or restarts
                        if failures > RETRIES:
                            break
                        if error.lost and time.monotonic() - said >= _QUIET:
                            said = time.monotonic()
                            client.say(f"waits for {what}, at most {client._seconds:g} s: {last}")
                        PROGRESS.mark()  # waiting for a server is no stall: it has this limit of its own
                    wait = min(FIRST_WAIT * 2.0 ** min(attempt, 9), LONGEST_WAIT)
                    await asyncio.sleep(wait * (1 + client._chance.random()) / 2)
        except TimeoutError:
            waited = f"after {time.monotonic() - started:.0f} s"
            raise client.wrong(
                expected, f"{last} {waited}", "look at the server's output, or raise rollout.engine.seconds"
            ) from None
        raise client.wrong(
            expected, f"{last} {failures} times", "start the server (docs/scale.md), or look at its output"
        )

    async def _attempt(
        self, method: str, path: str, body: Mapping[str, Any] | None, expected: str, is_json: bool
    ) -> Any:
        import httpx2

        client = self._client
        content = None if body is None else json.dumps(body).encode()
        try:
            async with self._pool.stream(method, client.address + path, content=content) as reply:
                reply_content = await read_bounded(reply, LONGEST_REPLY)
        except httpx2.TransportError as error:
            raise _AgainError(f"{type(error).__name__} {error}".strip(), lost=True) from None
        status = reply.status_code
        if status >= 500:
            raise _AgainError(f"status {status}, {_message(reply_content)},", lost=status in _NOT_REACHED)
        if status >= 300:
            remedy = _REMEDIES.get(status, "correct rollout.engine.address" if status < 400 else "see docs/scale.md")
            refusal = client.wrong(expected, f"status {status}, {_message(reply_content)}", remedy)
            raise NotFoundError(str(refusal)) if status == 404 else refusal
        value = None if reply_content is None else parsed_json(reply_content)
        if is_json and not isinstance(value, dict):
            raise client.wrong(
                expected,
                f"no object in JSON but {_message(reply_content)}",
                "look at the server's output, or another proxy",
            )
        return value


def _message(content: bytes | None) -> str:
    return printable(words_of(content, LONGEST_REPLY))
