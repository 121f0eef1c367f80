"""Computes metrics and a verdict from the trials of a reward; calls no reward function."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Literal

from grouprl.check_reward.trials import Trial
from grouprl.check_reward.tricks import GOLD, KINDS, Kind
from grouprl.types import RewardOutcome

Repeats = Literal["yes", "no", "depends on the other completions of its call"]


@dataclass(frozen=True)
class KindScores:
    """The scores of all completions of one kind; None if none of them is valid."""

    name: str
    trick: bool
    right: bool  # whether it ends in the right answer
    about: str
    completions: int
    invalid: int
    reason: str  # the most common reason of invalid completions
    mean: float | None  # mean total of the valid completions
    median: float | None
    smallest: float | None
    largest: float | None
    components: Mapping[str, float | None]  # mean of each reward where it applies, unweighted
    correct: float | None  # share that the task's verifier accepts
    milliseconds: float | None  # mean time of a call on one valid completion
    slowest_milliseconds: float | None
    example: str  # the completion with the highest total


@dataclass(frozen=True)
class RewardFacts:
    """The behavior of one reward over all its calls."""

    name: str
    weight: float
    per_step: bool  # a process reward: values are means over a completion's steps, not part of the total
    smallest: float | None
    largest: float | None
    repeats: Repeats  # whether a second call on the same completion gave the same value
    difference: str  # an example of different values
    failures: Mapping[str, int]  # count by reason

    @property
    def is_constant(self) -> bool:
        """Whether the reward gave one value to every completion."""
        return self.smallest == self.largest


Status = Literal["ok", "tied", "beaten", "no verdict"]


@dataclass(frozen=True)
class Verdict:
    """The best trick against gold.

    >>> verdict_of(()).text
    'No verdict: the task knows no gold completions.'
    """

    status: Status
    text: str
    best_trick: str | None = None
    beaten_by: tuple[str, ...] = ()  # the tricks whose mean is above gold's median, best first


@dataclass(frozen=True)
class RewardCheck:
    """The findings about the rewards of a run."""

    task: str
    problems: int
    kinds: tuple[KindScores, ...]
    left_out: Mapping[str, str]  # kinds of completions that could not be made, and their needs
    rewards: tuple[RewardFacts, ...]
    warnings: tuple[str, ...]
    verdict: Verdict

    @property
    def beaten(self) -> bool:
        """Whether a trick has a higher mean than the median of gold."""
        return self.verdict.status == "beaten"

    @property
    def passed(self) -> bool:
        """Whether to train on it: no trick beats gold, and gold completions, if known, are valid."""
        gold_is_known = any(scores.name == GOLD.name for scores in self.kinds)
        return not self.beaten and not (gold_is_known and self.verdict.status == "no verdict")


def kind_scores(trials: Sequence[Trial], rewards: Sequence[str]) -> tuple[KindScores, ...]:
    """Computes the scores of each kind with trials, in the order of `KINDS`; `rewards` are names of components."""
    of_kind: dict[str, list[Trial]] = {}
    for trial in trials:
        of_kind.setdefault(trial.kind.name, []).append(trial)
    return tuple(_scores(kind, of_kind[kind.name], rewards) for kind in KINDS if kind.name in of_kind)


def _scores(kind: Kind, trials: Sequence[Trial], rewards: Sequence[str]) -> KindScores:
    valid = [trial for trial in trials if trial.outcome.valid]
    totals = [trial.outcome.total for trial in valid]
    reasons = Counter(trial.outcome.reason for trial in trials if not trial.outcome.valid)
    verified = [float(trial.outcome.correct) for trial in trials if trial.outcome.correct is not None]
    spent = [1000 * trial.seconds for trial in valid if trial.seconds is not None]
    return KindScores(
        name=kind.name,
        trick=kind.trick,
        right=kind.right,
        about=kind.about,
        completions=len(trials),
        invalid=len(trials) - len(valid),
        reason=reasons.most_common(1)[0][0] if reasons else "",
        mean=fmean(totals) if totals else None,
        median=median(totals) if totals else None,
        smallest=min(totals, default=None),
        largest=max(totals, default=None),
        components={name: _mean(_values(name, [trial.outcome for trial in trials])) for name in rewards},
        correct=_mean(verified),
        milliseconds=_mean(spent),
        slowest_milliseconds=max(spent, default=None),
        example=max(valid or trials, key=lambda trial: trial.outcome.total).text,
    )


def reward_facts(
    trials: Sequence[Trial], weights: Mapping[str, float], per_step: Collection[str] = ()
) -> tuple[RewardFacts, ...]:
    """Computes the facts of each reward in `weights` (by name); `per_step` names the process rewards."""
    return tuple(_facts(name, weight, name in per_step, trials) for name, weight in weights.items())


def _facts(name: str, weight: float, per_step: bool, trials: Sequence[Trial]) -> RewardFacts:
    outcomes = [outcome for trial in trials for outcome in (trial.outcome, *trial.alone)]
    values = _values(name, outcomes)
    repeats, difference = _repeats(name, trials)
    reasons = (reason for outcome in outcomes if (reason := failure(name, outcome)))
    return RewardFacts(
        name=name,
        weight=weight,
        per_step=per_step,
        smallest=min(values, default=None),
        largest=max(values, default=None),
        repeats=repeats,
        difference=difference,
        failures=Counter(reasons),
    )


def failure(name: str, outcome: RewardOutcome) -> str:
    """Returns the reason why an outcome lacks this reward's value; '' when it has one or the reward does not apply."""
    if outcome.components[name] is not None:
        return ""
    parts = [part.removeprefix(f"{name} ") for part in outcome.reason.split("; ") if part.startswith(f"{name} ")]
    return parts[0] if parts else ""


