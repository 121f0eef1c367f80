"""Evaluates a policy on held-out problems: greedy accuracy, pass@k and their intervals."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from grouprl.evaluation.metrics import trait_shares
from grouprl.evaluation.paired import ProblemResults
from grouprl.evaluation.statistics import mean_interval, pass_at_k, wilson_interval
from grouprl.rollout import Engine, Request
from grouprl.scoring.scorer import Scorer
from grouprl.tasks.base import Task
from grouprl.tasks.mixture import PART, Mixture
from grouprl.types import Group, Sampling

STREAM = "evaluation"  # every evaluation draws the same random numbers, so that two evaluations are paired

Metrics = dict[str, float | int | tuple[float, float]]


@dataclass(frozen=True)
class Evaluation:
    """Metrics of an evaluation for summary.json, the results of each problem, and the greedy completions."""

    metrics: Metrics
    results: ProblemResults  # empty where the task has no verifier
    greedy: tuple[Group, ...]
    verdicts: tuple[bool | None, ...]  # of the greedy completions; None = the verifier failed, or there is none


def evaluate(
    engine: Engine,
    task: Task,
    scorer: Scorer,
    prompts: Sequence[Request],
    *,
    samples: int,
    max_tokens: int,
    on_finished: Callable[[int], None] | None = None,
) -> Evaluation:
    """Verifies one greedy completion and `samples` sampled ones (temperature 1, no truncation) of every problem.

    Args:
        engine: samples from the policy.
        task: names the traits to count.
        scorer: runs the verifier; a completion that the verifier fails on counts as not correct.
        prompts: the problems; their number of completions is ignored.
        samples: completions per problem for pass@k; 0 = only the greedy one.
        max_tokens: limit of a completion.
        on_finished: see `Engine.generate`; the evaluation makes len(prompts) * (samples + 1) completions.

    Returns:
        Its `metrics` hold the number of problems. With a verifier they hold greedy_accuracy, and unverified_share when
        the verifier failed on some completions. A mixture has PART_solved_share too, the greedy accuracy of each part.
        With samples they hold trait shares and mean_length (tokens) of the sampled completions. With both they hold
        pass_at_1, pass_at_2, pass_at_4, ... up to `samples`.
        Accuracies have 95 % intervals (Wilson's for shares of problems, Student's t for means).
    """

    def generate(completions: int, sampling: Sampling) -> list[Group]:
        requests = [replace(prompt, completions=completions, stream=STREAM) for prompt in prompts]
        return engine.generate(requests, sampling, on_finished=on_finished)

    greedy = generate(1, Sampling(max_tokens, temperature=0.0))
    sampled = generate(samples, Sampling(max_tokens)) if samples else []
    greedy_verdicts, verdicts = scorer.verify(greedy), scorer.verify(sampled)
    results = ProblemResults((), (), (), samples)
    metrics: Metrics = {"problems": len(prompts)}
    if scorer.verifier is not None:
        names = tuple(prompt.problem.id for prompt in prompts)
        hits = tuple(int(bool(row[0])) for row in greedy_verdicts)
        correct = tuple(sum(map(bool, row)) for row in verdicts) or (0,) * len(prompts)
        results = ProblemResults(names, hits, correct, samples)
        failed = [verdict is None for row in (*greedy_verdicts, *verdicts) for verdict in row]
        metrics |= _accuracies(results) | (_of_parts(prompts, hits) if isinstance(task, Mixture) else {})
        metrics |= {"unverified_share": statistics.fmean(failed)} if any(failed) else {}
    if samples:
        lengths = [len(completion) for group in sampled for completion in group.completions]
        metrics |= {**trait_shares(task, sampled), "mean_length": statistics.fmean(lengths)}
    return Evaluation(metrics, results, tuple(greedy), tuple(row[0] for row in greedy_verdicts))


def _accuracies(results: ProblemResults) -> Metrics:
    greedy, samples = results.greedy, results.samples
    metrics: Metrics = {
        "greedy_accuracy": sum(greedy) / len(greedy),
        "greedy_interval": wilson_interval(sum(greedy), len(greedy)),
    }
    if not samples:
        return metrics
    for k in sorted({1, samples} | {2**power for power in range(10) if 2**power < samples}):
        chances = [pass_at_k(count, samples, k) for count in results.correct]
        metrics[f"pass_at_{k}"] = statistics.fmean(chances)
        metrics[f"pass_at_{k}_interval"] = _interval(chances, whole=k == samples)
    return metrics


def _of_parts(prompts: Sequence[Request], hits: Sequence[int]) -> Metrics:
    """The greedy accuracy of each part of a mixture."""
    found: dict[str, list[int]] = {}
    for prompt, hit in zip(prompts, hits, strict=True):
        found.setdefault(prompt.problem.columns[PART], []).append(hit)
    metrics: Metrics = {}
    for part, own in found.items():
        name = f"{part}_solved_share"
        metrics |= {name: sum(own) / len(own), f"{name}_interval": wilson_interval(sum(own), len(own))}
    return metrics


def _interval(chances: Sequence[float], *, whole: bool) -> tuple[float, float]:
    # pass@k of k samples is 0 or 1 for each problem: Wilson's interval for a share holds near 0 and 1 as well.
    if whole or len(chances) < 2:
        return wilson_interval(round(sum(chances)), len(chances))
    low, high = mean_interval(chances)
    return max(0.0, low), min(1.0, high)
