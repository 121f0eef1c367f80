"""Requests chat completions from an OpenAI-compatible server: concurrently, with retries, time limits and a budget."""

from __future__ import annotations

import asyncio
import json
import random
import re
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from threading import Lock
from typing import TYPE_CHECKING, Any

from grouprl.rewards.calls import Invalid, run_in_thread
from grouprl.rewards.http import is_loopback, parsed_json, printable, read_bounded, secret, words_of
from grouprl.rewards.rules import check_arguments, is_finite
from grouprl.types import UserError, counted

if TYPE_CHECKING:
    import httpx2  # otherwise imported inside functions, because the import takes as long as a worker's start

LONGEST_REPLY = 1 << 20  # bytes
FIRST_WAIT, LONGEST_WAIT = 0.5, 30.0  # seconds between two requests, before jitter
FEW = 8  # failed completions in a row after which the others are not sent; with more concurrency, that many
TRANSIENT = frozenset((408, 425, 429))  # besides all 5xx

COUNTS = ("requests", "retries", "failures", "prompt_tokens", "completion_tokens")
"""Requests with the repeated ones; those that repeat another; completions without a score; tokens of all replies as
the server counts them."""

_REMEDIES = {
    401: "check the key in the environment variable that api_key_env names",
    403: "check the key in the environment variable that api_key_env names, and what it may use",
    404: "check base_url and model",
}

_Body = Mapping[str, Any]


@dataclass(frozen=True)
class Server:
    """A server's address, and the limits of its requests.

    Args:
        base_url: address without /chat/completions, for example http://127.0.0.1:8000/v1; completions are sent there.
        api_key_env: NAME of the environment variable that holds the key; None = no key is sent.
        concurrency: requests at once.
        timeout: seconds for one request, from connecting to the last byte.
        deadline: seconds for one completion, from its first request to its last retry, waits included.
        retries: further requests after status 408, 425, 429, 5xx, a lost connection or a timeout.
    """

    base_url: str
    api_key_env: str | None = None
    concurrency: int = 16
    timeout: float = 60.0
    deadline: float = 300.0
    retries: int = 5

    def __post_init__(self) -> None:
        check_arguments(
            "judge_model",
            self,
            ("concurrency", is_count(self.concurrency, 1, 1024), "a number from 1 to 1024"),
            ("retries", is_count(self.retries, 0, 100), "a number from 0 to 100"),
            ("timeout", is_finite(self.timeout) and self.timeout > 0, "seconds, more than 0"),
            ("deadline", is_finite(self.deadline) and self.deadline > 0, "seconds, more than 0"),
        )
        import httpx2

        try:
            url = httpx2.URL(self.base_url)
        except (httpx2.InvalidURL, TypeError):
            raise UserError(
                "reward judge_model: expected base_url to be an address such as http://127.0.0.1:8000/v1, got an "
                "unreadable one (not shown here, it may contain a password): fix it"
            ) from None
        if url.path.rstrip("/").endswith("/chat/completions"):
            raise UserError("reward judge_model: expected base_url without /chat/completions, got it: remove that part")
        if url.userinfo or url.query or url.fragment:
            raise UserError(
                "reward judge_model: expected base_url without user, password, ? and #, got some (not shown here, "
                "they may be secret): give a key through api_key_env"
            )
        if url.scheme not in ("http", "https") or not url.host or not 0 < (url.port or 80) < 1 << 16:
            raise UserError(
                f"reward judge_model: expected base_url to begin with http:// or https://, a host and a port below "
                f"65536, got {url.scheme or 'nothing'!r}, {url.host!r} and {url.port}: for example http://127.0.0.1:8000/v1"
            )
        self.key()  # raises now if the key is missing

    @property
    def url(self) -> str:
        """The URL of its chat completions."""
        return self.base_url.rstrip("/") + "/chat/completions"

    def key(self) -> str:
        """Reads the key from the environment; '' = none. Raises UserError without showing it when it is no key."""
        variable = self.api_key_env
        if variable is None:
            return ""
        if not re.fullmatch("[A-Z][A-Z0-9_]*", variable):
            raise UserError(
                "reward judge_model: expected api_key_env to be the NAME of an environment variable in capitals, such "
                "as JUDGE_KEY, got something else (not shown here, it may be the key): export the key and name the "
                "variable"
            )
        return secret(variable, "reward judge_model", "key")


