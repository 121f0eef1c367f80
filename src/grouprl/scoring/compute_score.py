"""Reward functions in verl's form, `compute_score(data_source, solution_str, ground_truth, extra_info)`, in TRL's."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


def scores_one_completion(function: Callable[..., Any]) -> bool:
    """Whether a function has verl's form: it takes one `solution_str`."""
    return not isinstance(function, type) and "solution_str" in inspect.signature(function).parameters


@dataclass(frozen=True)
class ComputeScore:
    """Calls a function of verl's form for each completion; a dict that it returns has the value as `score`.

    `ground_truth` is the column of that name, or that part of the column `reward_model`, as in verl's data.
    """

    function: Callable[..., Any]
    arguments: Mapping[str, Any] = field(default_factory=dict)

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
        given = [
            self.function(
                data_source=source,
                solution_str=one if isinstance(one, str) else one[-1]["content"],
                ground_truth=(model or {}).get("ground_truth") if truth is None else truth,
                extra_info=dict(extra or {}),
                **self.arguments,
            )
            for one, source, truth, model, extra in rows
        ]
        return _awaited(given) if any(map(inspect.isawaitable, given)) else list(map(_score, given))


async def _awaited(given: Sequence[Awaitable[Any]]) -> list[Any]:
    return [_score(await one) for one in given]


def _score(value: Any) -> Any:
    return value["score"] if isinstance(value, Mapping) else value
