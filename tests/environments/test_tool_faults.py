"""Whatever a tool does, it harms its own episode only, and becomes an observation that says what happened."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from faulty_tools import STAYING, Faulty, act, act_later
from grouprl.config.environment import EnvironmentConfig
from grouprl.environments.base import Call, Fault, Observation, Verdict
from grouprl.environments.processes import ProcessSource
from grouprl.environments.shapes import open_tools
from grouprl.types import Problem, UserError

LIMITS = EnvironmentConfig(tool_seconds=2.0, episode_seconds=10.0, result_characters=300, memory_mib=96)
TIMEOUT, CRASH, EXCEPTION = Fault.TIMEOUT, Fault.CRASH, Fault.EXCEPTION
LATE = "error: act took longer than 2 s"
WROTE = "error: act wrote into the connection of its process"
NOT_TEXT = "error: TypeError: expected text, a number, a list or a dict as the tool's result, got "

# way, its fault, and the whole text or the start of it
FAULTS: list[tuple[str, Fault | None, str]] = [
    ("segfault", CRASH, "error: act crashed its process (SIGSEGV)"),
    ("kill itself", CRASH, "error: act was killed, or closed the connection of its process"),
    ("os._exit", CRASH, "error: act ended its process with code 3"),
    ("close all", CRASH, "error: act "),
    ("write bytes", CRASH, WROTE),
    ("write a long frame", CRASH, WROTE),
    ("write a list", CRASH, WROTE),
    ("write nan", CRASH, WROTE),
    ("write another place", CRASH, WROTE),
    ("write another request", CRASH, WROTE),
    ("write deep JSON", CRASH, WROTE),
    ("break builtins", CRASH, "error: act "),
    ("sys.exit", EXCEPTION, "error: SystemExit: 3"),
    ("rude", EXCEPTION, "error: _Rude: rude"),
    ("generator exit", EXCEPTION, "error: GeneratorExit: "),
    ("mute", EXCEPTION, "error: _Mute: no message"),
    ("long error", EXCEPTION, "error: ValueError: " + "y" * 288 + "… [cut: 10,000,012 characters]"),
    ("error", EXCEPTION, "error: ValueError: Game over."),
    ("import", EXCEPTION, "error: ModuleNotFoundError: No module named 'no_such_module'"),
    ("recursion", EXCEPTION, "error: RecursionError: maximum recursion depth exceeded"),
    ("deep", EXCEPTION, "error: RecursionError: "),
    ("memory", EXCEPTION, "error: needed more than 96 MiB of memory"),
    ("fill", EXCEPTION, "error: needed more than 96 MiB of memory"),
    ("threads", EXCEPTION, "error: RuntimeError: can't start new thread"),
    ("generator", EXCEPTION, NOT_TEXT + "generator"),
    ("itself", EXCEPTION, NOT_TEXT + "function"),
    ("huge number", EXCEPTION, "error: ValueError: Exceeds the limit"),
    ("unprintable", EXCEPTION, "error: OSError: cannot be shown"),
    ("image", EXCEPTION, "error: TypeError: expected text, got an image, which no model here reads"),
    ("10 MB", None, "x" * 300 + "… [cut: 10,485,760 characters]"),
    ("huge JSON", None, '{"key 0": [0, 0, '),
    ("fork once", None, "child False"),
    ("nan", None, "nan"),
    ("none", None, ""),
    ("bytes", None, r"b'\xff\x00'"),
    ("coroutine", None, "awaited"),
    ("circle", None, "[1, [...]]"),
    ("unicode", None, "héllo \U0001f600 \u202e\u05d0"),
    ("lone surrogate", None, "a\N{REPLACEMENT CHARACTER}b"),
    ("surrogate in JSON", None, '["\N{REPLACEMENT CHARACTER}"]'),
    ("control characters", None, "\x00\x1b[2J"),
    ("text that lies", None, "the truth"),
    ("text block", None, "seen"),
    ("replace json", None, "replaced"),
    ("leave a thread", None, "left"),
    ("late thread", None, "soon"),
    ("leave a child", None, "left"),
    ("leave a daemon", None, "left"),
    ("close its loop", None, "closed"),
    ("print much", None, "printed"),
    ("close stdout", None, "closed"),
]
GONE = "the environment is gone, because it ended its process with code 3"
PROBLEM = Problem("p", "What is it?")


@pytest.fixture(scope="module")
def source() -> Iterator[ProcessSource]:
    with open_tools([act, act_later], Faulty, limits=LIMITS) as opened:
        yield opened.ready()


def one(environment: Any, tool: str, **arguments: Any) -> Observation:
    (found,) = environment.call([Call(tool, arguments)])
    return found  # type: ignore[no-any-return]


@pytest.mark.parametrize(("way", "fault", "text"), FAULTS, ids=[way for way, _, _ in FAULTS])
def test_a_fault_of_a_tool_is_an_observation(source: ProcessSource, way: str, fault: Fault | None, text: str) -> None:
    check_fault(source, way, fault, text)
    assert source.processes.pids == []
    assert not sleeping()


def test_tools_that_do_not_end_are_ended_side_by_side(source: ProcessSource) -> None:
    ways = "hang", "spin", "deadlock", "stop itself", "ignore signals", "hang in a child", "slow to print", "late hang"
    with ThreadPoolExecutor(4) as threads:  # more would make a loaded machine late
        list(threads.map(lambda way: check_fault(source, way, TIMEOUT, LATE), ways))
    assert source.processes.pids == []
    assert not sleeping()


def check_fault(source: ProcessSource, way: str, fault: Fault | None, text: str) -> None:
    environment, other = source.open(PROBLEM), source.open(PROBLEM)
    try:
        other.reset(PROBLEM, 0)
        failed, beside = environment.call([Call("act", {"way": way}), Call("act", {"way": "fine"})])
        assert (failed.fault, failed.text[: len(text)]) == (fault, text)
        assert len(failed.text) < 400
        assert beside.text == "fine"
        time.sleep(0.2 if way.startswith("late") else 0)
        assert [one(environment, "act", way="fine").text for _ in range(3)] == ["fine"] * 3
        assert one(other, "count_and", way="fine").text == "1: fine"
    finally:
        environment.close()
        other.close()


@pytest.mark.parametrize("way", ["bomb", "orphans"])
def test_a_tool_that_forks_without_end_is_stopped(source: ProcessSource, way: str) -> None:
    """By the number of its processes, on a loaded machine by the clock; nothing of it stays."""
    environment = source.open(PROBLEM)
    failed = one(environment, "act", way=way)
    assert failed.text in ("error: act started more than 64 processes", LATE)
    assert failed.fault in (CRASH, TIMEOUT)
    assert one(environment, "act", way="fine").text == "fine"
    environment.close()
    assert source.processes.pids == []


def test_an_object_is_gone_with_its_process_and_later_calls_say_so(source: ProcessSource) -> None:
    environment = source.open(PROBLEM)
    environment.reset(PROBLEM, 0)
    calls = [Call("count_and", {"way": way}) for way in ("fine", "error", "fine", "os._exit", "fine")]
    assert [(each.text, each.fault) for each in environment.call([*calls, Call("later", {"way": "fine"})])] == [
        ("1: fine", None),
        ("error: ValueError: Game over.", EXCEPTION),
        ("3: fine", None),
        ("error: count_and ended its process with code 3; the environment is gone", CRASH),
        (f"error: count_and cannot be called: {GONE}", CRASH),
        (f"error: later cannot be called: {GONE}", CRASH),
    ]
    assert environment.verdict() == Verdict(None, f"the environment's reward: cannot be called: {GONE}")
    assert one(environment, "act", way="fine").text == "fine"  # a function needs no object
    environment.close()


def test_coroutines_of_an_object_run_side_by_side_and_a_lost_one_loses_no_other(source: ProcessSource) -> None:
    environment = source.open(PROBLEM)
    environment.reset(PROBLEM, 0)
    calls = [Call("later", {"way": "hang"}), Call("count_and", {"way": "fine"}), Call("later", {"way": "fine"})]
    assert [each.text for each in environment.call(calls)] == [
        "error: later took longer than 2 s; the environment is gone",
        "1: fine",
        "fine",
    ]
    environment.close()


def test_a_coroutine_function_fails_like_a_function(source: ProcessSource) -> None:
    environment = source.open(PROBLEM)
    ways = ("hang", "sys.exit", "os._exit", "coroutine", "error")
    assert [each.fault for each in environment.call([Call("act_later", {"way": way}) for way in ways])] == [
        *(TIMEOUT, EXCEPTION, CRASH, None, EXCEPTION)
    ]
    environment.close()


@pytest.mark.parametrize(
    ("way", "got"),
    [
        ("error", "ValueError: Game over."),
        ("os._exit", "ended its process with code 3; the environment is gone"),
        ("generator", "TypeError: expected text"),
        ("image", "TypeError: expected text, got an image"),
    ],
)
def test_a_reset_that_fails_is_the_users_to_fix(source: ProcessSource, way: str, got: str) -> None:
    problem = Problem("p-7", "?", {"way": way})
    environment = source.open(problem)
    with pytest.raises(UserError, match="environment of problem 'p-7': expected `reset` to begin") as raised:
        environment.reset(problem, 0)
    assert got in str(raised.value)
    environment.close()


@pytest.mark.parametrize(
    ("way", "reason"),
    [
        ("nan", "TypeError: expected a finite number as the reward of get_reward, got nan"),
        ("bytes", "TypeError: expected a finite number as the reward of get_reward, got b'"),
        ("error", "ValueError: Game over."),
        ("segfault", "crashed its process (SIGSEGV); the environment is gone"),
        ("none", ""),
    ],
)
def test_a_reward_that_fails_is_unscored_and_never_zero(source: ProcessSource, way: str, reason: str) -> None:
    problem = Problem("p", "?", {"reward": way})
    environment = source.open(problem)
    environment.reset(problem, 0)
    verdict = environment.verdict()
    assert verdict.reward is None
    assert verdict.reason.startswith(f"the environment's reward: {reason}" if reason else "")
    assert bool(reason) == bool(verdict.reason)
    environment.close()


def test_a_closed_episode_answers_nothing_and_closes_once(source: ProcessSource) -> None:
    environment = source.open(PROBLEM)
    environment.reset(PROBLEM, 0)
    environment.close()
    environment.close()
    found = environment.call([Call("act", {"way": "fine"}), Call("count_and", {"way": "fine"})])
    closed = "cannot be called: the episode is closed"
    assert [each.text for each in found] == [f"error: act {closed}", f"error: count_and {closed}"]
    assert environment.verdict().reason == f"the environment's reward: {closed}"
    assert source.processes.pids == []


def test_a_call_in_progress_ends_when_its_episode_is_closed(source: ProcessSource) -> None:
    limits = LIMITS.model_copy(update={"tool_seconds": 60.0})
    with open_tools([act], limits=limits) as patient, ThreadPoolExecutor(1) as threads:
        environment = patient.open(PROBLEM)
        running = threads.submit(one, environment, "act", way="hang")
        while not patient.processes.pids:
            time.sleep(0.01)
        time.sleep(0.1)
        environment.close()
        assert running.result(5.0).text == "error: act was stopped: the episode is closed"
        assert patient.processes.pids == []


def test_a_killed_zygote_is_replaced() -> None:
    """Its processes end with it; episodes without an object continue."""
    with open_tools([act], Faulty, limits=LIMITS) as source:
        environment, stateful = source.open(PROBLEM), source.open(PROBLEM)
        stateful.reset(PROBLEM, 0)
        assert one(environment, "act", way="kill its parent").fault == CRASH
        assert one(environment, "act", way="fine").text == "fine"
        assert one(stateful, "count_and", way="fine").fault == CRASH


def sleeping() -> list[Path]:
    """The processes that tools left behind."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            found += [path] * (f"sleep\0{STAYING}".encode() in path.read_bytes())
    return found
