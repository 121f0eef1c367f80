"""The signal ledger: every sampled token is counted once, where a slow count, token by token, puts it."""

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import replace
from itertools import compress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from grouprl.algorithms.spec import Algorithm
from grouprl.config.run import LearnerConfig
from grouprl.evaluation.ledger import CATEGORIES, lengths_by_filter, token_ledger
from grouprl.evaluation.metrics import Clock
from grouprl.learner import Optimizer, ScoredGroups, TokenGrid, assign_credit, make_batch, trace_updates
from grouprl.learner.terms import PolicyTerm
from grouprl.models.load import frozen_copy
from grouprl.step import update_policy
from grouprl.terms.critic import Critic
from grouprl.types import Completion, Group, RewardOutcome, StopReason
from learner_setting import SAMPLING, learner_of, loaded
from variants import variant

NAN = math.nan


OPTIONS: dict[str, Algorithm] = {
    "drops and masks": variant("dapo", mask_overlong=True, refills=0),
    "clips": variant("grpo", kl_coef=0.0, passes=3, clip_low=0.01, clip_high=0.01),
    "dual clip": variant("grpo", kl_coef=0.0, passes=2, clip_low=0.9, clip_high=9.0, dual_clip=1.01),
    "clips a mean": variant("gmpo", passes=3, minibatches=1, clip_low=0.01, clip_high=0.01),
    "far": variant("cispo", passes=2, off_policy_delta=0.02),
    "diverges": variant("dppo", passes=3, minibatches=1, divergence_tv=0.002, divergence_kl=0.5),
    "masks tokens": variant("grpo", correction="mask", correction_cap=1.2, correction_floor=0.9),
    "masks completions": variant("grpo", correction="mask", correction_level="sequence", minibatches=2),
    "entropy": variant("grpo", entropy_share=0.4, mask_overlong=True),
    "critic": variant("ppo", minibatches=2, passes=2),
    "warms up": variant("ppo", critic_warmup=9),
    "all": variant("grpo", drop_above=0.9, mask_overlong=True, correction="mask", correction_cap=1.3, passes=3,
                   entropy_share=0.7, clip_low=0.01, clip_high=0.01, minibatches=2),
}  # fmt: skip


def shaken(groups: list[Group], chance: random.Random) -> list[Group]:
    """The groups with other stop reasons, and a sampler that reports a little off."""

    def one(completion: Completion) -> Completion:
        claimed = tuple(value + chance.choice((0.0, 0.0, 0.3, -0.4)) for value in completion.logprobs)
        reason = chance.choice((StopReason.END, StopReason.LENGTH))
        return replace(completion, logprobs=claimed, stop_reason=reason)

    return [replace(group, completions=tuple(map(one, group.completions))) for group in groups]


def outcome(chance: random.Random) -> RewardOutcome:
    value = chance.choice((0.0, 1.0, 1.0, NAN))
    return RewardOutcome(value, {"right": None if math.isnan(value) else value})


def of_each_token(
    a: Algorithm, scored: ScoredGroups, result: Any, before: Any, advantages_NT: Tensor
) -> tuple[Counter[str], int]:
    """The category of every token by the rules as the docs say them, and the ties at the entropy threshold."""
    counts: Counter[str] = Counter()
    flat = [
        (kept, completion, got)
        for group, row, kept in zip(scored.groups, scored.outcomes, scored.kept, strict=True)
        for completion, got in zip(group.completions, row, strict=True)
    ]
    learned = [one for one in flat if one[0]]
    pool: list[float] = []
    for place, (_, completion, _) in enumerate(learned):
        if before is not None and before.entropies_NT is not None:
            cut = a.group_filter.mask_overlong and completion.stop_reason is StopReason.LENGTH
            pool += [] if cut else before.entropies_NT[place, : len(completion)].tolist()
    high = sorted(pool, reverse=True)[: int(a.entropy_options.entropy_share * (len(pool) - 1)) + 1] if pool else []
    traces = [trace for _, trace in trace_updates(a, result).tokens]
    place = -1
    for kept, completion, got in flat:
        place += kept
        n = len(completion)
        if not kept:
            counts["dropped"] += n
        elif math.isnan(got.earned):
            counts["invalid"] += n
        elif a.group_filter.mask_overlong and completion.stop_reason is StopReason.LENGTH:
            counts["truncated"] += n
        else:
            for t in range(n):
                counts[of_token(a, place, t, completion, traces, before, advantages_NT, high)] += 1
    return counts, pool.count(high[-1]) - high.count(high[-1]) if high else 0


