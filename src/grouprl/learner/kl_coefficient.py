"""The KL coefficient: fixed, or adapted so that the KL approaches a target."""

from __future__ import annotations

from grouprl.algorithms.spec import Algorithm


class KlCoefficient:
    """The weight of the KL term. It changes from step to step if the algorithm has a `kl_target`."""

    def __init__(self, algorithm: Algorithm) -> None:
        self.value = algorithm.kl_coef
        self._kl = algorithm.kl

    def adapt(self, kl: float) -> None:
        """Adapts the coefficient to a step's mean KL per token, in nats."""
        if self._kl is not None:
            self.value = self._kl.next_coef(self.value, kl)
