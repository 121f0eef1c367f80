"""No reward function can stop, corrupt or outlive a run: whatever one does to a completion stays with it."""

from __future__ import annotations

import asyncio
import ctypes
import math
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from grouprl.config.run import ScoringConfig
from grouprl.rewards.calls import Invalid, RewardCall, gather
from grouprl.rewards.workers.pool import RewardPool
from grouprl.rewards.workers.zygote import MOST
from grouprl.types import UserError
from misbehaving import DEEDS, STAYING, misbehaves

LIMITS = ScoringConfig(workers=2, seconds=1.5, cpu_seconds=10, memory_mib=256)
NORMAL = ["fine", "also fine"]

# What is said of the completion, and of no other.
VERDICTS = {
    "raise": "raised ZeroDivisionError: division by zero (misbehaving.py:",
    "leave": "raised SystemExit: leaving (misbehaving.py:",
    "sleep": "took longer than 0.6 s",
    "hold the interpreter": "took longer than 0.6 s",
    "ignore signals": "took longer than 0.6 s",
    "segmentation fault": "crashed its process (SIGSEGV)",
    "abort": "crashed its process (SIGABRT)",
    "exit": "ended its process with code 3",
    "kill itself": "crashed its process (SIGKILL)",
    "memory": "needed more than 256 MiB of memory",
    "huge": "gave 1e+31, expected at most 1e+30 in size",
    "real-time signal": "crashed its process (signal 40)",
    "fake answer": "wrote into the connection of its worker",
    "half an answer": "took longer than 0.6 s",
    "wrong class": "not a text",
    "mute error": "raised MuteError: no message",
    "odd letters": "raised ValueError: bad \N{REPLACEMENT CHARACTER} \N{REPLACEMENT CHARACTER} char (misbehaving.py:",
}


def pool_of(limits: ScoringConfig = LIMITS, **functions: Any) -> RewardPool:
    return RewardPool({name: cloudpickle.dumps(function) for name, function in functions.items()}, limits)


@pytest.fixture(scope="module")
def pool() -> Iterator[RewardPool]:
    with pool_of(it=misbehaves) as made:
        yield made


def scored(pool: RewardPool, *texts: str) -> list[Any]:
    return gather(pool.submit(RewardCall("it", {"completions": list(texts)}))).values


def test_every_deed_has_its_verdict() -> None:
    assert VERDICTS.keys() | {"leak", "burn", "child that stays"} == DEEDS.keys()  # which have tests of their own


@pytest.fixture(scope="module")
def impatient() -> Iterator[RewardPool]:
    with pool_of(LIMITS.model_copy(update={"seconds": 0.6}), it=misbehaves) as made:
        yield made


@pytest.mark.parametrize("deed", VERDICTS)
def test_a_completion_that_cannot_be_judged_is_invalid_alone(
    pool: RewardPool, impatient: RewardPool, deed: str
) -> None:
    one = impatient if "took longer" in VERDICTS[deed] else pool
    first, bad, last = scored(one, "fine", deed, "fine")
    assert (first, last) == (1.0, 1.0)
    assert isinstance(bad, Invalid)
    assert bad.reason.startswith(VERDICTS[deed])
    assert scored(one, *NORMAL) == [1.0, 1.0]


def test_the_pool_is_whole_again_within_two_seconds_of_a_kill(pool: RewardPool) -> None:
    scored(pool, *NORMAL)
    before = set(pool.pids)
    assert len(before) == LIMITS.workers
    for pid in before:
        os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + 2.0
    while before & set(pool.pids) or len(pool.pids) < LIMITS.workers:  # while nothing is asked of it
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert [gather(pool.submit(RewardCall("it", {"completions": ["fine"]}))).values for _ in range(20)] == [[1.0]] * 20
    assert not before & set(pool.pids)


def test_a_killed_zygote_is_replaced(pool: RewardPool) -> None:
    for pid in zygotes():
        os.kill(pid, signal.SIGKILL)
    assert scored(pool, *NORMAL) == [1.0, 1.0]


def test_what_a_killed_worker_started_is_killed_too() -> None:
    with pool_of(it=misbehaves) as pool:
        (verdict,) = scored(pool, "child that stays")
        assert isinstance(verdict, Invalid)
        assert scored(pool, "fine") == [1.0]
        assert not any(b"sleep\0" + STAYING.encode() in line for line in command_lines())


@pytest.mark.slow
def test_cpu_time_is_limited_where_the_clock_is_not() -> None:
    with pool_of(ScoringConfig(workers=1, seconds=60.0, cpu_seconds=1), it=misbehaves) as pool:
        assert scored(pool, "burn") == [Invalid("used more than 1 s of CPU time")]
        assert scored(pool, "fine") == [1.0]


