"""Advantages of single tokens: rewards to come, or a critic's generalised advantage estimation."""

from __future__ import annotations

import torch
from torch import Tensor

from grouprl.algorithms.gae import gae
from grouprl.algorithms.spec import Std


def token_advantages(
    rewards_NT: Tensor,
    mask_NT: Tensor,
    *,
    values_NT: Tensor | None = None,
    gamma: float = 1.0,
    lam: float = 0.95,
    centre: bool = True,
    normalise: bool = True,
    std: Std = "population",
    eps: float = 1e-6,
) -> tuple[Tensor, Tensor]:
    """Advantage and return of each token of a batch.

    Without values the advantage is the discounted sum of the rewards at and after the token (REINFORCE++,
    arXiv:2501.03262); with values it is `gae`'s (PPO with a critic). Then the batch's own mean over all tokens is
    subtracted (`centre`) and its deviation divides (`normalise`).

    Args:
        rewards_NT: [N, T] reward of each token, e.g. the completion's at its last token and a KL penalty at each.
        mask_NT: [N, T] tokens that exist and count; the others get 0 and take no part in the statistics.
        values_NT: [N, T] value before each token.
        gamma: discount between tokens, in [0, 1].
        lam: of `gae`.
        centre, normalise: whether the mean is subtracted, and whether the deviation divides.
        std: "population" or "sample" deviation.
        eps: added to the deviation.

    Returns:
        ([N, T] advantages, [N, T] returns that a critic learns to predict), float32, 0 outside the mask.

    Raises:
        ValueError: shapes differ.
    """
    mask_NT = mask_NT.bool()
    rewards_NT = torch.where(mask_NT, rewards_NT, 0.0).double()
    if values_NT is None:
        # lam = 1 and no value at all: what is left of the estimator is the discounted sum of rewards.
        advantages_NT, returns_NT = gae(rewards_NT, torch.zeros_like(rewards_NT), mask_NT, gamma=gamma, lam=1.0)
    else:
        advantages_NT, returns_NT = gae(rewards_NT, values_NT.double(), mask_NT, gamma=gamma, lam=lam)
    tokens = advantages_NT[mask_NT]
    varied = len(tokens) > 1 and bool(tokens.max() > tokens.min())
    if centre:
        # What is left of equal advantages is rounding: it must be exactly 0, or it would move the weights.
        advantages_NT = advantages_NT - tokens.mean() if varied else torch.zeros_like(advantages_NT)
    if normalise and varied:
        advantages_NT = advantages_NT / (tokens.std(correction=int(std == "sample")) + eps)
    return torch.where(mask_NT, advantages_NT, 0.0).float(), returns_NT.float()
