"""Evaluates a policy on held-out problems: mean rewards, greedy accuracy, pass@k and their intervals."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING

from grouprl.evaluation.metrics import trait_shares
from grouprl.evaluation.paired import ProblemResults
from grouprl.evaluation.statistics import pass_at_k, pass_counts, score_interval, wilson_interval
from grouprl.rewards.scorer import Scorer
from grouprl.rollout import Engine, Request
from grouprl.tasks.base import Task
from grouprl.tasks.mixture import PART, Mixture
from grouprl.types import Group, RewardOutcome, Sampling

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

STREAM = "evaluation"  # every evaluation draws the same random numbers, so that two evaluations are paired

Metrics = dict[str, float | int | tuple[float, float]]


@dataclass(frozen=True)
class Evaluation:
    """Metrics of an evaluation for summary.json, the results of each problem, and the greedy completions."""

    metrics: Metrics
    results: ProblemResults
    greedy: tuple[Group, ...]
    outcomes: tuple[RewardOutcome, ...]  # of the greedy completions
    invalid: tuple[str, ...]  # why a completion has no valid reward; one reason for each


def evaluate(
    engine: Engine,
    task: Task,
    scorer: Scorer,
    prompts: Sequence[Request],
    *,
    sampling: Sampling,
    samples: int,
    tokenizer: PreTrainedTokenizerBase | None = None,
    judged: bool = True,
    on_finished: Callable[[int], None] | None = None,
) -> Evaluation:
    """Scores one greedy completion and `samples` sampled ones (temperature 1, no truncation) of every problem.

    Args:
        engine: samples from the policy.
        task: names the traits to count.
        scorer: runs the rewards and the verifier; a completion that the verifier fails on counts as not correct.
        prompts: the problems; their number of completions is ignored.
        sampling: of training: completions end in the same way.
        samples: completions per problem for pass@k and mean rewards; 0 = only the greedy one.
        tokenizer: needed for process rewards.
        judged: whether rewards that count their requests, judge models, are called.
        on_finished: see `Engine.generate`; the evaluation makes len(prompts) * (samples + 1) completions.

    Returns:
        Its `metrics` hold the number of problems; `reward` and `rewards/NAME/mean`, means over problems of the sampled
        completions, without samples of the greedy ones; and invalid_share where some of these have no valid reward,
        which leaves them out. With a verifier they hold greedy_accuracy, and unverified_share when the verifier failed
        on some completions. A mixture has PART_solved_share too, the greedy accuracy of each part. With samples they
        hold trait shares and mean_length (tokens) of the sampled completions. With both they hold pass_at_1,
        pass_at_2, pass_at_4, ... up to `samples`.
        Accuracies and rewards have 95 % intervals (`wilson_interval`, `score_interval`).
    """

    def generate(completions: int, sampling: Sampling) -> list[Group]:
        requests = [replace(prompt, completions=completions, stream=STREAM) for prompt in prompts]
        return engine.generate(requests, sampling, on_finished=on_finished)

    greedy = generate(1, sampling.plain(0.0))
    sampled = generate(samples, sampling.plain()) if samples else []
    uncalled = [] if judged else scorer.judges
    one_each, several = (scorer.evaluate(part, tokenizer, without=uncalled) for part in (greedy, sampled))
    measured = several if samples else one_each
    rewards, means = _mean_rewards(measured)
    names = tuple(prompt.problem.id for prompt in prompts) if rewards or scorer.verifier is not None else ()
    results = ProblemResults(names, (), (), samples, rewards)
    metrics: Metrics = {"problems": len(prompts), **means}
    if scorer.verifier is not None and scorer.verifier not in uncalled:
        hits = tuple(int(bool(row[0].correct)) for row in one_each)
        correct = tuple(sum(bool(outcome.correct) for outcome in row) for row in several) or (0,) * len(prompts)
        results = replace(results, greedy=hits, correct=correct)
        failed = [outcome.correct is None for row in (*one_each, *several) for outcome in row]
        metrics |= _accuracies(results)
        parts = [prompt.problem.columns[PART] for prompt in prompts] if isinstance(task, Mixture) else []
        for label in dict.fromkeys(parts):
            of_part = [hit for part, hit in zip(parts, hits, strict=True) if part == label]
            name = f"{label}_solved_share"
            metrics[name] = sum(of_part) / len(of_part)
            metrics[f"{name}_interval"] = wilson_interval(sum(of_part), len(of_part))
        metrics |= {"unverified_share": statistics.fmean(failed)} if any(failed) else {}
    is_scored = scorer.rewards and not uncalled
    invalid = tuple(outcome.reason for row in measured for outcome in row if outcome.reason and is_scored)
    metrics |= {"invalid_share": len(invalid) / sum(map(len, measured))} if invalid else {}
    if samples:
        lengths = [len(completion) for group in sampled for completion in group.completions]
        metrics |= {**trait_shares(task, sampled), "mean_length": statistics.fmean(lengths)}
    return Evaluation(metrics, results, tuple(greedy), tuple(row[0] for row in one_each), invalid)


def _mean_rewards(outcomes: Sequence[Sequence[RewardOutcome]]) -> tuple[dict[str, tuple[float | None, ...]], Metrics]:
    """The mean reward of each problem, None without a valid one, in total and of each reward; and means of those."""
    by_problem: dict[str, tuple[float | None, ...]] = {}
    metrics: Metrics = {}
    names = dict.fromkeys(name for row in outcomes for outcome in row for name in outcome.components)
    for name in ("reward", *(f"rewards/{name}/mean" for name in names)):
        component = name.removeprefix("rewards/").removesuffix("/mean")
        rows = [
            [outcome.total for outcome in row if outcome.valid]
            if name == "reward"
            else [value for outcome in row if (value := outcome.components.get(component)) is not None]
            for row in outcomes
        ]
        values = [value for row in rows for value in row]
        if not values:
            continue
        low, high = min(values), max(values)
        means = [min(high, max(low, statistics.fmean(row))) if row else None for row in rows]
        known_means = [mean for mean in means if mean is not None]
        # What was seen bounds the rewards; of equal ones nobody knows the size, so they could have been 0 or 1 as well.
        bounds = (low, high) if low < high else (min(low, 0.0), max(high, 1.0))
        by_problem[name] = tuple(means)
        metrics |= {name: statistics.fmean(known_means), f"{name}_interval": score_interval(known_means, *bounds)}
    return by_problem, metrics


def _accuracies(results: ProblemResults) -> Metrics:
    greedy, samples = results.greedy, results.samples
    metrics: Metrics = {
        "greedy_accuracy": sum(greedy) / len(greedy),
        "greedy_interval": wilson_interval(sum(greedy), len(greedy)),
    }
    if not samples:
        return metrics
    counts = pass_counts(samples)
    intervals: list[tuple[float, float]] = []
    for k in counts:
        chances = [pass_at_k(count, samples, k) for count in results.correct]
        metrics[f"pass_at_{k}"] = statistics.fmean(chances)
        intervals.append(score_interval(chances))
    # pass@k grows with k, and so do the ends of its interval.
    lows = list(accumulate((low for low, _ in reversed(intervals)), min))[::-1]
    highs = accumulate((high for _, high in intervals), max)
    return metrics | {
        f"pass_at_{k}_interval": ends for k, ends in zip(counts, zip(lows, highs, strict=True), strict=True)
    }
