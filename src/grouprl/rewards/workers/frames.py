"""Sends and receives whole messages over a socket, with a deadline."""

from __future__ import annotations

import socket
import struct
import time

_LENGTH = struct.Struct("<Q")
_CHUNK = 1 << 20


def send_frame(channel: socket.socket, message: bytes, *, seconds: float | None = None) -> None:
    """Sends one message. Raises TimeoutError when sending takes too long, OSError when the peer is gone."""
    channel.settimeout(seconds)
    channel.sendall(_LENGTH.pack(len(message)) + message)


def receive_frame(channel: socket.socket, *, seconds: float | None = None, most: int | None = None) -> bytes:
    """Receives the next message.

    Args:
        channel: a stream socket.
        seconds: longest time for the whole message; None = no limit.
        most: largest size in bytes; None = no limit.

    Raises:
        TimeoutError: it did not come in time.
        EOFError: the other side is gone.
        ValueError: it is longer than `most`.
    """
    deadline = None if seconds is None else time.monotonic() + seconds
    length = _LENGTH.unpack(receive_exactly(channel, _LENGTH.size, deadline))[0]
    if most is not None and length > most:
        raise ValueError(f"expected at most {most} bytes, got {length}")
    return receive_exactly(channel, length, deadline)


def receive_exactly(channel: socket.socket, count: int, deadline: float | None = None) -> bytes:
    """Receives `count` bytes. Raises EOFError and TimeoutError as `receive_frame`; `deadline` is `time.monotonic`'s."""
    parts = bytearray()
    while len(parts) < count:
        left = None if deadline is None else deadline - time.monotonic()
        if left is not None and left <= 0:
            raise TimeoutError
        channel.settimeout(left)
        part = channel.recv(min(_CHUNK, count - len(parts)))
        if not part:
            raise EOFError
        parts += part
    return bytes(parts)


def is_quiet(channel: socket.socket) -> bool:
    """Whether the connection is open and no data waits."""
    channel.settimeout(0)
    try:
        channel.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