@dataclass(frozen=True)
class Meter:
    """Adds up usage and limits its cost; safe to use from any thread.

    Args:
        input_price, output_price: price of a million prompt and completion tokens, in any currency.
        max_cost: largest cost in that currency since the start of the process, beyond which the run stops; None = no
            limit. Requests in progress at that time still cost.
    """

    input_price: float = 0.0
    output_price: float = 0.0
    max_cost: float | None = None
    _lock: Lock = field(init=False, repr=False, compare=False, default_factory=Lock)
    _counts: Counter[str] = field(init=False, repr=False, compare=False, default_factory=Counter)

    def __post_init__(self) -> None:
        prices, cost = {name: getattr(self, name) for name in ("input_price", "output_price")}, self.max_cost
        check_arguments(
            "judge_model",
            self,
            *((name, is_finite(p) and p >= 0, "the price of a million tokens") for name, p in prices.items()),
            ("max_cost", cost is None or (is_finite(cost) and cost > 0), "more than 0, or null"),
            ("max_cost", cost is None or self.priced, "null as long as there are no prices"),
        )

    @property
    def priced(self) -> bool:
        """Whether tokens cost anything."""
        return bool(self.input_price or self.output_price)

    @property
    def cost(self) -> float:
        """The cost so far, in the currency of the prices."""
        prompt, completion = self._counts["prompt_tokens"], self._counts["completion_tokens"]
        return (prompt * self.input_price + completion * self.output_price) / 1e6

    def add(self, counts: Mapping[str, int]) -> None:
        """Adds to some of COUNTS."""
        with self._lock:
            self._counts.update(counts)

    def check(self) -> None:
        """Raises UserError when the budget is used up; call it before each request."""
        if self.max_cost is not None and self.cost >= self.max_cost:
            raise UserError(
                f"reward judge_model: expected to spend less than max_cost={self.max_cost:g}, got a cost of "
                f"{self.cost:.6g} after {self._counts['requests']} requests: raise max_cost, or use a cheaper judge "
                "model"
            )

    def metrics(self) -> dict[str, float]:
        """Returns COUNTS and the cost as sums since the start: `judge/requests`, ..., `judge/cost`."""
        return {f"judge/{name}": self._counts[name] for name in COUNTS} | {"judge/cost": self.cost}


@dataclass(frozen=True)
class _Retry:
    """A failed request that may succeed when repeated."""

    reason: str
    retry_after: float = 0.0  # seconds that the server asks for


def ask(server: Server, bodies: Sequence[_Body], meter: Meter) -> list[str | Invalid]:
    """Returns the text of each reply, in the order of the request bodies; `Invalid` where there is no readable reply.

    After as many failures in a row as `concurrency` (at least FEW), the other bodies are not sent: a dead server then
    costs one deadline, not one for each of a thousand completions.

    Raises:
        UserError: the server refuses the request as such (4xx, a redirect), or the budget is used up.
    """
    return run_in_thread(_ask(server, bodies, meter)) if bodies else []


def wait_seconds(attempt: int, retry_after: float, chance: float) -> float:
    """Seconds before the request after attempt 0, 1, ...: the server's Retry-After plus a doubling wait.

    `chance` in [0, 1) spreads the wait over its upper half, so that failed requests do not return all at once.
    """
    return retry_after + min(FIRST_WAIT * 2.0**attempt, LONGEST_WAIT) * (1 + chance) / 2


def retry_after_seconds(header: str, now: datetime) -> float:
    """Parses a Retry-After header, seconds or a date (RFC 9110, 10.2.3); 0 for anything else."""
    if re.fullmatch(r" *[0-9]{1,9}(?:\.[0-9]{1,9})? *", header):
        return float(header)
    try:
        when = parsedate_to_datetime(header)
    except ValueError:
        return 0.0
    return max(0.0, (when.replace(tzinfo=when.tzinfo or UTC) - now).total_seconds())


async def _ask(server: Server, bodies: Sequence[_Body], meter: Meter) -> list[str | Invalid]:
    import httpx2

    replies: list[str | Invalid] = [Invalid("was not asked")] * len(bodies)
    headers = {"Accept-Encoding": "identity", "Content-Type": "application/json"}  # bounds memory
    key = server.key()
    if key:
        headers["Authorization"] = f"Bearer {key}"
    client = httpx2.AsyncClient(
        headers=headers,
        timeout=None,  # one limit for the whole request instead, which a slow server cannot extend byte by byte
        limits=httpx2.Limits(max_connections=server.concurrency),
        trust_env=not is_loopback(httpx2.URL(server.url).host),  # to a proxy, this name means another machine
    )
    failed: list[UserError] = []
    async with client:
        asking, waiting = _Requests(server, key, client, meter), iter(enumerate(bodies))
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(server.concurrency, len(bodies))):
                    group.create_task(asking.answer(waiting, replies))
        except* UserError as errors:
            failed = [error for error in errors.exceptions if isinstance(error, UserError)]
    if failed:
        raise failed[0]
    return replies


