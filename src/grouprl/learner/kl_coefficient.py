"""The weight of the KL term: fixed, or steered towards a target."""

from __future__ import annotations

from grouprl.algorithms import steered_kl_coef
from grouprl.algorithms.spec import Algorithm


class KlCoefficient:
    """Changes from step to step where the algorithm has a `kl_target`; part of what a resume needs."""

    def __init__(self, algorithm: Algorithm) -> None:
        self.value = algorithm.kl_coef
        self._algorithm = algorithm

    def measured(self, kl: float) -> None:
        """Takes note of a step's mean KL per token, in nats."""
        if self._algorithm.kl_target is not None:
            self.value = steered_kl_coef(self.value, kl, target=self._algorithm.kl_target, rate=self._algorithm.kl_rate)
