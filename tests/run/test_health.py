"""What is said about a run: nothing about a healthy one, and each trouble where it begins, with a remedy."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from grouprl.record.metrics import metric_of
from grouprl.run.findings import BAD_STEPS, QUIET, Finding, explosion, not_finite, not_finite_in_a_row, warnings

Row = dict[str, Any]
# 60 steps of `grouprl train demo`, seed 0, three digits.
HEALTHY: list[Row] = [json.loads(line) for line in (Path(__file__).parent / "healthy_demo.jsonl").open()]


def given(rows: list[Row], evaluations: list[Row]) -> list[Finding]:
    """All warnings of a run, step by step."""
    found: list[Finding] = []
    for count in range(1, len(rows) + 1):
        until = rows[count - 1]["step"]
        found += warnings(rows[:count], [row for row in evaluations if row["step"] <= until], list(map(asdict, found)))
    return found


def changed(start: int, change: Callable[[int, Row], Row]) -> list[Row]:
    """The healthy run, with other values from step `start` on; `change` gets the steps since then."""
    return [{**row, **change(row["step"] - start, row)} if row["step"] >= start else row for row in HEALTHY]


def test_nothing_is_said_about_a_healthy_run() -> None:
    accuracy = [{"step": step, "greedy_accuracy": 0.3 + min(0.65, step / 20)} for step in range(0, 61, 10)]
    assert given(HEALTHY, accuracy) == []
    assert [explosion(HEALTHY[:count]) for count in range(61)] == [None] * 61
    assert [not_finite(HEALTHY[:count]) for count in range(61)] == [None] * 61


TROUBLES: dict[str, tuple[Callable[[int, Row], Row], str]] = {
    "entropy_collapse": (lambda n, row: {"entropy": 0.001, "accuracy": 0.4}, "entropy"),
    "length_explosion": (lambda n, row: {"completions/mean_length": 25.0 + 8 * n}, "completions/mean_length"),
    "truncation": (lambda n, row: {"completions/clipped_ratio": 0.5}, "completions/clipped_ratio"),
    "repetition": (lambda n, row: {"completions/repeated": 0.1 + 0.1 * n}, "completions/repeated"),
    "sampler_learner_gap": (lambda n, row: {"sampler_learner_gap": 0.9}, "sampler_learner_gap"),
    "invalid_rewards": (lambda n, row: {"frac_invalid": 0.05}, "frac_invalid"),
    "no_signal": (lambda n, row: {"frac_reward_zero_std": 0.95, "accuracy": 0.02}, "frac_reward_zero_std"),
    "learning_rate": (lambda n, row: {"clip_low_fraction": 0.15, "clip_high_fraction": 0.2, "ratio_max": 9.0}, "ratio"),
}


@pytest.mark.parametrize("kind", TROUBLES)
def test_a_trouble_is_said_once_when_it_begins(kind: str) -> None:
    change, metric = TROUBLES[kind]
    found = given(changed(30, change), [])
    # At an accuracy this low the demo's entropy and its equal groups would be troubles as well.
    unsolved = {"entropy_collapse", "no_signal"}
    assert {one.kind for one in found} - (unsolved if kind in unsolved else set()) <= {kind}
    # One that lasts is said again after a while.
    found = [one for one in found if one.kind == kind]
    assert 30 <= found[0].step <= 45
    assert [later.step - one.step for one, later in pairwise(found)] == [QUIET] * (len(found) - 1)
    assert found[0].sentence.startswith(f"Step {found[0].step}: ")
    assert found[0].setting
    assert metric in found[0].metric or kind == "learning_rate"
    assert metric_of(found[0].metric)


def test_a_kl_that_stays_high_is_a_learning_rate_too_high() -> None:
    found = given(changed(30, lambda n, row: {"kl": 0.9}), [])
    assert {(one.kind, one.metric) for one in found} == {("learning_rate", "kl")}


def test_a_narrow_clip_range_is_no_learning_rate_too_high() -> None:
    """GSPO clips a third of its tokens at ratios of 1.01."""
    assert given(changed(30, lambda n, row: {"clip_high_fraction": 0.35, "ratio_max": 1.01}), []) == []


@pytest.mark.parametrize(
    ("names", "means", "more", "said"),
    [
        (("greedy_accuracy", "greedy_interval"), (0.3, 0.9, 0.5), {}, "accuracy fell from 90% to 50%"),
        (("greedy_accuracy", "greedy_interval"), (0.3, 0.9, 0.88), {}, ""),  # within the interval of the best
        (("reward", "reward_interval"), (0.3, 0.5, 0.9), {}, ""),
        (("reward", "reward_interval"), (-2.0, -0.5, -1.0), {}, "held-out reward fell from -0.50 to -1.00"),
        (("reward", "reward_interval"), (0.3, 0.9, 0.5), {"greedy_accuracy": 0.5}, ""),  # a verifier measures the run
    ],
)
def test_up_in_training_and_down_held_out(
    names: tuple[str, str], means: tuple[float, ...], more: dict[str, float], said: str
) -> None:
    evaluations = [
        {"step": step, names[0]: mean, names[1]: [mean - 0.05, mean + 0.05], **more}
        for step, mean in zip((0, 10, 20), means, strict=True)
    ]
    found = given(HEALTHY[:25], evaluations)
    assert [(one.step, one.kind, one.metric) for one in found] == [(20, "reward_hacking", "reward")] * bool(said)
    assert all(said in one.sentence for one in found)


# Explosions


@pytest.mark.parametrize(
    ("change", "step", "first_bad"),
    [
        ({"kl": 3.5}, 31, 29),  # two steps in a row; the weights after step 29 gave the KL of step 30
        ({"kl": -3.5}, 31, 29),
        ({"grad_norm": 500.0}, 30, 29),
        ({"sampler_learner_gap": 4.0}, 30, 29),
    ],
)
def test_an_explosion_is_found_at_once(change: Row, step: int, first_bad: int) -> None:
    rows = changed(30, lambda n, row: change)
    steps = [count for count in range(61) if explosion(rows[:count])]
    assert steps[0] == step
    found = explosion(rows[:step])
    assert found is not None
    assert (found[0].step, found[0].kind, found[1]) == (step, "explosion", first_bad)
    assert found[0].metric in change
    assert "learning rate" in found[0].sentence
    assert "learner.learning_rate" in found[0].setting


def test_a_spike_of_the_kl_and_a_high_usual_value_are_no_explosion() -> None:
    spike = [{**row, "kl": 5.0} if row["step"] == 30 else row for row in HEALTHY]
    assert not any(explosion(spike[:count]) for count in range(61))
    far = [{**row, "kl": 2.0 + 0.01 * row["step"], "sampler_learner_gap": 2.0} for row in HEALTHY]
    assert not any(explosion(far[:count]) for count in range(4, 61))


@pytest.mark.parametrize(
    ("kls", "step"),
    [((0.0, 8.78, 5.46), 3), ((0.0, 0.24, 2.63, 6.95, 5.94), 5), ((0.0, 0.53, 1.42, 1.44, 1.71, 2.48), None)],
    ids=["the demo at 0.2", "the demo at 0.02", "a random model that learns"],
)
def test_measured_rates_that_are_too_high(kls: tuple[float, ...], step: int | None) -> None:
    rows = [{"step": n, "kl": kl, "grad_norm": 1.0} for n, kl in enumerate(kls, 1)]
    assert next((n for n in range(1, len(rows) + 1) if explosion(rows[:n])), None) == step


# Steps without a finite update


def test_three_steps_in_a_row_without_a_finite_update_end_a_run() -> None:
    bad = {"skipped_updates": 2, "loss": math.nan, "grad_norm": None}
    assert BAD_STEPS == 3
    rows = changed(30, lambda n, row: bad if n in (0, 1, 3, 4, 5) else {})
    stopped = [count for count in range(61) if not_finite_in_a_row(rows[:count])]
    assert stopped == [35]
    found = not_finite(rows[:30])
    assert found is not None
    assert "not finite: loss, grad_norm" in found.sentence
    assert not_finite(rows[:32]) is None
