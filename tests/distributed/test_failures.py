"""A rank that is killed, stopped or fails ends the group with one message; torchrun resumes the run by itself."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ranked_runs import Place, ended, start, torchrun
from small_runs import assert_same_run, grouprl

EXACT = {"exact": True}


def ranks_of(process: subprocess.Popen[str]) -> dict[int, int]:
    """The process of each rank."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            words = dict(word.partition("=")[::2] for word in (entry / "environ").read_text().split("\0"))
        except (OSError, ValueError, UnicodeDecodeError):
            continue
        if parent == process.pid and "RANK" in words:
            found[int(words["RANK"])] = int(entry.name)
    return found


def left_behind(folder: Path) -> list[str]:
    """Commands of living processes that name the folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            try:
                words = (entry / "cmdline").read_text().replace("\0", " ")
            except OSError:
                continue
            found += [words] if str(folder) in words else []
    return found


def wait_for(condition: Callable[[], bool], seconds: float = 90.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "waited too long"
        time.sleep(0.05)


def recorded(run: Path) -> int:
    lines = run / "metrics.jsonl"
    return len(lines.read_text().splitlines()) if lines.exists() else 0


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_torchrun_resumes_after_a_kill_and_the_run_is_the_same(tiny: Path, tmp_path: Path, victim: int) -> None:
    place = Place(tiny, tmp_path)
    long = {
        "steps": 30,
        "checkpoint": {"every": 4, "keep": 2},
        "learner": {"learning_rate": 1e-4},
        "distributed": EXACT,
    }
    process = start(2, ["-m", "grouprl", *place.arguments("killed", **long)], options=["--max-restarts=1"])
    wait_for(lambda: recorded(place.runs / "killed") >= 6)
    os.kill(ranks_of(process)[victim], signal.SIGKILL)
    end = ended(process)
    assert end.code == 0, end.text
    whole = grouprl(*place.arguments("whole", **long))
    assert whole.code == 0, whole.text
    assert_same_run(place.runs / "whole", place.runs / "killed", step=30)
    assert left_behind(tmp_path) == []


@pytest.mark.slow
def test_a_stopped_rank_is_named_within_the_limit(tiny: Path, tmp_path: Path) -> None:
    place = Place(tiny, tmp_path)
    process = start(2, ["-m", "grouprl", *place.arguments("stopped", steps=500, distributed={"seconds": 4.0})])
    wait_for(lambda: recorded(place.runs / "stopped") >= 2)
    pid = ranks_of(process)[1]
    os.kill(pid, signal.SIGSTOP)
    began = time.monotonic()
    end = ended(process)
    assert end.code == 1
    assert f"rank 1 (process {pid} on " in end.text
    assert end.text.count("error: expected the ") == 1
    assert time.monotonic() - began < 4 + 1 + 30 + 15  # the limit, the last word, torchrun's patience, its end
    assert left_behind(tmp_path) == []
    resumed = torchrun(2, place.arguments("stopped", "--resume", steps=recorded(place.runs / "stopped") + 2))
    assert resumed.code == 0, resumed.text


@pytest.mark.slow
def test_a_killed_rank_is_named(tiny: Path, tmp_path: Path) -> None:
    place = Place(tiny, tmp_path)
    process = start(4, ["-m", "grouprl", *place.arguments("killed", steps=500)])
    wait_for(lambda: recorded(place.runs / "killed") >= 2)
    pid = ranks_of(process)[2]
    os.kill(pid, signal.SIGKILL)
    end = ended(process)
    assert end.code == 1
    assert str(pid) in end.text
    assert end.text.count("error: expected the ") <= 1  # torchrun may end the others before they notice
    assert left_behind(tmp_path) == []


@pytest.mark.slow
def test_bad_input_is_one_sentence(tiny: Path, tmp_path: Path) -> None:
    place = Place(tiny, tmp_path)
    three = torchrun(3, place.arguments("three", distributed=EXACT))
    assert three.code == 1
    assert three.text.count("error: distributed.exact: expected 1, 2, 4 or 8 ranks, got 3") == 1
    assert not (place.runs / "three").exists()
    assert left_behind(tmp_path) == []


@pytest.mark.slow
def test_a_signal_to_torchrun_stops_the_run_after_its_step(tiny: Path, tmp_path: Path) -> None:
    place = Place(tiny, tmp_path)
    process = start(2, ["-m", "grouprl", *place.arguments("stopped", steps=500)])
    wait_for(lambda: recorded(place.runs / "stopped") >= 2)
    process.terminate()
    end = ended(process)
    made = recorded(place.runs / "stopped")
    assert f"Stopped after step {made} of 500. Continue with --resume." in end.text
    assert [path.name for path in (place.runs / "stopped" / "checkpoints").iterdir()] == [f"step-{made:06d}"]
    assert left_behind(tmp_path) == []
