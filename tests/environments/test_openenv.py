"""An OpenEnv server by its address: what the policy sees, and what happens when the server does not do its part."""

import json
import time
from collections.abc import Iterator
from threading import Event, Thread
from types import TracebackType
from typing import Any, Self

import pytest
from websockets.datastructures import Headers
from websockets.http11 import Request, Response
from websockets.sync.server import ServerConnection, serve

from grouprl.config.environment import EnvironmentConfig
from grouprl.environments.base import Call, Fault, Opening, Verdict
from grouprl.environments.openenv import OpenEnvEnvironment, OpenEnvSource, _Session
from grouprl.types import Problem, UserError

LIMITS = EnvironmentConfig(tool_seconds=1.0, result_characters=200)
PROBLEM = Problem("p-3", "Count.", {"target": 3})
GONE = "the environment is gone, because the server "
# As the policy reads them: in transformers' order of keys, without pydantic's titles.
SHOWN = {
    "type": "object",
    "properties": {"step": {"type": "integer", "description": "How much."}},
    "required": ["step"],
}


STEP = {"title": "Count", "type": "integer", "description": "How much."}
PARAMETERS = {"type": "object", "properties": {"step": STEP}, "required": ["step"]}
ACTION = {"description": "Counts.", "properties": {"metadata": {"type": "object"}, "step": STEP}, "required": ["step"]}
NAMED = {"properties": {"type": {"const": "call_tool"}, "tool_name": {"type": "string"}, "arguments": {}}}
TOOL = {"name": "increment", "description": "Increments the counter.", "input_schema": PARAMETERS}


class OpenEnvServer:
    """Answers as openenv 0.10 does where GroupRL asks it (core/env_server/http_server.py), or otherwise.

    Its environment is a counter, offered as one action, or with `calls_tools` as a tool that is called by name.
    """

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
        Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()


