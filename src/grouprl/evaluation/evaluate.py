"""Judges a policy on held-out problems: greedy accuracy, pass@k and their intervals."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from grouprl.evaluation.measures import trait_shares
from grouprl.evaluation.statistics import mean_interval, pass_at_k, wilson_interval
from grouprl.rollout import Engine, Request
from grouprl.tasks.base import Task
from grouprl.types import Group, Sampling

STREAM = "evaluation"  # the same random numbers at every evaluation, so that two of them are paired


@dataclass(frozen=True)
class Evaluation:
    """What was found, as the plain values of summary.json, and the greedy completions for people to read."""

    values: dict[str, float | int | tuple[float, float]]
    greedy: tuple[Group, ...]


def evaluate(
    engine: Engine,
    task: Task,
    prompts: Sequence[Request],
    *,
    samples: int,
    max_tokens: int,
    on_finished: Callable[[int], None] | None = None,
) -> Evaluation:
    """One greedy completion and `samples` sampled ones (temperature 1, nothing cut) of every problem.

    Args:
        engine: samples from the policy.
        task: says what is correct.
        prompts: the problems; their number of completions is ignored.
        samples: completions per problem for pass@k, at least 1.
        max_tokens: of a completion.
        on_finished: see `Engine.generate`; len(prompts) * (samples + 1) completions are made in all.

    Returns:
        greedy_accuracy, pass_at_1, pass_at_2, pass_at_4, ... up to `samples`, each with its 95 % interval (Wilson's
        for shares of problems, Student's t for means), the share of each trait among the sampled completions, their
        mean_length in tokens, and the number of problems.
    """
    greedy = _generate(engine, prompts, 1, Sampling(max_tokens, temperature=0.0), on_finished)
    sampled = _generate(engine, prompts, samples, Sampling(max_tokens), on_finished)
    hits = sum(task.correct(group.problem, group.completions[0].text) for group in greedy)
    correct = [sum(task.correct(group.problem, c.text) for c in group.completions) for group in sampled]
    values: dict[str, float | int | tuple[float, float]] = {
        "greedy_accuracy": hits / len(prompts),
        "greedy_interval": wilson_interval(hits, len(prompts)),
    }
    for k in sorted({1, samples} | {2**power for power in range(10) if 2**power < samples}):
        chances = [pass_at_k(count, samples, k) for count in correct]
        values[f"pass_at_{k}"] = statistics.fmean(chances)
        values[f"pass_at_{k}_interval"] = _interval(chances, whole=k == samples)
    lengths = [len(completion) for group in sampled for completion in group.completions]
    values |= trait_shares(task, sampled)
    values |= {"mean_length": statistics.fmean(lengths), "problems": len(prompts)}
    return Evaluation(values, tuple(greedy))


def _generate(
    engine: Engine,
    prompts: Sequence[Request],
    completions: int,
    sampling: Sampling,
    on_finished: Callable[[int], None] | None,
) -> list[Group]:
    requests = [Request(prompt.problem, prompt.prompt_ids, completions, STREAM) for prompt in prompts]
    return engine.generate(requests, sampling, on_finished=on_finished)


def _interval(chances: Sequence[float], *, whole: bool) -> tuple[float, float]:
    # With k of k samples every chance is 0 or 1: a share, for which Wilson's interval holds near 0 and 1 as well.
    if whole or len(chances) < 2:
        return wilson_interval(round(sum(chances)), len(chances))
    low, high = mean_interval(chances)
    return max(0.0, low), min(1.0, high)
