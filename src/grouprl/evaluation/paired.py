"""Compares two policies on the same problems by paired differences, which cancel how hard each problem is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from grouprl.evaluation.statistics import mean_interval


@dataclass(frozen=True)
class ProblemResults:
    """The results of an evaluation problem by problem: a line of held_out.jsonl without its step.

    >>> ProblemResults(("test-0", "test-1"), (1, 0), (8, 3), samples=8).correct[1]
    3
    """

    problem_ids: tuple[str, ...]
    greedy: tuple[int, ...]  # 1 where the greedy completion is correct, else 0
    correct: tuple[int, ...]  # number of correct sampled completions
    samples: int  # sampled completions of each problem; 0 = greedy only

    @property
    def greedy_by_problem(self) -> dict[str, float]:
        """1.0 for each problem whose greedy completion is correct, else 0.0."""
        return dict(zip(self.problem_ids, map(float, self.greedy), strict=True))

    @property
    def sampled_by_problem(self) -> dict[str, float]:
        """The share of correct sampled completions of each problem; empty when none were sampled."""
        counted = zip(self.problem_ids, self.correct, strict=True) if self.samples else ()
        return {name: count / self.samples for name, count in counted}


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
    differences give an interval without width.

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
    return Difference(
        mean=fmean(differences),
        interval=mean_interval(differences) if len(differences) > 1 else None,
        pairs=len(differences),
    )


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
        Differences ours - theirs of shares in [0, 1]: `greedy_accuracy`, and `pass_at_1` when both drew samples.

    Raises:
        ValueError: the two share no problem.
    """
    greedy = paired_by_name(ours.greedy_by_problem, theirs.greedy_by_problem)
    if greedy is None:
        raise ValueError("compare_results: expected problems that both were evaluated on, got none in common")
    sampled = paired_by_name(ours.sampled_by_problem, theirs.sampled_by_problem)
    return {"greedy_accuracy": greedy, **({} if sampled is None else {"pass_at_1": sampled})}
