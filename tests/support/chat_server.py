"""A chat-completions server on loopback that does what a test wants, and counts what it is asked."""

from __future__ import annotations

import json
import re
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self

BLOCK = re.compile(r"<(prompt|completion|answer)-([0-9a-f]{16})>\n(.*?)\n</\1-\2>", re.DOTALL)


@dataclass(frozen=True)
class Asked:
    number: int  # 0, 1, ... in the order of arrival
    path: str
    headers: Mapping[str, str]
    body: Mapping[str, Any]

    @property
    def text(self) -> str:
        (message,) = self.body["messages"]
        assert message["role"] == "user"
        return str(message["content"])

    @property
    def blocks(self) -> dict[str, str]:
        """What stands between the fences, by their name."""
        return {name: inside for name, _, inside in BLOCK.findall(self.text)}


@dataclass(frozen=True)
class Reply:
    body: bytes = b""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 0.0  # before it answers
    pause: float = 0.0  # between two bytes
    lost: bool = False  # the connection is reset instead


def says(content: Any, *, prompt_tokens: int = 10, completion_tokens: int = 5, **reply: Any) -> Reply:
    """A reply of the usual form."""
    choice = {"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": "stop"}
    usage = {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens}
    return Reply(json.dumps({"choices": [choice], "usage": usage}).encode(), **reply)


def scores(score: float, **reply: Any) -> Reply:
    return says(json.dumps({"reason": "so", "score": score}), **reply)


HANGS = Reply(seconds=60.0)


class ChatServer:
    """Answers with `behave(asked)`. A context manager; leaving it lets go of hanging requests.

    `tls` is a certificate and its key.
    """

    def __init__(self, behave: Callable[[Asked], Reply], tls: tuple[Path, Path] | None = None) -> None:
        self.asked: list[Asked] = []
        self.most = 0  # requests under way at once
        self._behave, self._lock, self._over, self._under_way = behave, threading.Lock(), threading.Event(), 0
        self._server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"chat": self}))
        self._scheme = "https" if tls else "http"
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*tls)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)

    @property
    def url(self) -> str:
        return f"{self._scheme}://127.0.0.1:{self._server.server_port}/v1"

    def answer(self, path: str, headers: Mapping[str, str], content: bytes, connection: socket.socket) -> Reply:
        with self._lock:
            asked = Asked(len(self.asked), path, headers, json.loads(content))
            self.asked.append(asked)
            self._under_way += 1
            self.most = max(self.most, self._under_way)
        reply = self._behave(asked)
        self._over.wait(reply.seconds)
        if reply.lost:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        with self._lock:
            self._under_way -= 1
        return reply

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None):
        self._over.set()
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away is what some tests are about."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    chat: ChatServer

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        reply = self.chat.answer(self.path, dict(self.headers), content, self.connection)
        if reply.lost:
            for end in (self.rfile, self.wfile, self.connection):
                end.close()
            return
        self.send_response(reply.status)
        for name, value in {"Content-Length": str(len(reply.body)), **reply.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if not reply.pause:
            self.wfile.write(reply.body)
            return
        for byte in reply.body:
            self.wfile.write(bytes([byte]))
            self.wfile.flush()
            time.sleep(reply.pause)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the standard library's name
        """Nothing."""
