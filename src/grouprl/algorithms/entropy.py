"""The high-entropy tokens of a batch, and the options that use entropy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from grouprl.algorithms.option import Part, option


def high_entropy_mask(entropies_NT: Tensor, mask_NT: Tensor, *, share: float) -> tuple[Tensor, float]:
    """Selects the `share` of the batch's tokens with the highest entropy (Wang et al., arXiv:2506.01939, equation 5).

    Args:
        entropies_NT: [N, T] entropy in nats of the distribution that each token was drawn from.
        mask_NT: [N, T] which tokens exist.
        share: in (0, 1]; 1 keeps all, the paper keeps 0.2. It selects floor(share * (n - 1)) + 1 of n tokens, which are
            those from the quantile 1 - share on, as in TRL (`get_high_entropy_mask`); in a half, the larger number.

    Returns:
        ([N, T] bool, the smallest entropy among the selected tokens).
    """
    mask_NT = mask_NT.bool()
    entropies = entropies_NT[mask_NT]
    if share >= 1 or not len(entropies):
        return mask_NT, 0.0
    highest = entropies.topk(int(share * (len(entropies) - 1)) + 1)
    # Selected by rank, not by threshold: many tokens may have an entropy of exactly 0.
    chosen = torch.zeros_like(entropies, dtype=torch.bool)
    chosen[highest.indices] = True
    return mask_NT.masked_scatter(mask_NT, chosen), float(highest.values[-1])


def steered_entropy_coef(coef: float, entropy: float, *, target: float, step: float = 0.005) -> tuple[float, float]:
    """Computes the coefficient of the entropy bonus after a step, and the part of it that the next step applies.

    It grows by `step` where the entropy is at or below its target, falls by `step` where it is above, and stays in
    [0, 1]. The bonus pauses while the entropy is above (Skywork-OR1, arXiv:2505.22312, adaptive entropy control).

    Args:
        coef: the coefficient before.
        entropy: mean of the step, in nats per token.
        target: the wanted entropy.
        step: 0.005 in the paper.

    Returns:
        (coefficient, the same or 0).
    """
    low = entropy <= target
    coef = min(1.0, max(0.0, coef + step if low else coef - step))
    return coef, coef if low else 0.0


@dataclass(frozen=True)
class Entropy(Part):
    """An entropy bonus in the loss, or advantages for high-entropy tokens alone."""

    absent: ClassVar[Mapping[str, Any]] = {"entropy_coef": 0.0, "entropy_target": None, "entropy_share": 1.0}

    entropy_coef: float = option(0.0, "weight of the entropy bonus in the loss", low=0.0)
    entropy_target: float | None = option(
        None, "entropy in nats below which entropy_coef rises; null = fixed entropy_coef", low=1e-9
    )
    entropy_step: float = option(0.005, "change of an adaptive entropy_coef in one step", low=1e-9, high=1.0)
    entropy_share: float = option(
        1.0, "share of tokens, by highest entropy, that have advantages; 1 = all", low=1e-6, high=1.0
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.entropy_target is None:
            self.refuse_idle("entropy_step", beside="entropy_target")

    @property
    def bonus(self) -> bool:
        """Whether a step may have an entropy bonus."""
        return self.entropy_coef > 0 or self.entropy_target is not None

    def next_coefs(self, coefs: tuple[float, float], entropy: float) -> tuple[float, float]:
        """The coefficients of the next step; unchanged without a target, and after a step that measured no entropy."""
        if self.entropy_target is None or not math.isfinite(entropy):
            return coefs
        return steered_entropy_coef(coefs[0], entropy, target=self.entropy_target, step=self.entropy_step)
