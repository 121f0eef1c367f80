"""What trackers show of a step: TRL's names of metrics where the meaning is the same, and a table of completions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import fmean
from typing import Any

from grouprl.files import is_number
from grouprl.record.metrics import metric_of
from grouprl.tools.trackers.libraries import Table
from grouprl.types import StepRecord


def tracked(metrics: Mapping[str, Any], prefix: str) -> dict[str, float]:
    """Renames the finite numbers among some metrics; a name that two would have goes to the one that TRL has.

    >>> tracked({"clip_low_fraction": 0.1, "rss_mib": 9.0, "value_explained_variance": None}, "train/")
    {'train/clip_ratio/low_mean': 0.1, 'train/rss_mib': 9.0}
    """
    finite = {name: value for name, value in metrics.items() if is_number(value)}
    # Only a reward chooses its names: what it logs as `loss` stays reward_logs/loss.
    known = {tracked_name(name) for name in finite if not name.startswith(_LOGS)}
    return {
        prefix + (name if name.startswith(_LOGS) and renamed in known else renamed): float(value)
        for name, value in finite.items()
        for renamed in (tracked_name(name),)
    }


_LOGS = "reward_logs/"


def tracked_name(name: str) -> str:
    """TRL's name of a metric if the meaning is the same, or its own: `reward_logs/hits` is `hits`."""
    metric = metric_of(name)
    if metric is None or not metric.trl:
        return name
    before, _, after = metric.name.partition("NAME")
    return metric.trl.replace("NAME", name[len(before) : len(name) - len(after)])


def completions_table(record: StepRecord) -> Table:
    """The completions of a step with TRL's columns: step, prompt, completion, the rewards by name, advantage."""
    outcomes = [outcome for row in record.outcomes for outcome in row]
    names = tuple(dict.fromkeys(name for outcome in outcomes for name in outcome.components))
    rows = []
    for group, scored, advantages in zip(record.groups, record.outcomes, record.token_advantages, strict=True):
        for completion, outcome, by_token in zip(group.completions, scored, advantages, strict=True):
            components = [_finite(outcome.components.get(name)) for name in names]
            advantage = fmean(by_token) if len(by_token) else 0.0  # of GRPO, every token has the same
            texts = (group.problem.prompt_text, completion.text)
            rows.append([record.step, *texts, *components, _finite(outcome.total), advantage])
    return Table(("step", "prompt", "completion", *names, "reward", "advantage"), rows)


def _finite(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else value
