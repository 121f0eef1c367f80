"""The endpoint of an agent against whatever is sent to its port: it answers, closes, and holds nothing."""

import socket
import threading
import time
from collections.abc import Iterator
from queue import SimpleQueue
from typing import Any

import pytest

from grouprl.environments import endpoint

AUTHORIZED = b"Authorization: Bearer tok\r\n"
POST = b"POST /v1/chat/completions HTTP/1.1\r\n"
DEEP = b"[" * 100_000


@pytest.fixture(scope="module")
def server() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(endpoint, "_REQUEST_SECONDS", 0.5)
        opened = endpoint._Endpoint("tok", SimpleQueue())
        threading.Thread(target=opened.serve_forever, daemon=True).start()
        yield opened
        opened.shutdown()
        opened.server_close()


def answer(server: Any, sent: bytes) -> bytes:
    """All that comes until the server closes the connection."""
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=20) as connection:
        connection.sendall(sent)
        parts = []
        while part := connection.recv(1 << 16):
            parts.append(part)
        return b"".join(parts)


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (POST + b"Content-Length: 16000000\r\n\r\n{", b"401"),  # the body is not waited for
        (POST + b"Authorization: Bearer \xe9\xff\r\n\r\n", b"401"),
        (POST + AUTHORIZED + b"Content-Length: -5\r\n\r\n", b"413"),
        (POST + AUTHORIZED + b"Content-Length: five\r\n\r\n", b"413"),
        (POST + AUTHORIZED + b"Content-Length: 5.0\r\n\r\n", b"413"),
        (POST + AUTHORIZED + b"Content-Length: 16777217\r\n\r\n{", b"413"),
        (POST + AUTHORIZED + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n{}", b"413"),
        (POST + AUTHORIZED + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{", b"413"),
        (POST + AUTHORIZED + b"Connection: close\r\nContent-Length: 100000\r\n\r\n" + DEEP, b"400"),
        (POST + AUTHORIZED + b"Connection: close\r\nContent-Length: 2\r\n\r\n[]", b"400"),
        (POST + AUTHORIZED + b"Connection: close\r\n\r\n", b"400"),
        (b"GET /v1/models HTTP/1.1\r\nConnection: close\r\n" + AUTHORIZED + b"\r\n", b"200"),
        (POST + AUTHORIZED + b"Content-Length: 50\r\n\r\n{", b""),  # begun and not ended
        (POST[:20], b""),
        (b"", b""),
    ],
)
def test_any_request_ends(server: Any, capfd: pytest.CaptureFixture[str], sent: bytes, status: bytes) -> None:
    assert answer(server, sent)[9:12] == status
    assert "Traceback" not in capfd.readouterr().err
    assert server.events.empty()


def test_there_are_at_most_64_connections(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "_REQUEST_SECONDS", 60.0)
    before = threading.active_count()
    address = "127.0.0.1", server.server_port
    held = [socket.create_connection(address, timeout=20) for _ in range(80)]
    assert held[-1].recv(1) == b""
    assert threading.active_count() - before <= 64
    for connection in held:
        connection.close()
    until = time.monotonic() + 20
    while threading.active_count() > before and time.monotonic() < until:
        time.sleep(0.01)
    assert answer(server, b"GET /v1/models HTTP/1.1\r\nConnection: close\r\n" + AUTHORIZED + b"\r\n")[9:12] == b"200"