def _send(connection: ServerConnection, data: object, kind: str = "observation") -> None:
    text = json.dumps({"type": kind, "data": data})
    connection.send([text[: len(text) // 2], text[len(text) // 2 :]])  # fragmented, as a server may do


@pytest.fixture(scope="module")
def server() -> Iterator[OpenEnvServer]:
    with OpenEnvServer() as opened:
        yield opened


@pytest.fixture
def environment(server: OpenEnvServer) -> Iterator[OpenEnvEnvironment]:
    opened = OpenEnvSource(server.url, LIMITS).open(PROBLEM)
    opened.reset(PROBLEM, 4)
    yield opened
    opened.close()


def test_an_action_is_a_tool_and_its_rewards_add_up(server: OpenEnvServer) -> None:
    environment = OpenEnvSource(server.url + "/", LIMITS).open(PROBLEM)
    assert environment.tools == (
        {"type": "function", "function": {"name": "step", "description": "Counts.", "parameters": SHOWN}},
    )
    assert environment.reset(PROBLEM, 4) == Opening("Reach 3.")
    assert server.resets[-1] == {"target": 3, "seed": 4}
    found = environment.call([Call("step", {"step": 1}), Call("step", {"step": 107}), Call("step", {"step": "x"})])
    assert [(each.text, each.reward, each.done) for each in found[:2]] == [("1", 0.5, False), ("108", 53.5, True)]
    assert (found[2].fault, found[2].text) == (
        Fault.ARGUMENTS,
        "error: step: expected step of type integer, got 'x' (string)",
    )
    assert environment.call([Call("jump", {})])[0].fault == Fault.UNKNOWN_TOOL
    assert environment.reply("hello") is None
    assert environment.verdict() == Verdict(54.0)
    environment.close()


def test_tools_of_a_server_are_called_by_name() -> None:
    with OpenEnvServer(calls_tools=True) as server:
        environment = OpenEnvSource(server.url, LIMITS).open(PROBLEM)
        assert [tool["function"] for tool in environment.tools] == [
            {"name": "increment", "description": "Increments the counter.", "parameters": SHOWN}
        ]
        environment.reset(PROBLEM, 0)
        found = environment.call([Call("increment", {"step": step}) for step in (1, 2, 105)])
        assert [(each.text, each.fault) for each in found] == [
            *(("1", None), ("3", None), ("error: the tool failed", Fault.EXCEPTION))
        ]
        environment.close()


@pytest.mark.parametrize(
    ("step", "fault", "text"),
    [
        (103, Fault.ARGUMENTS, "error: no such step"),
        (104, Fault.EXCEPTION, "error: it failed"),
        (106, None, "x" * 200 + "… [cut: 100,000 characters]"),
    ],
)
def test_an_answer_that_says_what_is_wrong_ends_nothing(
    environment: OpenEnvEnvironment, step: int, fault: Fault | None, text: str
) -> None:
    found = environment.call([Call("step", {"step": step}), Call("step", {"step": 1})])
    assert [(each.fault, each.text) for each in found] == [(fault, text), (None, str(1 + step))]


@pytest.mark.parametrize(
    ("step", "fault", "why"),
    [
        (100, Fault.TIMEOUT, "took longer than 1 s"),
        (101, Fault.CRASH, "closed the connection"),
        (102, Fault.CRASH, "gave no answer of OpenEnv 0.10"),
    ],
)
def test_a_connection_without_an_answer_is_dropped(
    server: OpenEnvServer, environment: OpenEnvEnvironment, step: int, fault: Fault, why: str
) -> None:
    """The late answer reaches nobody: later calls say that the environment is gone."""
    before = server.connections
    found = environment.call([Call("step", {"step": step}), Call("step", {"step": 1})])
    assert [(each.fault, each.text) for each in found] == [
        (fault, f"error: the server {why}; the environment is gone"),
        (Fault.CRASH, f"error: step cannot be called: {GONE}{why}"),
    ]
    assert environment.verdict() == Verdict(None, GONE + why)
    assert server.connections == before


def test_a_server_that_is_not_there_or_another_one_is_refused(server: OpenEnvServer) -> None:
    with OpenEnvServer() as gone:
        address = gone.url
    with pytest.raises(UserError, match=r"expected an OpenEnv 0.10 server, got .*connection attempts failed: start it"):
        OpenEnvSource(address, LIMITS).ready()
    for schema in ({"detail": "Not Found"}, [1], {"action": 3}):
        with (
            OpenEnvServer(schema=schema) as other,
            pytest.raises(UserError, match=r"expected an OpenEnv 0.10 server, got another answer"),
        ):
            OpenEnvSource(other.url, LIMITS).ready()


def test_a_closed_episode_answers_nothing(environment: OpenEnvEnvironment) -> None:
    environment.close()
    (found,) = environment.call([Call("step", {"step": 1})])
    assert found.text == "error: step cannot be called: the episode is closed"
    assert environment.verdict().reward is None


def test_a_message_that_a_server_does_not_read_has_the_same_deadline() -> None:
    reading = Event()
    with serve(lambda connection: reading.wait(10), "127.0.0.1", 0, max_queue=1) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        session = _Session(f"http://127.0.0.1:{server.socket.getsockname()[1]}", 0.6)
        began = time.monotonic()
        for _ in range(3):
            with pytest.raises(OSError):
                session.request({"type": "reset", "data": "x" * (12 << 20)})
        reading.set()
        session.close()
        assert time.monotonic() - began < 5


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://localhost", "http://", ""])
def test_an_address_without_its_scheme_is_one_sentence(url: str) -> None:
    with pytest.raises(UserError, match=r"environment.url: expected an address with http:// or ws://, got "):
        OpenEnvSource(url)


def test_an_address_of_a_websocket_is_one_too(server: OpenEnvServer) -> None:
    assert OpenEnvSource(server.url.replace("http", "ws")).ready().url == server.url
