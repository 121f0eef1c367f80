"""Rewards use `trainer_state`, `log_extra` and `log_metric` as with TRL, and the run records their logs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from grouprl import Trainer, UserError, WeightedReward
from grouprl.config.run import ScoringConfig
from grouprl.record.read import read_rollouts
from grouprl.rewards.calls import Invalid, RewardCall, TrainingState, decode
from grouprl.rewards.configured import open_scorer
from grouprl.tools.export import export
from grouprl.types import Group, Problem
from groups import group_of
from letter_rewards import letters
from small_runs import ROWS, as_killed, assert_same_run, metrics, rollouts, small_config


def logging(completions: list[str], log_extra: Any, log_metric: Any, trainer_state: Any) -> list[float]:
    """Written for TRL."""
    log_extra("length", [len(text) for text in completions])
    log_extra("state", [f"{trainer_state.global_step}/{trainer_state.max_steps}"] * len(completions))
    log_metric("longest", max(map(len, completions)))
    return [float(len(text)) for text in completions]


async def late(completions: list[str], **keywords: Any) -> list[float]:
    keywords["log_extra"]("first", [text[:1] or None for text in completions])
    keywords["log_metric"]("longest", np.float32(10.0))
    return [0.0] * len(completions)


class Here:
    in_process = True

    def __call__(self, completions: list[str], log_extra: Any, log_metric: Any) -> list[float]:
        log_extra("place", np.arange(len(completions)))
        log_metric("together", len(completions))
        return [1.0] * len(completions)


GROUPS = [group_of(Problem("a", "?"), "x", "yyy"), group_of(Problem("b", "?"), "zz", "")]


def test_columns_and_the_mean_over_calls_come_back() -> None:
    rewards = [WeightedReward("mine", logging), WeightedReward("late", late), WeightedReward("here", Here())]
    with open_scorer(rewards, state=TrainingState(0, 9, 4.0)) as scorer:
        scorer.begin_step(3)
        found = scorer.finish([scorer.begin(one) for one in GROUPS])
        # "longest" of the calls: 3 and 2 of `mine`, 10 twice of `late`; one call of `here` for all four.
        assert scorer.logged() == {"reward_logs/longest": 6.25, "reward_logs/together": 4.0}
        scorer.begin_step(4)
        assert scorer.logged() == {}
    assert [one.extra for row in found for one in row] == [
        {"mine/length": 1, "mine/state": "2/9", "late/first": "x", "here/place": 0},
        {"mine/length": 3, "mine/state": "2/9", "late/first": "y", "here/place": 1},
        {"mine/length": 2, "mine/state": "2/9", "late/first": "z", "here/place": 2},
        {"mine/length": 0, "mine/state": "2/9", "late/first": None, "here/place": 3},
    ]
    assert [one.components["mine"] for row in found for one in row] == [1.0, 3.0, 2.0, 0.0]


def half(completions: list[str], log_extra: Any, log_metric: Any) -> list[float]:
    log_metric("calls", len(completions))
    log_extra("text", completions)
    if "bad" in completions:
        raise ValueError("bad")
    return [1.0] * len(completions)


def test_what_a_failed_call_logged_does_not_count() -> None:
    with open_scorer([WeightedReward("half", half)]) as scorer:
        (found,) = scorer.finish([scorer.begin(group_of(Problem("a", "?"), "x", "bad", "y"))])
        assert scorer.logged() == {"reward_logs/calls": 1.0}  # of "x" and of "y", each called alone
    assert [one.extra for one in found] == [{"half/text": "x"}, {"half/text": None}, {"half/text": "y"}]
    assert [one.valid for one in found] == [True, False, True]


UNRECORDED = [
    ("log_extra('c', [1, 2])", r"log_extra\('c'\): expected 1 values, one per completion, got 2"),
    ("log_extra('', [1])", "expected a name of 1 to 64 printable characters, got ''"),
    ("log_extra('\\x1b[2J', [1])", "expected a name of 1 to 64 printable characters"),
    ("[log_extra('c', [1]) for _ in '12']", "expected a new column, at most 32 in a call"),
    ("log_metric('m', float('nan'))", r"log_metric\('m'\): expected a finite number, got nan"),
    ("log_metric(3, 1.0)", "expected a name of 1 to 64 printable characters, got 3"),
    ("[log_metric('m', n) for n in range(33)]", "expected at most 32 numbers in a call"),
]


def test_what_cannot_be_recorded_is_the_reason() -> None:
    def wrong(completions: list[str], log_extra: Any, log_metric: Any) -> list[float]:
        for text in completions:  # called again with each alone
            eval(text, {"log_extra": log_extra, "log_metric": log_metric})
        return [1.0] * len(completions)

    with open_scorer([WeightedReward("wrong", wrong)], limits=ScoringConfig(max_invalid=1.0)) as scorer:
        (found,) = scorer.finish([scorer.begin(group_of(Problem("a", "?"), *(text for text, _ in UNRECORDED)))])
    for outcome, (_, reason) in zip(found, UNRECORDED, strict=True):
        assert re.search(reason, outcome.reason)


def test_values_of_other_types_are_text_of_bounded_length() -> None:
    def odd(completions: list[str], log_extra: Any) -> list[float]:
        log_extra("odd", [float("nan"), 10**30, [1, 2], "x" * 5000, True])
        return [1.0] * 5

    with open_scorer([WeightedReward("odd", odd)]) as scorer:
        (found,) = scorer.finish([scorer.begin(group_of(Problem("a", "?"), *"abcde"))])
    assert [one.extra["odd/odd"] for one in found] == ["nan", "1" + "0" * 30, "[1, 2]", "x" * 999 + "…", True]


@pytest.mark.parametrize(
    "change",
    [
        {"values": [1.0]}, {"values": None},
        {"extra": {"c": [1]}}, {"extra": {"\x1b": [1, 2]}}, {"extra": [1]}, {"metrics": [["m", None]]},
        {"metrics": [["m", "nan"]]}, {"metrics": [["m", 1.0]] * 33},
    ],
)  # fmt: skip
def test_a_reply_that_no_worker_gives_is_refused(change: dict[str, Any]) -> None:
    reply = {"values": [1.0, 2.0], "extra": {"c": [1, None]}, "metrics": [["m", 1.0]]}
    call = RewardCall("odd", {"completions": ["a", "b"]})
    assert decode(reply, call).extra == {"c": [1, None]}
    with pytest.raises((ValueError, TypeError, AttributeError)):
        decode(reply | change, call)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (float("nan"), "gave nan"),
        (1e31, "expected at most 1e+30"),
        ("1", "expected a number or None"),
        ([[1, 1.0]], "expected a number or None"),
        ({"invalid": "\x1b[2J"}, "\N{REPLACEMENT CHARACTER}[2J"),
    ],
)
def test_a_value_that_a_worker_sends_is_judged_as_one_that_a_function_returns(value: Any, reason: str) -> None:
    reply = {"values": [value, 2.0], "extra": {}, "metrics": []}
    first, second = decode(reply, RewardCall("odd", {"completions": ["a", "b"]})).values
    assert isinstance(first, Invalid)
    assert reason in first.reason
    assert second == 2.0


def test_a_step_that_a_worker_sends_ends_in_its_completion() -> None:
    reply = {"values": [[[1, 0.5]], [[3, 0.5]]], "extra": {}, "metrics": []}
    first, second = decode(reply, RewardCall("odd", {"completions": ["ab", "ab"]}, per_step=True)).values
    assert first == ((1, 0.5),)
    assert isinstance(second, Invalid)


def test_a_column_of_a_provided_name_is_refused() -> None:
    problem = Problem("a", "?", {"trainer_state": 1})
    with open_scorer([WeightedReward("late", late)]) as scorer, pytest.raises(UserError, match="'trainer_state'"):
        scorer.begin(Group(problem, (1,), ()))


def stated(completions: list[str], trainer_state: Any, log_extra: Any, log_metric: Any) -> list[float]:
    """Depends on the state, as a reward that is switched on later does."""
    log_extra("text", completions)
    log_metric("done", trainer_state.global_step)
    share = letters([], completions, [])
    return [value + trainer_state.global_step / trainer_state.max_steps * n for n, value in enumerate(share)]


def test_a_run_records_them_and_a_resume_repeats_them(tiny: Path, tmp_path: Path) -> None:
    def run(runs: Path, *, resume: bool = False) -> Path:
        config = small_config(runs, steps=3, checkpoint={"every": 1, "keep": 9})
        return Trainer(tiny, ROWS, [stated], config=config).train(resume=resume).directory

    whole = run(tmp_path / "whole")
    # The first step begins with 0 steps made, as in TRL.
    assert [row["reward_logs/done"] for row in metrics(whole)] == [0.0, 1.0, 2.0]
    for text, extra in rollouts(whole, "SELECT text, extra FROM completions"):
        assert json.loads(extra) == {"stated/text": text}
    read = [one.extra for step in (1, 2, 3) for recorded in read_rollouts(whole, step) for one in recorded.outcomes]
    assert [set(extra) for extra in read] == [{"stated/text"}] * 24

    as_killed(whole, tmp_path / "stopped" / "run", after=1)
    assert_same_run(whole, run(tmp_path / "stopped", resume=True), step=3)

    parquet = pytest.importorskip("pyarrow.parquet")
    table = parquet.read_table(export(whole, tmp_path / "rollouts.parquet"))
    texts, extras = table.column("text").to_pylist(), table.column("extra").to_pylist()
    assert [json.loads(extra)["stated/text"] for extra in extras] == texts
