"""A penalty for repetition, on tokens, so that it works for any language."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from grouprl.rewards.rules import Ids, Texts, Values, check_arguments


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
        valid = type(self.ngram) is int and self.ngram >= 1
        check_arguments("repetition", self, ("ngram", valid, "a whole number of at least 1"))

    def __call__(self, prompts: Texts, completions: Texts, completion_ids: Ids, **columns: Any) -> Values:
        """Returns a number above -1, up to 0, for each completion."""
        values: Values = []
        for ids in completion_ids:
            total = len(ids) - self.ngram + 1
            different = {tuple(ids[start : start + self.ngram]) for start in range(total)}
            values.append(len(different) / total - 1.0 if total > 0 else 0.0)
        return values
