"""Compares two policies on the same problems by paired differences, which cancel how hard each problem is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from grouprl.evaluation.statistics import mean_interval, pass_at_k, score_interval
from grouprl.files import is_number


@dataclass(frozen=True)
class ProblemResults:
    """The results of an evaluation problem by problem: a line of held_out.jsonl without its step.

    >>> ProblemResults(("test-0", "test-1"), (1, 0), (8, 3), samples=8).correct[1]
    3
    """

    problem_ids: tuple[str, ...]
    greedy: tuple[int, ...]  # 1 where the greedy completion is correct, else 0; empty without a verifier
    correct: tuple[int, ...]  # number of correct sampled completions; empty without a verifier
    samples: int  # sampled completions of each problem; 0 = greedy only
    # mean of each problem by metric, `reward` or `rewards/NAME/mean`; None = no valid reward
    rewards: Mapping[str, tuple[float | None, ...]] = field(default_factory=dict)

    @classmethod
    def read(cls, row: Mapping[str, Any]) -> ProblemResults | None:
        """The results in a line of held_out.jsonl; None where it has something else."""
        names, samples, rewards = row.get("problem_ids"), row.get("samples"), row.get("rewards", {})
        numbers = [row.get("greedy"), row.get("correct"), *(rewards.values() if isinstance(rewards, dict) else [None])]
        if (
            not isinstance(names, list)
            or type(samples) is not int
            or not all(isinstance(name, str) for name in names)
            or not all(isinstance(column, list) and len(column) in (0, len(names)) for column in numbers)
            or (numbers[1] and not numbers[0])
            or not all(is_number(value) for column in numbers[:2] for value in column)
            or not all(value is None or is_number(value) for column in numbers[2:] for value in column)
        ):
            return None
        greedy, correct, *means = map(tuple, numbers)
        return cls(tuple(names), greedy, correct, samples, dict(zip(rewards, means, strict=True)))

    @property
    def greedy_by_problem(self) -> dict[str, float]:
        """1.0 for each problem whose greedy completion is correct, else 0.0."""
        return dict(zip(self.problem_ids, map(float, self.greedy), strict=bool(self.greedy)))

    @property
    def sampled_by_problem(self) -> dict[str, float]:
        """The share of correct sampled completions of each problem; empty when none were sampled."""
        return self.pass_at_by_problem(1)

    def pass_at_by_problem(self, k: int) -> dict[str, float]:
        """`pass_at_k` of each problem, for k up to `samples`; empty when none were sampled."""
        counted = zip(self.problem_ids, self.correct, strict=True) if self.samples and self.correct else ()
        return {name: pass_at_k(count, self.samples, k) for name, count in counted}

    def reward_by_problem(self, metric: str) -> dict[str, float]:
        """The mean reward of each problem that has one; empty for a metric that was not evaluated."""
        means = zip(self.problem_ids, self.rewards.get(metric, ()), strict=False)
        return {name: mean for name, mean in means if mean is not None}


@dataclass(frozen=True)
class Difference:
    """The mean of paired differences and its 95 % confidence interval."""

    mean: float
    interval: tuple[float, float] | None  # None for a single pair, which has no spread
    pairs: int


def paired_difference(ours: Sequence[float], theirs: Sequence[float]) -> Difference:
    """Mean of ours - theirs with its 95 % Student interval over the pairs.

    The interval covers only the population that the pairs were drawn from. Pairs of problems say something about other
    problems for the same trained weights; pairs of seeds say something about other seeds on the same problems. Equal
    differences do not know their spread: they get the width of the `score_interval` of numbers that could have been as
    far apart as those of one side are, and at least by 1.

    Args:
        ours, theirs: one number for each pair, in the same order; in the unit of the result.

    Raises:
        ValueError: the two have different lengths, or are empty.

    >>> paired_difference([3.0, 5.0, 4.0], [1.0, 2.0, 3.0]).mean
    2.0
    """
    if len(ours) != len(theirs) or not ours:
        raise ValueError(f"paired_difference: expected pairs, at least one, got {len(ours)} and {len(theirs)} values")
    differences = [mine - other for mine, other in zip(ours, theirs, strict=True)]
    interval = None
    if min(differences) < max(differences):
        interval = mean_interval(differences)
    elif len(differences) > 1:
        span = max(1.0, *(max(side) - min(side) for side in (ours, theirs)))
        low, high = score_interval([0.0] * len(differences), -span, span)
        interval = differences[0] + low, differences[0] + high
    return Difference(fmean(differences), interval, len(differences))


def paired_by_name(ours: Mapping[str, float], theirs: Mapping[str, float]) -> Difference | None:
    """The `paired_difference` over the names that both mappings have; None when they share no name."""
    names = [name for name in ours if name in theirs]
    return paired_difference([ours[n] for n in names], [theirs[n] for n in names]) if names else None


def mean_by_problem(results: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean over several runs for each problem that all of these runs were evaluated on."""
    shared = [name for name in results[0] if all(name in other for other in results)] if results else []
    return {name: fmean(result[name] for result in results) for name in shared}


def compare_results(ours: ProblemResults, theirs: ProblemResults) -> dict[str, Difference]:
    """Compares two checkpoints, of one run or of two, over the problems that both were evaluated on.

    Returns:
        Differences ours - theirs of what both have: of shares in [0, 1] `greedy_accuracy`, and `pass_at_1` when both
        drew samples; of mean rewards `reward` and `rewards/NAME/mean`.

    Raises:
        ValueError: the two share no problem.
    """
    if not set(ours.problem_ids) & set(theirs.problem_ids):
        raise ValueError("compare_results: expected problems that both were evaluated on, got none in common")
    differences = {
        "greedy_accuracy": paired_by_name(ours.greedy_by_problem, theirs.greedy_by_problem),
        "pass_at_1": paired_by_name(ours.sampled_by_problem, theirs.sampled_by_problem),
        **{name: paired_by_name(ours.reward_by_problem(name), theirs.reward_by_problem(name)) for name in ours.rewards},
    }
    return {name: difference for name, difference in differences.items() if difference is not None}
