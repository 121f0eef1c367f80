"""A run that makes no progress ends with the stacks of its threads, and one that does continues."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from forked import command, forked
from grouprl.cli.watchdog import end_when_stalled, stall_seconds
from grouprl.forward.progress import PROGRESS
from grouprl.rewards.workers.pool import RewardPool
from grouprl.rollout.decoding import Decoding
from grouprl.types import UserError
from small_runs import checkpoint_names, grouprl, metrics, small_settings, write_rows


def stuck_here(until: threading.Event) -> None:
    until.wait(20)


def test_work_without_a_mark_is_named_with_its_stacks(tmp_path: Path):
    ended, codes = threading.Event(), list[int]()

    def end(code: int) -> None:
        codes.append(code)
        ended.set()

    with (tmp_path / "console").open("w+") as console, end_when_stalled(0.4, console=console, end=end):
        blocked = threading.Thread(target=stuck_here, args=(ended,), name="lane-1")
        blocked.start()
        with PROGRESS.doing(lambda: "reward short of problem p-7, worker 42"):
            stuck_here(ended)
        blocked.join(5)
    said = (tmp_path / "console").read_text()
    assert codes == [1]
    assert "no progress for 0.4 s" in said
    assert "in progress: MainThread: reward short of problem p-7, worker 42" in said
    assert said.count("in stuck_here") == 2
    assert f"lane-1 0x{blocked.ident:016x}" in said


@pytest.mark.slow
def test_marks_or_no_work_at_all_end_nothing():
    ended = threading.Event()
    with end_when_stalled(0.3, console=io.StringIO(), end=lambda code: ended.set()):
        time.sleep(0.6)  # a download: nothing was begun
        until = time.monotonic() + 0.9
        while time.monotonic() < until:
            PROGRESS.mark()
            time.sleep(0.02)
    time.sleep(0.4)  # it has ended
    assert not ended.is_set()


def test_a_limit_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch):
    for text in ("0", "soon", "-3", "inf", "nan"):
        monkeypatch.setenv("GROUPRL_STALL_SECONDS", text)
        with pytest.raises(UserError, match="GROUPRL_STALL_SECONDS: expected seconds above 0"):
            stall_seconds()
    monkeypatch.delenv("GROUPRL_STALL_SECONDS")
    assert stall_seconds() == 1800


# Whole runs in a process of their own. The second decoding of step 3 never returns, or every reward thread hangs.


def hangs_after(calls: int, owner: Any, name: str) -> None:
    """From then on, the method never returns."""
    right, made = getattr(owner, name), [0]

    def wrong(*arguments: Any) -> Any:
        made[0] += 1
        if made[0] > calls:
            threading.Event().wait()
        return right(*arguments)

    setattr(owner, name, wrong)


STALLS = {
    "sampler": (30, Decoding, "advance"),
    "reward": (8, RewardPool, "_run"),
    "nothing": (10**9, Decoding, "advance"),
}


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "named"), [
    ("sampler", "MainThread: sampling groups of"), ("reward", r"reward \w+ of problem \S+, worker \d+"),
])  # fmt: skip
def test_a_run_that_stalls_ends_and_resumes_from_its_checkpoint(tiny: Path, tmp_path: Path, kind: str, named: str):
    rows = write_rows(tmp_path / "rows.jsonl", [{"prompt": f"Say {n}.", "answer": str(n)} for n in range(30)])
    reward = tmp_path / "mine.py"
    reward.write_text(
        "def letters(completions, **columns):\n    return [sum(map(str.islower, str(c))) / 100 for c in completions]\n"
    )
    settings = [
        *small_settings(tmp_path, name="run", checkpoint={"every": 1}, evaluation={"problems": 1, "samples": 0}),
        *("task.name=jsonl", f"task.path={rows}", f"model.path={tiny}"),
        f"rewards={json.dumps([{'name': 'letters', 'path': str(reward)}])}",
    ]

    def train(stall: str, *more: str) -> tuple[int, str]:
        def run() -> None:
            os.environ["GROUPRL_STALL_SECONDS"] = "3"
            hangs_after(*STALLS[stall])
            command(*more, *settings)()

        with forked(run) as process:
            said = process.err.read()
            return process.wait(), said

    code, said = train(kind, "train")
    assert code == 1, said
    assert "no progress for 3 s" in said
    assert re.search(named, said)
    assert "stage " in said
    assert "in wrong" in said  # the stack of the thread that waits
    assert len(checkpoint_names(tmp_path / "run")) >= 1
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    reason, step = summary["reason"], summary["step"]
    assert re.fullmatch(rf"no progress for 3 s \(GROUPRL_STALL_SECONDS\), in progress: .*{named}.*", reason)
    assert f"Failed in step {step}: {reason}" in grouprl("report", tmp_path / "run").text
    code, said = train("nothing", "train", "--resume")
    assert code == 0, said
    assert [row["step"] for row in metrics(tmp_path / "run")] == [1, 2, 3, 4, 5, 6]


@pytest.mark.slow
def test_a_suspended_process_is_not_a_stall(tmp_path: Path):
    """Ctrl-Z for longer than the limit, then fg."""
    program = (
        "import sys, time\n"
        "from grouprl.forward.progress import PROGRESS\n"
        "from grouprl.cli.watchdog import end_when_stalled\n"
        "with end_when_stalled(1.0):\n"
        "    PROGRESS.mark()\n"
        "    print('going', flush=True)\n"
        "    sys.stdin.readline()\n"
        "    PROGRESS.mark()\n"
        "    time.sleep(0.5)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    process.stdout.readline()
    os.kill(process.pid, signal.SIGSTOP)
    time.sleep(1.5)
    os.kill(process.pid, signal.SIGCONT)
    process.communicate("\n", timeout=20)
    assert process.returncode == 0


def test_every_verb_that_computes_is_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GROUPRL_STALL_SECONDS", "soon")
    (tmp_path / "config.yaml").touch()
    for verb in ("sft", "dpo", "reward-model", "eval", "sample", "check-reward", "replay", "selftest"):
        ended = grouprl(verb, *{"eval": ["abacus"], "replay": [tmp_path, "1"]}.get(verb, []))
        assert (ended.code, "GROUPRL_STALL_SECONDS" in ended.text) == (2, True), verb