def of_token(
    a: Algorithm, row: int, t: int, completion: Completion, traces: Any, before: Any, advantages_NT: Tensor, high: Any
) -> str:
    advantage, old = float(advantages_NT[row, t]), list(completion.logprobs)
    if advantage == 0:
        return "no_signal"
    if a.correction is not None:
        own = before.policy_NT[row, : len(completion)].tolist()
        gaps = [x - y for x, y in zip(own, old, strict=True)]
        weight = math.exp(sum(gaps) if a.correction.correction_level == "sequence" else gaps[t])
        if not a.correction.correction_floor <= weight <= a.correction.correction_cap:
            return "corrected"
        old = own
    if high and float(before.entropies_NT[row, t]) < high[-1]:
        return "low_entropy"
    if a.warms_up(1):
        return "critic_only"
    new = traces[row].logprobs
    if a.updates.count == 1:
        old = new
    elif a.entropy_options.entropy_share < 1:
        old = before.policy_NT[row, : len(completion)].tolist()
    gaps = [x - y for x, y in zip(new, old, strict=True)]
    ratio = math.exp(sum(gaps) / len(gaps) if a.objective.ratio == "sequence" else gaps[t])
    low, top = a.objective.range
    if (delta := a.objective.off_policy_delta) is not None and advantage < 0:
        moved = [y - x for x, y in zip(new, completion.logprobs, strict=True)]
        if sum(moved) / len(moved) > delta:
            return "clipped"
    if (limit := a.objective.divergence_tv) is not None:
        change = math.exp(new[t]) - math.exp(completion.logprobs[t])
        if abs(change) > limit and change * advantage > 0:
            return "clipped"
    if a.objective.surrogate in ("clip", "gmpo"):
        if (advantage > 0 and ratio > 1 + top) or (advantage < 0 and ratio < 1 - low):
            return "clipped"
        if a.objective.largest_ratio and advantage < 0 and ratio > a.objective.largest_ratio:
            return "clipped"
    return "used"


