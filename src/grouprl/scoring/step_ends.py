"""Converts the ends of reasoning steps from characters to tokens, because process rewards read text alone."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from functools import cache
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def last_tokens(token_ids: Sequence[int], ends: Sequence[int], tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Returns, for each end in characters of a completion's text, the index of the token that completes it."""

    @cache
    def written(count: int) -> int:
        return len(tokenizer.decode(token_ids[:count], skip_special_tokens=True))

    # Tokens decoded alone need not add up to the text (half a character, a joining space): use them as a first guess.
    alone = tokenizer.batch_decode([[token] for token in token_ids], skip_special_tokens=True)
    guesses = list(accumulate(map(len, alone)))
    found = []
    for end in ends:
        index = min(bisect_left(guesses, end), len(token_ids) - 1)
        while index > 0 and written(index) >= end:
            index -= 1
        while index < len(token_ids) - 1 and written(index + 1) < end:
            index += 1
        found.append(index)
    return found
