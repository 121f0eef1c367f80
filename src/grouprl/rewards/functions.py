"""Reward functions: with a name and weight, from a user's Python file, in TRL's form or verl's."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from grouprl.config.code_files import read_code
from grouprl.rewards.calls import Invalid
from grouprl.types import UserError

RewardFunction = Callable[..., Any]
"""`reward(prompts, completions, completion_ids, **columns) -> list[float | None]`, or a coroutine function of it."""

Scope = Literal["group", "batch"]
"""The completions of one call: those of a group, or of all groups that are scored together."""

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


def scores_one_completion(function: Callable[..., Any]) -> bool:
    """Whether a function has verl's form: it takes one `solution_str`."""
    return not isinstance(function, type) and "solution_str" in inspect.signature(function).parameters


def truth_of(columns: Mapping[str, Any]) -> Any:
    """The ground truth of a problem, as verl's data have it; None = it has none."""
    model = columns.get("reward_model")
    nested = model.get("ground_truth") if isinstance(model, Mapping) else None
    return nested if columns.get("ground_truth") is None else columns["ground_truth"]


@dataclass(frozen=True)
class ComputeScore:
    """Calls a function of verl's form for each completion; a dict that it returns has the value as `score`.

    `ground_truth` is the column of that name, or that part of the column `reward_model`, as in verl's data. Where the
    function takes one, a completion of a problem without one is invalid.
    """

    function: Callable[..., Any]
    arguments: Mapping[str, Any] = field(default_factory=dict)

    @property
    def needs_one_of(self) -> tuple[str, ...]:
        """Columns of which the problems have one, where the function takes a ground truth."""
        return ("ground_truth", "reward_model") if self._takes_truth else ()

    @property
    def _takes_truth(self) -> bool:
        parameter = inspect.signature(self.function).parameters.get("ground_truth")
        return parameter is not None and parameter.default is parameter.empty

    def __call__(
        self,
        completions: Sequence[Any],
        data_source: Sequence[Any] | None = None,
        ground_truth: Sequence[Any] | None = None,
        reward_model: Sequence[Any] | None = None,
        extra_info: Sequence[Any] | None = None,
    ) -> Any:
        """Returns one value per completion, or a coroutine that does."""
        none = [None] * len(completions)
        rows = zip(
            completions,
            data_source or none,
            ground_truth or none,
            reward_model or none,
            extra_info or none,
            strict=True,
        )
        results = []
        for completion, source, truth, model, extra in rows:
            truth = truth_of({"ground_truth": truth, "reward_model": model})
            if truth is None and self._takes_truth:
                results.append(Invalid("the problem has no ground_truth"))
                continue
            text = completion if isinstance(completion, str) else completion[-1]["content"]
            named = {"data_source": source, "extra_info": dict(extra or {}), **self.arguments}
            results.append(self.function(solution_str=text, ground_truth=truth, **named))
        return _awaited(results) if any(map(inspect.isawaitable, results)) else list(map(_score, results))


async def _awaited(results: Sequence[Any]) -> list[Any]:
    return [_score(await result if inspect.isawaitable(result) else result) for result in results]


def _score(value: Any) -> Any:
    return value["score"] if isinstance(value, Mapping) else value
