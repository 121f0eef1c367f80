"""GRPO (DeepSeekMath, arXiv:2402.03300, algorithm 1): clip 0.2 as in PPO, beta = 0.04 as in section 4.2."""

from grouprl.algorithms.spec import Algorithm

ALGORITHM = Algorithm("grpo")
