"""The endpoint of an agent that owns its loop, in the agent's process: what it asks for there, the policy writes.

The agent is played as a text game: the game shows the messages of a request, and a step is the policy's answer to it.
"""

from __future__ import annotations

import asyncio
import hmac
import inspect
import json
import os
import re
import secrets
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import SimpleQueue
from threading import Semaphore, Thread
from typing import Any

from grouprl.environments.arguments import is_schema
from grouprl.environments.base import NOT_AS_EXPECTED
from grouprl.environments.guest import accepted
from grouprl.types import UserError

_LONGEST_REQUEST = 16 << 20  # bytes
_REQUEST_SECONDS, _MOST_CONNECTIONS = 10.0, 64
_MODEL = "policy"


@dataclass(frozen=True)
class _PolicyRequest:
    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]]
    answers: SimpleQueue[Mapping[str, Any]]


@dataclass(frozen=True)
class _End:
    result: Any = None  # what the agent returned
    error: BaseException | None = None


class _AgentGame:
    """An agent as a game. Requests that it makes side by side are answered one after the other.

    Args:
        agent: a function or coroutine function of the problem's prompt and columns, as far as it accepts them. It finds
            the address and the token in OPENAI_BASE_URL and OPENAI_API_KEY, and may return the reward.
    """

    def __init__(self, agent: Callable[..., Any]) -> None:
        self._agent = agent
        self._events: SimpleQueue[_PolicyRequest | _End] = SimpleQueue()
        self._answers: SimpleQueue[Mapping[str, Any]] | None = None  # of the request that waits for the policy

    def reset(self, seed: int = 0, **row: Any) -> str:
        """Starts the agent; gives its first request."""
        token = secrets.token_urlsafe(24)
        server = _Endpoint(token, self._events)
        os.environ |= {"OPENAI_BASE_URL": f"http://127.0.0.1:{server.server_port}/v1", "OPENAI_API_KEY": token}
        Thread(target=server.serve_forever, daemon=True).start()

        async def awaited(result: Any) -> Any:
            return await result

        def run() -> None:
            try:
                result = self._agent(**accepted(self._agent, row, seed))
                self._events.put(_End(asyncio.run(awaited(result)) if inspect.isawaitable(result) else result))
            except BaseException as error:  # noqa: BLE001  user code may raise anything
                self._events.put(_End(error=error))

        Thread(target=run, daemon=True).start()
        text, _, done = self._next()
        if done:
            raise RuntimeError("the agent ended before it asked the policy for anything")
        return text

    def step(self, answer: str) -> tuple[str, float | None, bool, dict[str, Any]]:
        """Gives the policy's answer to the agent; then its next request, or its end with the reward."""
        assert self._answers is not None
        self._answers.put(json.loads(answer))
        return (*self._next(), {})

    def _next(self) -> tuple[str, float | None, bool]:
        event = self._events.get()
        if isinstance(event, _PolicyRequest):
            self._answers = event.answers
            return json.dumps({"messages": event.messages, "tools": event.tools}), None, False
        if event.error is not None:
            raise event.error
        return "", event.result, True


def agent_maker(agent: Callable[..., Any]) -> Callable[[], _AgentGame]:
    """Makes games of an agent. Raises UserError if it is none."""
    if not callable(agent) or inspect.isclass(agent):
        raise UserError(f"expected a function that runs an agent, got {agent!r:.80}: name a function")
    return partial(_AgentGame, agent)


