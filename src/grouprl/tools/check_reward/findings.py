"""Computes metrics, warnings and a verdict from the trials of a reward; calls no reward function."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Literal

from grouprl.tools.check_reward.trials import GOLD, PADDED, SHUFFLED, Kind, Trial
from grouprl.types import RewardOutcome

Repeats = Literal["yes", "no", "depends on the other completions of its call"]
_LIKE_GOLD = 0.1  # shuffled gold counts as equal to gold within this share of the range from gold to the worst kind


@dataclass(frozen=True)
class Totals:
    """The totals of the valid completions of one kind."""

    mean: float
    median: float
    smallest: float
    largest: float


@dataclass(frozen=True)
class KindScores:
    """The scores of all completions of one kind."""

    kind: Kind
    completions: int
    invalid: int
    reason: str  # the most common reason of invalid completions
    total: Totals | None  # None = no completion is valid
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


Status = Literal["ok", "tied", "beaten", "no verdict"]


@dataclass(frozen=True)
class TaskVerdict:
    """The best trick against gold.

    >>> verdict_of(()).text
    'No verdict: the task has no gold completions.'
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
    verdict: TaskVerdict

    @property
    def beaten(self) -> bool:
        """Whether a trick has a higher mean than the median of gold."""
        return self.verdict.status == "beaten"

    @property
    def passed(self) -> bool:
        """Whether to train on it: no trick beats gold, and gold completions, if known, are valid."""
        gold_is_known = any(scores.kind == GOLD for scores in self.kinds)
        return not self.beaten and not (gold_is_known and self.verdict.status == "no verdict")


def kind_scores(kind: Kind, trials: Sequence[Trial], rewards: Iterable[str]) -> KindScores:
    """Computes the scores of a kind from its trials, at least one; `rewards` are names of components."""
    valid = [trial for trial in trials if trial.outcome.valid]
    totals = [trial.outcome.total for trial in valid]
    reasons = Counter(trial.outcome.reason for trial in trials if not trial.outcome.valid)
    verified = [float(trial.outcome.correct) for trial in trials if trial.outcome.correct is not None]
    spent = [1000 * trial.seconds for trial in valid if trial.seconds is not None]
    return KindScores(
        kind=kind,
        completions=len(trials),
        invalid=len(trials) - len(valid),
        reason=reasons.most_common(1)[0][0] if reasons else "",
        total=Totals(fmean(totals), median(totals), min(totals), max(totals)) if totals else None,
        components={name: _mean(_values(name, [trial.outcome for trial in trials])) for name in rewards},
        correct=_mean(verified),
        milliseconds=_mean(spent),
        slowest_milliseconds=max(spent, default=None),
        example=max(valid or trials, key=lambda trial: trial.outcome.total).text,
    )


def reward_facts(name: str, weight: float, trials: Sequence[Trial], *, per_step: bool) -> RewardFacts:
    """Computes the facts of a reward; `per_step` marks a process reward."""
    outcomes = [outcome for trial in trials for outcome in (trial.outcome, *trial.alone)]
    values = _values(name, outcomes)
    repeats, difference = _repeats(name, trials)
    return RewardFacts(
        name=name,
        weight=weight,
        per_step=per_step,
        smallest=min(values, default=None),
        largest=max(values, default=None),
        repeats=repeats,
        difference=difference,
        failures=Counter(filter(None, (_failure(name, outcome) for outcome in outcomes))),
    )


def _failure(name: str, outcome: RewardOutcome) -> str:
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
    return (_failure(name, outcome) or "None") if value is None else f"{value:.6g}"


def verdict_of(kinds: Sequence[KindScores]) -> TaskVerdict:
    """Compares the trick with the best mean with the median of gold.

    `beaten` needs a mean strictly above that median. A trick that ends in the right answer must also exceed gold's
    mean, because with problems of different rewards gold's own mean may exceed its median.
    """
    gold = {scores.kind: scores for scores in kinds}.get(GOLD)
    if gold is None or gold.total is None:
        why = "the task has no gold completions" if gold is None else f"no gold completion is valid: {gold.reason}"
        return TaskVerdict("no verdict", f"No verdict: {why}.")
    aim = gold.total
    tricks = [(scores.kind, scores.total.mean) for scores in kinds if scores.kind.trick and scores.total]
    beating = [
        (kind, mean) for kind, mean in tricks if _above(mean, aim.median) and (not kind.right or _above(mean, aim.mean))
    ]
    cheap = beating or [(kind, mean) for kind, mean in tricks if not kind.right]
    if not cheap:
        return TaskVerdict("ok", "No trick beats gold: no trick is valid.")
    names = tuple(kind.name for kind, _ in sorted(cheap, key=lambda pair: pair[1], reverse=True))
    best, mean = names[0], max(mean for _, mean in cheap)
    compared = f"has a mean of {mean:.2f}; the median of gold is {aim.median:.2f}."
    if beating:
        more = f" Above gold as well: {', '.join(names[1:])}." if names[1:] else ""
        return TaskVerdict("beaten", f"Gold is beaten: the trick '{best}' {compared}{more}", best, names)
    if not _above(aim.median, mean):
        return TaskVerdict("tied", f"The trick '{best}' scores as much as gold: it {compared}", best)
    return TaskVerdict("ok", f"No trick beats gold: the best of them, '{best}', {compared}", best)


