"""What GroupRL's HTTP clients have in common: replies of bounded size, and a server's words made safe to show."""

from __future__ import annotations

import json
from contextlib import suppress
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

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


def parsed_json(content: bytes) -> Any:
    """The value of a JSON text; None when it is not readable."""
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None


def printable(words: str) -> str:
    """Makes a server's text safe for a terminal: one short printable line."""
    line = "".join(letter if letter.isprintable() else " " for letter in words)
    return " ".join(line.split())[:_WORDS] or "nothing"


def is_loopback(host: str) -> bool:
    """Whether a host name means this machine; to a proxy, such a name means another machine."""
    with suppress(ValueError):  # a name
        return ip_address(host).is_loopback
    return host == "localhost"