class _Endpoint(ThreadingHTTPServer):
    """One address for one episode, of at most 64 connections; a request that is not whole after 10 s is dropped."""

    daemon_threads = True

    def __init__(self, token: str, events: SimpleQueue[_PolicyRequest | _End]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.token, self.events = token, events
        self.reading: dict[socket.socket, float] = {}  # since when a request is read
        self._free = Semaphore(_MOST_CONNECTIONS)

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Whether there is room for a connection."""
        return self._free.acquire(blocking=False)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serves a connection until it is closed."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.reading.pop(request, None)
            self._free.release()

    def service_actions(self) -> None:
        """Drops what takes too long; it is called twice a second."""
        for connection, since in list(self.reading.items()):
            if time.monotonic() - since > _REQUEST_SECONDS:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)  # whoever reads it gets the end

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Says nothing of an agent that goes away."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Endpoint

    def log_message(self, *_: object) -> None:
        """Nothing: the episode is recorded."""

    def setup(self) -> None:
        """Begins to read: the first request has to come at once."""
        super().setup()
        self.server.reading[self.connection] = time.monotonic()

    def handle_one_request(self) -> None:
        """Reads and answers a request; a connection that had one may wait for its next."""
        if self.rfile.peek(1):  # type: ignore[attr-defined]
            self.server.reading[self.connection] = time.monotonic()
        super().handle_one_request()

    def do_GET(self) -> None:
        """Lists the one model."""
        if self._admitted("/models") is not None:
            self._send(200, {"object": "list", "data": [{"id": _MODEL, "object": "model"}]})

    def do_POST(self) -> None:
        """Asks the policy for a completion."""
        if (length := self._admitted("/chat/completions")) is None:
            return
        content = self.rfile.read(length)
        self.server.reading.pop(self.connection, None)
        if len(content) < length:  # it was dropped
            self.close_connection = True
            return
        try:
            body = json.loads(content)
            if body.get("n", 1) != 1:
                raise ValueError("ask once for each completion")
            messages, tools = [plain_message(message) for message in body["messages"]], list(body.get("tools") or ())
            for tool in tools:  # chat templates take no others
                function = tool["function"]
                if not isinstance(function["name"], str) or not is_schema(function.get("parameters", {})):
                    raise ValueError(f"expected tools with a name and a JSON schema, got {tool!r:.80}")
            request = _PolicyRequest(messages, tools, SimpleQueue())
        except NOT_AS_EXPECTED as error:
            said = f"expected `messages` with role and text, and n = 1, got {type(error).__name__}: {error}"
            self._send(400, {"error": {"message": said, "type": "invalid_request_error"}})
            return
        self.server.events.put(request)
        answer = request.answers.get()
        numbers = [
            {"token": f"token_id:{token}", "logprob": value, "bytes": None, "top_logprobs": []}
            for token, value in zip(answer["token_ids"], answer["logprobs"], strict=True)
        ]
        choice = {
            "index": 0,
            "finish_reason": answer["finish_reason"],
            "logprobs": {"content": numbers} if body.get("logprobs") else None,
            "token_ids": answer["token_ids"],
        }
        counts = len(answer["prompt_token_ids"]), len(answer["token_ids"])
        completion = {
            "id": f"chatcmpl-{secrets.token_hex(8)}",
            "created": 0,
            "model": body.get("model", _MODEL),
            "prompt_token_ids": answer["prompt_token_ids"],
            "usage": {"prompt_tokens": counts[0], "completion_tokens": counts[1], "total_tokens": sum(counts)},
        }
        with suppress(ConnectionError):  # an agent that no longer waits for it
            if body.get("stream"):
                calls = [{"index": index, **call} for index, call in enumerate(answer["message"].get("tool_calls", ()))]
                delta = answer["message"] | ({"tool_calls": calls} if calls else {})
                completion |= {"object": "chat.completion.chunk", "choices": [choice | {"delta": delta}]}
                chunk = f"data: {json.dumps(completion)}\n\ndata: [DONE]\n\n"
                self._write(200, "text/event-stream", chunk.encode())
            else:
                completion |= {"object": "chat.completion", "choices": [choice | {"message": answer["message"]}]}
                self._send(200, completion)

    def handle_expect_100(self) -> bool:
        """Asks for the body only where it will be read."""
        return self._admitted(self.path) is not None and super().handle_expect_100()

    def _admitted(self, path: str) -> int | None:
        """The length of the body, of which nothing is read before; None = the request is refused, and answered."""
        token, lengths = self.headers.get("Authorization", ""), self.headers.get_all("Content-Length", ["0"])
        length = int(lengths[0]) if len(lengths) == 1 and re.fullmatch("[0-9]{1,9}", lengths[0], re.ASCII) else -1
        if not hmac.compare_digest(token.encode("utf-8", "replace"), f"Bearer {self.server.token}".encode()):
            status, said = 401, "expected the token of OPENAI_API_KEY"
        elif not self.path.partition("?")[0].endswith(path):
            status, said = 404, f"expected /chat/completions or /models, got {self.path}"
        elif "Transfer-Encoding" in self.headers or not 0 <= length <= _LONGEST_REQUEST:
            status, said = 413, f"expected a Content-Length of 0 to {_LONGEST_REQUEST}, got {', '.join(lengths)}"
        else:
            if not length:
                self.server.reading.pop(self.connection, None)
            return length
        self.close_connection = True  # what follows is a body that nobody reads
        self._send(status, {"error": {"message": said}})
        return None

    def _send(self, status: int, value: object) -> None:
        self._write(status, "application/json", json.dumps(value).encode())

    def _write(self, status: int, kind: str, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(content)


def plain_message(message: Mapping[str, Any]) -> dict[str, Any]:
    """Role, text and calls of a message, as they are compared and recorded; ids of calls are left out."""
    content = message.get("content") or ""
    text = content if isinstance(content, str) else "".join(part["text"] for part in content)
    calls = []
    for call in message.get("tool_calls") or ():
        arguments = call["function"].get("arguments") or {}
        arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
        calls.append({"type": "function", "function": {"name": call["function"]["name"], "arguments": arguments}})
    return {"role": str(message.get("role")), "content": text, **({"tool_calls": calls} if calls else {})}
