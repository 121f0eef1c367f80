"""Iterative GRPO (DeepSeekMath, section 4.1.4): the reference follows the policy, here every 20 steps."""

from grouprl.algorithms.kl import Kl
from grouprl.algorithms.spec import Algorithm

ALGORITHM = Algorithm("grpo_iterative", kl=Kl(refresh_reference=20))
