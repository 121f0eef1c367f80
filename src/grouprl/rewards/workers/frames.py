"""Messages on the way from a run to its workers and back: whole ones, with a deadline.

Functions and columns go to a worker packed by pickle. Workers answer in JSON, and the run never unpacks data that was
stored or downloaded. The object of an environment goes packed through the run to the workers of rewards.
"""

from __future__ import annotations

import io
import os
import pickle
import socket
import struct
import sys
import time
from dataclasses import dataclass
from operator import attrgetter
from types import FunctionType
from typing import Any, SupportsIndex

import cloudpickle

from grouprl.config.code_files import CODE

_LENGTH = struct.Struct("<Q")
_CHUNK = 1 << 20
_MOVED: dict[tuple[str, str], Any] = {}  # classes and functions of files that this process did not load


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
    return _dumped(value, sys.maxsize)


def unpack(parcel: bytes) -> Any:
    """Unpacks a value from `pack` in the other process."""
    return pickle.loads(parcel)


@dataclass(frozen=True)
class Parcel:
    """An object of another process on its way through the run, which never unpacks it; a worker gets the object."""

    packed: bytes

    def __reduce__(self) -> Any:
        return unpack, (self.packed,)


class Unsent:
    """Stands for an object that could not be sent. Every use raises, so that no reward takes it for another value."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        return Unsent, (object.__getattribute__(self, "_reason"),)

    def __getattribute__(self, name: str) -> Any:  # isinstance asks for __class__
        if name == "__reduce_ex__":
            return object.__getattribute__(self, name)
        raise TypeError(object.__getattribute__(self, "_reason"))

    def __bool__(self) -> bool:
        raise TypeError(object.__getattribute__(self, "_reason"))

    def __eq__(self, other: object) -> bool:
        raise TypeError(object.__getattribute__(self, "_reason"))

    __hash__ = None  # type: ignore[assignment]


def pack_object(held: object, most: int) -> bytes:
    """Packs a copy of a user's object; what of it cannot be sent is an `Unsent` that says why.

    Args:
        held: the object. Its attributes are tried one by one where it cannot be sent as it is.
        most: largest size in bytes.
    """
    name = type(held).__name__
    try:
        return _dumped(held, most)
    except ParcelError as error:
        reason = f"{name} cannot be sent to a reward: {error}"
    copy = None
    if state := getattr(held, "__dict__", None):
        try:
            copy = object.__new__(type(held))
            for key, value in state.items():
                copy.__dict__[key] = value
                try:
                    _dumped(value, most)
                except ParcelError as error:
                    copy.__dict__[key] = Unsent(f"{name}.{key} cannot be sent to a reward: {error}")
            return _dumped(copy, most)
        except (ParcelError, TypeError):  # a class that is not made by object.__new__
            pass
    return pack(Unsent(reason))


def _dumped(value: object, most: int) -> bytes:
    file = _Bounded(most)
    try:
        _Pickler(file).dump(value)
    except Exception as error:  # a user's object may raise any exception
        raise ParcelError(f"{type(error).__name__}: {error}") from error
    return file.getvalue()


class _Bounded(io.BytesIO):
    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def write(self, data: Any) -> int:
        if self.tell() + len(data) > self._most:
            raise ValueError(f"it takes more than {self._most:,} bytes")
        return super().write(data)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Names what is defined in a user's file by the file: its module has another name in the other process."""

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is Unsent:  # which isinstance would ask for its class
            return NotImplemented
        if isinstance(obj, type | FunctionType) and (path := _file_of(obj)):
            modules = list(CODE.values())
            for module in modules:
                cloudpickle.register_pickle_by_value(module)
            try:
                return _from_file, (path, obj.__qualname__, cloudpickle.dumps(obj))
            finally:
                for module in modules:
                    cloudpickle.unregister_pickle_by_value(module)
        return super().reducer_override(obj)


def _file_of(value: Any) -> str | None:
    """The user's file at whose top level a class or function is defined."""
    module = sys.modules.get(value.__module__ or "")
    path = next((path for path, loaded in CODE.items() if loaded is module), None)
    try:
        return path if path is not None and attrgetter(value.__qualname__)(module) is value else None
    except AttributeError:
        return None


def _from_file(path: str, name: str, packed: bytes) -> Any:
    """The class or function as this process has it from the file; else as it was sent, once and for all."""
    try:
        return attrgetter(name)(CODE[os.path.realpath(path)])
    except (KeyError, AttributeError):
        if (path, name) not in _MOVED:
            _MOVED[path, name] = unpack(packed)
        return _MOVED[path, name]
