"""Reward functions in TRL's call form, one short file each, and the lookup of functions by name.

In: names, functions, files. Out: weighted rewards for the scorer. Never calls them.
"""

from grouprl.rewards.resolve import built_in, resolve_rewards, verifier_of
from grouprl.rewards.rules import completion_text

__all__ = ["built_in", "completion_text", "resolve_rewards", "verifier_of"]
