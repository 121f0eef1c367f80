"""A penalty for repetition, on tokens, so that it works for any language."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from grouprl.rewards.rules import Text
from grouprl.types import UserError


@dataclass(frozen=True)
class Repetition:
    """Minus the share of a completion's token n-grams that occurred before in it; 0 for fewer than `ngram` tokens.

    This is the n-gram penalty of open-r1; Yeo et al. (2502.03373) use it against padding, which length rewards
    encourage. `ngram` is at least 1: small values also punish useful repetition (columns of a table, a formula used
    again), large values only verbatim loops.

    Range: above -1, up to 0. Failure modes: it hardly detects a loop with a counter ("step 1 ... step 2 ...") and does
    not detect paraphrases; copying the prompt once is no repetition; the shortest completion is never punished.
    """

    ngram: int = 20

    def __post_init__(self) -> None:
        if type(self.ngram) is not int or self.ngram < 1:
            raise UserError(
                f"reward repetition: expected ngram to be a whole number of at least 1, got {self.ngram!r}: change it"
            )

    def __call__(
        self,
        prompts: Sequence[Text],
        completions: Sequence[Text],
        completion_ids: Sequence[Sequence[int]],
        **columns: Any,
    ) -> list[float | None]:
        """Returns a number above -1, up to 0, for each completion."""
        return [_fresh_share(tuple(ids), self.ngram) - 1.0 for ids in completion_ids]


def _fresh_share(ids: tuple[int, ...], n: int) -> float:
    total = len(ids) - n + 1
    return len({ids[start : start + n] for start in range(total)}) / total if total > 0 else 1.0
