"""Small recorded runs for the tests of the lab: groups from a few numbers each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from grouprl.record.write import RunRecord
from grouprl.types import Completion, Group, Problem, RewardOutcome, StepRecord, StopReason, TokenTrace

CONFIG = "name: run\nsteps: 3\nalgorithm: {name: grpo}\n"
FULL_CONFIG = (
    "name: one\nsteps: 3\nseed: 4\nalgorithm: {name: grpo}\nmodel: {path: abacus}\ntask: {name: word_problems}\n"
)


@dataclass(frozen=True)
class Made:
    """A group: a number for each of its completions; a reward of None is invalid."""

    rewards: Sequence[float | None]
    problem: str = "train-1"
    advantages: Sequence[float] | None = None  # None = 0 for all
    texts: Sequence[str] | None = None
    correct: Sequence[bool | None] | None = None
    stops: Sequence[StopReason] | None = None
    penalties: Sequence[float] | None = None  # the length penalty's part of the rewards
    kept: bool = True  # whether it was learned from

    def group(self) -> Group:
        size = len(self.rewards)
        texts = self.texts or [f"text {index}" for index in range(size)]
        stops = self.stops or [StopReason.END] * size
        completions = tuple(
            Completion(index, (7, 8), (-0.5, -0.25), (-0.5, -0.25), text, stop, 3)
            for index, (text, stop) in enumerate(zip(texts, stops, strict=True))
        )
        return Group(Problem(self.problem, f"prompt of {self.problem}", {"answer": "7"}), (1, 2), completions)

    def outcomes(self) -> list[RewardOutcome]:
        correct = self.correct or [None] * len(self.rewards)
        penalties = self.penalties or [None] * len(self.rewards)
        return [
            RewardOutcome(math.nan, {"exact": None}, "exact: timed out", correct=right)
            if reward is None
            else RewardOutcome(reward, {"exact": 1.0}, correct=right)
            if penalty is None
            else RewardOutcome(round(reward - penalty, 9), {"exact": 1.0, "soft_overlong": penalty}, correct=right)
            for reward, right, penalty in zip(self.rewards, correct, penalties, strict=True)
        ]


def add_step(record: RunRecord, step: int, made: Sequence[Made]) -> None:
    advantages = [[[advantage] * 2 for advantage in one.advantages or [0.0] * len(one.rewards)] for one in made]
    groups, outcomes = [one.group() for one in made], [one.outcomes() for one in made]
    kept = [one.kept for one in made]
    if step % 10 != 1:
        record.step(StepRecord(step, {"reward": 0.5}, groups, outcomes, advantages, kept=kept))
        return
    traces = [
        [TokenTrace(updated=(-0.5, -0.25))] * len(one.rewards) if one is made[0] else [TokenTrace()] * len(one.rewards)
        for one in made
    ]
    record.step(
        StepRecord(step, {"reward": 0.5}, groups, outcomes, advantages, traces, kept, stages_of(len(made[0].rewards)))
    )


def stages_of(size: int) -> dict[str, dict[str, object]]:
    """What a learner records of a watched group of this size, the same of every completion."""
    numbers = {"mean": 1.0, "max": 1.0, "sum": 0.0, "weight": 0.25, "before": -0.75, "after": -0.75}
    stages: dict[str, dict[str, object]] = {
        stage: {"completions": [numbers] * size} for stage in ("ratio", "gradient", "update")
    }
    stages["loss"] = {
        "completions": [0.0] * size,
        "share": 0.0,
        "surrogate": 0.0,
        "kl": 0.0,
        "batch": {"groups": 1, "completions": size},
    }
    return {**stages, "kl": {"coefficient": 0.0, "completions": None}}


def make_run(folder: Path, *steps: Sequence[Made], config: str = CONFIG) -> Path:
    """A finished run of these steps, from 1 on."""
    with RunRecord.create(folder, config) as record:
        for step, made in enumerate(steps, start=1):
            add_step(record, step, made)
    return folder


def algorithm_config(**fields: object) -> str:
    return f"name: run\nsteps: 3\nalgorithm: {{{', '.join(f'{name}: {value}' for name, value in fields.items())}}}\n"
