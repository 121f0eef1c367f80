"""A server that answers as openenv 0.10 does where GroupRL asks it (core/env_server/http_server.py), or otherwise.

Its environment is a counter, offered as one action, or with `calls_tools` as a tool that is called by name.
"""

from __future__ import annotations

import json
import threading
import time
from types import TracebackType
from typing import Any, Self

from websockets.datastructures import Headers
from websockets.http11 import Request, Response
from websockets.sync.server import ServerConnection, serve

STEP = {"title": "Count", "type": "integer", "description": "How much."}
PARAMETERS = {"type": "object", "properties": {"step": STEP}, "required": ["step"]}
ACTION = {"description": "Counts.", "properties": {"metadata": {"type": "object"}, "step": STEP}, "required": ["step"]}
NAMED = {"properties": {"type": {"const": "call_tool"}, "tool_name": {"type": "string"}, "arguments": {}}}
TOOL = {"name": "increment", "description": "Increments the counter.", "input_schema": PARAMETERS}


class OpenEnvServer:
    """The server on loopback, in threads of this process."""

    def __init__(self, *, calls_tools: bool = False, schema: object = None) -> None:
        self._schema = schema or {"action": NAMED if calls_tools else ACTION, "observation": {}, "state": {}}
        self.connections, self.resets = 0, list[dict[str, Any]]()
        self._server = serve(self._session, "127.0.0.1", 0, process_request=self._other_than_ws, close_timeout=0.1)
        self.url = f"http://127.0.0.1:{self._server.socket.getsockname()[1]}"

    def _other_than_ws(self, connection: ServerConnection, request: Request) -> Response | None:
        data = json.dumps(self._schema).encode()
        return None if request.path == "/ws" else Response(200, "OK", Headers({"Content-Length": str(len(data))}), data)

    def _session(self, connection: ServerConnection) -> None:
        self.connections += 1
        count = 0
        for received in connection:
            message = json.loads(received)
            data = message["data"]
            if message["type"] == "reset":
                self.resets.append(data)
                count = 0
                _send(connection, {"observation": {"text": f"Reach {data['target']}."}, "reward": 9.0})
                continue
            if data.get("type") == "list_tools":
                _send(connection, {"observation": {"tools": [TOOL], "metadata": {}}, "reward": None})
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
                    connection.send("abc")
                    continue
                case 103:
                    _send(connection, {"message": "no such step", "code": "VALIDATION_ERROR"}, "error")
                    continue
                case 104:
                    _send(connection, {"message": "it failed", "code": "EXECUTION_ERROR"}, "error")
                    continue
                case 105:
                    seen["error"] = {"error_type": "execution_error", "message": "the tool failed"}
                case 106:
                    seen = {"text": "x" * 100_000}
                case 107:
                    connection.ping()  # before the answer
            _send(connection, {"observation": seen, "reward": step / 2, "done": count >= 5})

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()


def _send(connection: ServerConnection, data: object, kind: str = "observation") -> None:
    text = json.dumps({"type": kind, "data": data})
    connection.send([text[: len(text) // 2], text[len(text) // 2 :]])  # fragmented, as a server may do
