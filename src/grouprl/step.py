"""ONE GRPO STEP: the only file where the rooms meet. Read it top to bottom beside algorithm 1 of arXiv:2402.03300.

problems -> groups of completions -> rewards -> advantages relative to the group -> updates -> new weights
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import compress

from transformers import PreTrainedTokenizerBase

from grouprl.algorithms.spec import Algorithm
from grouprl.algorithms.values import CopiedCritic
from grouprl.curriculum.order import Sampler, Visit
from grouprl.curriculum.pass_rates import PassRates
from grouprl.evaluation.measures import step_measures
from grouprl.learner import Learner, assign_credit, make_batch, recorded_tokens, token_rows, watches
from grouprl.models import prompt_token_ids
from grouprl.rollout import Engine, Request
from grouprl.scoring.scorer import Scorer
from grouprl.tasks import Task
from grouprl.types import Group, RewardOutcome, Sampling, TokenTrace


@dataclass(frozen=True)
class Rooms:
    """Everything a step uses. Nothing in here is replaced during a run; the weights inside the learner change."""

    task: Task
    scorer: Scorer
    engine: Engine
    learner: Learner
    algorithm: Algorithm
    tokenizer: PreTrainedTokenizerBase
    sampling: Sampling
    longest_prompt: int  # tokens
    problems_per_step: int  # P
    group_size: int  # G
    sampler: Sampler


@dataclass(frozen=True)
class StepResult:
    """What a step did, for the record. Groups that were dropped are in it, with advantages of 0."""

    groups: Sequence[Group]  # [P]
    outcomes: Sequence[Sequence[RewardOutcome]]  # [P][G]
    token_advantages: Sequence[Sequence[Sequence[float]]]  # [P][G][tokens]
    traces: Sequence[Sequence[TokenTrace]]  # [P][G]
    kept: Sequence[bool]  # [P], whether the group was learned from
    metrics: dict[str, float]


@dataclass(frozen=True)
class _Round:
    """Groups that were sampled together, and what came of them."""

    groups: list[Group]
    outcomes: list[tuple[RewardOutcome, ...]]
    kept: list[bool]  # whether the group is learned from
    rollout_seconds: float
    reward_seconds: float


def grpo_step(
    rooms: Rooms, step: int, rates: PassRates, *, on_finished: Callable[[int], None] | None = None
) -> StepResult:
    """Samples a batch of groups, scores them, and moves the policy.

    Args:
        rooms: the parts; the policy in `rooms.learner` is changed.
        step: 1, 2, ...; with the run's seed it decides the problems and every random number.
        rates: what the steps before found of each problem; a curriculum chooses by it.
        on_finished: see `Engine.generate`.
    """
    started, algorithm, problems = time.perf_counter(), rooms.algorithm, rooms.task.problems("train")
    metrics, advantages, traces = {"time/reference": 0.0, "time/learn": 0.0}, list[list[float]](), list[TokenTrace]()

    # Sample G completions of each of P problems from the current policy, and score each completion. Groups that the
    # algorithm drops may be replaced by those of further problems (DAPO's dynamic sampling).
    visits = rooms.sampler.visits(problems, step=step, rates=rates)
    rounds = [_sampled_round(rooms, visits, on_finished)]
    while (missing := rooms.problems_per_step - sum(sum(r.kept) for r in rounds)) and len(
        rounds
    ) <= algorithm.groups.refills:
        met = sum(len(r.groups) for r in rounds)
        visits = rooms.sampler.refill(problems, missing, step=step, round_=len(rounds), rates=rates, visited=met)
        rounds.append(_sampled_round(rooms, visits, on_finished))
    groups = [group for r in rounds for group in r.groups]
    outcomes = [row for r in rounds for row in r.outcomes]
    kept = [keep for r in rounds for keep in r.kept]

    if any(kept):
        batch = make_batch(list(compress(groups, kept)), rooms.sampling, mask_overlong=algorithm.groups.mask_overlong)

        # What the frozen reference says of each token, for the KL; and the critic, for algorithms that have one.
        looked = time.perf_counter()
        before = rooms.learner.evaluate(batch)
        metrics["time/reference"] = time.perf_counter() - looked

        # Compare each completion with its own group: this is what replaces the critic.
        outcomes_N = [outcome for row in compress(outcomes, kept) for outcome in row]
        kl_coef = rooms.learner.kl_coefficient.value
        credit = assign_credit(outcomes_N, rooms.scorer.weights, batch, before, algorithm, kl_coef=kl_coef)

        # Clipped ratio, KL to the reference, gradient, AdamW: see Learner.learn and algorithms.policy_loss.
        warms_up = isinstance(algorithm.critic, CopiedCritic) and step <= algorithm.critic.critic_warmup
        learned = rooms.learner.learn(batch, credit, before, critic_only=warms_up, watch=watches(step))
        metrics, traces = metrics | learned.metrics, learned.trace.rows(batch)
        advantages = token_rows(credit.advantages_NT, batch)

    # The only arrow back: the engine samples the next step from the new weights.
    rooms.engine.load_weights(rooms.learner.optimizer.updates)
    if algorithm.kl is not None and algorithm.kl.refresh_reference and step % algorithm.kl.refresh_reference == 0:
        rooms.learner.refresh_reference()

    metrics = step_measures(rooms.task, groups, outcomes) | rooms.scorer.usage() | metrics
    total = time.perf_counter() - started
    metrics |= {
        "groups/sampled": len(groups),
        "groups/kept": sum(kept),
        "tokens_per_second": metrics["completion_tokens"] / total,
        "time/rollout": sum(r.rollout_seconds for r in rounds),
        "time/reward": sum(r.reward_seconds for r in rounds),
        "time/total": total,
    }
    return StepResult(groups, outcomes, *recorded_tokens(groups, kept, advantages, traces), kept, metrics)


def _sampled_round(rooms: Rooms, visits: Sequence[Visit], on_finished: Callable[[int], None] | None) -> _Round:
    started, sampling = time.perf_counter(), rooms.sampling
    requests = [
        Request(problem, prompt_token_ids(problem, rooms.tokenizer, longest=rooms.longest_prompt), rooms.group_size, at)
        for problem, at in visits
    ]
    # The rewards of a group are computed beside the sampling of the others.
    scoring = rooms.scorer.scoring()
    groups = rooms.engine.generate(requests, sampling, on_finished=on_finished, on_group=scoring.begin)
    sampled = time.perf_counter()
    # A completion whose reward is invalid has a NaN total: no part in its group's statistics, advantage 0.
    outcomes = scoring.finish(rooms.tokenizer)
    # Groups are chosen by their rewards, before the length penalty.
    kept = rooms.algorithm.groups.kept([[outcome.earned for outcome in row] for row in outcomes])
    return _Round(groups, outcomes, kept, sampled - started, time.perf_counter() - sampled)
