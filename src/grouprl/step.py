"""ONE GRPO STEP: the only file where the rooms meet. Read it top to bottom beside algorithm 1 of arXiv:2402.03300.

problems -> groups of completions -> rewards -> advantages relative to the group -> batch -> update -> new weights
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from transformers import PreTrainedTokenizerBase

from grouprl.algorithm import Algorithm
from grouprl.algorithms import group_advantages
from grouprl.evaluation.measures import step_measures
from grouprl.learner import Learner, make_batch
from grouprl.models import prompt_token_ids
from grouprl.rewards import WeightedReward, judge
from grouprl.rollout import Engine, Request
from grouprl.tasks import Task
from grouprl.types import Group, Problem, RewardOutcome, Sampling


@dataclass(frozen=True)
class Rooms:
    """Everything a step uses. Nothing in here is replaced during a run; the weights inside the learner change."""

    task: Task
    rewards: Sequence[WeightedReward]
    engine: Engine
    learner: Learner
    algorithm: Algorithm
    tokenizer: PreTrainedTokenizerBase
    sampling: Sampling
    longest_prompt: int  # tokens
    problems_per_step: int  # P
    group_size: int  # G
    seed: int


@dataclass(frozen=True)
class StepResult:
    """What a step did, for the record."""

    groups: Sequence[Group]  # [P]
    outcomes: Sequence[Sequence[RewardOutcome]]  # [P][G]
    advantages: Sequence[Sequence[float]]  # [P][G]
    metrics: dict[str, float]


def grpo_step(rooms: Rooms, step: int, *, on_finished: Callable[[int], None] | None = None) -> StepResult:
    """Samples a batch of groups, scores them, and moves the policy once (`algorithm.passes` times).

    Args:
        rooms: the parts; the policy in `rooms.learner` is changed.
        step: 1, 2, ...; with the seed it decides the problems and every random number.
        on_finished: see `Engine.generate`.
    """
    started = time.perf_counter()

    # Sample G completions of each of P problems from the current policy.
    requests = [
        Request(problem, prompt_token_ids(problem, rooms.tokenizer, longest=rooms.longest_prompt), rooms.group_size, at)
        for problem, at in step_problems(rooms, step)
    ]
    groups = rooms.engine.generate(requests, rooms.sampling, on_finished=on_finished)
    sampled = time.perf_counter()

    # Score each completion; a completion whose reward is invalid has a NaN total and takes no part.
    outcomes = judge(groups, rooms.rewards)
    rewarded = time.perf_counter()

    # Compare each completion with its own group: this is what replaces the critic.
    rewards_N = torch.tensor([outcome.total for group in outcomes for outcome in group], dtype=torch.float64)
    group_ids_N = torch.tensor([index for index, group in enumerate(outcomes) for _ in group])
    advantages_N = group_advantages(
        rewards_N,
        group_ids_N,
        baseline=rooms.algorithm.baseline,
        scale=rooms.algorithm.scale,
        std=rooms.algorithm.std,
    )

    # Clipped ratio, KL to the frozen reference, gradient, AdamW: see Learner.learn and algorithms.policy_loss.
    batch = make_batch(groups, advantages_N, rooms.algorithm, rooms.sampling)
    learned = rooms.learner.learn(batch)

    # The only arrow back: the engine samples the next step from the new weights.
    rooms.engine.load_weights(rooms.learner.optimizer.updates)

    metrics = step_measures(rooms.task, groups, outcomes) | learned
    total = time.perf_counter() - started
    metrics |= {
        "tokens_per_second": metrics["completion_tokens"] / total,
        "time/rollout": sampled - started,
        "time/reward": rewarded - sampled,
        "time/total": total,
    }
    flat = iter(advantages_N.tolist())
    return StepResult(groups, outcomes, [[next(flat) for _ in group] for group in outcomes], metrics)


def step_problems(rooms: Rooms, step: int) -> list[tuple[Problem, str]]:
    """The problems of a step, each with the name of its random stream.

    Every epoch visits all train problems in an order of its own, which depends on the seed and the epoch alone.
    """
    problems = rooms.task.problems("train")
    first = (step - 1) * rooms.problems_per_step
    chosen = []
    for visit in range(first, first + rooms.problems_per_step):
        epoch, place = divmod(visit, len(problems))
        chosen.append((problems[_epoch_order(rooms.seed, epoch, len(problems))[place]], f"epoch {epoch}"))
    return chosen


@lru_cache(maxsize=2)
def _epoch_order(seed: int, epoch: int, count: int) -> list[int]:
    order = list(range(count))
    random.Random(f"order/{seed}/{epoch}").shuffle(order)
    return order
