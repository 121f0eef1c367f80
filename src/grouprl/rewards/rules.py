r"""Rule rewards. Each function takes TRL's keywords and returns one value per completion; None = does not apply."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from grouprl.tasks.answers import completion_text as completion_text
from grouprl.tasks.answers import equals_gold, final_answer, final_text, last_boxed, parse_value
from grouprl.types import UserError

Text = str | Sequence[Mapping[str, Any]]
"""A prompt or completion in TRL's form: plain text, or chat messages."""

Texts = Sequence[Text]
Ids = Sequence[Sequence[int]]
_NUMBER = re.compile(r"(?<![\d.])-?\d+(?:,\d{3})*(?:\.\d+)?")
Values = list[float | None]
LONGEST_TEXT = 200_000  # characters; longer completions are invalid


def gold_text(answer: object) -> str:
    """Extracts the bare gold answer of an `answer` column: the answer itself, or the text after `####` (GSM8K).

    Raises ValueError when it is empty.
    """
    text = final_answer(answer)
    if not text:
        raise ValueError(f"expected a gold answer such as '7' or 'work #### 7', got {answer!r:.60}")
    return text


def bounded(text: str) -> str:
    """Returns the text. Raises ValueError when it is longer than LONGEST_TEXT characters."""
    if len(text) > LONGEST_TEXT:
        raise ValueError(f"expected a completion of at most {LONGEST_TEXT:,} characters, got {len(text):,}")
    return text


def check_arguments(reward: str, arguments: object, *checks: tuple[str, bool, str]) -> None:
    """Checks arguments of a reward, which are attributes of `arguments`. Raises UserError for the first invalid one.

    Each check is the argument's name, whether it is valid, and the expected value in words.
    """
    for name, valid, expected in checks:
        if not valid:
            got = getattr(arguments, name)
            raise UserError(f"reward {reward}: expected {name} to be {expected}, got {got!r}: change it")


def is_finite(value: object) -> TypeGuard[float]:
    """Whether a value is a number, and neither infinite nor NaN; true and false are not numbers."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def strict_members(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Makes the members of a JSON object (`object_pairs_hook`). Raises ValueError for a key given twice."""
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError("a key given twice")
    return members


def environment(
    prompts: Texts,
    completions: Texts,
    completion_ids: Ids,
    *,
    environment_reward: Sequence[float | None] | None = None,
    **columns: Any,
) -> Values:
    """The verdict of the environment; None where it gave none, or where there is no environment.

    Range: that of the environment. Failure modes: those of the environment, which sees every call of the policy.
    """
    return list(environment_reward or [None] * len(completions))


def boxed_format(prompts: Texts, completions: Texts, completion_ids: Ids, **columns: Any) -> Values:
    r"""1.0 when the last \boxed{...} is closed and not empty, else 0.0.

    Range: 0 or 1. Failure modes: any box pays, whatever its content, so this reward alone teaches to write boxes: give
    it less weight than the reward for the answer.
    """
    boxes = [last_boxed(completion_text(completion)) for completion in completions]
    return [float(box is not None and bool(box.strip())) for box in boxes]


def correct_answer(
    prompts: Texts, completions: Texts, completion_ids: Ids, *, answer: Sequence[Any], **columns: Any
) -> Values:
    r"""1.0 when the final answer equals `answer` by value, else 0.0; None for a problem without an answer.

    `tasks.answers.final_text` finds the final answer: the content of the last `<answer>` tag, else of the last
    \boxed{...}. `answer` is bare ("7") or a solution that ends in `#### 7` or a box. Two numbers are compared exactly
    (1,000.0 is 1000; 14/2 is 7), anything else as text in one spelling (`tasks.spelling`).

    Range: 0 or 1. Failure modes: a lucky guess earns as much as a solution; a percentage is its number (50% is 50, not
    0.5); units and currency signs are dropped, so 7 dollars equal 7 euros; other forms of a term (x+1
    and 1+x, sqrt(2) and 2^0.5) are different texts, which `math_verify` compares by value. Raises ValueError for an
    empty gold answer.
    """
    values: list[float | None] = []
    for completion, gold in zip(completions, answer, strict=True):
        text = None if gold is None else final_text(completion_text(completion))
        values.append(None if gold is None else float(text is not None and equals_gold(text, gold_text(gold))))
    return values


def last_number(
    prompts: Texts, completions: Texts, completion_ids: Ids, *, answer: Sequence[Any], **columns: Any
) -> Values:
    r"""1.0 when the last number of the completion equals `answer` by value, in whatever form, else 0.0.

    The lenient partner of `correct_answer`, for models that write no box: with weight 0 it tells what a model learned
    from what it learned to format. Numbers have digits, perhaps commas at the thousands, a point and a minus sign.

    Range: 0 or 1; None for a problem without an answer. Failure modes: a number after the answer ("20, which has 2
    digits") costs the reward, so it teaches to stop; answers that are no plain numbers are never met; the last of many
    guesses counts. Raises ValueError for an empty gold answer.
    """
    values = [None if gold is None else parse_value(gold_text(gold)) for gold in answer]
    numbers_N = [_NUMBER.findall(completion_text(completion)) for completion in completions]
    return [
        None if gold is None else float(bool(numbers) and value is not None and parse_value(numbers[-1]) == value)
        for gold, value, numbers in zip(answer, values, numbers_N, strict=True)
    ]
