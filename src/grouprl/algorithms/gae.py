"""Generalized advantage estimation, for algorithms with a critic."""

from __future__ import annotations

import torch
from torch import Tensor


def gae(
    rewards_NT: Tensor, values_NT: Tensor, mask_NT: Tensor, *, gamma: float = 1.0, lam: float = 0.95
) -> tuple[Tensor, Tensor]:
    """Computes advantages and returns of each token (Schulman et al., arXiv:1506.02438, equation 16).

    delta_t = reward_t + gamma * value_{t+1} - value_t, advantage_t = delta_t + gamma * lam * advantage_{t+1}, where
    t + 1 is the next token inside the mask and the value after the last one is 0.

    Args:
        rewards_NT: [N, T] reward of each token.
        values_NT: [N, T] the critic's value before each token.
        mask_NT: [N, T] which tokens exist; the others are skipped.
        gamma: discount in [0, 1].
        lam: 0 trusts the critic, 1 the rewards.

    Returns:
        ([N, T] advantages, [N, T] returns = advantages + values), 0 outside the mask.

    Raises:
        ValueError: shapes differ.
    """
    if not rewards_NT.shape == values_NT.shape == mask_NT.shape:
        raise ValueError(
            "expected rewards, values and mask of one shape [N, T], got "
            f"{tuple(rewards_NT.shape)}, {tuple(values_NT.shape)}, {tuple(mask_NT.shape)}"
        )
    mask_NT = mask_NT.bool()
    advantages_NT = torch.zeros_like(values_NT)
    next_value_N = torch.zeros_like(values_NT[:, 0])
    advantage_N = torch.zeros_like(next_value_N)
    for t in reversed(range(values_NT.shape[1])):
        inside_N = mask_NT[:, t]
        delta_N = rewards_NT[:, t] + gamma * next_value_N - values_NT[:, t]
        advantage_N = torch.where(inside_N, delta_N + gamma * lam * advantage_N, advantage_N)
        next_value_N = torch.where(inside_N, values_NT[:, t], next_value_N)
        advantages_NT[:, t] = torch.where(inside_N, advantage_N, 0.0)
    return advantages_NT, torch.where(mask_NT, advantages_NT + values_NT, 0.0)
