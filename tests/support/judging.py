"""Groups scored in one call, by real worker processes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from grouprl.config.run import ScoringConfig
from grouprl.rewards.configured import open_scorer
from grouprl.rewards.functions import WeightedReward
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
    with open_scorer(rewards, limits=ScoringConfig(max_invalid=max_invalid), **options) as scorer:
        return scorer.finish([scorer.begin(group) for group in groups], tokenizer)
