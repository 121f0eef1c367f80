"""A server that answers as openenv 0.10 does where GroupRL asks it (core/env_server/http_server.py), or otherwise.

Its environment is a counter, offered as one action, or with `calls_tools` as a tool that is called by name.
"""

from __future__ import annotations

import base64
import hashlib
import json
import struct
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

STEP = {"title": "Count", "type": "integer", "description": "How much."}
PARAMETERS = {"type": "object", "properties": {"step": STEP}, "required": ["step"]}
ACTION = {"description": "Counts.", "properties": {"metadata": {"type": "object"}, "step": STEP}, "required": ["step"]}
NAMED = {"properties": {"type": {"const": "call_tool"}, "tool_name": {"type": "string"}, "arguments": {}}}
TOOL = {"name": "increment", "description": "Increments the counter.", "input_schema": PARAMETERS}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        server: OpenEnvServer = self.server.ours  # type: ignore[attr-defined]
        if self.path == "/ws":
            key = self.headers["Sec-WebSocket-Key"].encode() + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
            self.send_response(101)
            self.send_header("Sec-WebSocket-Accept", base64.b64encode(hashlib.sha1(key).digest()).decode())
            self.end_headers()
            server.connections += 1
            self.close_connection = True
            with suppress(OSError):  # the client dropped the connection
                self._session(server)
            return
        data = json.dumps(server.schema).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _session(self, server: OpenEnvServer) -> None:
        count = 0
        while (message := self._received()) and message["type"] != "close":
            data = message["data"]
            if message["type"] == "reset":
                server.resets.append(data)
                count = 0
                self._send("observation", {"observation": {"text": f"Reach {data['target']}."}, "reward": 9.0})
                continue
            if data.get("type") == "list_tools":
                self._send("observation", {"observation": {"tools": [TOOL], "metadata": {}}, "reward": None})
                continue
            step = data.get("arguments", data)["step"]
            count += step
            seen: dict[str, Any] = {"count": count, "metadata": {}}
            if "tool_name" in data:
                result = {"content": [], "structured_content": {"result": count}, "data": count, "is_error": False}
                seen = {"tool_name": "increment", "result": result, "error": None, "metadata": {}}
            match step:
                case 100:
                    time.sleep(1.5)  # a late answer
                case 101:
                    return
                case 102:
                    self.wfile.write(b"\x81\x03abc")
                    continue
                case 103:
                    self._send("error", {"message": "no such step", "code": "VALIDATION_ERROR"})
                    continue
                case 104:
                    self._send("error", {"message": "it failed", "code": "EXECUTION_ERROR"})
                    continue
                case 105:
                    seen["error"] = {"error_type": "execution_error", "message": "the tool failed"}
                case 106:
                    seen = {"text": "x" * 100_000}
                case 107:
                    self.wfile.write(b"\x89\x02hi")  # a ping before the answer
            self._send("observation", {"observation": seen, "reward": step / 2, "done": count >= 5})

    def _received(self) -> dict[str, Any] | None:
        while len(head := self.rfile.read(2)) == 2:
            size = head[1] & 127
            if size > 125:
                size = int.from_bytes(self.rfile.read(2 if size == 126 else 8))
            mask, data = self.rfile.read(4), self.rfile.read(size)
            plain = bytes(byte ^ mask[place % 4] for place, byte in enumerate(data))
            if head[0] & 15 == 1:
                return dict(json.loads(plain))
        return None

    def _send(self, kind: str, data: object) -> None:
        text = json.dumps({"type": kind, "data": data}).encode()
        halves = [(0x01, text[: len(text) // 2]), (0x80, text[len(text) // 2 :])]  # fragmented, as a server may do
        for first, part in halves:
            self.wfile.write(bytes([first, 127]) + struct.pack("!Q", len(part)) + part)

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002  the name of the base class
        return


class OpenEnvServer:
    """The server on loopback, in threads of this process."""

    def __init__(self, *, calls_tools: bool = False, schema: object = None) -> None:
        self.schema = schema or {"action": NAMED if calls_tools else ACTION, "observation": {}, "state": {}}
        self.connections, self.resets = 0, list[dict[str, Any]]()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._server.ours = self  # type: ignore[attr-defined]
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
