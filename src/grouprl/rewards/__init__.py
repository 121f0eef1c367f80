"""Reward functions in TRL's call form, and the judge that has them called in worker processes."""

from __future__ import annotations

from grouprl.rewards.invalid import Invalid
from grouprl.rewards.judge import Judge, Pending, open_judge
from grouprl.rewards.pool import Limits
from grouprl.rewards.resolve import SOFT_OVERLONG, FromFile, WeightedReward, built_in, resolve_rewards, verifier_of
from grouprl.rewards.rules import RewardFunction, completion_text

__all__ = [
    "SOFT_OVERLONG",
    "FromFile",
    "Invalid",
    "Judge",
    "Limits",
    "Pending",
    "RewardFunction",
    "WeightedReward",
    "built_in",
    "completion_text",
    "open_judge",
    "resolve_rewards",
    "verifier_of",
]
