"""Exchanges with the Hugging Face hub, which end: its libraries ask an unknown host for 90 s, and read for ever."""

from __future__ import annotations

import socket
import time
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from huggingface_hub import constants, set_client_factory
from huggingface_hub.utils._http import default_client_factory

SECONDS = 60.0  # of an exchange: a request with its reply
RATE = 1000.0  # bytes a second, with which a long one earns further time

_SLOW = f"the hub gave no whole reply within {SECONDS:g} s"

_OFFLINE = constants.HF_HUB_OFFLINE  # as the user's environment asks


def is_out_of_reach() -> bool:
    """Whether its cache alone is to be asked, which huggingface_hub does from here on."""
    end_exchanges()
    is_known = bool(getproxies())  # behind a proxy this machine need not find the hub's address
    if not is_known:
        with suppress(OSError):
            socket.getaddrinfo(urlsplit(constants.ENDPOINT).hostname, 443)
            is_known = True
    constants.HF_HUB_OFFLINE = _OFFLINE or not is_known
    return bool(constants.HF_HUB_OFFLINE)


class _TimedStream:
    """A connection of httpcore. TimeoutError ends an exchange of more than SECONDS that brings less than RATE."""

    is_lost = False  # whether one was ended, so that the libraries' next requests, which are many, end at once

    def __init__(self, stream: Any) -> None:
        self._stream, self._until, self._is_answered = stream, 0.0, True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def start_tls(self, ssl_context: Any, server_hostname: str | None = None, timeout: float | None = None) -> Any:
        return _TimedStream(self._stream.start_tls(ssl_context, server_hostname, timeout or SECONDS))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        if self._is_answered:
            self._until, self._is_answered = time.monotonic() + SECONDS, False
        self._stream.write(buffer, timeout or SECONDS)
        self._until += len(buffer) / RATE

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        self._is_answered = True
        part = b""
        try:
            part += self._stream.read(max_bytes, max(0.001, self._until - time.monotonic()))
        finally:
            self._until += len(part) / RATE
            if time.monotonic() >= self._until:
                _TimedStream.is_lost = True
                raise TimeoutError(_SLOW) from None
        return bytes(part)


class _Network:
    """A network backend of httpcore that makes such connections."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def connect_tcp(
        self, host: str, port: int, timeout: float | None = None, local_address: Any = None, socket_options: Any = None
    ) -> Any:
        if _TimedStream.is_lost:
            raise TimeoutError(_SLOW)
        return _TimedStream(self._backend.connect_tcp(host, port, timeout or SECONDS, local_address, socket_options))


def _client() -> Any:
    client = default_client_factory()
    transports: list[Any] = [client._transport, *filter(None, client._mounts.values())]
    for transport in transports:  # it offers no other way
        transport._pool._network_backend = _Network(transport._pool._network_backend)
    return client


def end_exchanges() -> None:
    """Gives the exchanges of huggingface_hub a deadline from here on, and tries again after a lost one."""
    _TimedStream.is_lost = False
    set_client_factory(_client)
