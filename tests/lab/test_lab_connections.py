"""Half-open connections do not stop the lab: over real sockets, as a browser and as an attacker."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import uvicorn

from grouprl.lab import connections
from grouprl.lab.connections import BACKLOG, MOST, PatientProtocol

Address = tuple[str, int]
ASK = b"GET / HTTP/1.1\r\nHost: lab\r\n\r\n"


async def app(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


@pytest.fixture
def server() -> Iterator[tuple[uvicorn.Server, Address]]:
    config = uvicorn.Config(app, http=PatientProtocol, backlog=BACKLOG, port=0, log_level="warning", lifespan="off")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield server, server.servers[0].sockets[0].getsockname()
    server.should_exit = True
    thread.join(10)


def answer(one: socket.socket) -> bytes:
    """Asks and reads to the end of the body."""
    one.sendall(ASK)
    found = b""
    while not found.endswith(b"ok"):
        more = one.recv(4096)
        assert more, found
        found += more
    return found


def new_answer(address: Address) -> bytes:
    with socket.create_connection(address, timeout=5) as one:
        return answer(one)


def closed(one: socket.socket, within: float) -> bool:
    one.settimeout(within)
    try:
        return one.recv(1) == b""
    except ConnectionResetError:
        return True
    except TimeoutError:
        return False


def test_many_half_open_requests_leave_room_for_the_page(
    server: tuple[uvicorn.Server, Address], caplog: pytest.LogCaptureFixture
) -> None:
    running, address = server
    with ExitStack() as stack, caplog.at_level(logging.WARNING):
        logging.getLogger("uvicorn").propagate = True
        page = stack.enter_context(socket.create_connection(address, timeout=5))
        half_open = []
        for number in range(2 * MOST):
            half_open.append(stack.enter_context(socket.create_connection(address, timeout=5)))
            half_open[-1].sendall(b"GET / HTTP/1.1\r\nHost: l")
            if number % 50 == 0:
                assert b"200 OK" in new_answer(address)
        assert b"200 OK" in new_answer(address)
        assert len(running.server_state.connections) <= MOST + 1
        assert closed(half_open[0], 1)
        assert not closed(half_open[-1], 0.1)
        assert closed(page, 1)  # it asked nothing, and was the oldest
    assert len({id(record) for record in caplog.records if "connections at once" in record.getMessage()}) == 1


def test_slow_headers_end_and_a_page_that_asks_again_does_not(
    server: tuple[uvicorn.Server, Address], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "REQUEST_SECONDS", 0.6)
    _, address = server
    with socket.create_connection(address, timeout=5) as slow, socket.create_connection(address, timeout=5) as page:
        began, sent = time.monotonic(), 0
        try:
            while time.monotonic() - began < 5:  # a byte now and then must not extend the time
                slow.sendall(ASK[sent % 14 : sent % 14 + 1])
                assert b"200 OK" in answer(page)
                sent += 1
                time.sleep(0.1)
        except OSError:
            pass
        assert 0.5 < time.monotonic() - began < 3
        assert sent >= 5
        assert b"200 OK" in answer(page)
        page.sendall(b"GET")  # a second request on the same connection has the limit too
        assert closed(page, 3)