class _Requests:
    """The requests of one call."""

    def __init__(self, server: Server, key: str, client: httpx2.AsyncClient, meter: Meter) -> None:
        self._server, self._key, self._client, self._meter = server, key, client, meter
        self._given_up = 0  # in a row
        self._chance = random.Random()  # a separate generator, so that the run's random numbers do not change

    async def answer(self, waiting: Iterable[tuple[int, _Body]], replies: list[str | Invalid]) -> None:
        """Sends one body after another; several of these coroutines share `waiting`."""
        for index, body in waiting:
            replies[index] = await self._reply(json.dumps(body).encode())

    async def _reply(self, body: bytes) -> str | Invalid:
        if self._given_up >= max(FEW, self._server.concurrency):
            return Invalid(f"was not asked: the server failed for {self._given_up} completions in a row")
        end, attempt = time.monotonic() + self._server.deadline, 0
        while isinstance(outcome := await self._attempt(body, end - time.monotonic()), _Retry):
            wait = wait_seconds(attempt, outcome.retry_after, self._chance.random())
            attempt += 1
            if attempt > self._server.retries or time.monotonic() + wait >= end:
                self._given_up += 1
                return Invalid(f"got no answer to {counted(attempt, 'request')}, at last: {outcome.reason}")
            await asyncio.sleep(wait)
            self._meter.add({"retries": 1})
        self._given_up = 0
        return outcome

    async def _attempt(self, body: bytes, seconds_left: float) -> str | Invalid | _Retry:
        import httpx2

        self._meter.check()
        self._meter.add({"requests": 1})
        try:
            async with asyncio.timeout(min(seconds_left, self._server.timeout)):
                async with self._client.stream("POST", self._server.url, content=body) as reply:
                    content = await read_bounded(reply, LONGEST_REPLY)
        except TimeoutError:
            return _Retry("no reply in time")
        except httpx2.TransportError as error:
            return _Retry(self._printable(f"{type(error).__name__} {error}"))
        status = reply.status_code
        if status in TRANSIENT or status >= 500:
            wait = retry_after_seconds(reply.headers.get("Retry-After", ""), datetime.now(UTC))
            return _Retry(f"status {status}: {self._words(content)}", wait)
        if status >= 300:
            got = f"status {status}: {self._words(content)}: {_REMEDIES.get(status, 'fix the arguments')}"
            if status < 400:
                target = self._printable(reply.headers.get("Location", "nowhere"))
                got = f"a redirect to {target}, which is not followed: fix base_url"
            raise UserError(f"reward judge_model: expected an answer from {self._server.url}, got {got}")
        if content is None:
            return Invalid(f"got a reply of more than {LONGEST_REPLY} bytes")
        body = parsed_json(content)
        match body:
            case {"usage": {"prompt_tokens": int(prompt), "completion_tokens": int(completion)}} if (
                0 <= prompt < 1 << 40 and 0 <= completion < 1 << 40
            ):
                self._meter.add({"prompt_tokens": prompt, "completion_tokens": completion})
            case {"choices": _} if self._meter.priced:
                raise UserError(
                    f"reward judge_model: expected the usage of tokens in replies of {self._server.url}, got none: "
                    "remove prices and max_cost, which need it"
                )
        match body:
            case {"choices": [{"finish_reason": "length"}, *_]}:
                return Invalid("got a reply that was cut at max_tokens")
            case {"choices": [{"message": {"content": str(text)}}, *_]}:
                return self._without_key(text)
        return Invalid(f"got a reply without choices[0].message.content: {self._words(content)}")

    def _words(self, content: bytes | None) -> str:
        """A server's error message as one short printable line, without the key."""
        return self._printable(words_of(content, LONGEST_REPLY))

    def _printable(self, words: str) -> str:
        return printable(self._without_key(words))

    def _without_key(self, words: str) -> str:
        return words.replace(self._key, "[key]") if self._key else words


def is_count(value: object, least: int, most: int) -> bool:
    """Whether a value is a whole number in a range that includes both ends."""
    return type(value) is int and least <= value <= most
