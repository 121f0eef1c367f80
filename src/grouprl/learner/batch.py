"""The learner's padded tensors: completions, the networks' evaluation of them, and the inputs of all updates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from grouprl.algorithms import high_entropy_mask, kl_estimate
from grouprl.algorithms.advantages import BatchRewards, Credit, check_tensor
from grouprl.algorithms.spec import Algorithm
from grouprl.types import Batch, Group, RewardOutcome, Sampling, StopReason, UserError


@dataclass(frozen=True)
class ScoredGroups:
    """The groups of a step with one outcome for each completion."""

    step: int
    groups: Sequence[Group]  # [P]
    outcomes: Sequence[Sequence[RewardOutcome]]  # [P][G]
    kept: Sequence[bool]  # [P] whether the group enters the loss
    weights: Mapping[str, float]  # of each reward in the total
    sampling: Sampling


# Nats. Log-probs of equal weights differ by the rounding of the forward pass: in float32 by up to 2e-5, in bfloat16,
# which keeps 8 bits, by up to 0.1 (the demo). A policy this near to its reference on every token of a batch has no KL:
# whitened or divided by Adam, the rounding would move the weights by the whole learning rate.
AT_REFERENCE = {"float32": 1e-4, "bfloat16": 0.25}


@dataclass(frozen=True)
class PolicyEvaluation:
    """[N, T] float32 tensors on the learner's device, 0 outside the completions; None = the algorithm needs none."""

    reference_NT: Tensor | None = None  # log-probs of the reference
    values_NT: Tensor | None = None  # the critic's values before each token
    policy_NT: Tensor | None = None  # log-probs of the learner's policy, if the algorithm needs them
    entropies_NT: Tensor | None = None  # entropies of the learner's policy, in nats
    at_reference: bool = False  # policy and reference differ by rounding alone on this batch, see `AT_REFERENCE`


def make_batch(
    groups: Sequence[Group],
    sampling: Sampling,
    *,
    mask_overlong: bool = False,
    teacher_prompts: Mapping[int, tuple[int, ...]] | None = None,
) -> Batch:
    """Makes the batch of groups with at least one completion in all; `mask_overlong` trains no truncated ones."""
    completions = [completion for group in groups for completion in group.completions]
    lengths_N = torch.tensor([len(completion) for completion in completions])
    mask_NT = torch.arange(int(lengths_N.max())) < lengths_N[:, None]
    whole_N = torch.tensor([completion.stop_reason is not StopReason.LENGTH for completion in completions])
    return Batch(
        prompts=tuple(group.prompt_ids for group in groups),
        group_of_N=tuple(index for index, group in enumerate(groups) for _ in group.completions),
        token_ids_NT=padded([completion.token_ids for completion in completions], mask_NT, torch.long),
        mask_NT=mask_NT,
        trained_NT=mask_NT & whole_N[:, None] if mask_overlong else mask_NT,
        old_logprobs_NT=padded([completion.logprobs for completion in completions], mask_NT, torch.float32),
        sampling=sampling,
        observations={row: text.observations for row, text in enumerate(completions) if text.observations},
        teacher_prompts=teacher_prompts or {},
    )


def padded(rows: Sequence[Sequence[float]], mask_NT: Tensor, dtype: torch.dtype) -> Tensor:
    """Makes an [N, T] tensor of the rows' values where the mask is true, 0 elsewhere."""
    grid = torch.zeros(mask_NT.shape, dtype=dtype)
    grid[mask_NT] = torch.tensor([value for row in rows for value in row], dtype=dtype)
    return grid


