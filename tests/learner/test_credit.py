"""Who gets which advantage, by every way of giving credit, on batches small enough to work out by hand."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from grouprl import Algorithm
from grouprl.algorithms.advantages import Credit
from grouprl.algorithms.named import NAMED
from grouprl.learner import PolicyEvaluation, assign_credit
from grouprl.learner.trace import token_record, token_rows
from grouprl.terms.critic import CriticTargets
from grouprl.types import Batch, Completion, Group, Problem, RewardOutcome, Sampling, StepReward, StopReason, TokenTrace
from variants import variant

NAN = math.nan
NOTHING = PolicyEvaluation()
LENGTHS = (3, 2, 1, 2)
MASK = torch.arange(3) < torch.tensor(LENGTHS)[:, None]


def batch(old: Tensor | None = None, trained: Tensor = MASK) -> Batch:
    """Two groups of two completions with 3, 2, 1 and 2 tokens."""
    return Batch(
        prompts=((1,), (2,)),
        group_of_N=(0, 0, 1, 1),
        token_ids_NT=torch.zeros(4, 3, dtype=torch.long),
        mask_NT=MASK,
        trained_NT=trained,
        old_logprobs_NT=torch.zeros(4, 3) if old is None else old,
        sampling=Sampling(),
    )


def outcomes(*totals: float) -> list[RewardOutcome]:
    return [RewardOutcome(total, {"right": total}) for total in totals]


def credited(
    algorithm: Algorithm,
    rewards: list[RewardOutcome],
    before: PolicyEvaluation = NOTHING,
    weights: dict[str, float] | None = None,
    **changes: Tensor,
) -> Credit:
    weights = weights or dict.fromkeys(rewards[0].components, 1.0)
    credit = assign_credit(rewards, weights, batch(**changes), before, algorithm, kl_coef=algorithm.kl_coef)
    assert not credit.advantages_NT[~MASK].any()
    return credit


def advantages(*arguments: Any, **changes: Any) -> list[list[float]]:
    rows = token_rows(credited(*arguments, **changes).advantages_NT, batch())
    return [[round(value, 4) for value in row] for row in rows]


def each(*values: float) -> list[list[float]]:
    """The same advantage for every token of a completion."""
    return [[value] * length for value, length in zip(values, LENGTHS, strict=True)]


PLAIN = {"scale": "none", "kl_coef": 0.0}


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [
        (variant(eps=0.0), (1, -1, 0, 0)),
        (NAMED["dr_grpo"], (0.5, -0.5, 0, 0)),
        (variant(baseline="leave_one_out", **PLAIN), (1, -1, 0, 0)),
        # against the batch a group of equal rewards has an advantage: its mean of 1 against 0.75
        (NAMED["reinforce_batch"], (0.25, -0.75, 0.25, 0.25)),
        (NAMED["reinforce"], (1, 0, 1, 1)),
        (variant("reinforce", baseline_constant=0.4), (0.6, -0.4, 0.6, 0.6)),
        (variant(baseline="none", **PLAIN), (1, 0, 1, 1)),
        # 1, 0, 1, 1: deviation sqrt(3) / 4
        (variant(baseline="batch_mean", scale="batch_std", eps=0.0, kl_coef=0.0), (0.5774, -1.7321, 0.5774, 0.5774)),
        (variant(baseline="none", scale="batch_std", eps=0.0, kl_coef=0.0), (2.3094, 0.0, 2.3094, 2.3094)),
    ],
    ids=lambda value: value.name + value.advantage.formula if isinstance(value, Algorithm) else "",
)
def test_whole_completions(algorithm: Algorithm, expected: tuple[float, ...]) -> None:
    assert advantages(algorithm, outcomes(1.0, 0.0, 1.0, 1.0)) == each(*expected)


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "rloo", "reinforce", "reinforce_batch", "reinforce_pp"])
def test_an_invalid_reward_gives_no_credit_and_does_not_count(name: str) -> None:
    algorithm = variant(name, kl_coef=0.0)
    got = advantages(algorithm, outcomes(1.0, 0.0, NAN, 1.0))
    assert got[2] == [0.0]
    if name == "reinforce_batch":  # the mean of the three that are valid
        assert got == each(0.3333, -0.6667, 0.0, 0.3333)


# Several rewards


def two(*pairs: tuple[float, float | None]) -> list[RewardOutcome]:
    return [RewardOutcome(a + (b or 0.0), {"right": a, "short": b}) for a, b in pairs]


@pytest.mark.parametrize(
    ("changes", "weights", "expected"),
    [
        ({}, None, (-1, 1, 1, -1)),  # the large reward drowns the other
        ({"reward_mix": "normalise_then_sum"}, None, (0, 0, 1, -1)),
        ({"reward_mix": "normalise_then_sum"}, {"right": 2.0, "short": 0.5}, (1.5, -1.5, 2, -2)),
    ],
    ids=str,
)
def test_rewards_may_be_normalized_before_they_are_weighted_and_summed(
    changes: dict[str, str], weights: dict[str, float] | None, expected: tuple[float, ...]
) -> None:
    rewards = two((1.0, 0.0), (0.0, 10.0), (1.0, 3.0), (0.0, 3.0))
    assert advantages(variant(eps=0.0, **changes), rewards, weights=weights) == each(*expected)


def test_a_reward_that_does_not_apply_has_no_part_in_the_sum() -> None:
    rewards = two((1.0, None), (0.0, None), (1.0, 3.0), (0.0, 2.0))
    rewards[2] = RewardOutcome(NAN, {"right": 1.0, "short": 3.0}, "broken")
    algorithm = variant(eps=0.0, reward_mix="normalise_then_sum")
    assert advantages(algorithm, rewards) == each(1, -1, 0, 0)  # one valid completion is no group


# KL in the reward

OLD = torch.tensor([[-1.0, -2.0, -1.0], [-0.5, -0.5, 9.0], [-1.0, 9.0, 9.0], [-3.0, -1.0, 9.0]])
REFERENCE = OLD - torch.tensor([[0.2, 0.0, 0.4], [-0.2, 0.0, 1.0], [0.0, 1.0, 1.0], [1.0, 1.0, 1.0]])


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [
        # k1 sums to 0.6, -0.2, 0 and 2: rewards 1 - 0.3, 0 + 0.1, 1, 1 - 1
        (variant(baseline="leave_one_out", scale="none", kl="k1", kl_in="reward"), each(0.6, -0.6, 1, -1)),
        # the KL of each token is taken from what comes after it
        (variant("reinforce_pp", scale="none", baseline="none"), [[0.7, 0.8, 0.8], [0.1, 0.0], [1.0], [0.0, 0.5]]),
        # OpenRLHF's order: +1 and -1 at the last tokens, 0 for the group without signal, then the KL of what follows
        (
            variant(credit="token", kl="k1", kl_in="reward", eps=0.0),
            [[0.7, 0.8, 0.8], [-0.9, -1.0], [0.0], [-1.0, -0.5]],
        ),
        # where the sampler is not trusted it is the learner's, here at the reference: no KL
        (variant("reinforce_pp", scale="none", baseline="none", correction="truncate"), each(1, 0, 1, 1)),
    ],
    ids=["completions", "tokens", "tokens after the group", "of the learner"],
)
def test_the_kl_is_taken_from_the_reward(algorithm: Algorithm, expected: list[list[float]]) -> None:
    policy = None if algorithm.correction is None else REFERENCE
    seen = PolicyEvaluation(REFERENCE, policy_NT=policy)
    assert advantages(variant(algorithm, kl_coef=0.5), outcomes(1.0, 0.0, 1.0, 1.0), seen, old=OLD) == expected


# Tokens and steps


VALUES = torch.tensor([[0.5, 0.25, 0.0], [0.5, 0.5, 9.0], [0.0, 9.0, 9.0], [1.0, 2.0, 9.0]])


def test_the_advantages_of_a_critic_are_centered_and_normalized_over_the_tokens() -> None:
    algorithm = variant("ppo", lam=1.0, kl_coef=0.0, eps=0.0)
    credit = credited(algorithm, outcomes(1.0, 0.0, NAN, 1.0), PolicyEvaluation(values_NT=VALUES))
    # 0.5, 0.75, 1, -0.5, -0.5, 0, -1 without: mean 1/28
    plain = torch.tensor([0.5, 0.75, 1.0, -0.5, -0.5, 0.0, -1.0])
    expected = (plain - 1 / 28) / math.sqrt(sum((value - 1 / 28) ** 2 for value in plain.tolist()) / 7)
    torch.testing.assert_close(credit.advantages_NT[credit.counted_NT], expected, atol=1e-6, rtol=0)


# REINFORCE++ with the group's mean: 0.5 for three tokens, -0.5 for two, 0 for three; mean 1/16
DEVIATION = math.sqrt((3 * (7 / 16) ** 2 + 2 * (9 / 16) ** 2 + 3 * (1 / 16) ** 2) / 8)


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [
        # six tokens of 1 and two of 0: mean 0.75, deviation sqrt(3) / 4
        (variant("reinforce_pp", eps=0.0, kl_coef=0.0), each(0.5774, -1.7321, 0.5774, 0.5774)),
        (
            variant(credit="token", baseline="none", scale="batch_std", eps=0.0, kl_coef=0.0),
            each(2.3094, 0, *[2.3094] * 2),
        ),
        (
            variant(credit="token", scale="batch_std", eps=0.0, kl_coef=0.0),
            each(*(round(value / 16 / DEVIATION, 4) for value in (7, -9, -1, -1))),
        ),
    ],
    ids=["their mean", "no baseline", "the group's mean"],
)
def test_advantages_may_be_normalized_over_the_tokens_of_the_batch(
    algorithm: Algorithm, expected: list[list[float]]
) -> None:
    assert advantages(algorithm, outcomes(1.0, 0.0, 1.0, 1.0)) == expected


def explained_variance(values: torch.Tensor, returns: torch.Tensor, counted: torch.Tensor) -> float:
    return CriticTargets(values, returns, counted).explained_variance


def test_what_a_critic_explains() -> None:
    returns, mask = torch.tensor([[1.0, 2.0, 3.0, 9.0]]), torch.tensor([[True, True, True, False]])
    assert explained_variance(returns, returns, mask) == 1
    assert explained_variance(torch.zeros(1, 4), returns, mask) == pytest.approx(0)
    # errors 0, 1, 2 have the variance of 1, 2, 3; errors 0, 2, 4 four times that
    assert explained_variance(torch.ones(1, 4), returns, mask) == pytest.approx(0)
    assert explained_variance(-returns, returns, mask) == pytest.approx(-3)
    assert math.isnan(explained_variance(returns, torch.ones(1, 4), mask))


def test_ppo_without_normalization_is_reward_to_come_less_value() -> None:
    algorithm = variant("ppo", scale="none", lam=1.0, kl_coef=0.0)
    credit = credited(algorithm, outcomes(1.0, 0.0, NAN, 1.0), PolicyEvaluation(values_NT=VALUES))
    assert token_rows(credit.advantages_NT, batch()) == [[0.5, 0.75, 1.0], [-0.5, -0.5], [0.0], [0.0, -1.0]]
    assert credit.returns_NT.tolist() == [[1, 1, 1], [0, 0, 0], [0, 0, 0], [1, 1, 0]]
    assert credit.counted_NT.tolist() == [[True] * 3, [True, True, False], [False] * 3, [True, True, False]]


def test_completions_that_are_not_trained_are_not_learned_by_the_critic() -> None:
    trained, seen = MASK & torch.tensor([[True], [False], [True], [True]]), PolicyEvaluation(values_NT=VALUES)
    credit = credited(variant("ppo", kl_coef=0.0), outcomes(1.0, 0.0, 1.0, 1.0), seen, trained=trained)
    assert torch.equal(credit.counted_NT, trained)


def test_a_step_is_credited_with_itself_and_what_follows_and_the_answer_is_the_last_step() -> None:
    rewards = [
        RewardOutcome(1.0, {"right": 1.0}, steps=(StepReward(0, 1.0), StepReward(1, 0.0))),
        RewardOutcome(0.0, {"right": 0.0}),
        RewardOutcome(NAN, {"right": None}, "timed out", steps=(StepReward(0, 1.0),)),
        RewardOutcome(1.0, {"right": 1.0}, steps=(StepReward(0, 1.0),)),
    ]
    # The first group's steps are 1, 0, then 1 for the answer, and 0 for the other answer: mean 0.5, deviation 0.5. Of
    # the second group the steps of one completion are valid, and equal.
    got = advantages(variant("grpo_process", eps=0.0), rewards)
    assert got == [[1.0, 0.0, 1.0], [-1.0, -1.0], [0.0], [0.0, 0.0]]


def test_the_steps_of_an_invalid_completion_teach_nothing() -> None:
    """Group 1, 0 and an invalid completion whose step was right: its step is in no mean, and it has no advantage."""
    rewards = [*outcomes(1.0, 0.0), RewardOutcome(NAN, {"right": None}, "broken", steps=(StepReward(0, 1.0),))]
    one_group = replace(batch(), group_of_N=(0, 0, 0, 1))
    algorithm = variant("grpo_process", eps=0.0)
    credit = assign_credit(
        [*rewards, *outcomes(1.0)], {"right": 1.0}, one_group, PolicyEvaluation(), algorithm, kl_coef=0.0
    )
    assert token_rows(credit.advantages_NT, one_group) == each(1, -1, 0, 0)


# Groups


def test_groups_of_any_size_are_kept_or_dropped_in_their_order() -> None:
    scores = [[1.0, 1.0], [1.0, 0.0, 0.0], [0.0], [NAN, 0.5, 0.0]]
    assert Algorithm().group_filter.kept(scores) == [True] * 4
    assert NAMED["dapo"].group_filter.kept(scores) == [False, True, False, True]


def test_dropped_groups_are_recorded_with_zeros() -> None:
    def group(*lengths: int) -> Group:
        return Group(
            Problem("p", "?"),
            (1,),
            tuple(
                Completion(n, (1,) * length, (0.0,) * length, (0.0,) * length, "", StopReason.END, 0)
                for n, length in enumerate(lengths)
            ),
        )

    groups = [group(1, 2), group(3), group(1, 1)]
    seen = [TokenTrace(logprobs=(-1.0,)), TokenTrace(logprobs=(-2.0,)), TokenTrace()]
    found, traces = token_record(
        groups, [False, True, True], list(zip([[1.0, 2.0, 3.0], [4.0], [5.0]], seen, strict=True))
    )
    assert found == [[[0.0], [0.0, 0.0]], [[1.0, 2.0, 3.0]], [[4.0], [5.0]]]
    assert traces == [[TokenTrace(), TokenTrace()], [seen[0]], [seen[1], seen[2]]]
