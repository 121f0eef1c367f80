"""An OpenEnv server by its address: what the policy sees, and what happens when the server does not do its part."""

import time
from collections.abc import Iterator
from threading import Event, Thread

import pytest
from websockets.sync.server import serve

from grouprl.config.environment import EnvironmentConfig
from grouprl.environments.base import Call, Fault, Opening, Verdict
from grouprl.environments.openenv import OpenEnvEnvironment, OpenEnvSource, _Session
from grouprl.types import Problem, UserError
from openenv_server import OpenEnvServer

LIMITS = EnvironmentConfig(tool_seconds=1.0, result_characters=200)
PROBLEM = Problem("p-3", "Count.", {"target": 3})
GONE = "the environment is gone, because the server "
# As the policy reads them: in transformers' order of keys, without pydantic's titles.
SHOWN = {
    "type": "object",
    "properties": {"step": {"type": "integer", "description": "How much."}},
    "required": ["step"],
}


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
