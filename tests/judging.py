"""Groups scored in one call, by real worker processes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from grouprl.rewards import WeightedReward, open_judge
from grouprl.types import Group, RewardOutcome

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def judged(
    groups: Sequence[Group],
    rewards: Sequence[WeightedReward],
    tokenizer: PreTrainedTokenizerBase | None = None,
    max_invalid: float = 1.0,
    **options: Any,
) -> list[tuple[RewardOutcome, ...]]:
    with open_judge(rewards, max_invalid=max_invalid, **options) as judge:
        return judge.finish([judge.begin(group) for group in groups], tokenizer)
