"""Estimators of KL(policy || reference) from the log-probs of sampled tokens (Schulman, "Approximating KL", 2020)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from grouprl.algorithms.option import Part, option
from grouprl.types import UserError

KlKind = Literal["k1", "k2", "k3"]


def kl_estimate(logprobs: Tensor, ref_logprobs: Tensor, *, kind: KlKind = "k3") -> Tensor:
    """Estimates KL(policy || reference) per token, in nats, for tokens drawn from the policy.

    With r = p_ref / p_policy of the sampled token: k1 = -log r (unbiased, can be negative), k2 = (log r)^2 / 2
    (biased, low variance), k3 = r - 1 - log r (unbiased, never negative; DeepSeekMath equation 4).

    Args:
        logprobs, ref_logprobs: log-probs of the same tokens, of one shape.
        kind: which estimator.

    Returns:
        A tensor of the same shape.
    """
    log_ratio = ref_logprobs - logprobs
    if kind == "k1":
        return -log_ratio
    if kind == "k2":
        return log_ratio.square() / 2
    if kind == "k3":
        # expm1 keeps the digits near the reference, where r - 1 and log r cancel.
        return torch.expm1(log_ratio) - log_ratio
    raise ValueError(f"kind: got {kind!r}, expected one of k1, k2, k3")


def steered_kl_coef(kl_coef: float, kl: float, *, target: float, rate: float = 0.1) -> float:
    """Computes the next step's KL coefficient: larger if the KL was above its target, smaller if below.

    kl_coef * (1 + rate * clip(kl / target - 1, -0.2, 0.2)) (Ziegler et al., arXiv:1909.08593, section 2.2).
    `kl_coef` and `kl` are of this step; coefficient and `target` are above 0. The paper's rate is 0.1.
    """
    error = max(-0.2, min(0.2, kl / target - 1))
    return kl_coef * (1 + rate * error)


@dataclass(frozen=True)
class Kl(Part):
    """The KL penalty towards a frozen reference; an algorithm with kl=None loads no reference."""

    absent: ClassVar[Mapping[str, Any]] = {"kl_coef": 0.0}

    kl_estimator: KlKind = option("k3", "k1 is unbiased, k2 has low variance, k3 is unbiased and never negative")
    kl_coef: float = option(0.04, "weight of the KL to the reference; 0 = no reference", low=0.0)
    kl_in: Literal["loss", "reward"] = option(
        "loss", "place of the KL: a term of the loss, or subtracted from the reward of each token"
    )
    kl_unbiased: bool = option(
        False, "multiply the KL in the loss by the ratio of policy to behavior policy (DeepSeek-V3.2)"
    )
    kl_target: float | None = option(
        None, "KL that an adaptive kl_coef aims at, in nats per token; null = fixed kl_coef", low=1e-9
    )
    kl_rate: float = option(0.1, "speed of an adaptive kl_coef", low=0.0, high=1.0)
    refresh_reference: int = option(0, "steps between two refreshes of the reference by the policy; 0 = never", low=0)
    reference_mixup: float = option(
        1.0, "share of the policy in a refreshed reference; the old reference is the rest", low=1e-6, high=1.0
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kl_coef == 0:
            raise UserError("algorithm.kl_coef: expected more than 0, got 0: set algorithm.kl=null for no KL term")
        if self.kl_in == "reward":
            self.refuse_idle("kl_unbiased", beside="kl_in")
        if self.kl_target is None:
            self.refuse_idle("kl_rate", beside="kl_target")
        if not self.refresh_reference:
            self.refuse_idle("reference_mixup", beside="refresh_reference")

    def next_coef(self, kl_coef: float, kl: float) -> float:
        """Computes the next step's coefficient from this step's coefficient and mean KL per token, in nats."""
        if self.kl_target is None:
            return kl_coef
        return steered_kl_coef(kl_coef, kl, target=self.kl_target, rate=self.kl_rate)
