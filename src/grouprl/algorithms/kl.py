"""Estimators of KL(policy || reference) from the log-probs of sampled tokens (Schulman, "Approximating KL", 2020)."""

from __future__ import annotations

import torch
from torch import Tensor

from grouprl.algorithm import KlKind


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
