"""The weight of the KL term: fixed, or steered towards a target."""

from __future__ import annotations

from grouprl.algorithms.spec import Algorithm


class KlCoefficient:
    """Changes from step to step where the algorithm has a `kl_target`; part of what a resume needs."""

    def __init__(self, algorithm: Algorithm) -> None:
        self.value = algorithm.kl_coef
        self._kl = algorithm.kl

    def measured(self, kl: float) -> None:
        """Takes note of a step's mean KL per token, in nats."""
        if self._kl is not None:
            self.value = self._kl.next_coef(self.value, kl)
