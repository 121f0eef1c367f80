"""Metrics of a step: seconds, and of its completions rewards, accuracy, groups with signal, traits and lengths."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain

from grouprl.forward.progress import PROGRESS
from grouprl.tasks.base import Task
from grouprl.types import Group, RewardOutcome, StopReason


class Clock:
    """Measures the seconds of each part of a step: `with clock("learn"):` adds those of the block to that part."""

    def __init__(self, *parts: str) -> None:
        self._began = time.perf_counter()
        self._seconds = dict.fromkeys(parts, 0.0)

    @contextmanager
    def __call__(self, part: str) -> Iterator[None]:
        """Adds the seconds of the block to a part."""
        began = time.perf_counter()
        with PROGRESS.doing(lambda: f"stage {part}"):
            yield
        self._seconds[part] += time.perf_counter() - began

    def metrics(self, tokens: float) -> dict[str, float]:
        """The metrics `time/...` of each part and in total, in seconds, and the tokens per second for `tokens`."""
        total = time.perf_counter() - self._began
        parts = {f"time/{part}": seconds for part, seconds in self._seconds.items()}
        return {"tokens_per_second": tokens / total, **parts, "time/total": total}


def step_metrics(
    task: Task, groups: Sequence[Group], outcomes: Sequence[Sequence[RewardOutcome]], *, verified: bool | None = None
) -> dict[str, float]:
    """Rewards, accuracy, traits, groups with signal and lengths of one step, under TRL's names where they exist.

    `frac_reward_zero_std` is the share of groups without signal, whose rewards are all equal. The others need a
    verifier (`verified`; None = the task has one) and count verified completions, on which it did not fail.
    `accuracy` is the share of correct ones. `frac_solved` and `frac_hopeless` are the shares of groups whose verified
    completions are all correct or all wrong. `frac_unverified` is the share of completions that the verifier failed
    on, recorded when it is above 0.
    """
    flat = [outcome for group in outcomes for outcome in group]
    totals = [[outcome.total for outcome in group if outcome.valid] for group in outcomes]
    metrics = {
        "reward": _mean([total for group in totals for total in group]),
        "reward_std": _mean([statistics.pstdev(group) for group in totals if len(group) > 1]),
    }
    for name in dict.fromkeys(name for outcome in flat for name in outcome.components):
        values = [outcome.components.get(name) for outcome in flat]
        metrics[f"rewards/{name}/mean"] = _mean([value for value in values if value is not None])
    metrics["frac_reward_zero_std"] = _mean([len(group) < 2 or max(group) == min(group) for group in totals])
    metrics["frac_invalid"] = _mean([not outcome.valid for outcome in flat])

    if task.verifier is not None if verified is None else verified:
        verdicts = [[outcome.correct for outcome in group if outcome.correct is not None] for group in outcomes]
        verdicts = [group for group in verdicts if group]
        metrics["accuracy"] = _mean([correct for group in verdicts for correct in group])
        metrics["frac_solved"] = _mean([all(group) for group in verdicts])
        metrics["frac_hopeless"] = _mean([not any(group) for group in verdicts])
        failed = _mean([outcome.correct is None for outcome in flat])
        if failed:
            metrics["frac_unverified"] = failed
    metrics |= trait_shares(task, groups)

    completions = [completion for group in groups for completion in group.completions]
    lengths = [len(completion) for completion in completions]
    metrics["completions/mean_length"] = _mean(lengths)
    metrics["completions/max_length"] = max(lengths)
    metrics["completions/clipped_ratio"] = _mean([c.stop_reason is StopReason.LENGTH for c in completions])
    repeated_shares = []
    for completion in completions:
        ids, count = completion.token_ids, len(completion) - 3  # sequences of 4 tokens
        distinct = {tuple(ids[at : at + 4]) for at in range(count)}
        repeated_shares.append(1 - len(distinct) / count if count > 0 else 0.0)
    metrics["completions/repeated"] = _mean(repeated_shares)
    metrics["completion_tokens"] = sum(lengths)

    episodes = [completion.episode for completion in completions if completion.episode is not None]
    if episodes:
        calls = [call for episode in episodes for call in episode.calls]
        metrics["episodes/turns"] = _mean([len(episode.ends) for episode in episodes])
        metrics["episodes/calls"] = _mean([len(episode.calls) for episode in episodes])
        metrics["episodes/tool_seconds"] = _mean([call.seconds for call in calls]) if calls else 0.0
        metrics["episodes/forked"] = _mean([episode.forks > 0 for episode in episodes])
        metrics["tokens/observed"] = sum(len(text.token_ids) for episode in episodes for text in episode.observations)
        for name, count in sorted(Counter(call.fault for call in calls if call.fault).items()):
            metrics[f"episodes/faults/{name}"] = count / len(calls)
        for name, count in sorted(Counter(episode.ended for episode in episodes).items()):
            metrics[f"episodes/ended/{name}"] = count / len(episodes)
    return metrics


def trait_shares(task: Task, groups: Sequence[Group]) -> dict[str, float]:
    """The share of completions with each trait of the task, in [0, 1], as `<trait>_share`."""
    traits = [task.traits(completion.text) for group in groups for completion in group.completions]
    return {f"{name}_share": _mean([has[name] for has in traits]) for name in traits[0]}


def correct_without_work_share(
    task: Task, groups: Sequence[Group], outcomes: Sequence[Sequence[RewardOutcome]]
) -> dict[str, float]:
    """The share of completions that are correct and show no work, for tasks with the trait `worked`.

    It rises where a teacher leaks: the policy learns to name what the teacher has read.
    """
    pairs = zip(chain.from_iterable(group.completions for group in groups), chain.from_iterable(outcomes), strict=True)
    traits_and_verdicts = [(task.traits(completion.text), outcome.correct is True) for completion, outcome in pairs]
    if "worked" not in traits_and_verdicts[0][0]:
        return {}
    return {
        "correct_without_work_share": _mean(
            [correct and not traits["worked"] for traits, correct in traits_and_verdicts]
        )
    }


def _mean(values: Sequence[float]) -> float:
    return statistics.fmean(values) if values else float("nan")
