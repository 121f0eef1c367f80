"""Rewards for the length of a completion: with its correctness, and alone."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from grouprl.leaves import leaf
from grouprl.rewards.functions import RewardFunction
from grouprl.rewards.rules import Ids, Texts, Values, check_arguments, completion_text, correct_answer, is_finite

_VERIFIERS = ("correct_answer", "math_verify")
_UNITS = ("characters", "tokens")
_ENDS = ("correct_short", "correct_long", "wrong_short", "wrong_long", "at_limit")


@dataclass(frozen=True)
class CosineLength:
    """Scales correctness by length: half a cosine from the value for length 0 to the value at `max_tokens`.

    The cosine reward of Yeo et al. (2502.03373): a short correct completion earns more than a long one, a long wrong
    one loses less than a short one (it may be unfinished work), and one that reaches `max_tokens` earns `at_limit`,
    right or wrong. Use it instead of the reward for the answer.

    Range: between the smallest and the largest of the five values; by default correct 1.0 to 0.5, wrong -1.0 to -0.5.
    Failure modes: where longer wrong completions lose less, padding and loops pay (add `repetition`); if the values of
    correct and wrong overlap, length matters more than truth; errors of the verifier become errors of this reward.

    Args:
        max_tokens: the run's `sampling.max_tokens`, at least 1; lengths count tokens, the end token included.
        correct_short, correct_long: value of a correct completion of length 0, and of one just below `max_tokens`.
        wrong_short, wrong_long: the same values for a wrong completion.
        at_limit: value at `max_tokens` and beyond.
        verifier: `correct_answer`, `math_verify`, or a reward function that returns at least 1.0 for a correct
            completion; where it returns None, so does this reward.
    """

    max_tokens: int
    correct_short: float = 1.0
    correct_long: float = 0.5
    wrong_short: float = -1.0
    wrong_long: float = -0.5
    at_limit: float = -1.0
    verifier: str | RewardFunction = "correct_answer"

    def __post_init__(self) -> None:
        is_known = callable(self.verifier) or self.verifier in _VERIFIERS
        check_arguments(
            "cosine_length",
            self,
            ("max_tokens", type(self.max_tokens) is int and self.max_tokens >= 1, "at least 1"),
            ("verifier", is_known, f"one of {', '.join(_VERIFIERS)} or a function"),
            *((name, is_finite(getattr(self, name)), "a finite number") for name in _ENDS),
        )
        self._verify()  # raises now if its extra is missing

    def __call__(self, prompts: Texts, completions: Texts, completion_ids: Ids, **columns: Any) -> Values:
        """Returns a number between the smallest and the largest value, or None, for each completion."""
        verdicts = self._verify()(prompts=prompts, completions=completions, completion_ids=completion_ids, **columns)
        return [
            None if verdict is None else self._value(verdict, len(ids))
            for verdict, ids in zip(verdicts, completion_ids, strict=True)
        ]

    def _verify(self) -> RewardFunction:
        if callable(self.verifier):
            return self.verifier
        return leaf("reward.math_verify")() if self.verifier == "math_verify" else correct_answer

    def _value(self, verdict: float, length: int) -> float:
        if math.isnan(verdict):  # would compare as wrong
            raise ValueError("expected a number from the verifier, got nan")
        if length >= self.max_tokens:
            return self.at_limit
        short, long = (self.correct_short, self.correct_long) if verdict >= 1.0 else (self.wrong_short, self.wrong_long)
        return long + (short - long) * (1.0 + math.cos(math.pi * length / self.max_tokens)) / 2.0


@dataclass(frozen=True)
class NearLength:
    """Minus the distance of a completion's length from `ideal`, in `characters` or in `tokens`, the end token included.

    The reward of the Hugging Face course's exercise for GRPO, whose script counts characters.

    Range: up to 0. Failure modes: only the length counts, so any text of that length is as good as a true one: give
    it less weight than a reward for the content; with `ideal` near `rollout.max_tokens`, truncated completions pay.
    """

    ideal: int
    unit: str = "tokens"

    def __post_init__(self) -> None:
        check_arguments(
            "near_length",
            self,
            ("ideal", type(self.ideal) is int and self.ideal >= 0, "a whole number of at least 0"),
            ("unit", self.unit in _UNITS, f"one of {', '.join(_UNITS)}"),
        )

    def __call__(self, prompts: Texts, completions: Texts, completion_ids: Ids, **columns: Any) -> Values:
        """Returns a number of at most 0 for each completion."""
        counted = completion_ids if self.unit == "tokens" else map(completion_text, completions)
        return [float(-abs(len(units) - self.ideal)) for units in counted]
