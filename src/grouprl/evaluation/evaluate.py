"""Judges a policy on held-out problems: greedy accuracy, pass@k and their intervals."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from grouprl.evaluation.measures import trait_shares
from grouprl.evaluation.paired import ProblemResults
from grouprl.evaluation.statistics import mean_interval, pass_at_k, wilson_interval
from grouprl.rollout import Engine, Request
from grouprl.scoring.scorer import Scorer
from grouprl.tasks.base import Task
from grouprl.types import Group, Sampling

STREAM = "evaluation"  # the same random numbers at every evaluation, so that two of them are paired

Values = dict[str, float | int | tuple[float, float]]


@dataclass(frozen=True)
class Evaluation:
    """What was found: the plain values of summary.json, each problem's own, and the greedy completions to read."""

    values: Values
    results: ProblemResults  # of no problem when nothing says what is correct
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
    """One greedy completion and `samples` sampled ones (temperature 1, nothing cut) of every problem.

    Args:
        engine: samples from the policy.
        task: whose traits are counted.
        scorer: its verifier says what is correct; a completion that it cannot judge counts as not correct.
        prompts: the problems; their number of completions is ignored.
        samples: completions per problem for pass@k; 0 = the greedy one alone.
        max_tokens: of a completion.
        on_finished: see `Engine.generate`; len(prompts) * (samples + 1) completions are made in all.

    Returns:
        values: the number of problems; with a verifier greedy_accuracy, and unverified_share, the share of all
        completions that it could not scorer, when above 0; with samples the share of each trait among the sampled
        completions, their mean_length in tokens, and with both pass_at_1, pass_at_2, pass_at_4, ... up to `samples`.
        Accuracies have their 95 % interval (Wilson's for shares of problems, Student's t for means).
    """
    greedy = _generate(engine, prompts, 1, Sampling(max_tokens, temperature=0.0), on_finished)
    sampled = _generate(engine, prompts, samples, Sampling(max_tokens), on_finished) if samples else []
    said, drawn = scorer.verify(greedy), scorer.verify(sampled)
    results = ProblemResults((), (), (), samples)
    values: Values = {}
    if scorer.verifier is not None:
        names = tuple(prompt.problem.id for prompt in prompts)
        hits = tuple(int(bool(row[0])) for row in said)
        correct = tuple(sum(map(bool, row)) for row in drawn) or (0,) * len(prompts)
        results = ProblemResults(names, hits, correct, samples)
        values = _accuracies(results) | _unverified([*said, *drawn])
    values |= {**(_written(task, sampled) if samples else {}), "problems": len(prompts)}
    return Evaluation(values, results, tuple(greedy), tuple(row[0] for row in said))


def _accuracies(results: ProblemResults) -> Values:
    greedy, samples = results.greedy, results.samples
    values: Values = {
        "greedy_accuracy": sum(greedy) / len(greedy),
        "greedy_interval": wilson_interval(sum(greedy), len(greedy)),
    }
    if not samples:
        return values
    for k in sorted({1, samples} | {2**power for power in range(10) if 2**power < samples}):
        chances = [pass_at_k(count, samples, k) for count in results.correct]
        values[f"pass_at_{k}"] = statistics.fmean(chances)
        values[f"pass_at_{k}_interval"] = _interval(chances, whole=k == samples)
    return values


def _unverified(verdicts: Sequence[Sequence[bool | None]]) -> Values:
    flat = [said is None for row in verdicts for said in row]
    return {"unverified_share": statistics.fmean(flat)} if any(flat) else {}


def _written(task: Task, sampled: Sequence[Group]) -> Values:
    lengths = [len(completion) for group in sampled for completion in group.completions]
    return {**trait_shares(task, sampled), "mean_length": statistics.fmean(lengths)}


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
