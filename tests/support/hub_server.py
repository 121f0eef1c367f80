"""The part of the Hugging Face hub's interface that an upload uses, on loopback."""

from __future__ import annotations

import base64
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self


class HubServer:
    """Keeps what is committed, with the token "right"; every file is sent inside the commit."""

    def __init__(self) -> None:
        self.repositories: dict[str, bool] = {}  # whether it is private
        self.files: dict[str, bytes] = {}
        self.messages: list[str] = []
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                body = self.rfile.read(length) if length else _chunks(self.rfile)
                status, reply = hub.answer(self.path, body, self.headers.get("Authorization", ""))
                self._send(status, reply)

            def do_GET(self) -> None:
                right = self.headers.get("Authorization") == "Bearer right"
                known = {"id": "/".join(self.path.split("/")[3:5]), "sha": "a" * 40, "siblings": []}
                self._send(200 if right else 401, known if right else {"error": "Invalid username or password."})

            def _send(self, status: int, reply: Any) -> None:
                content = json.dumps(reply).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def answer(self, path: str, body: bytes, authorization: str) -> tuple[int, Any]:
        if authorization != "Bearer right":
            return 401, {"error": "Invalid username or password."}
        if path == "/api/validate-yaml":
            return 200, {"errors": [], "warnings": []}
        if path == "/api/repos/create":
            asked = json.loads(body)
            name = f"{asked.get('organization') or 'me'}/{asked['name']}"
            if name in self.repositories:
                return 409, {"error": "exists", "url": f"{self.address}/{name}"}
            self.repositories[name] = asked.get("private", asked.get("visibility") == "private")
            return 200, {"url": f"{self.address}/{name}"}
        if path.endswith("/preupload/main"):
            given = [one["path"] for one in json.loads(body)["files"]]
            files = [{"path": one, "uploadMode": "regular", "shouldIgnore": False, "oid": None} for one in given]
            return 200, {"files": files}
        if path.endswith("/commit/main"):
            for line in map(json.loads, body.decode().splitlines()):
                if line["key"] == "header":
                    self.messages.append(line["value"]["summary"])
                elif line["key"] == "file":
                    self.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            url = f"{self.address}/{path.split('/')[3]}/{path.split('/')[4]}/commit/{'b' * 40}"
            return 200, {"commitUrl": url, "commitOid": "b" * 40, "success": True}
        return 404, {"error": path}


def _chunks(stream: Any) -> bytes:
    found = b""
    while size := int(stream.readline(), 16):
        found += stream.read(size)
        stream.readline()
    stream.readline()
    return found
