"""The arguments `trainer_state`, `log_extra` and `log_metric` of reward functions, named as in TRL."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

PROVIDED = ("trainer_state", "log_extra", "log_metric")
_MOST, _LONGEST_NAME, _LONGEST_TEXT = 32, 64, 1000

Extra = bool | int | float | str | None
"""A value that a reward recorded beside a completion."""


@dataclass(frozen=True)
class TrainingState:
    """The place of a call in the run."""

    global_step: int = 0  # steps finished: 0 in the first step
    max_steps: int = 0  # steps of the whole run
    steps_per_epoch: float = 0.0  # 0 = unknown

    @property
    def epoch(self) -> float:
        """Passes over the train problems that were made before this step; 0.0 where there is no run."""
        return self.global_step / self.steps_per_epoch if self.steps_per_epoch else 0.0


OUTSIDE = TrainingState()
"""The state of a call that belongs to no run."""


class RewardLog:
    """What one call of a reward function records about its completions. The run checks what a worker sends by the same
    rules."""

    def __init__(self, count: int) -> None:
        """`count` is the number of completions."""
        self._count = count
        self.extra: dict[str, list[Extra]] = {}
        self.metrics: list[tuple[str, float]] = []

    def log_extra(self, column: str, values: Sequence[Any]) -> None:
        """Records a column with one value for each completion.

        Numbers, text up to 1,000 characters and None stay as they are; anything else becomes text.
        """
        values = values.tolist() if hasattr(values, "tolist") else list(values)
        _check_name("log_extra", column)
        if len(values) != self._count:
            raise ValueError(
                f"log_extra({column!r}): expected {self._count} values, one per completion, got {len(values)}"
            )
        if column in self.extra or len(self.extra) == _MOST:
            raise ValueError(f"log_extra({column!r}): expected a new column, at most {_MOST} in a call")
        self.extra[column] = [_extra(value) for value in values]

    def log_metric(self, name: str, value: Any) -> None:
        """Records a number; the step records the mean over the calls."""
        _check_name("log_metric", name)
        number = float(value)
        if not math.isfinite(number):
            raise ValueError(f"log_metric({name!r}): expected a finite number, got {number}")
        if len(self.metrics) == _MOST:
            raise ValueError(f"log_metric({name!r}): expected at most {_MOST} numbers in a call")
        self.metrics.append((name, number))


def _check_name(function: str, name: object) -> None:
    if not isinstance(name, str) or not name.isprintable() or not 0 < len(name) <= _LONGEST_NAME:
        raise ValueError(f"{function}: expected a name of 1 to {_LONGEST_NAME} printable characters, got {name!r:.80}")


def _extra(value: Any) -> Extra:
    if hasattr(value, "tolist"):  # of numpy or torch
        value = value.tolist()
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int | float) and abs(value) < 2**63:  # False for NaN and infinity
        return value
    text = str(value)
    return text if len(text) <= _LONGEST_TEXT else text[: _LONGEST_TEXT - 1] + "…"
