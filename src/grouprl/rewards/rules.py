r"""Rule rewards. Every function takes TRL's keywords and gives one value for each completion, None = does not apply."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from grouprl.tasks.answers import boxed_equals, last_boxed

Text = str | Sequence[Mapping[str, Any]]
"""A prompt or completion in TRL's form: plain text, or chat messages."""

RewardFunction = Callable[..., Any]
"""`reward(prompts, completions, completion_ids, **columns) -> list[float | None]`, or a coroutine function of it."""


def completion_text(completion: Text) -> str:
    """What the policy wrote, whether it comes as text or as an assistant message."""
    return completion if isinstance(completion, str) else str(completion[-1]["content"])


def boxed_format(
    prompts: Sequence[Text], completions: Sequence[Text], completion_ids: Sequence[Sequence[int]], **columns: Any
) -> list[float | None]:
    r"""1.0 when the last \boxed{...} is closed and not empty, else 0.0."""
    boxes = [last_boxed(completion_text(completion)) for completion in completions]
    return [float(box is not None and bool(box.strip())) for box in boxes]


def correct_answer(
    prompts: Sequence[Text],
    completions: Sequence[Text],
    completion_ids: Sequence[Sequence[int]],
    *,
    answer: Sequence[Any],
    **columns: Any,
) -> list[float | None]:
    r"""1.0 when the last \boxed{...} equals `answer` by value, else 0.0; None for a problem without an answer.

    An answer is bare ("7") or a GSM8K solution that ends in `#### 7`.
    """
    return [
        None if gold is None else float(boxed_equals(completion_text(completion), gold))
        for completion, gold in zip(completions, answer, strict=True)
    ]


REWARDS: dict[str, RewardFunction] = {"boxed_format": boxed_format, "correct_answer": correct_answer}