def test_a_leak_costs_no_completion_its_reward() -> None:
    """Each call leaks 40 of 256 MiB: the workers are replaced before they run out."""
    with pool_of(it=misbehaves) as pool:
        seen: set[int] = set()
        for _ in range(14):
            assert scored(pool, "leak") == [1.0]
            seen.update(pool.pids)
        assert len(seen) > LIMITS.workers


def test_the_first_failures_are_not_hidden_behind_other_groups() -> None:
    """Single completions go before waiting groups, so that a run full of failures stops early."""
    order: list[str] = []
    with pool_of(ScoringConfig(workers=1), it=misbehaves) as pool:
        calls = [pool.submit(RewardCall("it", {"completions": [text, "fine"]})) for text in ("raise", "fine", "fine")]
        alone = calls[0].result()
        for name, call in (("group", calls[2]), ("alone", alone[0]), ("alone", alone[1])):
            call.add_done_callback(lambda _, name=name: order.append(name))
        assert [gather(call).values for call in calls[1:]] == [[1.0, 1.0]] * 2
    assert order[0] == "alone"


def test_nothing_outlives_the_run() -> None:
    with pool_of(it=misbehaves) as pool:
        scored(pool, *NORMAL)
        pool.submit(RewardCall("it", {"completions": ["hold the interpreter"]}))
        pool.submit(RewardCall("it", {"completions": ["sleep"]}))
        time.sleep(0.2)
        pids = pool.pids
    assert pids
    gone(pids)


@pytest.mark.slow
def test_a_killed_run_takes_its_workers_along() -> None:
    script = """
    import os, signal, sys, time
    import cloudpickle
    from misbehaving import misbehaves
    from grouprl.config.run import ScoringConfig
    from grouprl.rewards.calls import RewardCall, gather
    from grouprl.rewards.workers.pool import RewardPool
    pool = RewardPool({"it": cloudpickle.dumps(misbehaves)}, ScoringConfig(workers=2))
    calls = [pool.submit(RewardCall("it", {"completions": ["fine"]})) for _ in range(64)]
    [gather(call) for call in calls]
    pool.submit(RewardCall("it", {"completions": ["hold the interpreter"]}))
    pool.submit(RewardCall("it", {"completions": ["ignore signals"]}))
    time.sleep(0.3)
    print(*pool.pids, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
    """
    died = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert died.returncode == -signal.SIGKILL
    pids = list(map(int, died.stdout.split()))
    assert len(pids) == 2
    gone(pids)


async def twice(completions: list[str], **columns: Any) -> list[float]:
    return [2.0 * len(text) for text in completions]


def test_functions_of_all_forms_are_called_with_what_they_ask_for() -> None:
    def only_completions(completions: list[str]) -> list[float]:
        return [float(len(text)) for text in completions]

    def a_column(prompts: list[str], answer: list[Any], *, level: Any = None) -> list[bool]:
        return [gold is None and level is None for gold in answer]

    factor = 3
    with pool_of(
        plain=only_completions,
        column=a_column,
        coroutine=twice,
        closure=lambda completions, **_: [factor * len(text) for text in completions],
        instance=Length(4),
    ) as pool:
        keywords = {"prompts": ["?", "?"], "completions": ["a", "bb"], "completion_ids": [[1], [2]], "other": [1, 2]}
        got = {name: gather(pool.submit(RewardCall(name, keywords))).values for name in pool.signatures()}
    assert got == {
        "plain": [1.0, 2.0],
        "column": [True, True],
        "coroutine": [2.0, 4.0],
        "closure": [3.0, 6.0],
        "instance": [5.0, 6.0],
    }


class Length:
    def __init__(self, more: int) -> None:
        self.more = more

    def __call__(self, completions: list[str], **columns: Any) -> list[float]:
        return [float(len(text) + self.more) for text in completions]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("def reward(completions):\n    return [1.0] * len(completions)\n", None),
        ("import nowhere_to_be_found\n", "No module named 'nowhere_to_be_found'"),
        ("def reward(:\n", "SyntaxError"),
        ("def another(): ...\n", "expected 'reward' in"),
        ("reward = 3\n", "expected reward to be a function, got 3"),
        ("def reward(completions, /): ...\n", "expected parameters that can be given by name"),
        ("import os; os._exit(1)\n", "a process that ended"),
    ],
)
def test_a_file_that_cannot_be_loaded_is_reported_at_once(tmp_path: Path, text: str, told: str | None) -> None:
    path = tmp_path / "my_rewards.py"
    path.write_text(text)
    with RewardPool({"it": (str(path), "reward", {})}, LIMITS) as pool:
        if told is None:
            assert scored(pool, *NORMAL) == [1.0, 1.0]
            return
        with pytest.raises(UserError, match="reward") as error:
            pool.signatures()
        assert told in str(error.value)


