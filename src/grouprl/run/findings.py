"""Whether a run is healthy, decided from its recorded metrics: explosions, which stop it, and warnings with a remedy.

In: the rows of metrics.jsonl and evaluations.jsonl, the newest last. Out: `Finding`s. The thresholds stand here alone;
docs/trust.md explains each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from grouprl.files import is_number

Row = Mapping[str, Any]

BAD_STEPS = 3  # steps in a row without a finite update, after which a run stops
WINDOW = 5  # steps over which a warning averages
QUIET = 25  # steps after a warning before one of its kind is given again
_HISTORY = 50  # earlier steps whose median is the usual value


@dataclass(frozen=True)
class Finding:
    """Something wrong with a run, found at a step."""

    step: int
    kind: str
    metric: str  # the metric that shows it, which marks the chart
    sentence: str  # what happened and its likely cause
    setting: str  # what to change


@dataclass(frozen=True)
class _Limit:
    """A metric explodes when it is above `floor` and above `times` its usual value, for `steps` steps in a row."""

    metric: str
    what: str
    floor: float
    times: float
    steps: int


# The demo, 60 steps at 2e-4: KL below 0.13 nats with single spikes of 0.8, because one token can dominate k3, hence two
# steps; gradient norm up to 2.1; gap up to 6e-5 nats in float32 and 0.2 in bfloat16. At 0.02 its KL is 2.6, 7.0 and 5.9
# nats in steps 3 to 5, at 0.2 it is 8.8 and 5.5 in steps 2 and 3, and no completion is right any more. A random model
# of 2 layers learns at a KL of 0.5 to 2.5.
_LIMITS = (
    _Limit("kl", "the KL to the reference is {:.3g} nats per token", 3.0, 3.0, 2),
    _Limit("grad_norm", "the gradient norm is {:.3g}", 100.0, 20.0, 1),
    _Limit("sampler_learner_gap", "the gap between sampler and learner is {:.3g} nats", 1.0, 20.0, 1),
)


@dataclass(frozen=True)
class GapLimits:
    """What a gap between sampler and learner may be, in nats, before it is a warning or the end of a run."""

    largest: float  # of one token: a warning above it
    mean: float  # absolute mean over tokens, with sign: a warning above it
    stop: float  # the same: a run ends that is above it for `BAD_STEPS` steps in a row, or once above 5 times it


# float32 rounds by up to 6e-5, with means below 1e-6; bfloat16 by 0.03 on average and up to 0.3, with means of 0.001,
# because rounding has no direction. Log-probs that are wrong by a tenth of a nat on the whole are not those of the
# policy: over 25 tokens that is a factor of 12.
GAPS: Mapping[str, GapLimits] = {
    "float32": GapLimits(0.01, 0.001, 0.1),
    "bfloat16": GapLimits(0.5, 0.02, 0.2),
    "vllm": GapLimits(0.5, 0.02, 0.2),
}
_CAUSE = "The learning rate is the likely cause."
_LOWER = "lower learner.learning_rate, or raise learner.warmup_steps"
_GAP, _MEAN = "sampler_learner_gap", "sampler_learner_gap_mean"
_SAMPLER = "model.dtype=float32, or algorithm.correction=truncate; for vLLM, check its --dtype and its weights"


def not_finite(rows: Sequence[Row]) -> Finding | None:
    """What was not finite in the newest step; None when all its updates were made."""
    row = rows[-1] if rows else {}
    if not row.get("skipped_updates"):
        return None
    names = [name for name in ("loss", "grad_norm", "kl", "value_loss", "critic_grad_norm") if not _finite(row, name)]
    shown = ", ".join(name for name in names if name in row) or "a gradient of the step"
    return Finding(
        row["step"],
        "not_finite",
        "grad_norm",
        f"Step {row['step']}: not finite: {shown}. Updates skipped: {row['skipped_updates']:g}. {_CAUSE}",
        _LOWER,
    )


def not_finite_in_a_row(rows: Sequence[Row]) -> bool:
    """Whether the newest steps, as many as stop a run, all had an update that was not finite."""
    return len(rows) >= BAD_STEPS and all(row.get("skipped_updates") for row in rows[-BAD_STEPS:])


def unusable(rows: Sequence[Row]) -> bool:
    """Whether the weights gave log-probs that are not finite in the newest step."""
    return not_finite(rows) is not None and not _finite(rows[-1], "sampler_learner_gap")


def explosion(rows: Sequence[Row]) -> tuple[Finding, int] | None:
    """Finds an explosion of KL, gradient norm or sampler and learner gap in the newest step.

    A value explodes when it is above a floor that healthy runs do not reach, and far above its median in the steps
    before: a run that began far from its reference, or with a sampler that differs, has a high usual value.

    Returns:
        The finding, and the first step after which the weights were bad: a metric describes those before its step.
    """
    stale = any(row.get("staleness") for row in rows[-1:])  # sampler and learner then differ by an update
    for limit in _LIMITS:
        if stale and limit.metric == "sampler_learner_gap":
            continue
        newest = [row for row in rows[-limit.steps :] if _finite(row, limit.metric)]
        before = rows[-_HISTORY - limit.steps : -limit.steps]
        usual = [abs(row[limit.metric]) for row in before if _finite(row, limit.metric) and row[limit.metric]]
        least = max(limit.floor, limit.times * median(usual) if usual else 0.0)
        if before and len(newest) == limit.steps and all(abs(row[limit.metric]) > least for row in newest):
            row, compared = newest[-1], f", usually {median(usual):.3g}" if usual else ""
            what = limit.what.format(row[limit.metric])
            sampler = limit.metric == "sampler_learner_gap"
            cause = "The learning rate, or a sampler with other weights, is the likely cause." if sampler else _CAUSE
            sentence = f"Step {row['step']}: {what}{compared}. {cause}"
            return Finding(row["step"], "explosion", limit.metric, sentence, _LOWER), row["step"] - limit.steps
    return None


def other_sampler(rows: Sequence[Row], limits: GapLimits) -> Finding | None:
    """Finds log-probs of a sampler that are too high or too low on the whole; None for groups of an older policy."""
    means = [abs(row[_MEAN]) for row in rows[-BAD_STEPS:] if _finite(row, _MEAN) and not row.get("staleness")]
    if not means or not _finite(rows[-1], _MEAN):
        return None
    if means[-1] <= 5 * limits.stop and (len(means) < BAD_STEPS or min(means) <= limits.stop):
        return None
    step, mean = rows[-1]["step"], rows[-1][_MEAN]
    sentence = (
        f"Step {step}: the sampler's log-probs are {abs(mean):.2g} nats too {'low' if mean > 0 else 'high'} on average"
        ": another distribution sampled than the learner's policy."
    )
    return Finding(step, "sampler_learner_gap", _MEAN, sentence, _SAMPLER)


def warnings(
    rows: Sequence[Row], evaluations: Sequence[Row], earlier: Sequence[Row], limits: GapLimits = GAPS["vllm"]
) -> list[Finding]:
    """The warnings of the newest step.

    Args:
        rows: the metrics of all steps.
        evaluations: the evaluations on held-out problems so far.
        earlier: findings with `step` and `kind`; a kind is not reported again within `QUIET` steps.
        limits: of the run's kind of sampler.
    """
    if not rows:
        return []
    step = rows[-1]["step"]
    recent = {row.get("kind") for row in earlier if step - row["step"] < QUIET}
    return [
        Finding(step, kind, metric, f"Step {step}: {sentence}", setting)
        for kind, metric, sentence, setting in (*_warnings(rows, evaluations), *_gap(limits, rows))
        if kind not in recent
    ]


_Warnings = Iterator[tuple[str, str, str, str]]


def _warnings(rows: Sequence[Row], evaluations: Sequence[Row]) -> _Warnings:
    """Kind, metric, sentence and setting of what the metrics of the last steps show."""
    start, now = _first(rows, "entropy"), _last(rows, "entropy")
    if start and now is not None and now < min(0.02, 0.1 * start) and _unsolved(rows):
        yield (
            "entropy_collapse",
            "entropy",
            f"the entropy fell from {start:.2g} to {now:.2g} nats per token while problems are unsolved: the policy no "
            "longer tries anything else.",
            "algorithm.clip_high=0.28, algorithm.entropy_coef=0.001, or a lower learner.learning_rate",
        )
    name = "completions/mean_length"
    start, now = _first(rows, name), _last(rows, name)
    gained = (_last(rows, "reward") or 0.0) > (_first(rows, "reward") or 0.0)
    if start and now is not None and now > (4.0 if gained else 2.0) * start:
        yield (
            "length_explosion",
            name,
            f"completions grew from {start:.0f} to {now:.0f} tokens, {'faster than' if gained else 'without'} a gain "
            "in reward.",
            "algorithm.overlong_buffer=0.2, or algorithm.aggregate=constant",
        )
    share = _last(rows, "completions/clipped_ratio")
    if share is not None and share > 0.2:
        yield (
            "truncation",
            "completions/clipped_ratio",
            f"{share:.0%} of the completions were truncated, so their answers are missing.",
            "a larger rollout.max_tokens, or algorithm.mask_overlong=true",
        )
    name = "completions/repeated"
    start, now = _first(rows, name), _last(rows, name)
    if now is not None and now > max(0.3, 2 * (start or 0.0)):
        yield (
            "repetition",
            name,
            f"{now:.0%} of the completions' 4-token sequences repeat an earlier one, {start or 0.0:.0%} at the start.",
            "the reward `repetition` (rewards), or a lower learner.learning_rate",
        )
    yield from _hacking(rows, evaluations)
    share = _last(rows, "frac_invalid")
    if share is not None and share > 0.02:
        yield (
            "invalid_rewards",
            "frac_invalid",
            f"{share:.1%} of the rewards are invalid; the run's page lists the reasons.",
            "the reward function, or rollout.scoring.seconds if calls exceed it",
        )
    share = _last(rows, "frac_reward_zero_std")
    if share is not None and share > 0.8 and _unsolved(rows):
        yield (
            "no_signal",
            "frac_reward_zero_std",
            f"{share:.0%} of the groups have no signal: their rewards are equal.",
            "rollout.curriculum.order=edge, a larger rollout.group_size, or easier problems",
        )
    clipped, ratio = _last(rows, "clip_low_fraction"), _last(rows, "ratio_max")
    above = _last(rows, "clip_high_fraction")
    kl, start = _last(rows, "kl"), _mean(rows[:1], "kl")  # a rate too high shows within the first steps
    # GSPO's range is so narrow that a fifth of its tokens is clipped at ratios of 1.01.
    if clipped is not None and above is not None and clipped + above > 0.2 and ratio is not None and ratio > 2:
        sentence = f"{clipped + above:.0%} of the tokens are clipped. {_CAUSE}"
        yield "learning_rate", "clip_high_fraction", sentence, _LOWER
    elif kl is not None and kl > 0.5 and kl > 5 * max(start or 0.0, 0.0):
        sentence = f"the KL to the reference is {kl:.2g} nats per token. {_CAUSE}"
        yield "learning_rate", "kl", sentence, f"{_LOWER}, or raise kl_coef"


def _hacking(rows: Sequence[Row], evaluations: Sequence[Row]) -> _Warnings:
    # The own reward is what measures a run without a verifier; on problems that it does not train on.
    judged = any(_finite(row, "greedy_accuracy") for row in evaluations)
    name, interval = ("greedy_accuracy", "greedy_interval") if judged else ("reward", "reward_interval")
    what, form = ("accuracy", ".0%") if judged else ("reward", ".2f")
    measured = [row for row in evaluations if _finite(row, name)]
    if len(measured) < 2 or measured[-1]["step"] != rows[-1]["step"]:
        return
    best, last = max(measured[:-1], key=lambda row: row[name]), measured[-1]
    low = (best.get(interval) or [best[name] - 0.05])[0]
    then = _mean([row for row in rows if row["step"] <= max(best["step"], 1)], "reward")
    now = _last(rows, "reward")
    if last[name] < low and then is not None and now is not None and now > then:
        yield (
            "reward_hacking",
            "reward",
            f"the reward rose from {then:.2f} to {now:.2f} while held-out {what} fell from {best[name]:{form}} to "
            f"{last[name]:{form}}: the policy earns reward "
            + ("without right answers." if judged else "on the problems that it trains on alone."),
            ("grouprl check-reward" if judged else "more training problems")
            + ", a larger algorithm.kl_coef, or the checkpoint of the best evaluation",
        )


def _gap(limits: GapLimits, rows: Sequence[Row]) -> _Warnings:
    # From the first step on, unlike the others: before any update the two policies are the same. A server that missed
    # an update, or kept a part of the old weights, begins with rounding and then differs by hundredths.
    start, usual = _mean(rows[:1], _GAP), _mean(rows[-WINDOW:], _GAP)
    now, mean = _mean(rows[-1:], _GAP), _mean(rows[-1:], _MEAN) or 0.0
    grew = start is not None and usual is not None and usual > max(0.02, 20 * start)
    if now is not None and (now > limits.largest or abs(mean) > limits.mean or grew) and not rows[-1].get("staleness"):
        yield (
            _GAP,
            _GAP,
            f"sampler and learner differ by up to {now:.2g} nats on one token"
            f"{f', {start:.1g} in the first step' if grew else ''}, and by {mean:+.2g} on average: another "
            "distribution sampled than the learner's policy.",
            _SAMPLER,
        )


def _finite(row: Row, name: str) -> bool:
    return is_number(row.get(name))


def _mean(rows: Sequence[Row], name: str) -> float | None:
    values = [row[name] for row in rows if _finite(row, name)]
    return fmean(values) if values else None


def _first(rows: Sequence[Row], name: str) -> float | None:
    return _mean(rows[:WINDOW], name)


def _last(rows: Sequence[Row], name: str) -> float | None:
    """The mean over the newest steps; None before there are enough of them."""
    return _mean(rows[-WINDOW:], name) if len(rows) >= WINDOW else None


def _unsolved(rows: Sequence[Row]) -> bool:
    """Whether most problems are still to be learned: by accuracy, else where the mean reward has not risen clearly."""
    accuracy = _last(rows, "accuracy")
    if accuracy is not None:
        return accuracy < 0.9
    start, now, spread = _first(rows, "reward"), _last(rows, "reward"), _first(rows, "reward_std")
    return start is None or now is None or now - start <= (spread or 0.0)
