"""Reward functions in verl's form, `compute_score(data_source, solution_str, ground_truth, extra_info)`, in TRL's."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from grouprl.rewards.invalid import Invalid


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
        known = inspect.signature(self.function).parameters.get("ground_truth")
        return known is not None and known.default is known.empty

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
        given = []
        for one, source, truth, model, extra in rows:
            truth = truth_of({"ground_truth": truth, "reward_model": model})
            if truth is None and self._takes_truth:
                given.append(Invalid("the problem has no ground_truth"))
                continue
            text = one if isinstance(one, str) else one[-1]["content"]
            named = {"data_source": source, "extra_info": dict(extra or {}), **self.arguments}
            given.append(self.function(solution_str=text, ground_truth=truth, **named))
        return _awaited(given) if any(map(inspect.isawaitable, given)) else list(map(_score, given))


async def _awaited(given: Sequence[Any]) -> list[Any]:
    return [_score(await one if inspect.isawaitable(one) else one) for one in given]


def _score(value: Any) -> Any:
    return value["score"] if isinstance(value, Mapping) else value
