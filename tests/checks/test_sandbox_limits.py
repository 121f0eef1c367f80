"""Programs that try to starve the machine, or to outlive the sandbox; each on every backend here."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from escapes import HELPER, ORDINARY, REACHABLE, ROOT, ends, running, told_by
from grouprl.checks.sandbox import BACKENDS, CallFailure, Limits, ReturnValue, backends, run_in_sandbox

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sandboxes need Linux")


def test_memory_is_bounded(backend: str):
    program = "import mmap\ndef attack():\n    held = []\n    while True:\n        held.append(bytearray(1 << 24))"
    [once, again, mapped, after] = run_in_sandbox(
        program,
        ["attack()", "bytearray(1 << 40)", "[mmap.mmap(-1, 1 << 24) for _ in range(99)]", "len(bytearray(1 << 20))"],
        backend=backend,
    ).outcomes
    assert once == again == CallFailure("MemoryError: ")
    assert isinstance(mapped, CallFailure)
    assert after == ReturnValue(1 << 20)


def test_files_are_bounded(backend: str):
    program = """
def attack():
    written = 0
    try:
        for number in range(40):
            with open(f"/tmp/{number}", "wb", buffering=0) as file:
                for _ in range(5):
                    written += file.write(bytes(1 << 20))
    except OSError:
        pass
    return written
"""
    [outcome] = run_in_sandbox(program, ["attack()"], limits=Limits(files_mib=8), backend=backend).outcomes
    assert isinstance(outcome, ReturnValue)
    assert outcome.value <= 8 << 20
    assert (outcome.value > 0) == (backend == "bubblewrap")


def test_threads_are_bounded(backend: str):
    program = """
import threading, time
def attack():
    started = 0
    try:
        for _ in range(100):
            threading.Thread(target=time.sleep, args=(2,), daemon=True).start()
            started += 1
    except RuntimeError:
        pass
    return started
