"""Who may ask the lab for what: this machine's own browser, from the lab's own page, after a link that works once.

Any page that the user visits can send requests to 127.0.0.1, under a name of its own (DNS rebinding) or with the
user's cookies (CSRF). So every request has to name the lab's own host, come from the lab's own origin and carry a
session; what changes something has to be a POST with a second secret, which only a page of the lab can read.
Everything lies below a path that nobody can guess: a browser sends a cookie to every port of a host, so that another
server of this machine would get the session's if it were the cookie of `/`.
"""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Iterable
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

PAGE_TOKEN = "X-GroupRL-Token"
LARGEST_BODY = 64 << 10  # bytes
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_JSON = re.compile(r'\s*application/json\s*(;\s*charset\s*=\s*"?utf-8"?\s*)?', re.IGNORECASE)
_DOOR = (
    '<!doctype html><html lang="en"><meta charset="utf-8"><title>GroupRL lab</title>'
    '<link rel="icon" href="{home}static/icon.svg"><meta http-equiv="refresh" content="0;url={home}{page}">'
    '<a href="{home}{page}">Open the lab</a></html>'
)


class Sessions:
    """The links that were given out, and the browsers that used one. Nothing of it is ever written down."""

    def __init__(self) -> None:
        self._links: set[str] = set()
        self._pages: dict[str, str] = {}

    def new_link(self) -> str:
        """A token that opens the page once."""
        token = secrets.token_urlsafe(32)
        self._links.add(token)
        return token

    def open(self, link: str) -> str | None:
        """The session of a link's first use; None for any other text."""
        stored = _found(link, self._links)
        if stored is None:
            return None
        self._links.remove(stored)
        session = secrets.token_urlsafe(32)
        self._pages[session] = secrets.token_urlsafe(32)
        return session

    def page_token(self, session: str | None) -> str | None:
        """What a page of this session sends with every change; None without such a session."""
        stored = None if session is None else _found(session, self._pages)
        return None if stored is None else self._pages[stored]


class Guard:
    """Stands before the application; see the module.

    Args:
        app: what is protected.
        sessions: who may come in.
        port: the lab's own, which is part of its name and of its cookie's.
        page: what a link opens, such as `#/runs/demo`; empty = the list of runs.
    """

    def __init__(self, app: ASGIApp, sessions: Sessions, port: int, page: str = "") -> None:
        self._app, self._sessions, self._page = app, sessions, page
        # Browsers leave the port of http out.
        self._hosts = {name if port == 80 else f"{name}:{port}" for name in ("127.0.0.1", "localhost")}
        self._home = f"/{secrets.token_urlsafe(16)}/"
        self._cookie = f"grouprl_lab_{port}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request, as ASGI has it."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await _NO_WEBSOCKET(scope, receive, send)
            return
        refused = self._refused(scope)
        answer: ASGIApp = self._app if refused is None else refused
        inside = {**scope, "path": "/" + scope["path"].removeprefix(self._home)}
        await answer(inside, _limited(receive), _with_headers(send))

    def _refused(self, scope: Scope) -> Response | None:
        headers, method, path = Headers(scope=scope), scope["method"], scope["path"]
        if headers.getlist("host") not in [[host] for host in self._hosts]:
            return _no(
                421, f"expected the host {' or '.join(sorted(self._hosts))}: open the link that grouprl lab printed"
            )
        if headers.get("upgrade"):  # to a WebSocket, where uvicorn has no library for it
            return _NO_WEBSOCKET
        origins = {f"http://{host}" for host in self._hosts}
        if any(origin not in origins for origin in headers.getlist("origin")):
            return _no(403, "expected a request from the lab's own page, got one from another site")
        if method not in ("GET", "HEAD", "POST"):
            return _no(405, f"expected GET or POST, got {method}")
        link = parse_qs(scope["query_string"].decode("latin-1")).get("token")
        if link and path == "/" and method == "GET":
            session = self._sessions.open(link[0])
            if session is None:
                return _no(
                    403,
                    "This link is used or invalid. Press Enter in the terminal of grouprl lab for another, or start "
                    "the lab again. Open pages continue to work.",
                )
            # A redirect would still be a request from where the link was followed, which gets no strict cookie.
            answer = HTMLResponse(_DOOR.format(home=self._home, page=self._page))
            answer.set_cookie(self._cookie, session, httponly=True, samesite="strict", path=self._home)
            return answer
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            return _no(403, "expected a request from the lab's own page, got one from another site")
        page_token = self._sessions.page_token(cookie_parser(headers.get("cookie", "")).get(self._cookie))
        if page_token is None or not path.startswith(self._home):
            return _no(401, "This page opens with the link that grouprl lab prints; each link works once.")
        scope.setdefault("state", {})["page_token"] = page_token
        if method != "POST":
            return None
        if not hmac.compare_digest(headers.get(PAGE_TOKEN, "").encode(), page_token.encode()):
            return _no(403, f"expected the page's own token in {PAGE_TOKEN}: reload the page")
        # JSON is UTF-8 (RFC 8259); `json.loads` would guess others from the bytes.
        if not _JSON.fullmatch(", ".join(headers.getlist("content-type"))) or "content-encoding" in headers:
            return _no(415, "expected a body of application/json in UTF-8")
        length = headers.get("content-length", "")
        if not re.fullmatch("[0-9]{1,9}", length) or int(length) > LARGEST_BODY:
            return _no(413, f"expected a body of at most {LARGEST_BODY} bytes, with its length")
        return None


def _found(token: str, texts: Iterable[str]) -> str | None:
    """The known text that equals the given one, found in a time that does not reveal how much of it was right."""
    return next((text for text in texts if hmac.compare_digest(text.encode(), token.encode())), None)


def _no(status: int, sentence: str) -> Response:
    return PlainTextResponse(sentence + "\n", status)


_NO_WEBSOCKET = _no(426, "expected HTTP: no WebSocket is spoken here")


def _limited(receive: Receive) -> Receive:
    """Bodies that are longer than they said, or have no length, end at the limit."""
    taken = 0

    async def limited() -> Message:
        nonlocal taken
        message = await receive()
        taken += len(message.get("body", b""))
        if taken > LARGEST_BODY:
            return {"type": "http.disconnect"}
        return message

    return limited


def _with_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in _HEADERS.items():
                headers[name] = value
        await send(message)

    return sending
