"""Messages over a socket, whole or not at all, and never waited for longer than a deadline."""

from __future__ import annotations

import socket
import struct
import time

_LENGTH = struct.Struct("<Q")
_CHUNK = 1 << 20


def send_frame(channel: socket.socket, message: bytes, *, seconds: float | None = None) -> None:
    """One message. Raises TimeoutError when it is not taken in time, and OSError when the other side is gone."""
    channel.settimeout(seconds)
    channel.sendall(_LENGTH.pack(len(message)) + message)


def receive_frame(channel: socket.socket, *, seconds: float | None = None, most: int | None = None) -> bytes:
    """The next message.

    Args:
        channel: a stream socket.
        seconds: that it may take to come, as a whole.
        most: bytes that it may have.

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
    """That many bytes. Raises EOFError and TimeoutError as `receive_frame`; `deadline` is of `time.monotonic`."""
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
    """Whether the other side is there and has nothing to say."""
    channel.settimeout(0)
    try:
        channel.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