@pytest.mark.parametrize("name", OPTIONS)
def test_every_token_is_counted_once_in_its_place(name: str, tiny: Path, groups: list[Group]) -> None:
    algorithm, met, exact = OPTIONS[name], Counter[str](), 0
    for seed in range(2):
        chance = random.Random(f"{name} {seed}")
        model = loaded(tiny)
        critic = Critic(model, shared=False) if algorithm.critic else None
        config = LearnerConfig(learning_rate=2e-3)
        learner = learner_of(
            model,
            algorithm,
            optimizer=Optimizer(model, config),
            reference=frozen_copy(model) if algorithm.kl else None,
            critic=critic,
            critic_optimizer=Optimizer(critic, config) if critic else None,
        )
        step_groups = shaken(groups, chance)
        outcomes = [tuple(outcome(chance) for _ in group.completions) for group in step_groups]
        kept = algorithm.group_filter.kept([[one.earned for one in row] for row in outcomes])
        scored = ScoredGroups(1, step_groups, outcomes, kept, {"right": 1.0}, SAMPLING)
        before, advantages_NT, remaining = None, torch.zeros(0, 0), list(compress(step_groups, kept))
        if remaining:
            batch = make_batch(remaining, SAMPLING, mask_overlong=algorithm.group_filter.mask_overlong)
            before = learner.evaluate(batch)
            rewards = [one for row, keep in zip(outcomes, kept, strict=True) if keep for one in row]
            credit = assign_credit(rewards, {"right": 1.0}, batch, before, algorithm, kl_coef=learner.kl_coef)
            advantages_NT = credit.advantages_NT
        result = update_policy(learner, scored, Clock("reference", "learn"))
        found = token_ledger(step_groups, outcomes, kept, trace_updates(learner.algorithm, result).unused)
        counts = {key.removeprefix("tokens/"): value for key, value in found.items() if key.startswith("tokens/")}
        assert all(type(count) is int for count in counts.values())
        assert sum(counts.values()) == sum(len(one) for group in step_groups for one in group.completions)
        expected, ties = of_each_token(algorithm, scored, result, before, advantages_NT)
        # First tokens of one prompt have one entropy: which of them are below the threshold is not defined.
        assert sum(abs(counts[key] - expected[key]) for key in CATEGORIES) <= 2 * ties, (counts, expected)
        exact += ties == 0
        assert tuple(counts) == CATEGORIES
        met += Counter(counts)
    special = {
        "drops and masks": {"dropped", "truncated", "invalid"},
        "clips": {"clipped", "no_signal"},
        "clips a mean": {"clipped"},
        "far": {"clipped", "used"},
        "dual clip": {"clipped"},
        "masks tokens": {"corrected"},
        "masks completions": {"corrected"},
        "entropy": {"low_entropy", "truncated"},
        "warms up": {"critic_only"},
        "all": {"dropped", "truncated", "corrected", "low_entropy", "clipped", "invalid"},
    }.get(name, {"used", "invalid"})
    assert all(met[category] for category in special), met
    assert exact


def test_tokens_of_an_update_that_was_not_made(
    tiny: Path, groups: list[Group], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = loaded(tiny)
    learner = learner_of(model, variant("grpo", kl_coef=0.0), optimizer=Optimizer(model, LearnerConfig()))
    best = [RewardOutcome(float(at == 0), {"right": float(at == 0)}) for at in range(9)]
    outcomes = [tuple(best[: len(group.completions)]) for group in groups]

    def broken(term: PolicyTerm, tokens: TokenGrid, kl_coef: float) -> tuple[Tensor, dict[str, Tensor]]:
        total, stats = original(term, tokens, kl_coef)
        return total * NAN, stats

    original = PolicyTerm.loss
    monkeypatch.setattr(PolicyTerm, "loss", broken)
    scored = ScoredGroups(1, groups, outcomes, [True] * 3, {"right": 1.0}, SAMPLING)
    result = update_policy(learner, scored, Clock("reference", "learn"))
    found = token_ledger(groups, outcomes, [True] * 3, trace_updates(learner.algorithm, result).unused)
    assert found["tokens/not_finite"] == sum(len(one) for group in groups for one in group.completions)


def test_a_step_without_a_kept_group_is_dropped_whole(groups: list[Group]) -> None:
    outcomes = [tuple(RewardOutcome(1.0, {}) for _ in group.completions) for group in groups]
    found = token_ledger(groups, outcomes, [False] * 3, {})
    total = sum(len(one) for group in groups for one in group.completions)
    assert {name: count for name, count in found.items() if count} == {"groups/sampled": 3, "tokens/dropped": total}


def test_dropped_groups_have_their_length_beside_the_kept():
    # Worked by hand: (2 + 4 + 6) / 3 and (10 + 20) / 2.
    found = lengths_by_filter([[2, 4], [10, 20], [6]], [True, False, True])
    assert found == {"completions/kept_mean_length": 4.0, "completions/dropped_mean_length": 15.0}
    assert lengths_by_filter([[2], [3]], [True, True]) == {}
    assert lengths_by_filter([[2], [3]], [False, False]) == {}