def _repeats(name: str, trials: Sequence[Trial]) -> tuple[Repeats, str]:
    group_matters: tuple[Repeats, str] | None = None
    for trial in trials:
        alone = [outcome.components[name] for outcome in trial.alone]
        where = f"({trial.kind.name}, {trial.problem_id})"
        if len(alone) == 2 and not _same(*alone):
            said = " and ".join(_said(name, outcome) for outcome in trial.alone)
            return "no", f"{said} for the same completion {where}"
        if group_matters is None and alone and not _same(trial.outcome.components[name], alone[0]):
            said = f"{_said(name, trial.outcome)} beside others and {_said(name, trial.alone[0])} alone"
            group_matters = "depends on the other completions of its call", f"{said} {where}"
    return group_matters or ("yes", "")


def _same(a: float | None, b: float | None) -> bool:
    """Whether two values are equal up to float32 rounding of a network in different batches."""
    return a == b if a is None or b is None else math.isclose(a, b, rel_tol=1e-5, abs_tol=1e-6)


def _said(name: str, outcome: RewardOutcome) -> str:
    value = outcome.components[name]
    return (failure(name, outcome) or "None") if value is None else f"{value:.6g}"


def verdict_of(kinds: Sequence[KindScores]) -> Verdict:
    """Compares the trick with the best mean with the median of gold.

    `beaten` needs a mean strictly above that median. A trick that ends in the right answer must also exceed gold's
    mean, because with problems of different rewards gold's own mean may exceed its median.
    """
    gold = {scores.name: scores for scores in kinds}.get(GOLD.name)
    if gold is None or gold.median is None:
        why = "the task knows no gold completions" if gold is None else f"no gold completion is valid: {gold.reason}"
        return Verdict("no verdict", f"No verdict: {why}.")
    tricks = [scores for scores in kinds if scores.trick and scores.mean is not None]
    beating = [
        scores
        for scores in tricks
        if above(scores.mean, gold.median) and (not scores.right or above(scores.mean, gold.mean))
    ]
    cheap = sorted(beating or [scores for scores in tricks if not scores.right], key=_by_mean, reverse=True)
    if not cheap:
        return Verdict("ok", "No trick beats gold: none of them is valid.")
    best = cheap[0]
    compared = f"has a mean of {best.mean:.2f}; the median of gold is {gold.median:.2f}."
    if beating:
        names = tuple(scores.name for scores in cheap)
        more = f" Above gold as well: {', '.join(names[1:])}." if names[1:] else ""
        return Verdict("beaten", f"Gold is beaten: the trick '{best.name}' {compared}{more}", best.name, names)
    if not above(gold.median, best.mean):
        return Verdict("tied", f"The trick '{best.name}' scores as much as gold: it {compared}", best.name)
    return Verdict("ok", f"No trick beats gold: the best of them, '{best.name}', {compared}", best.name)


def above(a: float | None, b: float | None) -> bool:
    """Whether a > b by more than rounding; False for None."""
    return a is not None and b is not None and a > b and not math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-12)


def _by_mean(scores: KindScores) -> float:
    return -math.inf if scores.mean is None else scores.mean


def _values(name: str, outcomes: Sequence[RewardOutcome]) -> list[float]:
    return [value for outcome in outcomes if (value := outcome.components[name]) is not None]


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None
