"""Computes the advantage of every token of a batch from its rewards, by the algorithm's rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from grouprl.algorithms.credit import BatchRewards, Credit
from grouprl.algorithms.kl import kl_estimate
from grouprl.algorithms.spec import Algorithm
from grouprl.learner.batch import PolicyEvaluation
from grouprl.types import Batch, RewardOutcome


def assign_credit(
    outcomes_N: Sequence[RewardOutcome],
    reward_weights: Mapping[str, float],
    batch: Batch,
    before: PolicyEvaluation,
    algorithm: Algorithm,
    *,
    kl_coef: float,
) -> Credit:
    """Computes the advantages of a batch's tokens: see `assign` of the algorithm's advantage.

    Args:
        outcomes_N: one outcome for each row of the batch.
        reward_weights: weight of each reward in the total, by name.
        batch: the completions.
        before: the reference's log-probs and the critic's values, where the algorithm has them.
        algorithm: the algorithm that defines the advantage.
        kl_coef: the KL coefficient of this step.
    """
    return algorithm.advantage.assign(
        BatchRewards(
            rewards_N=torch.tensor([outcome.total for outcome in outcomes_N], dtype=torch.float64),
            groups_N=torch.tensor(batch.group_of_N),
            mask_NT=batch.mask_NT,
            trained_NT=batch.trained_NT,
            components={name: component(outcomes_N, name) for name in reward_weights},
            weights=reward_weights,
            steps=[[(step.reward, step.end) for step in outcome.steps] for outcome in outcomes_N],
            kl_NT=_kl_in_reward(batch, before, algorithm, kl_coef),
            values_NT=None if before.values_NT is None else before.values_NT.cpu(),
        )
    )


def component(outcomes_N: Sequence[RewardOutcome], name: str) -> Tensor:
    """Returns [N] float64 values of one reward; NaN where it does not apply or the completion is invalid."""
    values = [outcome.components.get(name) if outcome.valid else None for outcome in outcomes_N]
    return torch.tensor([torch.nan if value is None else value for value in values], dtype=torch.float64)


def token_rows(values_NT: Tensor, batch: Batch) -> list[list[float]]:
    """Returns the values of each completion's tokens, without padding."""
    return [row[mask].tolist() for row, mask in zip(values_NT, batch.mask_NT, strict=True)]


def _kl_in_reward(batch: Batch, before: PolicyEvaluation, algorithm: Algorithm, kl_coef: float) -> Tensor:
    """Returns [N, T] float64, the KL penalty subtracted from each token's reward; exactly 0 at the reference."""
    kl = algorithm.kl
    if kl is None or kl.kl_in != "reward" or before.reference_NT is None or before.at_reference:
        return torch.zeros(batch.mask_NT.shape, dtype=torch.float64)
    policy_NT = batch.old_logprobs_NT if before.policy_NT is None else before.policy_NT.cpu()
    kl_NT = kl_estimate(policy_NT.double(), before.reference_NT.cpu().double(), kind=kl.kl_estimator)
    return kl_coef * torch.where(batch.mask_NT, kl_NT, 0.0)
