"""Who gets into the lab: its own host, its own origin, a link that works once, and a second secret for changes."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient, WebSocketDenialResponse

from grouprl.lab.guard import LARGEST_BODY, PAGE_TOKEN, Guard, Sessions
from grouprl.lab.server import create_app

HOST = "http://127.0.0.1:8123"
READS = ["/", "/static/app.js", "/api/session", "/api/runs", "/api/recipes", "/api/runs/demo", "/nothing"]


@pytest.fixture
def sessions() -> Sessions:
    return Sessions()


@pytest.fixture
def stranger(tmp_path: Path, sessions: Sessions) -> Iterator[TestClient]:
    """A browser without a session."""
    with TestClient(Guard(create_app(tmp_path), sessions, 8123), base_url=HOST, follow_redirects=False) as client:
        yield client


@pytest.fixture
def page(stranger: TestClient, sessions: Sessions) -> TestClient:
    """A browser that came by a link."""
    answer = stranger.get("/", params={"token": sessions.new_link()})
    assert answer.status_code == 200
    stranger.base_url = HOST + home_of(answer)
    return stranger


def home_of(answer: Any) -> str:
    """Where the lab lies, below a path that nobody can guess."""
    (home,) = set(re.findall(r"/[\w-]{20,}/", answer.text))
    assert f"Path={home};" in answer.headers["set-cookie"] + ";"
    return home


def test_a_link_opens_the_lab_once(stranger: TestClient, sessions: Sessions):
    link = sessions.new_link()
    answer = stranger.get("/", params={"token": link})
    assert answer.status_code == 200
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "samesite=strict" in cookie.lower()
    assert link not in cookie
    assert stranger.get(home_of(answer)).status_code == 200
    assert "<main" in stranger.get(home_of(answer)).text
    assert stranger.get("/").status_code == 401
    again = stranger.get("/", params={"token": link})
    assert again.status_code == 403
    assert "Enter" in again.text


@pytest.mark.parametrize("link", ["guessed", "", "é", "a" * 5000])
def test_a_guessed_link_opens_nothing_and_a_head_uses_none_up(stranger: TestClient, sessions: Sessions, link: str):
    real = sessions.new_link()
    assert stranger.get("/", params={"token": link}).status_code in (401, 403)
    assert not stranger.cookies
    assert stranger.head("/", params={"token": real}).status_code == 401
    assert stranger.get("/", params={"token": real}).status_code == 200


def test_without_a_session_nothing_is_shown(stranger: TestClient):
    assert {stranger.get(path).status_code for path in READS} == {401}
    stranger.cookies.set("grouprl_lab_8123", "guessed")
    assert {stranger.get(path).status_code for path in READS} == {401}


# DNS rebinding: a name of the attacker's that leads here


@pytest.mark.parametrize(
    "hosts",
    [
        *(["evil.example:8123"], ["127.0.0.1:8124"], ["127.0.0.1"], ["127.0.0.1.evil.example:8123"], [""]),
        *(["127.0.0.1:8123", "evil.example"], ["127.0.0.1:8123"] * 2),
    ],
)
def test_another_host_is_refused(page: TestClient, hosts: list[str]):
    assert {page.get(path, headers=[("host", host) for host in hosts]).status_code for path in READS} == {421}


def test_localhost_is_this_machine_and_the_port_of_http_is_left_out(
    page: TestClient, tmp_path: Path, sessions: Sessions
):
    cookie = "; ".join(f"{name}={value}" for name, value in page.cookies.items())
    answer = page.get("/api/runs", headers={"host": "localhost:8123", "cookie": cookie})
    assert answer.status_code == 200
    with TestClient(Guard(create_app(tmp_path), sessions, 80), base_url="http://127.0.0.1") as client:
        assert client.get("/", params={"token": sessions.new_link()}).status_code == 200


# CSRF: another site that sends what the user's browser sends


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:8124"},
        {"origin": "https://127.0.0.1:8123"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
def test_another_site_is_refused(page: TestClient, headers: dict[str, str]):
    assert page.get("/api/runs", headers=headers).status_code == 403
    token = page.get("/api/session").json()["token"]
    changing = {**headers, PAGE_TOKEN: token, "content-type": "application/json"}
    assert page.post("/api/runs", headers=changing, content="{}").status_code == 403


def test_a_link_may_be_followed_from_elsewhere(stranger: TestClient, sessions: Sessions):
    """From a terminal in a web page, or a chat."""
    answer = stranger.get("/", params={"token": sessions.new_link()}, headers={"sec-fetch-site": "cross-site"})
    # Not by a redirect, which a browser would take for another request from there.
    assert (answer.status_code, "url=/" in answer.text) == (200, True)


@pytest.mark.parametrize("token", [None, "", "guessed", "of another session"])
def test_a_change_needs_the_page_s_own_token(page: TestClient, sessions: Sessions, token: str | None):
    if token == "of another session":
        token = page.get("/api/session").json()["token"]
        page.get(f"{HOST}/", params={"token": sessions.new_link()})
    headers = {"content-type": "application/json"} | ({} if token is None else {PAGE_TOKEN: token})
    for path in ("/api/runs", "/api/runs/demo/stop", "/api/runs/demo/resume", "/api/runs/demo/fork"):
        assert page.post(path, headers=headers, content="{}").status_code == 403


TAGS = '{"tags": [], "note": "", "archived": false}'


def posted(page: TestClient, content: Any, **headers: str) -> Any:
    """The answer to a note on a run that is not there: 404 where the body was read."""
    headers = {"content-type": "application/json", **{name.replace("_", "-"): one for name, one in headers.items()}}
    token = {PAGE_TOKEN: page.get("/api/session").json()["token"]}
    return page.post("/api/runs/none/notes", headers={**token, **headers}, content=content)


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        ("application/json", 404),
        ("Application/JSON; charset=UTF-8", 404),
        ('application/json;charset="utf-8"', 404),
        ("application/json; charset=utf-16", 415),
        ("application/json; charset=utf-8; charset=utf-16", 415),
        ("application/json; boundary=x", 415),
        ("application/json, text/plain", 415),
        ("application/jsonp", 415),
        ("text/plain", 415),
        ("", 415),
    ],
)
def test_a_body_has_the_type_json_in_utf_8(page: TestClient, kind: str, status: int):
    assert posted(page, TAGS, content_type=kind).status_code == status


def test_a_body_has_a_bounded_size_that_is_known_before(page: TestClient):
    assert posted(page, b" " * (LARGEST_BODY + 1)).status_code == 413
    assert posted(page, iter([b"{}"])).status_code == 413  # no length
    assert posted(page, iter([TAGS.encode()]), transfer_encoding="chunked").status_code == 413
    assert posted(page, TAGS, content_encoding="gzip").status_code == 415


@pytest.mark.parametrize(
    "body",
    [
        *(TAGS.encode(name) for name in ("utf-16", "utf-32-be", "utf-8-sig")),
        *(b'{"note": "caf\xe9"}', b'{"note": "\xed\xa0\x80"}', rb'{"note": "\ud800"}', rb'{"\udfff": 1}'),
        *(b'{"name": "a", "name": "b"}', b'{"a": {"name": "a", "name": "b"}}', b"\x00{}", b"null", b'"{}"', b"", b"[]"),
        *(b'{"step": NaN}', b'{"step": -Infinity}', b'{"step": ' + b"9" * 5000 + b"}", b'{"a": 01}', b'{"a": 1} {}'),
        *(b'{"a": ' * 1000 + b"1" + b"}" * 1000, b'{"a": ' + b"[" * 30_000 + b"]" * 30_000 + b"}"),
    ],
)
def test_what_is_no_json_object_in_utf_8_is_refused(page: TestClient, body: bytes):
    answer = posted(page, body)
    assert (answer.status_code, "expected a JSON object in UTF-8" in answer.json()["error"]) == (400, True)


def test_other_methods_are_refused(page: TestClient):
    for method in ("PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"):
        assert page.request(method, "/api/runs").status_code == 405


def test_every_answer_says_what_the_browser_may_do(page: TestClient):
    for path in ("/", "/static/app.js", "/api/runs", "/nothing"):
        headers = page.get(path).headers
        policy = headers["content-security-policy"].split("; ")
        assert policy[0] == "default-src 'none'"
        assert not [rule for rule in policy if "unsafe" in rule or "*" in rule or "http" in rule]
        assert (headers["x-content-type-options"], headers["referrer-policy"]) == ("nosniff", "no-referrer")


def test_no_path_leaves_the_page_s_own_files(page: TestClient):
    for path in ("../app.py", "%2e%2e/app.py", "..%2fapp.py", "/etc/passwd", "%00"):
        assert page.get(f"/static/{path}").status_code == 404


def test_a_websocket_is_refused_in_a_sentence(page: TestClient):
    with pytest.raises(WebSocketDenialResponse) as refused, page.websocket_connect("/api/runs"):
        pass
    assert (refused.value.status_code, "no WebSocket" in refused.value.text) == (426, True)
    assert page.get("/api/runs", headers={"Upgrade": "websocket", "Connection": "Upgrade"}).status_code == 426
