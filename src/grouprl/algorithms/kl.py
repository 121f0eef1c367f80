"""Estimators of KL(policy || reference) from the log-probs of sampled tokens (Schulman, "Approximating KL", 2020)."""

from __future__ import annotations

import torch
from torch import Tensor

from grouprl.algorithms.spec import KlKind


def kl_estimate(logprobs: Tensor, ref_logprobs: Tensor, *, kind: KlKind = "k3") -> Tensor:
    """Per-token estimate of KL(policy || reference), in nats, for tokens drawn from the policy.

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
    """The KL coefficient of the next step: larger where the KL was above its target, smaller where it was below.

    kl_coef * (1 + rate * clip(kl / target - 1, -0.2, 0.2)) (Ziegler et al., arXiv:1909.08593, section 2.2).

    Args:
        kl_coef: of this step, above 0.
        kl: measured in this step, in the units of `target`.
        target: above 0.
        rate: 0.1 in the paper.
    """
    error = max(-0.2, min(0.2, kl / target - 1))
    return kl_coef * (1 + rate * error)
