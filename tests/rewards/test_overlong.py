"""The length penalty of DAPO: set by the scorer, beside what the reward functions gave."""

from __future__ import annotations

import math

import pytest

from grouprl.config.run import RunConfig, load_config
from grouprl.rewards.configured import configured_scorer, open_scorer
from grouprl.rewards.functions import WeightedReward
from grouprl.rewards.outcomes import LengthPenalty
from grouprl.tasks import load_task
from grouprl.types import Completion, Group, Problem, StopReason
from judging import judged


def lengths_of(*lengths: int) -> Group:
    completions = tuple(
        Completion(index, (7,) * length, (-0.5,) * length, (-0.5,) * length, "x", StopReason.END, 0)
        for index, length in enumerate(lengths)
    )
    return Group(Problem("p", "?"), (1,), completions)


def third(completions: list[str]) -> list[float | None]:
    return [0.3] * len(completions)


def broken(completions: list[str]) -> list[float]:
    return [math.nan] * len(completions)


REWARD = WeightedReward("third", third)


def test_the_penalty_is_kept_apart_from_what_was_earned() -> None:
    # Of 20 tokens the last 10 are the buffer: 10 -> 0, 15 -> -0.5, 20 -> -1.
    (outcomes,) = judged([lengths_of(10, 15, 20)], [REWARD], penalty=LengthPenalty(0.5, 20))
    assert [outcome.earned for outcome in outcomes] == [0.3] * 3  # exactly equal: no signal, whatever the lengths
    assert [outcome.components["soft_overlong"] for outcome in outcomes] == [0.0, -0.5, -1.0]
    assert [outcome.total for outcome in outcomes] == [0.3, 0.3 - 0.5, 0.3 - 1.0]
    assert outcomes[1].components == {"third": 0.3, "soft_overlong": -0.5}


def test_without_it_nothing_is_added() -> None:
    (outcomes,) = judged([lengths_of(20)], [REWARD])
    assert (outcomes[0].total, outcomes[0].components) == (0.3, {"third": 0.3})


def test_an_invalid_reward_stays_invalid() -> None:
    (outcomes,) = judged([lengths_of(20)], [WeightedReward("broken", broken)], penalty=LengthPenalty(0.5, 20))
    assert not outcomes[0].valid
    assert math.isnan(outcomes[0].total)


@pytest.mark.parametrize(
    ("penalty", "weights"),
    [(LengthPenalty(), {"third": 2.0}), (LengthPenalty(0.5, 20), {"soft_overlong": 1.0, "third": 2.0})],
)
def test_the_penalty_has_a_weight_of_one(penalty: LengthPenalty, weights: dict[str, float]) -> None:
    with open_scorer([WeightedReward("third", third, 2.0)], penalty=penalty) as scorer:
        assert scorer.weights == weights
        assert next(iter(scorer.weights)) == next(iter(weights))


def test_a_run_with_a_buffer_has_the_penalty() -> None:
    for changes, expected in (
        (["algorithm.overlong_buffer=0.25", "rollout.max_tokens=64"], LengthPenalty(0.25, 64)),
        ([], LengthPenalty(0.0, 128)),
    ):
        config = load_config(RunConfig, [], changes)
        with configured_scorer(config, load_task("word_problems"), [REWARD]) as scorer:
            assert scorer.penalty == expected
