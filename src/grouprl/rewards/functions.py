"""A reward function with its name and weight: what the scorer runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from grouprl.rewards.own_modules import read_code
from grouprl.types import UserError

RewardFunction = Callable[..., Any]
"""`reward(prompts, completions, completion_ids, **columns) -> list[float | None]`, or a coroutine function of it."""

Scope = Literal["group", "batch"]
"""The completions of one call: those of a group, or of all groups that are scored together."""

SOFT_OVERLONG = "soft_overlong"
_LARGEST_WEIGHT = 1e6


@dataclass(frozen=True)
class FromFile:
    """A reward function in a Python file, which only the workers import, from the bytes that it has now.

    `code` is its source and that of the modules beside it that it imports, by path; see `read_code`. `function` is a
    function in TRL's form, or a class that is called with `arguments` to make one.
    """

    path: str
    function: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    code: Mapping[str, bytes] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not Path(self.path).is_file():
            raise UserError(
                f"reward {self.function}: expected a Python file at {self.path}, found none: check the path"
            )
        object.__setattr__(self, "code", read_code(Path(self.path)))


@dataclass(frozen=True)
class WeightedReward:
    """A reward function, the name under which its values are recorded, and its weight in the total.

    With `per_step` it is a process reward, which does not enter the total: its function returns for each completion a
    list of its reasoning steps as (end, reward), `end` in characters of its text up to and including the step; None =
    does not apply.

    With `scope="batch"` one call has the completions of all groups of a step, as in TRL, so that the function can
    compare them.
    """

    name: str
    function: RewardFunction | FromFile
    weight: float = 1.0
    per_step: bool = False
    scope: Scope = "group"

    def __post_init__(self) -> None:
        if self.scope not in get_args(Scope):
            raise UserError(
                f"reward {self.name}: expected a scope of 'group' or 'batch', got {self.scope!r}: write one of them"
            )
        if not abs(self.weight) <= _LARGEST_WEIGHT:
            raise UserError(
                f"reward {self.name}: expected a weight of at most {_LARGEST_WEIGHT:g} in size, got {self.weight}: "
                "write a number such as 1.0"
            )

    @property
    def in_process(self) -> bool:
        """Whether it runs in the run's process, once per step: functions that hold a model or a connection do."""
        return getattr(self.function, "in_process", False)

    @property
    def has_one_call(self) -> bool:
        """Whether one call has the completions of all groups; else each group has a call."""
        return self.in_process or self.scope == "batch"
