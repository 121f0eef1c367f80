"""The family by name. Each entry is a few fields that differ from GRPO, and the paper that says so."""

from __future__ import annotations

from types import MappingProxyType

from grouprl.types import Algorithm

# GRPO: DeepSeekMath, arXiv:2402.03300, algorithm 1; clip 0.2 as in PPO, beta = 0.04 as in section 4.2.
grpo = Algorithm(name="grpo")

NAMED = MappingProxyType({algorithm.name: algorithm for algorithm in (grpo,)})
