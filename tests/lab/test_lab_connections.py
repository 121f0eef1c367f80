"""Half-open connections do not stop the lab: over real sockets, as a browser and as an attacker."""

from __future__ import annotations

import logging
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import uvicorn

from grouprl.lab import connections
from grouprl.lab.connections import BACKLOG, MOST, PatientProtocol
from grouprl.lab.guard import Guard, Sessions

Address = tuple[str, int]
ASK = b"GET / HTTP/1.1\r\nHost: lab\r\n\r\n"


async def app(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[tuple[uvicorn.Server, Address]]:
    served = getattr(request, "param", app)
    config = uvicorn.Config(served, http=PatientProtocol, backlog=BACKLOG, port=0, log_level="warning", lifespan="off")
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


# A browser of a session whose streams never end; each of its pages is such a stream


async def streaming(scope: Any, receive: Any, send: Any) -> None:
    if scope["path"] == "/stream":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"data: ok", "more_body": True})
        while (await receive())["type"] != "http.disconnect":
            pass
    else:
        await app(scope, receive, send)


@pytest.mark.parametrize("server", [streaming], indirect=True)
def test_the_oldest_streams_of_a_browser_make_room(server: tuple[uvicorn.Server, Address]) -> None:
    _, address = server
    port, sessions = address[1], Sessions()
    server[0].config.loaded_app = Guard(streaming, sessions, port)

    def browser() -> Callable[[str], socket.socket]:
        """Asks as one browser, each time on a new connection."""
        home, cookie = "", ""

        def ask(path: str) -> socket.socket:
            one = socket.create_connection(address, timeout=5)
            one.sendall(f"GET {home}{path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n{cookie}\r\n".encode())
            return one

        with ask(f"/?token={sessions.new_link()}") as door:
            head = ""
            while "</html>" not in head:
                head += door.recv(9000).decode()
        cookie = f"Cookie: {re.findall(r'set-cookie: ([^;]*)', head)[0]}\r\n"
        home = re.findall(r"Path=([^;\r]*)", head)[0]
        return ask

    def shows(one: socket.socket) -> bool:
        found = b""
        while not found.rstrip().endswith(b"ok") and (more := one.recv(4096)):
            found += more
        return found.startswith(b"HTTP/1.1 200") and b"ok" in found

    greedy, other = browser(), browser()
    with ExitStack() as stack:
        kept = [stack.enter_context(other("stream")) for _ in range(3)]
        assert all(map(shows, kept))
        streams = []
        for number in range(5 * MOST):
            streams.append(stack.enter_context(greedy("stream")))
            assert shows(streams[-1]), number
            if number % 100 == 0:
                with greedy("runs") as page, other("runs") as another:
                    assert (shows(page), shows(another)) == (True, True)
        assert len(server[0].server_state.connections) <= MOST
        assert closed(streams[0], 1)
        assert not closed(streams[-1], 0.1)
        assert not any(closed(one, 0.05) for one in kept)
        kept.append(stack.enter_context(other("stream")))
        assert shows(kept[-1])
