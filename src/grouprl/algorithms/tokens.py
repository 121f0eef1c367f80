"""Advantages of single tokens: from the return (the discounted rewards from a token on), or from a critic by GAE."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from grouprl.algorithms.advantages import Advantage, BatchRewards, Credit, Std, group_advantages
from grouprl.algorithms.option import option


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


def token_advantages(
    rewards_NT: Tensor,
    mask_NT: Tensor,
    *,
    values_NT: Tensor | None = None,
    gamma: float = 1.0,
    lam: float = 0.95,
    center: bool = True,
    normalize: bool = True,
    std: Std = "population",
    eps: float = 1e-6,
) -> tuple[Tensor, Tensor]:
    """Computes advantage and return of each token of a batch.

    Without values the advantage is the discounted sum of the rewards at and after the token (REINFORCE++,
    arXiv:2501.03262); with values it is `gae`'s (PPO with a critic). Then the batch's own mean over all tokens is
    subtracted (`center`) and its deviation divides (`normalize`).

    Advantages whose deviation rounding explains have no signal: divided by it, rounding errors would move the weights
    as far as rewards do. A critic's values come in float32, each with an error of up to 2^-24 of its size from one
    operation; two more bits allow for the sum and the head's products. Rewards are float64: 2^-50 of the largest sum.

    Args:
        rewards_NT: [N, T] reward of each token, e.g. the completion's at its last token and a KL penalty at each.
        mask_NT: [N, T] tokens that exist and count; the others get 0, and no statistic includes them.
        values_NT: [N, T] the critic's value before each token; None = no critic.
        gamma: discount between tokens, in [0, 1].
        lam: as in `gae`.
        center, normalize: whether the mean is subtracted, and whether the deviation divides.
        std, eps: as in `group_statistics`.

    Returns:
        ([N, T] advantages, [N, T] returns that a critic learns to predict), float32, 0 outside the mask.

    Raises:
        ValueError: shapes differ.
    """
    mask_NT = mask_NT.bool()
    rewards_NT = torch.where(mask_NT, rewards_NT, 0.0).double()
    if values_NT is None:  # with values of 0 and lam = 1, gae gives the discounted sum of rewards
        values_NT, lam = torch.zeros_like(rewards_NT), 1.0
    advantages_NT, returns_NT = gae(rewards_NT, values_NT.double(), mask_NT, gamma=gamma, lam=lam)
    tokens = advantages_NT[mask_NT]
    rounding = 2**-22 * _largest(values_NT[mask_NT]) + 2**-50 * _largest(returns_NT[mask_NT])
    varied = len(tokens) > 1 and float(tokens.std(correction=0)) > rounding
    if center:
        advantages_NT = advantages_NT - tokens.mean() if varied else torch.zeros_like(advantages_NT)
    if normalize and varied:
        advantages_NT = advantages_NT / (tokens.std(correction=int(std == "sample")) + eps)
    return torch.where(mask_NT, advantages_NT, 0.0).float(), returns_NT.float()


def _largest(values: Tensor) -> float:
    return float(values.abs().max()) if len(values) else 0.0


@dataclass(frozen=True)
class FutureAdvantage(Advantage):
    """Credits each token with the rewards at and after it."""

    credit: Literal["token"] = option("token", "unit with an advantage of its own: the token")
    gamma: float = option(1.0, "discount of the reward from token to token; 1 = none", low=0.0, high=1.0)

    def by_token(self, batch: BatchRewards, ends_N: Tensor, *, center: bool, lam: float = 1.0) -> Credit:
        """Computes `token_advantages` of `ends_N` at the last tokens, minus the KL at every token."""
        counted_NT = batch.trained_NT & ~batch.rewards_N.isnan()[:, None]
        rewards_NT = -batch.kl_NT
        last_N = batch.mask_NT.sum(1) - 1
        rewards_NT[torch.arange(len(last_N)), last_N] += ends_N
        advantages_NT, returns_NT = token_advantages(
            rewards_NT,
            counted_NT,
            values_NT=batch.values_NT,
            gamma=self.gamma,
            lam=lam,
            center=center,
            normalize=self.scale == "batch_std",
            std=self.std,
            eps=self.eps,
        )
        return Credit(advantages_NT, returns_NT, counted_NT)


@dataclass(frozen=True)
class TokenAdvantage(FutureAdvantage):
    """Compares the return from each token on with the returns of the batch's tokens."""

    reward: ClassVar[str] = "R_t"

    baseline: Literal["batch_mean", "none"] = option(
        "batch_mean", "subtracted: mean over all tokens of the batch, or nothing"
    )
    scale: Literal["batch_std", "none"] = option(
        "batch_std", "divisor: deviation over the tokens of the batch, or none"
    )

    def assign(self, batch: BatchRewards) -> Credit:
        """Puts the reward at the last token and the KL penalty at every token."""
        return self.by_token(batch, batch.rewards_N.nan_to_num(nan=0.0), center=self.baseline == "batch_mean")


@dataclass(frozen=True)
class GroupTokenAdvantage(FutureAdvantage):
    """Compares a completion with its group; each token gets the result minus the KL from that token on."""

    compares_totals: ClassVar[bool] = True

    baseline: Literal["mean", "leave_one_out"] = option(
        "mean", "subtracted from a reward: mean of the group, or of its other completions"
    )
    scale: Literal["group_std", "batch_std", "none"] = option(
        "group_std", "divisor: deviation of the group, of the batch's tokens, or none"
    )

    def assign(self, batch: BatchRewards) -> Credit:
        """Normalizes rewards without the KL: dividing equal rewards with a KL would amplify its noise."""
        ends_N = group_advantages(
            batch.rewards_N,
            batch.groups_N,
            baseline=self.baseline,
            scale="group_std" if self.scale == "group_std" else "none",
            std=self.std,
            eps=self.eps,
        )
        return self.by_token(batch, ends_N.double(), center=self.scale == "batch_std")

    @property
    def formula(self) -> str:
        """The advantage as an equation, for the page."""
        centered = ", less its mean over the batch" if self.scale == "batch_std" else ""
        return f"{super().formula}, less a KL in the reward from t on{centered}"


@dataclass(frozen=True)
class CriticAdvantage(FutureAdvantage):
    """Generalized advantage estimation: the return minus the critic's value (PPO, arXiv:1506.02438)."""

    reward: ClassVar[str] = "R_t"

    baseline: Literal["critic"] = option("critic", "subtracted: the value that the critic predicts before the token")
    scale: Literal["batch_std", "none"] = option(
        "batch_std", "divisor: deviation over the tokens of the batch, or none"
    )
    lam: float = option(0.95, "lambda of GAE: 0 trusts the critic, 1 the rewards", low=0.0, high=1.0)

    def assign(self, batch: BatchRewards) -> Credit:
        """Generalized advantages of the rewards and the critic's values, and the returns that the critic learns."""
        ends_N = batch.rewards_N.nan_to_num(nan=0.0)
        return self.by_token(batch, ends_N, center=self.scale == "batch_std", lam=self.lam)
