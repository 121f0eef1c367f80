"""What the routes of the lab share: queries and bodies, strictly read, the run that is asked about, JSON answers."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from grouprl.config.code_files import errors_of_code
from grouprl.lab.runs import Runs
from grouprl.record.files import json_text
from grouprl.types import UserError

T = TypeVar("T")
Answer = Callable[[Request], Any]
Body = Mapping[str, Any]
"""What a request that changes something asks for."""
_KINDS = {"a text": str, "a whole number": int, "a list of texts": list}
SHOWN = 60  # characters of a wrong value that an error repeats
LARGEST = 10**15 - 1  # SQLite's integers end at 2 ** 63
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3})?")


def json_answer(answer: Answer) -> Callable[[Request], Response]:
    """An endpoint that answers with this function's value as strict JSON; NaN and infinity are null.

    It is not a coroutine: Starlette runs it in a thread, where it may read files without holding up the others.
    """

    def endpoint(request: Request) -> Response:
        with errors_of_code():
            return Response(json_text(answer(request)), media_type="application/json")

    return endpoint


def run_folder(runs: Runs, request: Request) -> Path:
    """The directory of the run in a request's path.

    Raises:
        NoSuchRun: there is none.
    """
    return runs.folder(request.path_params["run"])


class Query:
    """What a request asks for.

    Raises:
        UserError: for a name that is not among `names`, or is given twice.
    """

    def __init__(self, request: Request, names: Sequence[str]) -> None:
        items = request.query_params.multi_items()
        self._values = dict(items)
        for name, _ in items:
            if name not in names:
                raise UserError(f"expected the parameters {', '.join(names)}, got {name[:SHOWN]!r}: remove it")
        if len(self._values) < len(items):
            raise UserError("expected each parameter once, got one of them twice: remove one")

    def __contains__(self, name: str) -> bool:
        return self._values.get(name, "") != ""

    def text(self, name: str) -> str:
        """A value that has to be there, as it is."""
        if name not in self:
            raise UserError(f"{name}: expected a value, got none: add &{name}=... to the address")
        return self._values[name]

    def choice(self, name: str, allowed: Sequence[str], default: str) -> str:
        """One of the allowed words."""
        got = self._values.get(name) or default
        if got not in allowed:
            raise _wrong(name, f"one of {', '.join(allowed)}", got)
        return got

    def choices(self, name: str, allowed: Sequence[str], default: Sequence[str]) -> list[str]:
        """Some of the allowed words, with commas between them, each once."""
        got = self._values[name].split(",") if name in self else list(default)
        wrong = [word for word in got if word not in allowed]
        if wrong or len(set(got)) < len(got):
            raise _wrong(name, f"some of {', '.join(allowed)}, each once", wrong[0] if wrong else ",".join(got))
        return got

    def optional(self, name: str, read: Callable[[str], T]) -> T | None:
        """What `read` makes of the name of a value; None where there is no value."""
        return read(name) if name in self else None

    def number(self, name: str, low: float = -math.inf, high: float = math.inf, default: float = 0.0) -> float:
        """A finite number in [low, high]."""
        return self._number(name, self._values[name], low, high) if name in self else default

    def whole(self, name: str, low: int = 0, high: int = LARGEST, default: int | None = None) -> int:
        """A whole number in [low, high]; without a default it has to be there."""
        got = self.text(name) if name in self or default is None else str(default)
        return whole_number(name, got, low, high)

    def rewards(self, name: str = "rewards", fewest: int = 2, most: int = 16, size: float = 1e6) -> list[float]:
        """Numbers with commas between them; "nan" is an invalid reward."""
        got = self.text(name).split(",")
        if not fewest <= len(got) <= most:
            raise UserError(f"{name}: expected {fewest} to {most} of them with commas between, got {len(got)}")
        return [math.nan if word == "nan" else self._number(name, word, -size, size) for word in got]

    @staticmethod
    def _number(name: str, text: str, low: float, high: float) -> float:
        number = float(text) if _NUMBER.fullmatch(text) else math.nan
        if not math.isfinite(number) or not low <= number <= high:
            raise _wrong(
                name, "a number such as 0.5" if math.isinf(high) else f"a number from {low:g} to {high:g}", text
            )
        return number


def whole_number(name: str, got: str, low: int = 0, high: int = LARGEST) -> int:
    """The whole number in a text.

    Raises:
        UserError: it holds none in [low, high].
    """
    if not got.isascii() or not got.isdigit() or len(got) > 15 or not low <= int(got) <= high:
        raise _wrong(name, f"a whole number from {low} to {high}", got)
    return int(got)


def _wrong(name: str, expected: str, got: str) -> UserError:
    return UserError(f"{name}: expected {expected}, got {got[:SHOWN]!r}: correct it")


# What changes something


def changing(act: Callable[[str, Body], dict[str, Any]]) -> Callable[[Request], Any]:
    """An endpoint that acts on a run, or on none, with the JSON that was sent."""

    async def endpoint(request: Request) -> Response:
        sent = await request.body()
        try:
            body = json.loads(sent.decode(), object_pairs_hook=_keys_once, parse_constant=_no_constant)
            json.dumps(body, ensure_ascii=False).encode()  # \ud800 alone is no text that could be written
        except (ValueError, RecursionError):
            body = None
        if not isinstance(body, dict):
            raise UserError(f"expected a JSON object in UTF-8, each key once, got {sent[:60]!r}")
        answer = await run_in_threadpool(act, request.path_params.get("run", ""), body)
        return Response(json_text(answer), media_type="application/json")

    return endpoint


def _keys_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) < len(pairs):
        raise ValueError("a key is given twice")
    return dict(pairs)


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def field_of(body: Body, name: str, kind: str) -> Any:
    """A field of what was sent.

    Raises:
        UserError: it is missing, or of another kind.
    """
    value = body.get(name)
    if type(value) is not _KINDS[kind]:
        raise UserError(f"{name}: expected {kind}, got {value!r:.60}")
    return value
