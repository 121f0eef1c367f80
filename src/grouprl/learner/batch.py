"""The learner's padded tensors: completions, what the networks make of them, and what all updates of a batch share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from grouprl.algorithms import high_entropy_mask, token_weights
from grouprl.algorithms.credit import Credit
from grouprl.algorithms.spec import Algorithm
from grouprl.types import Batch, Group, RewardOutcome, Sampling, StopReason


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


def make_batch(groups: Sequence[Group], sampling: Sampling, *, mask_overlong: bool = False) -> Batch:
    """Makes the batch of a step.

    Args:
        groups: groups with at least one completion in all.
        sampling: the sampling parameters of the completions.
        mask_overlong: whether the loss excludes truncated completions.
    """
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
        observations={row: one.observations for row, one in enumerate(completions) if one.observations},
    )


def padded(rows: Sequence[Sequence[float]], mask_NT: Tensor, dtype: torch.dtype) -> Tensor:
    """Makes an [N, T] tensor of the rows' values where the mask is true, 0 elsewhere."""
    grid = torch.zeros(mask_NT.shape, dtype=dtype)
    grid[mask_NT] = torch.tensor([value for row in rows for value in row], dtype=dtype)
    return grid


@dataclass(frozen=True)
class TokenGrid:
    """The completion tokens of a pack: [n, T] tensors on the learner's device, 0 outside the completions."""

    logprobs_NT: Tensor  # log-probs under the policy; the gradient flows through these alone
    old_logprobs_NT: Tensor  # log-probs in the denominator of the ratio, see `UpdateWork.old_NT`
    sampler_logprobs_NT: Tensor  # log-probs that the sampler reported
    reference_NT: Tensor | None  # log-probs under the reference; None = the algorithm has none
    advantages_NT: Tensor
    weights_NT: Tensor  # weight of each token in the loss, computed from the whole batch
    mask_NT: Tensor  # bool, tokens that exist
    counted_NT: Tensor  # bool, those that metrics describe: of trained completions with an advantage, whatever is read
    rows: tuple[int, ...]  # row of the batch of each completion


@dataclass(frozen=True)
class Valuation:
    """What a critic learns from a batch: [N, T] tensors."""

    values_NT: Tensor  # before the first update
    returns_NT: Tensor
    counted_NT: Tensor  # bool, tokens of its loss

    @staticmethod
    def of(values_NT: Tensor | None, credit: Credit) -> Valuation | None:
        """None where there is no critic, or the credit has no returns for one."""
        if values_NT is None or credit.returns_NT is None or credit.counted_NT is None:
            return None
        return Valuation(values_NT, credit.returns_NT, credit.counted_NT)

    @property
    def explained_variance(self) -> float:
        """1 - Var(returns - values) / Var(returns) of the counted tokens: 1 for a perfect critic, 0 for a constant."""
        returns, values = (one.cpu()[self.counted_NT].double() for one in (self.returns_NT, self.values_NT))
        spread = float(returns.var(correction=0)) if len(returns) else 0.0
        return 1 - float((returns - values).var(correction=0)) / spread if spread > 0 else float("nan")

    def weights(self, rows: Sequence[int]) -> Tensor:
        """[N, T] weights of the value loss, which is a mean over the counted tokens of these rows."""
        counted_NT = torch.zeros_like(self.counted_NT)
        counted_NT[list(rows)] = self.counted_NT[list(rows)]
        return token_weights(counted_NT, aggregate="token_mean")


@dataclass(frozen=True)
class UpdateWork:
    """A batch and the tensors that all of its updates share."""

    batch: Batch
    credit: Credit
    before: PolicyEvaluation
    valuation: Valuation | None  # None = no critic learns
    # Log-probs in the denominator of the ratio; None = the update's own, as in TRL: it is the batch's only one, and the
    # ratio is exactly 1 however the sampler rounds.
    old_NT: Tensor | None
    advantages_NT: Tensor  # multiplied by the correction's weights; 0 for tokens below the entropy threshold
    masked: Mapping[str, Tensor]  # [N, T] bool: tokens that correction and entropy threshold leave out

    @staticmethod
    def of(
        batch: Batch, credit: Credit, before: PolicyEvaluation, algorithm: Algorithm
    ) -> tuple[UpdateWork, dict[str, float]]:
        """Prepares a batch for its updates; also returns metrics of this preparation."""
        old_NT, advantages_NT, metrics = batch.old_logprobs_NT, credit.advantages_NT, {}
        masked: dict[str, Tensor] = {}
        if before.policy_NT is not None:
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
        if algorithm.spread.entropy_share < 1 and before.entropies_NT is not None:
            decisive_NT, threshold = high_entropy_mask(
                before.entropies_NT.cpu(), batch.trained_NT, share=algorithm.spread.entropy_share
            )
            advantages_NT = advantages_NT * decisive_NT
            masked["low_entropy"] = ~decisive_NT
            metrics["entropy_threshold"] = threshold
        valuation = Valuation.of(before.values_NT, credit)
        if valuation is not None:
            metrics["value_explained_variance"] = valuation.explained_variance
        own_NT = None if algorithm.updates.count == 1 else old_NT
        return UpdateWork(batch, credit, before, valuation, own_NT, advantages_NT, masked), metrics

    @property
    def has_signal(self) -> bool:
        """Whether any token of the batch has an advantage."""
        return bool((self.advantages_NT * self.batch.trained_NT).any())
