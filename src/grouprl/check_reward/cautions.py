"""Warnings to check before training, in addition to the verdict."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from grouprl.check_reward.findings import KindScores, RewardFacts, above
from grouprl.check_reward.trials import Trial
from grouprl.check_reward.tricks import GOLD, PADDED, SHUFFLED

_LIKE_GOLD = 0.1  # shuffled gold counts as equal to gold within this share of the range from gold to the worst kind


def cautions(
    trials: Sequence[Trial],
    kinds: Sequence[KindScores],
    rewards: Sequence[RewardFacts],
    *,
    max_tokens: int,
    verifier: str | None,
) -> tuple[str, ...]:
    """Makes the warnings, one line each.

    Args:
        trials: all trials.
        kinds, rewards: the findings by kind and by reward.
        max_tokens: the limit of the policy's completions.
        verifier: name of the verifier, if there is one.
    """
    golds = [trial for trial in trials if trial.kind is GOLD]
    return (
        *_about_gold(golds, kinds, max_tokens),
        *_about_the_verifier(golds, verifier),
        *_about_answers(kinds),
        *(line for facts in rewards for line in _about_a_reward(facts)),
    )


def _about_gold(golds: Sequence[Trial], kinds: Sequence[KindScores], max_tokens: int) -> Iterator[str]:
    scores = {kind.name: kind for kind in kinds}
    gold = scores.get(GOLD.name)
    if gold is None:
        return
    if gold.invalid:
        yield f"{gold.invalid} of {gold.completions} gold completions are invalid: {gold.reason}"
    if gold.median is None:
        return
    others = [(kind.largest, kind.name) for kind in kinds if kind.largest is not None and kind is not gold]
    largest, best = max(others, default=(gold.median, gold.name))
    if above(largest, gold.median):
        yield f"gold scores low: its median is {gold.median:.2f}, '{best}' reaches {largest:.2f}"
    padded = scores.get(PADDED.name)
    if padded is not None and above(padded.mean, gold.mean):
        yield f"padding pays: padded gold has a mean of {padded.mean:.2f}, gold one of {gold.mean:.2f}"
    long = [trial.tokens for trial in golds if trial.tokens > max_tokens]
    if long:
        yield (
            f"{len(long)} of {len(golds)} gold completions are longer than rollout.max_tokens={max_tokens}, up to "
            f"{max(long)} tokens: the policy cannot write them"
        )


def _about_the_verifier(golds: Sequence[Trial], verifier: str | None) -> Iterator[str]:
    refused = sum(trial.outcome.correct is not True for trial in golds)
    if verifier is not None and refused:
        yield f"the task's verifier, {verifier}, rejects {refused} of {len(golds)} gold completions"


def _about_answers(kinds: Sequence[KindScores]) -> Iterator[str]:
    scores = {kind.name: kind for kind in kinds}
    gold, shuffled = scores.get(GOLD.name), scores.get(SHUFFLED.name)
    if gold is None or shuffled is None or gold.mean is None or shuffled.mean is None:
        return
    worst = min(kind.mean for kind in kinds if kind.mean is not None)
    if shuffled.mean >= gold.mean - _LIKE_GOLD * (gold.mean - worst):
        yield (
            f"the answer hardly counts: gold of another problem has a mean of {shuffled.mean:.2f}, "
            f"gold one of {gold.mean:.2f}"
        )


def _about_a_reward(facts: RewardFacts) -> Iterator[str]:
    if facts.smallest is None:
        yield f"{facts.name} never gave a value"
    elif facts.is_constant:
        yield f"{facts.name} is constant: it gave {facts.smallest:g} to every completion"
    if facts.repeats == "no":
        yield f"{facts.name} is not deterministic: {facts.difference}"
    elif facts.repeats != "yes":
        yield f"{facts.name} {facts.repeats}: {facts.difference}"
