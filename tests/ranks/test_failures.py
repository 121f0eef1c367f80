"""A rank that is killed, stopped or fails ends the group with one message; torchrun resumes the run by itself."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import torch.distributed as dist
from safetensors.torch import load_file

import grouprl as package
from grouprl import Trainer, UserError
from grouprl.ranks import launch
from processes import wait_for
from ranked_runs import SUPPORT, Place, ended, start, torchrun
from small_runs import Ended, assert_same_run, grouprl, small_config, tree

Processes = Callable[[], dict[int, str]]
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


def recorded(run: Path) -> int:
    lines = run / "metrics.jsonl"
    return len(lines.read_text().splitlines()) if lines.exists() else 0


def begun(place: Place, name: str, process: subprocess.Popen[str], steps: int) -> None:
    """Waits until a run has made some steps."""
    wait_for(lambda: recorded(place.runs / name) >= steps or process.poll() is not None)
    assert process.poll() is None, process.communicate()[0]


@pytest.fixture(scope="module")
def place(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tiny, tmp_path_factory.mktemp("failures"))


@pytest.mark.slow
def test_torchrun_resumes_after_each_kill_and_the_run_is_the_same(place: Place) -> None:
    """Rank 1 is killed, then rank 0, and rank 0 again when all steps are made."""
    settings = {"steps": 16, "checkpoint": {"every": 3, "keep": 2}, "learner": {"learning_rate": 1e-4}}
    whole = grouprl(*place.arguments("whole", **settings, distributed=EXACT))
    assert whole.code == 0, whole.text
    program = [str(SUPPORT / "faulty_rank.py"), "killed_while_closing"]
    arguments = place.arguments("killed", **settings, distributed=EXACT)
    process = start(2, [*program, *arguments], options=["--max-restarts=3"])
    for victim, steps in ((1, 4), (0, 7)):
        begun(place, "killed", process, steps)
        before = ranks_of(process)
        os.kill(before[victim], signal.SIGKILL)
        wait_for(lambda before=before: len(set(ranks_of(process).values()) - set(before.values())) == 2)
    end = ended(process)
    assert end.code == 0, end.text
    assert end.text.count("killed while closing") == 1
    assert end.text.count("error: ") <= 3  # one for each kill, unless torchrun ends the other rank before it notices
    assert_same_run(place.runs / "whole", place.runs / "killed", step=16)
    assert (place.runs / "killed" / "report.html").exists()


@pytest.mark.slow
def test_ranks_end_when_torchrun_is_killed(place: Place, processes: Processes) -> None:
    process = start(2, ["-m", "grouprl", *place.arguments("orphaned", steps=500)])
    begun(place, "orphaned", process, 2)
    assert len(processes()) >= 3
    process.kill()
    process.communicate(timeout=10)  # to the end of the pipe, which the ranks hold
    wait_for(lambda: not processes(), seconds=5)


@pytest.mark.slow
def test_a_stopped_rank_is_named_within_the_limit(place: Place) -> None:
    settings = {"steps": 500, "distributed": {"seconds": 8.0}}  # the ranks begin within it, too
    process = start(2, ["-m", "grouprl", *place.arguments("stopped", **settings)])
    begun(place, "stopped", process, 2)
    pid = ranks_of(process)[1]
    os.kill(pid, signal.SIGSTOP)
    # Rank 0 waits for the limit, then for the last word of the others; torchrun would wait 30 s for the stopped one.
    wait_for(lambda: 0 not in ranks_of(process), seconds=8 + 1 + 20)
    os.kill(pid, signal.SIGKILL)
    end = ended(process)
    assert end.code == 1
    assert f"rank 1 (process {pid} on " in end.text
    assert end.text.count("error: expected the ") == 1
    steps = recorded(place.runs / "stopped")
    resumed = grouprl(*place.arguments("stopped", "--resume", steps=steps + 1, distributed={"seconds": 8.0}))
    assert resumed.code == 0, resumed.text


def assert_exploded(end: Ended, run: Path, said: str) -> None:
    """One rank said so, the run stopped, and no checkpoint has what exploded."""
    assert end.code == 1
    (sentence,) = [line for line in end.out.splitlines() if "error: " in line]
    assert re.fullmatch(f"error: .*{said}.*", sentence)
    assert recorded(run) < 20
    saved = sorted((run / "checkpoints").glob("*/**/*.safetensors"))
    assert saved
    for file in saved:
        assert all(tensor.isfinite().all() for tensor in load_file(file).values()), file


@pytest.mark.slow
def test_a_rank_whose_loss_explodes_ends_all(place: Place) -> None:
    arguments = place.arguments("gradients", steps=20, checkpoint={"every": 1, "keep": 99})
    end = ended(start(2, [str(SUPPORT / "faulty_rank.py"), "broken_gradients", *arguments]))
    assert_exploded(end, place.runs / "gradients", "not finite: loss, grad_norm.*stops after several such steps")


PROGRAM = """
import sys
from pathlib import Path
from faulty_rank import broken_weights
from grouprl import Trainer
from letter_rewards import letters
from small_runs import ROWS, small_config
broken_weights()
config = small_config(Path(sys.argv[2]), "weights", steps=20, checkpoint={"every": 1, "keep": 99})
Trainer(sys.argv[1], ROWS, [letters], config=config).train()
"""


@pytest.mark.slow
def test_a_rank_whose_weights_explode_ends_all_ranks_of_a_program(place: Place) -> None:
    program = place.folder / "program.py"
    program.write_text(PROGRAM)
    end = ended(start(2, [str(program), str(place.model), str(place.runs)]))
    said = "NaN or infinity into .* already went back to a checkpoint once, so it stops"
    assert_exploded(end, place.runs / "weights", said)
    assert "exitcode : 2" in end.text  # of the rank; torchrun's own is 1
    assert "UserError" not in end.text  # no traceback


@pytest.mark.slow
def test_a_signal_to_torchrun_stops_the_run_after_its_step(place: Place) -> None:
    process = start(2, ["-m", "grouprl", *place.arguments("asked", steps=500)])
    begun(place, "asked", process, 2)
    process.terminate()
    end = ended(process)
    made = recorded(place.runs / "asked")
    assert f"Stopped after step {made} of 500. Continue with --resume." in end.text
    assert [path.name for path in (place.runs / "asked" / "checkpoints").iterdir()] == [f"step-{made:06d}"]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_a_signal_in_an_evaluation_stops_every_rank_soon(place: Place, number: signal.Signals) -> None:
    long = {"problems": 3, "samples": 20_000}
    name = f"evaluated-{number.name}"
    process = start(2, ["-m", "grouprl", *place.arguments(name, steps=2, evaluation=long)])
    for _ in range(600):
        if (place.runs / name / "rollouts.sqlite").exists():
            break
        time.sleep(0.1)
    time.sleep(3)
    began = time.monotonic()
    process.send_signal(number)
    end = ended(process)
    assert time.monotonic() - began < 10  # 5 s on an idle machine
    assert "Stopped after step 0 of 2. Continue with --resume." in end.text, end.text
    resumed = torchrun(2, place.arguments(name, "--resume", steps=2))
    assert resumed.code == 0, resumed.text
    assert recorded(place.runs / name) == 2


@pytest.fixture
def under_torchrun(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """This process is as one that torchrun started, with a store that answers."""
    kept = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    variables = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(kept.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    for name, value in {**variables, "TORCHELASTIC_RESTART_COUNT": "0"}.items():
        monkeypatch.setenv(name, value)
    launch._whole_store.cache_clear()
    yield monkeypatch
    launch._whole_store.cache_clear()


def test_a_rank_ends_with_the_process_that_started_it() -> None:
    (begun, begins), (lives, alive) = os.pipe(), os.pipe()
    started = os.fork()
    if started == 0:  # as torchrun
        if os.fork() == 0:  # as a rank, which loads grouprl while its torchrun is there
            package.__parent__ = os.getppid()
            launch._end_with_torchrun()
            os.write(begins, b".")
            time.sleep(60)
        os.read(begun, 1)
        os._exit(0)
    os.close(alive)
    os.waitpid(started, 0)
    ends, _, _ = select.select([lives], [], [], 20)
    assert ends == [lives]  # closed by the last process that held it
    for end in (begun, begins, lives):
        os.close(end)


def test_what_torchrun_starts_again_continues_only_its_own_run(
    tiny: Path, tmp_path: Path, under_torchrun: pytest.MonkeyPatch
) -> None:
    place = Place(tiny, tmp_path)
    first, others = place.arguments("first", steps=2), place.arguments("others", steps=2)
    with under_torchrun.context() as without:
        without.delenv("TORCHELASTIC_RESTART_COUNT")
        assert grouprl(*others).code == 0
    assert grouprl(*first).code == 0
    before = tree(place.runs / "others")
    weights = tree(place.runs / "first" / "checkpoints")
    under_torchrun.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    again = grouprl(*first)
    assert again.code == 0, again.text
    assert tree(place.runs / "first" / "checkpoints") == weights
    assert recorded(place.runs / "first") == 2
    refused = grouprl(*others)
    assert refused.code == 2
    assert tree(place.runs / "others") == before
    asked = grouprl(*others, "--resume")
    assert "has finished all of its 2 steps" in asked.text


def test_an_error_of_a_program_on_ranks_is_shown_by_one(
    tmp_path: Path, under_torchrun: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    under_torchrun.setattr(sys, "excepthook", sys.excepthook)  # as it was, after the test
    under_torchrun.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError) as caught:
        Trainer(task="nowhere", config=small_config(tmp_path)).train()
    hook = partial(sys.excepthook, UserError, caught.value, caught.tb)
    for shown in ([f"error: {caught.value}"], []):  # the first rank, and another
        with pytest.raises(SystemExit, match="2"):
            hook()
        assert capfd.readouterr().err.splitlines() == shown


def test_a_number_of_ranks_that_does_not_fit_is_one_sentence(
    tiny: Path, tmp_path: Path, under_torchrun: pytest.MonkeyPatch
) -> None:
    place = Place(tiny, tmp_path)
    for name, value in (("WORLD_SIZE", "3"), ("LOCAL_WORLD_SIZE", "3"), ("LOCAL_RANK", "0")):
        under_torchrun.setenv(name, value)
    said = []
    for rank in ("0", "1"):
        under_torchrun.setenv("RANK", rank)
        end = grouprl(*place.arguments("three", distributed=EXACT))
        assert end.code == 2
        said.append(end.text)
    assert said[0].startswith("error: distributed.exact: expected 1, 2, 4 or 8 ranks, got 3")
    assert said[1] == ""
    assert not (place.runs / "three").exists()