def test_a_file_is_imported_once_and_only_in_the_workers(tmp_path: Path) -> None:
    path = tmp_path / "my_rewards.py"
    path.write_text(
        "import os\nfrom dataclasses import dataclass\nfrom beside_it import base\n"
        f"with open({str(tmp_path / 'imports')!r}, 'a') as file:\n    print(os.getpid(), file=file)\n"
        "@dataclass(frozen=True)\nclass Reward:\n    more: float = 0.0\n"
        "    def __call__(self, completions, **columns):\n        return [base + self.more for _ in completions]\n"
    )
    (tmp_path / "beside_it.py").write_text("base = 10.0\n")
    with RewardPool({"it": (str(path), "Reward", {"more": 0.5})}, LIMITS) as pool:
        assert [scored(pool, "a") for _ in range(20)] == [[10.5]] * 20
    (importer,) = map(int, (tmp_path / "imports").read_text().split())
    assert importer != os.getpid()
    assert "beside_it" not in sys.modules


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "column", [lambda: sys._getframe(), lambda: nested(100_000), lambda: ctypes.pointer(ctypes.c_int(3))],
    ids=["frame", "nested", "pointer"],
)  # fmt: skip
def test_columns_that_cannot_travel_are_told(pool: RewardPool, column: Callable[[], Any]) -> None:
    with pytest.raises(UserError, match="columns that can be sent to another process"):
        gather(pool.submit(RewardCall("it", {"completions": ["fine"], "column": [column()]})))
    assert scored(pool, *NORMAL) == [1.0, 1.0]


def test_a_stopped_worker_is_ended_whatever_is_sent_to_it() -> None:
    def stops(completions: list[str], **columns: Any) -> list[float]:
        if completions[0] == "stop":
            threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGSTOP)).start()
        return [1.0 for _ in completions]

    with pool_of(ScoringConfig(workers=1, seconds=1.0), it=stops) as pool:
        assert scored(pool, "stop") == [1.0]
        time.sleep(0.3)
        started = time.monotonic()
        (verdict,) = scored(pool, "x" * 4_000_000)
        assert verdict in (1.0, Invalid("took longer than 1 s"))
        assert time.monotonic() - started < 5.0
        assert scored(pool, "fine") == [1.0]


def test_a_reward_that_deadlocks_or_is_stopped_in_its_call_costs_its_completion_alone() -> None:
    def hangs(completions: list[str], **columns: Any) -> list[float]:
        lock = threading.Lock()
        for text in completions:
            if text == "deadlock":
                lock.acquire()
                lock.acquire()
            if text == "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
        return [1.0 for _ in completions]

    with pool_of(ScoringConfig(workers=1, seconds=0.5), it=hangs) as pool:
        started = time.monotonic()
        late = Invalid("took longer than 0.5 s")
        assert scored(pool, "fine", "deadlock", "stop", "fine") == [1.0, late, late, 1.0]
        assert time.monotonic() - started < 10.0


def test_a_stopped_zygote_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grouprl.rewards.workers.zygote.REQUEST_SECONDS", 0.5)
    others = set(zygotes())  # of the pool that the tests of this file share
    with pool_of(ScoringConfig(workers=1, seconds=1.0), it=misbehaves) as pool:
        assert scored(pool, "fine") == [1.0]
        (zygote,) = set(zygotes()) - others
        os.kill(zygote, signal.SIGSTOP)
        assert scored(pool, "exit", "fine")[1] == 1.0
        assert scored(pool, "fine") == [1.0]


def test_what_a_file_starts_while_it_is_imported_keeps_nothing_open(tmp_path: Path) -> None:
    path = tmp_path / "my_rewards.py"
    path.write_text(
        "import os, subprocess\nsubprocess.Popen(['sleep', '30'], close_fds=False)\n"
        "def reward(completions):\n    return [1.0 for _ in completions]\n"
    )
    others = set(zygotes())
    with RewardPool({"it": (str(path), "reward", {})}, LIMITS) as pool:
        assert scored(pool, "fine") == [1.0]
        (zygote,) = set(zygotes()) - others
        os.kill(zygote, signal.SIGKILL)
        started = time.monotonic()
        assert scored(pool, "fine") == [1.0]
        assert time.monotonic() - started < 3.0


