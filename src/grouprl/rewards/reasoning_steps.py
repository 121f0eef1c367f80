"""Places the values of a process reward, which reads text alone, on the tokens that end its reasoning steps."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from functools import cache
from itertools import accumulate
from typing import TYPE_CHECKING

from grouprl.models.prompts import completion_texts
from grouprl.rewards.functions import WeightedReward
from grouprl.types import Completion, StepReward

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def step_rewards(
    reward: WeightedReward,
    pairs: Sequence[tuple[int, float]],
    completion: Completion,
    tokenizer: PreTrainedTokenizerBase | None,
) -> tuple[StepReward, ...]:
    """Makes the rewards of a completion's reasoning steps from (end in characters, value) of each."""
    if tokenizer is None:
        raise ValueError(f"reward {reward.name} gives steps: the tokenizer is needed to find their last tokens")
    places = last_tokens(completion.token_ids, [end for end, _ in pairs], tokenizer)
    return tuple(StepReward(place, reward.weight * value) for place, (_, value) in zip(places, pairs, strict=True))


def last_tokens(token_ids: Sequence[int], ends: Sequence[int], tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Returns, for each end in characters of a completion's text, the index of the token that completes it.

    Process rewards read text alone, so their steps end at a character.
    """

    @cache
    def written(count: int) -> int:
        return len(completion_texts([token_ids[:count]], tokenizer)[0])

    # Tokens decoded alone need not add up to the text (half a character, a joining space): use them as a first guess.
    alone = completion_texts([[token] for token in token_ids], tokenizer)
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