def assign_credit(
    outcomes_N: Sequence[RewardOutcome],
    reward_weights: Mapping[str, float],
    batch: Batch,
    before: PolicyEvaluation,
    algorithm: Algorithm,
    *,
    kl_coef: float,
) -> Credit:
    """Computes the advantages of a batch's tokens by the algorithm's advantage.

    `reward_weights` has the weight of each reward in the total, by name; `kl_coef` is of this step.
    """
    # The KL penalty subtracted from each token's reward; exactly 0 at the reference.
    kl, kl_NT = algorithm.kl, torch.zeros(batch.mask_NT.shape, dtype=torch.float64)
    if kl is not None and kl.kl_in == "reward" and before.reference_NT is not None and not before.at_reference:
        policy_NT = batch.old_logprobs_NT if before.policy_NT is None else before.policy_NT.cpu()
        kl_NT = kl_estimate(policy_NT.double(), before.reference_NT.cpu().double(), kind=kl.kl_estimator)
        kl_NT = kl_coef * torch.where(batch.mask_NT, kl_NT, 0.0)
    credit = algorithm.advantage.assign(
        BatchRewards(
            rewards_N=torch.tensor([outcome.total for outcome in outcomes_N], dtype=torch.float64),
            groups_N=torch.tensor(batch.group_of_N),
            mask_NT=batch.mask_NT,
            trained_NT=batch.trained_NT,
            components={name: component(outcomes_N, name) for name in reward_weights},
            weights=reward_weights,
            steps=[[(step.reward, step.end) for step in outcome.steps] for outcome in outcomes_N],
            kl_NT=kl_NT,
            values_NT=None if before.values_NT is None else before.values_NT.cpu(),
        )
    )
    if algorithm.advantage.is_own:
        if not isinstance(credit, Credit):
            raise UserError(f"assign: expected Credit(advantages_NT), got {type(credit).__name__}: return that")
        check_tensor("advantages_NT", credit.advantages_NT, batch.mask_NT.shape, finite=True)
    return credit


def component(outcomes_N: Sequence[RewardOutcome], name: str) -> Tensor:
    """Returns [N] float64 values of one reward; NaN where it does not apply or the completion is invalid."""
    values = [outcome.components.get(name) if outcome.valid else None for outcome in outcomes_N]
    return torch.tensor([torch.nan if value is None else value for value in values], dtype=torch.float64)


@dataclass(frozen=True)
class UpdateInputs:
    """A batch and the tensors and coefficients that all of its updates share."""

    batch: Batch
    credit: Credit
    before: PolicyEvaluation
    # Log-probs in the denominator of the ratio; None = the update's own, as in TRL: it is the batch's only one, and the
    # ratio is exactly 1 however the sampler rounds.
    ratio_denominator_NT: Tensor | None
    advantages_NT: Tensor  # multiplied by the correction's weights; 0 for tokens below the entropy threshold
    masked: Mapping[str, Tensor]  # [N, T] bool: tokens that correction and entropy threshold leave out
    kl_coef: float
    entropy_bonus: float

    @staticmethod
    def of(
        batch: Batch,
        credit: Credit,
        before: PolicyEvaluation,
        algorithm: Algorithm,
        *,
        kl_coef: float = 0.0,
        entropy_bonus: float = 0.0,
    ) -> tuple[UpdateInputs, dict[str, float]]:
        """Prepares a batch for its updates; also returns metrics of this preparation."""
        old_NT, advantages_NT, metrics = batch.old_logprobs_NT, credit.advantages_NT, {}
        masked: dict[str, Tensor] = {}
        # Without a correction the ratio itself is that of the policy to the older one that sampled.
        has_older_sampler = batch.sampling.is_stale and algorithm.correction is None
        if before.policy_NT is not None and not has_older_sampler:
            old_NT = before.policy_NT.cpu()
        if algorithm.correction is not None and before.policy_NT is not None:
            ratio_NT = algorithm.correction.weights(old_NT, batch.old_logprobs_NT, batch.mask_NT)
            # Every surrogate is proportional to the advantage, so this weighs the surrogate and not the KL term.
            advantages_NT = advantages_NT * ratio_NT
            masked["corrected"] = ratio_NT == 0
            metrics = {
                "correction_mean": float(ratio_NT[batch.mask_NT].mean()),
                "correction_max": float(ratio_NT.max()),
            }
        if algorithm.entropy_options.entropy_share < 1 and before.entropies_NT is not None:
            decisive_NT, threshold = high_entropy_mask(
                before.entropies_NT.cpu(), batch.trained_NT, share=algorithm.entropy_options.entropy_share
            )
            advantages_NT = advantages_NT * decisive_NT
            masked["low_entropy"] = ~decisive_NT
            metrics["entropy_threshold"] = threshold
        denominator_NT = None if algorithm.updates.count == 1 and not has_older_sampler else old_NT
        return UpdateInputs(
            batch, credit, before, denominator_NT, advantages_NT, masked, kl_coef, entropy_bonus
        ), metrics

    @property
    def has_signal(self) -> bool:
        """Whether any token of the batch has an advantage or a teacher."""
        return bool(self.batch.teacher_prompts) or bool((self.advantages_NT * self.batch.trained_NT).any())

    @cached_property
    def has_teacher_N(self) -> Tensor:
        """[N] bool: completions that a teacher teaches."""
        return torch.tensor([row in self.batch.teacher_prompts for row in range(len(self.batch.group_of_N))])
