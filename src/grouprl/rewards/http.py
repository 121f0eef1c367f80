"""What GroupRL's HTTP clients have in common: replies of bounded size, and a server's words made safe to show."""

from __future__ import annotations

import asyncio
import json
import os
import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

from grouprl.types import UserError

if TYPE_CHECKING:
    import httpx2  # otherwise imported inside functions, because the import takes as long as a worker's start

_WORDS = 300  # characters of a server's text in a message


async def read_bounded(reply: httpx2.Response, longest: int) -> bytes | None:
    """Reads the whole reply; None when it has more than `longest` bytes."""
    content = bytearray()
    async for part in reply.aiter_raw():
        content += part
        if len(content) > longest:
            return None
    return bytes(content)


def fetch(url: str, seconds: float, longest: int) -> bytes:
    """The reply to a GET within `seconds` in all: a server cannot extend them byte by byte.

    Raises:
        TimeoutError: it takes longer.
        OSError: there is no server, or it has no such page, or more than `longest` bytes.
    """
    import httpx2

    async def exchange() -> bytes:
        plain = {"Accept-Encoding": "identity"}  # bounds memory
        trust = not is_loopback(httpx2.URL(url).host)  # to a proxy, this name means another machine
        client = httpx2.AsyncClient(headers=plain, timeout=None, trust_env=trust)
        async with asyncio.timeout(seconds), client, client.stream("GET", url) as reply:
            content = await read_bounded(reply, longest)
            if reply.status_code != 200 or content is None:
                raise OSError(f"status {reply.status_code}: {printable(words_of(content, longest))}")
            return content

    try:
        with ThreadPoolExecutor(1) as pool:  # the caller's thread may have a loop, as in a notebook
            return pool.submit(asyncio.run, exchange()).result()
    except TimeoutError:
        raise TimeoutError(f"no whole reply within {seconds:g} s") from None
    except httpx2.TransportError as error:
        raise OSError(f"{type(error).__name__} {error}") from None


def parsed_json(content: bytes) -> Any:
    """The value of a JSON text; None when it is not readable."""
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None


def words_of(content: bytes | None, longest: int) -> str:
    """The error message in a server's reply, else the reply; see `read_bounded`."""
    if content is None:
        return f"more than {longest} bytes"
    match parsed_json(content):
        case {"error": {"message": str(words)}} | {"error": str(words)} | {"message": str(words)}:
            return words
        case {"detail": str(words)}:
            return words
    return content[: 1 << 20].decode("utf-8", "replace")


def secret(variable: str, setting: str, what: str) -> str:
    """The key or token in an environment variable. Raises UserError without showing it when it is none."""
    key = os.environ.get(variable, "").strip()
    if not re.fullmatch(r"[!-~]+", key):
        raise UserError(
            f"{setting}: expected a {what} in the environment variable {variable}, got "
            f"{f'text that is no {what}' if key else 'none'}: export {variable}=..."
        )
    return key


def printable(words: str) -> str:
    """Makes a server's text safe for a terminal: one short printable line."""
    line = "".join(letter if letter.isprintable() else " " for letter in words)
    return " ".join(line.split())[:_WORDS] or "nothing"


def is_loopback(host: str) -> bool:
    """Whether a host name means this machine; to a proxy, such a name means another machine."""
    with suppress(ValueError):  # a name
        return ip_address(host).is_loopback
    return host == "localhost"
