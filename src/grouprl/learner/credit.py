"""From what the rewards said to an advantage for every token: the one place where algorithms differ before the loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from grouprl.algorithms import (
    completion_advantages,
    group_advantages,
    kl_estimate,
    step_advantages,
    token_advantages,
)
from grouprl.algorithms.spec import Algorithm
from grouprl.learner.seen import Seen
from grouprl.types import Batch, RewardOutcome


@dataclass(frozen=True)
class Credit:
    """Who earned what, token by token; 0 for a completion whose reward is invalid and outside the completions."""

    advantages_NT: Tensor  # float32
    returns_NT: Tensor | None = None  # what the critic learns to predict
    counted_NT: Tensor | None = None  # bool, tokens that the critic learns from

    def rows(self, batch: Batch) -> list[list[float]]:
        """The advantages of each completion's own tokens."""
        return [row[mask].tolist() for row, mask in zip(self.advantages_NT, batch.mask_NT, strict=True)]


def assign_credit(
    outcomes_N: Sequence[RewardOutcome],
    reward_weights: Mapping[str, float],
    batch: Batch,
    seen: Seen,
    algorithm: Algorithm,
    *,
    kl_coef: float,
) -> Credit:
    """Advantages of a batch's tokens, by `algorithm.credit`.

    Args:
        outcomes_N: one for each row of the batch.
        reward_weights: factor of each reward in the total, by name.
        batch: the completions.
        seen: the reference's log-probs and the critic's values, where the algorithm has them.
        algorithm: which baseline, scale and credit.
        kl_coef: of this step.
    """
    totals_N = torch.tensor([outcome.total for outcome in outcomes_N], dtype=torch.float64)
    penalty_NT = _kl_penalty(batch, seen, algorithm, kl_coef)
    if algorithm.credit == "token":
        return _by_token(totals_N, penalty_NT, batch, seen, algorithm)
    if algorithm.credit == "step":
        return Credit(_by_step(outcomes_N, batch, algorithm))
    groups_N = torch.tensor(batch.group_of_N)
    if algorithm.reward_mix == "normalise_then_sum":
        advantages_N = mixed_advantages(outcomes_N, reward_weights, groups_N, algorithm)
    else:
        advantages_N = completion_advantages(totals_N - penalty_NT.sum(1), groups_N, **algorithm.comparison)
    return Credit(advantages_N[:, None] * batch.mask_NT)


def mixed_advantages(
    outcomes_N: Sequence[RewardOutcome], reward_weights: Mapping[str, float], groups_N: Tensor, algorithm: Algorithm
) -> Tensor:
    """[N] weighted sum of the advantages that each reward alone would give."""
    advantages_N = torch.zeros(len(outcomes_N))
    for name, weight in reward_weights.items():
        values = [outcome.components.get(name) if outcome.valid else None for outcome in outcomes_N]
        column_N = torch.tensor([torch.nan if value is None else value for value in values], dtype=torch.float64)
        advantages_N = advantages_N + weight * completion_advantages(column_N, groups_N, **algorithm.comparison)
    return advantages_N


def _kl_penalty(batch: Batch, seen: Seen, algorithm: Algorithm, kl_coef: float) -> Tensor:
    """[N, T] float64, what the KL takes from the reward of each token."""
    if algorithm.kl_in != "reward" or seen.reference_NT is None:
        return torch.zeros(batch.mask_NT.shape, dtype=torch.float64)
    policy_NT = batch.old_logprobs_NT if seen.policy_NT is None else seen.policy_NT.cpu()
    kl_NT = kl_estimate(policy_NT.double(), seen.reference_NT.cpu().double(), kind=algorithm.kl)
    return kl_coef * torch.where(batch.mask_NT, kl_NT, 0.0)


def _by_step(outcomes_N: Sequence[RewardOutcome], batch: Batch, algorithm: Algorithm) -> Tensor:
    """The steps' own rewards, and the completion's as its last step: right steps must also lead to an answer."""
    lengths = batch.mask_NT.sum(1).tolist()
    pairs = [
        [*((step.reward, step.end) for step in outcome.steps), (outcome.total, length - 1)] if outcome.valid else []
        for outcome, length in zip(outcomes_N, lengths, strict=True)
    ]
    return step_advantages(
        [[reward for reward, _ in row] for row in pairs],
        [[end for _, end in row] for row in pairs],
        batch.group_of_N,
        lengths,
        std=algorithm.std,
        eps=algorithm.eps,
    )


def _by_token(totals_N: Tensor, penalty_NT: Tensor, batch: Batch, seen: Seen, algorithm: Algorithm) -> Credit:
    """The reward at the last token and the KL at every token, turned into what each token can still earn."""
    counted_NT = batch.trained_NT & ~totals_N.isnan()[:, None]
    if algorithm.baseline in ("mean", "leave_one_out"):
        # The group judges the completion alone: normalised together with the KL, equal rewards would blow its noise up.
        ends_N = group_advantages(
            totals_N,
            torch.tensor(batch.group_of_N),
            baseline=algorithm.baseline,
            scale="group_std" if algorithm.scale == "group_std" else "none",
            std=algorithm.std,
            eps=algorithm.eps,
        ).double()
    else:
        ends_N = totals_N.nan_to_num(nan=0.0) - algorithm.baseline_constant
    rewards_NT = -penalty_NT
    last_N = batch.mask_NT.sum(1) - 1
    rewards_NT[torch.arange(len(last_N)), last_N] += ends_N
    advantages_NT, returns_NT = token_advantages(
        rewards_NT,
        counted_NT,
        values_NT=None if seen.values_NT is None else seen.values_NT.cpu(),
        gamma=algorithm.gamma,
        lam=algorithm.lam,
        centre=algorithm.baseline == "batch_mean" or (algorithm.scale == "batch_std" and algorithm.baseline != "none"),
        normalise=algorithm.scale == "batch_std",
        std=algorithm.std,
        eps=algorithm.eps,
    )
    return Credit(advantages_NT, returns_NT, counted_NT)


def explained_variance(values_NT: Tensor, returns_NT: Tensor, counted_NT: Tensor) -> float:
    """1 - Var(returns - values) / Var(returns): 1 is a perfect critic, 0 one that knows the mean alone."""
    returns, values = returns_NT[counted_NT].double(), values_NT.cpu()[counted_NT].double()
    spread = float(returns.var(correction=0)) if len(returns) else 0.0
    return 1 - float((returns - values).var(correction=0)) / spread if spread > 0 else float("nan")