"""
    [outcome] = run_in_sandbox(
        program, ["attack()"], limits=Limits(threads=8, memory_mib=4096), backend=backend
    ).outcomes
    assert isinstance(outcome, ReturnValue)
    exact = os.geteuid() == 0 or backend == "bubblewrap"  # else other processes of the same user count as well
    assert 1 <= outcome.value <= (9 if exact else 9 + backends._tasks())


BUSY = """
import threading, time
def attack():
    threads = [threading.Thread(target=time.sleep, args=(0.01,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    return len(threads)
"""


@pytest.mark.skipif(REACHABLE is None, reason="no interpreter of the system's own")
@pytest.mark.parametrize("backend_name", BACKENDS)
def test_threads_start_for_an_ordinary_user_with_many_processes(backend_name: str):
    options = ORDINARY if os.geteuid() == 0 else {}
    others = [subprocess.Popen(["sleep", "60"], **options) for _ in range(24)]
    try:
        answers = told_by(str(REACHABLE), backend_name, {"threads": BUSY}, ROOT / "src", **options)
    finally:
        for other in others:
            other.kill()
            other.wait()
    if reason := answers["reason"]:
        pytest.skip(reason)
    assert answers["threads"] == 8


@pytest.mark.parametrize(
    "flood",
    [
        "print('x' * 5000)",
        "[tried(os.write, number, b'x' * 5000) for number in range(3, 512)]",
        "[tried(os.write, number, b'null\\n' * 5000) for number in range(3, 512)]",
    ],
)
def test_a_flood_ends_the_program(backend: str, flood: str):
    result = run_in_sandbox(
        f"{HELPER}\nwhile True:\n    {flood}", ["1"], limits=Limits(output_kib=32, cpu_seconds=9), backend=backend
    )
    assert result.error == "wrote more than 32 KiB"
    assert result.outcomes == (CallFailure("no result: wrote more than 32 KiB"),)
    assert len(result.output) <= 32 << 10
    assert result.seconds < 3


@pytest.mark.parametrize("result", ["'x' * 10**7", "[0] * 10**6", "nested(10**5)", "itself()"])
def test_a_huge_result_is_no_result(backend: str, result: str):
    program = """
def nested(depth):
    value = []
    for _ in range(depth):
        value = [value]
    return value
def itself():
    value = []
    value.append(value)
    return value
"""
    [outcome] = run_in_sandbox(program, [result], backend=backend).outcomes
    assert isinstance(outcome, CallFailure)


def test_time_ends_a_program_that_ignores_every_signal(backend: str):
    program = """
import signal, time
for number in range(1, 65):
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
while True:
    time.sleep(1)
"""
    before = running()
    result = run_in_sandbox(program, ["1"], limits=Limits(seconds=0.5), backend=backend)
    assert result.error == "took longer than 0.5 s"
    assert 0.5 <= result.seconds < 2
    assert ends(running() - before)


def test_cpu_time_ends_a_program_with_threads(backend: str):
    program = "import hashlib, threading\ndef burn():\n    while True:\n        hashlib.sha256(bytes(1 << 20))\n"
    program += "for _ in range(4):\n    threading.Thread(target=burn).start()\nburn()"
    result = run_in_sandbox(program, ["1"], limits=Limits(seconds=20.0, cpu_seconds=1), backend=backend)
    assert result.error == "was killed: CPU time or memory"
    assert result.seconds < 10


def test_nothing_survives_a_session_of_its_own_a_daemon_or_closed_channels(backend: str):
    program = """
import os, threading, time
try:
    os.setsid()
except OSError:
    pass
try:
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(60)
except OSError:
    pass
threading.Thread(target=time.sleep, args=(60,)).start()
os.closerange(0, 64)
time.sleep(60)
"""
    before = running()
    result = run_in_sandbox(program, ["1"], limits=Limits(seconds=1.5), backend=backend)
    # Bubblewrap holds the channels open until all is over.
    assert result.error == {"bubblewrap": "took longer than 1.5 s", "landlock": "closed its channels"}[backend]
    assert result.seconds < 3
    assert ends(running() - before)


def test_nothing_survives_the_process_that_started_it(backend: str, tmp_path: Path):
    before = running()
    program = "import time\nprint('up', flush=True)\ntime.sleep(60)"
    runner = f"""
from grouprl.checks.sandbox import Limits, run_in_sandbox
run_in_sandbox({program!r}, limits=Limits(seconds=60.0), backend={backend!r})
"""
    with subprocess.Popen([sys.executable, "-c", runner]) as process:
        deadline = time.monotonic() + 60
        while len(running() - before) < 1 and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(0.3)
        started = running() - before
        os.kill(process.pid, signal.SIGKILL)
    assert started
    assert ends(started)


@pytest.mark.parametrize("crash", ["ctypes.string_at(1)", "dive(0)", "os._exit(0)", "sys.exit(0)"])
def test_a_crash_is_a_result_and_the_next_program_runs(backend: str, crash: str):
    program = "import ctypes, os, sys\nsys.setrecursionlimit(10**9)\ndef dive(n):\n    return [n, *map(dive, [n + 1])]"
    first = run_in_sandbox(f"{program}\n{crash}", ["1"], backend=backend)
    assert first.outcomes[0].reason.startswith("no result")
    assert first.error
    within = run_in_sandbox(program, ["7", crash, "8"], backend=backend)
    assert within.outcomes[0] == ReturnValue(7)
    assert isinstance(within.outcomes[1], CallFailure)
    assert run_in_sandbox("x = 1", ["x"], backend=backend).outcomes == (ReturnValue(1),)


def test_deep_recursion_is_an_error_of_the_call_alone(backend: str):
    outcomes = run_in_sandbox("def f(n):\n    return f(n + 1)", ["f(0)", "2"], backend=backend).outcomes
    assert isinstance(outcomes[0], CallFailure)
    assert "RecursionError" in outcomes[0].reason
    assert outcomes[1] == ReturnValue(2)


def test_a_sandbox_is_fresh(backend: str):
    run_in_sandbox(
        "import builtins, os\nbuiltins.x = 1\nopen('/tmp/fresh_x', 'w') if os.access('/tmp', 2) else 0", backend=backend
    )
    [name, file] = run_in_sandbox("import os", ["x", "os.path.exists('/tmp/fresh_x')"], backend=backend).outcomes
    assert name == CallFailure("NameError: name 'x' is not defined")
    assert file == ReturnValue(False)