def test_a_function_that_forks_answers_once() -> None:
    def forks(completions: list[str], **columns: Any) -> list[float]:
        child = os.fork() == 0
        if child:
            time.sleep(0.3)
        return [99.0 if child else float(len(text)) for text in completions]

    with pool_of(ScoringConfig(workers=1), it=forks) as pool:
        for text in ("a", "bb"):
            assert scored(pool, text) == [float(len(text))]
            time.sleep(0.35)


def test_what_an_earlier_completion_left_behind_is_not_held_against_a_later_one(tmp_path: Path) -> None:
    def leaves(completions: list[str], **columns: Any) -> list[float]:
        for text in completions:
            if text == "leave":
                (tmp_path / "gone").mkdir()
                os.chdir(tmp_path / "gone")
                (tmp_path / "gone").rmdir()
        return [float(len(os.getcwd()) > 0) for _ in completions]

    with pool_of(ScoringConfig(workers=1), it=leaves) as pool:
        scored(pool, "leave")
        assert scored(pool, "fine") == [1.0]


def test_a_coroutine_keeps_its_event_loop() -> None:
    held: dict[str, Any] = {}

    async def remembers(completions: list[str], **columns: Any) -> list[float]:
        loop = asyncio.get_running_loop()
        return [float(held.setdefault("loop", loop) is loop) for _ in completions]

    with pool_of(ScoringConfig(workers=1), it=remembers) as pool:
        assert [scored(pool, "a") for _ in range(3)] == [[1.0]] * 3


def test_a_closed_pool_takes_no_more_calls() -> None:
    with pool_of(it=misbehaves) as pool:
        scored(pool, "fine")
    with pytest.raises(ValueError, match="got a closed one"):
        scored(pool, "fine")


def test_a_pool_that_is_closed_while_it_loads_says_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    for _ in range(3):
        with pool_of(it=misbehaves):
            pass
    time.sleep(0.3)
    assert capfd.readouterr() == ("", "")


def test_floats_arrive_as_they_were() -> None:
    values = [0.1, -1e-300, 1e30, 2**-1074, 1 / 3, math.pi, -0.0]
    with pool_of(it=lambda completions, **_: values) as pool:
        assert [value.hex() for value in scored(pool, *["a"] * len(values))] == [value.hex() for value in values]


def zygotes() -> list[int]:
    """Those of this process."""
    children = map(int, Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split())
    return [pid for pid in children if b"grouprl.rewards.workers.zygote" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def command_lines() -> list[bytes]:
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            lines.append(path.read_bytes())
        except OSError:
            continue
    return lines


def gone(pids: list[int]) -> None:
    """Every process ends within two seconds."""
    deadline = time.monotonic() + 2.0
    while any(alive(pid) for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


# What reward functions print, and a file that hangs while it is loaded

LOUD = """
import os, subprocess, sys

def loud(completions, **columns):
    print("first line of " + completions[0])
    sys.stdout.flush()
    for _ in range(300):
        os.write(1, b"x" * 100_000)  # 30 MB
    subprocess.run(["sh", "-c", "yes | head -c 1000000"], check=True)
    return [1.0]

def quiet(completions, **columns):
    print("a word about " + completions[0])
    return [2.0]
"""


def test_the_first_bytes_of_each_call_are_printed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "loud.py"
    file.write_text(LOUD)
    with RewardPool({name: (str(file), name, {}) for name in ("loud", "quiet")}, ScoringConfig(workers=1)) as rewards:
        for name, value in (("loud", 1.0), ("quiet", 2.0), ("loud", 1.0), ("quiet", 2.0)):
            assert gather(rewards.submit(RewardCall(name, {"completions": [name]}))).values == [value]
    out, err = capfd.readouterr()
    assert out == ""
    assert err.count("first line of loud") == err.count("a word about quiet") == 2
    assert 2 * MOST <= len(err) <= 2 * MOST + 300
    assert err.count("printed over 16384 bytes in a call") == 1


@pytest.mark.slow
def test_a_file_that_hangs_while_it_is_loaded_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grouprl.rewards.workers.processes._LOADING_SECONDS", 2.0)
    fine, hangs = tmp_path / "fine.py", tmp_path / "hangs.py"
    fine.write_text("def good(completions, **columns):\n    return [1.0]\n")
    hangs.write_text("while True:\n    pass\n")
    with (
        RewardPool(
            {"good": (str(fine), "good", {}), "bad": (str(hangs), "bad", {})}, ScoringConfig(workers=1)
        ) as rewards,
        pytest.raises(UserError, match=rf"reward bad of {hangs}: expected to be loaded within 2 s"),
    ):
        rewards.signatures()