def cautions(
    trials: Sequence[Trial],
    kinds: Sequence[KindScores],
    rewards: Sequence[RewardFacts],
    *,
    max_tokens: int,
    verifier: str | None,
) -> Iterator[str]:
    """Yields warnings to check before training, in addition to the verdict, one line each.

    Args:
        trials: all trials.
        kinds, rewards: the findings by kind and by reward.
        max_tokens: the limit of the policy's completions.
        verifier: name of the verifier, if there is one.
    """
    golds = [trial for trial in trials if trial.kind == GOLD]
    gold = next((scores for scores in kinds if scores.kind == GOLD), None)
    if gold is not None and gold.invalid:
        yield f"{gold.invalid} of {gold.completions} gold completions are invalid: {gold.reason}"
    totals = {scores.kind: scores.total for scores in kinds if scores.total}
    if GOLD in totals:
        aim = totals[GOLD]
        others = [(total.largest, kind.name) for kind, total in totals.items() if kind != GOLD]
        largest, best = max(others, default=(aim.median, GOLD.name))
        if _above(largest, aim.median):
            yield f"gold scores low: its median is {aim.median:.2f}, '{best}' reaches {largest:.2f}"
        if PADDED in totals and _above(totals[PADDED].mean, aim.mean):
            yield f"padding pays: padded gold has a mean of {totals[PADDED].mean:.2f}, gold one of {aim.mean:.2f}"
        long = [trial.tokens for trial in golds if trial.tokens > max_tokens]
        if long:
            yield (
                f"{len(long)} of {len(golds)} gold completions are longer than rollout.max_tokens={max_tokens}, up to "
                f"{max(long)} tokens: the policy cannot write them"
            )
    refused = sum(trial.outcome.correct is not True for trial in golds)
    if verifier is not None and refused:
        yield f"the task's verifier, {verifier}, rejects {refused} of {len(golds)} gold completions"
    if GOLD in totals and SHUFFLED in totals:
        gold_mean, mean = totals[GOLD].mean, totals[SHUFFLED].mean
        if mean >= gold_mean - _LIKE_GOLD * (gold_mean - min(total.mean for total in totals.values())):
            yield (
                f"the answer hardly counts: gold of another problem has a mean of {mean:.2f}, "
                f"gold one of {gold_mean:.2f}"
            )
    for facts in rewards:
        if facts.smallest is None:
            yield f"{facts.name} never gave a value"
        elif facts.smallest == facts.largest:
            yield f"{facts.name} is constant: it gave {facts.smallest:g} to every completion"
        if facts.repeats == "no":
            yield f"{facts.name} is not deterministic: {facts.difference}"
        elif facts.repeats != "yes":
            yield f"{facts.name} {facts.repeats}: {facts.difference}"


def judged_otherwise(now: Sequence[RewardOutcome], before: Sequence[RewardOutcome]) -> Iterator[str]:
    """Yields a warning for each reward that recorded completions get again, and that is another one now."""
    for name in sorted(
        {name for outcome in now for name in outcome.components} & {n for outcome in before for n in outcome.components}
    ):
        values = [(outcome.components[name], then.components[name]) for outcome, then in zip(now, before, strict=True)]
        if other := [pair for pair in values if not _same(*pair)]:
            first = " in place of ".join("None" if value is None else f"{value:.6g}" for value in other[0])
            yield f"{name} is another one for {len(other)} of {len(values)} recorded completions, such as {first}"


def _above(a: float, b: float) -> bool:
    """Whether a > b by more than rounding."""
    return a > b and not math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-12)


def _values(name: str, outcomes: Sequence[RewardOutcome]) -> list[float]:
    return [value for outcome in outcomes if (value := outcome.components[name]) is not None]


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None
