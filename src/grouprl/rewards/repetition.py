"""A penalty for loops, in tokens, so that it knows no language."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from grouprl.rewards.rules import Text
from grouprl.types import UserError


@dataclass(frozen=True)
class Repetition:
    """Minus the share of a completion's n-grams of tokens that it has written before; 0 for fewer than `ngram` tokens.

    The form is that of the n-gram penalty of open-r1; Yeo et al. (2502.03373) use it against the padding that length
    rewards invite. `ngram` is at least 1: small values also punish the repeats of honest work (columns of a table,
    one formula taken up again), large ones only verbatim loops.

    Range: above -1, up to 0. Failure modes: a loop with a counter in it ("step 1 ... step 2 ...") is hardly seen; a
    paraphrase is not seen at all; copying the prompt once is no repetition; the shortest completion is never punished.
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
        """A number above -1, up to 0, for each completion."""
        return [_fresh_share(tuple(ids), self.ngram) - 1.0 for ids in completion_ids]


def _fresh_share(ids: tuple[int, ...], n: int) -> float:
    total = len(ids) - n + 1
    return len({ids[start : start + n] for start in range(total)}) / total if total > 0 else 1.0
