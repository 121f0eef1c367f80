"""Reward functions in TRL's call form, and the judge that calls them. `REWARDS` holds those that a name can load."""

from __future__ import annotations

from grouprl.rewards.judge import WeightedReward, judge, resolve_rewards
from grouprl.rewards.overlong import SOFT_OVERLONG, with_overlong_penalty
from grouprl.rewards.rules import REWARDS, RewardFunction, boxed_format, completion_text, correct_answer

__all__ = [
    "REWARDS",
    "SOFT_OVERLONG",
    "RewardFunction",
    "WeightedReward",
    "boxed_format",
    "completion_text",
    "correct_answer",
    "judge",
    "resolve_rewards",
    "with_overlong_penalty",
]
