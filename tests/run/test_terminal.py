"""What the terminal shows during a run."""

from __future__ import annotations

import io
import math
import os
import re
import time

import pytest
from rich.console import Console

from grouprl.forward.progress import PROGRESS
from grouprl.trainer.terminal import COLUMNS, Terminal

METRICS = {
    "reward": 0.75, "accuracy": 0.5, "completions/mean_length": 31.26, "frac_reward_zero_std": 0.25, "kl": 0.0123,
    "sampler_learner_gap": 3.2e-6, "tokens_per_second": 12345.6, "time/rollout": 1.234, "time/reference": 0.25,
    "time/learn": 0.5,
}  # fmt: skip


def terminal(*, interactive: bool = False) -> tuple[Terminal, io.StringIO]:
    written = io.StringIO()
    console = Console(file=written, force_terminal=interactive, width=140, highlight=False, soft_wrap=True)
    return Terminal(console), written


def test_a_step_is_one_line_under_its_headings() -> None:
    shown, written = terminal()
    shown.heading()
    shown.step(7, 60, METRICS)
    heading, line = written.getvalue().splitlines()
    assert heading.split() == ["step", "reward", "correct", "length", "signal", "KL", "gap", "tok/s", "sample", "learn"]
    assert line.split() == ["7/60", "0.75", "50%", "31.3", "75%", "0.012", "3e-06", "12,346", "1.23s", "0.75s"]
    ends = [match.end() for match in re.finditer(r"\S+", heading)][1:]
    assert [match.end() for match in re.finditer(r"\S+", line)][1:] == ends  # right under one another


def test_a_table_compares_two_evaluations() -> None:
    shown, written = terminal()
    before = {"greedy_accuracy": 0.25, "greedy_interval": (0.1, 0.4), "mean_length": 12.34, "problems": 500}
    after = {**before, "greedy_accuracy": 0.975, "pass_at_8": 1.0}
    shown.comparison(before, after)
    text = written.getvalue()
    assert "500 held-out problems" in text
    assert re.search(r"greedy accuracy │ +25\.0% │ +97\.5%", text)
    assert re.search(r"mean length +│ +12\.3 │ +12\.3", text)
    assert re.search(r"pass at 8 +│ +- │ +100\.0%", text)
    assert "interval" not in text
    assert "│ problems" not in text


def test_without_a_verifier_a_step_has_no_share_of_correct_ones_and_a_table_what_there_is() -> None:
    shown, written = terminal()
    shown.step(1, 2, {name: value for name, value in METRICS.items() if name != "accuracy"} | {"kl": math.nan})
    assert written.getvalue().split()[:6] == ["1/2", "0.75", "-", "31.3", "75%", "-"]
    shown.comparison({"unverified_share": 0.5, "problems": 1}, {"mean_length": 12.34, "problems": 1})
    text = written.getvalue()
    assert re.search(r"^1 held-out problem *$", text, re.MULTILINE)
    assert re.search(r"mean length +│ +- │ +12\.3", text)
    assert re.search(r"unverified share │ +50\.0% │ +-", text)
    assert "greedy" not in text
    shown.comparison({"problems": 7}, {"problems": 7})
    assert written.getvalue() == text
    assert "worked share:" not in text
    shown.comparison({"problems": 1, "worked_share": 0.5}, {"problems": 1, "worked_share": 0.5})
    assert "worked share: completions with an equation" in written.getvalue()


def test_the_legend_names_columns_that_exist() -> None:
    shown, written = terminal()
    shown.legend()
    named = re.findall(r"(?:^|\. )([\w, ]+):", written.getvalue())
    assert {one for names in named for one in names.split(", ")} <= {heading for heading, *_ in COLUMNS}
    assert len(named) == 4


def test_text_is_never_taken_for_markup() -> None:
    shown, written = terminal()
    shown.say("[bold]\\boxed{7}[/bold] [red")
    assert written.getvalue() == "[bold]\\boxed{7}[/bold] [red\n"


def test_a_file_gets_lines_without_bars_or_colors() -> None:
    shown, written = terminal()
    with shown.progress("evaluate", 10) as advance:
        advance(10)
    with shown.training(2, 0, 8) as bars:
        bars.sampled(8)
        bars.stepped()
        shown.step(1, 2, METRICS)
    with shown.status("drawing"):
        shown.say("done")
    assert "\x1b" not in written.getvalue()
    assert [line.split()[0] for line in written.getvalue().splitlines()] == ["1/2", "done"]


def test_a_terminal_gets_bars_that_count() -> None:
    shown, written = terminal(interactive=True)
    with shown.progress("evaluate before", 10) as advance:
        advance(4)
        advance(3)
        assert "evaluate before" in _last_frame(shown, written)
    assert "7/10" in written.getvalue()
    with shown.training(5, 2, 8) as bars:
        bars.sampled(3)
        bars.sampled(5)
        bars.stepped()
        assert (bars.progress.tasks[bars.steps].completed, bars.progress.tasks[bars.completions].completed) == (3, 0)
        bars.sampled(2)
    assert "3/5" in written.getvalue()
    assert "2/8" in written.getvalue()


def _last_frame(shown: Terminal, written: io.StringIO) -> str:
    shown.say("")  # printing draws the bars anew
    return written.getvalue()


def test_a_full_output_is_given_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with open("/dev/full", "w") as full:
        monkeypatch.setattr("sys.stdout", full)
        terminal = Terminal()
        for _ in range(3):
            terminal.say("a line" * 5000)  # raised "No space left on device"
        assert os.path.samestat(os.fstat(full.fileno()), os.stat(os.devnull))


def test_a_log_file_gets_a_line_about_long_work_with_what_is_done_and_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grouprl.trainer.terminal.QUIET", 0.1)
    text = io.StringIO()
    terminal = Terminal(Console(file=text, width=200))
    with terminal.progress("evaluate", 300) as advance:
        advance(100)
        with PROGRESS.doing(lambda: "stage learn"):
            time.sleep(0.35)
    lines = text.getvalue().splitlines()
    assert 1 <= len(lines) <= 4
    assert all(line.strip().startswith("evaluate: 100 of 300, about ") for line in lines)
    assert all("(stage learn)" in line for line in lines)
    with terminal.status("loading the model"):
        time.sleep(0.25)
    assert "loading the model, after 0." in text.getvalue()
    before = text.getvalue()
    with terminal.progress("short", 1) as advance:
        advance(1)
    time.sleep(0.2)
    assert text.getvalue() == before, "nothing after the end, and nothing about short work"
