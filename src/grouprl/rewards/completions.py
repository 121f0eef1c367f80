"""What the calls for a group gave, by completion, and the same as JSON on the way between ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from itertools import accumulate
from typing import Any

from grouprl.rewards.functions import WeightedReward
from grouprl.rewards.invalid import Invalid
from grouprl.rewards.workers.calling import Called, Value
from grouprl.types import Group, RewardOutcome, StepReward

Row = Mapping[str, Value]  # the values of one completion by reward name
Metrics = Sequence[tuple[str, float]]  # what rewards logged
Scored = tuple[Sequence[RewardOutcome], Sequence[str], Metrics]  # with the reasons why completions are invalid


def rows_of(calls: Mapping[str, Called], group: Group) -> list[Row]:
    """The values of each completion of a group; reasoning steps end in its own text, without what the prompt begins."""
    begun = len(group.problem.begun)

    def own(value: Value) -> Value:
        if not isinstance(value, tuple) or not begun:
            return value
        return tuple((end - begun, one) for end, one in value if end > begun)

    return [{name: own(called.values[n]) for name, called in calls.items()} for n in range(len(group.completions))]


def extras_of(calls: Mapping[str, Called], group: Group) -> list[dict[str, Any]]:
    """What the rewards recorded beside each completion of a group, by REWARD/COLUMN."""
    columns = [(f"{name}/{column}", values) for name, one in calls.items() for column, values in one.extra.items()]
    return [{name: values[place] for name, values in columns} for place in range(len(group.completions))]


def failure(reward: WeightedReward | None, row: Row) -> str:
    """Why a reward failed for a completion; '' = it did not."""
    if reward is None or not isinstance(value := row.get(reward.name), Invalid):
        return ""
    return f"{reward.name} {value.reason}"


def is_correct(value: Value) -> bool | None:
    """What a verifier's value says; None = it failed, or does not apply."""
    return value >= 1.0 if isinstance(value, float | int) else None


def shared_out(found: Called, groups: Sequence[Group]) -> list[Called]:
    """Shares out one call for the completions of several groups; the metrics stay with the first group."""
    ends = list(accumulate(len(group.completions) for group in groups))
    parts = [slice(end - len(group.completions), end) for group, end in zip(groups, ends, strict=True)]
    return [
        Called(
            found.values[part],
            {column: given[part] for column, given in found.extra.items()},
            () if place else found.metrics,
        )
        for place, part in enumerate(parts)
    ]


def written(scored: Scored) -> tuple[list[dict[str, Any]], Sequence[str], Metrics]:
    """A group's outcomes as JSON."""
    outcomes, reasons, logged = scored
    return [asdict(replace(one, components=dict(one.components))) for one in outcomes], reasons, logged


def read(rows: Sequence[Any]) -> Scored:
    """The reverse of `written`."""
    outcomes, reasons, logged = rows
    plain = ({**row, "steps": tuple(StepReward(**step) for step in row["steps"])} for row in outcomes)
    return [RewardOutcome(**row) for row in plain], reasons, [(name, value) for name, value in logged]
