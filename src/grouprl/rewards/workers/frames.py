"""Messages on the way from a run to its workers and back: whole ones, with a deadline.

Functions and columns go to a worker packed by pickle. Workers answer in JSON, and the run never unpacks data that was
stored or downloaded.
"""

from __future__ import annotations

import pickle
import socket
import struct
import time
from typing import Any

import cloudpickle

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


class ParcelError(ValueError):
    """A value cannot be sent to another process."""


def pack(value: object) -> bytes:
    """Packs data, or a function with everything it refers to; an importable function by name. Raises ParcelError."""
    try:
        packed: bytes = cloudpickle.dumps(value)
    except Exception as error:  # a user's object may raise any exception
        raise ParcelError(f"{type(error).__name__}: {error}") from error
    return packed


def unpack(parcel: bytes) -> Any:
    """Unpacks a value from `pack` in the other process."""
    return pickle.loads(parcel)
