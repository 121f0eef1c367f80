"""A batch prepared for its updates: what all of them share, and the tokens of a pack as the loss sees them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from grouprl.algorithms import high_entropy_mask, token_weights
from grouprl.algorithms.credit import Credit
from grouprl.algorithms.spec import Algorithm
from grouprl.learner.batch import PolicyEvaluation
from grouprl.learner.credit import explained_variance
from grouprl.types import Batch


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


TokenLoss = Callable[[TokenGrid], tuple[Tensor, dict[str, Tensor]]]
"""Computes the loss of a pack's tokens, and detached metrics."""


@dataclass(frozen=True)
class UpdateWork:
    """A batch and the tensors that all of its updates share."""

    batch: Batch
    credit: Credit
    before: PolicyEvaluation
    loss: TokenLoss
    # Log-probs in the denominator of the ratio; None = the update's own, as in TRL: it is the batch's only one, and the
    # ratio is exactly 1 however the sampler rounds.
    old_NT: Tensor | None
    advantages_NT: Tensor  # multiplied by the correction's weights; 0 for tokens below the entropy threshold
    masked: Mapping[str, Tensor]  # [N, T] bool: tokens that correction and entropy threshold leave out

    @staticmethod
    def of(
        batch: Batch, credit: Credit, before: PolicyEvaluation, loss: TokenLoss, algorithm: Algorithm
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
        if before.values_NT is not None and credit.returns_NT is not None and credit.counted_NT is not None:
            metrics["value_explained_variance"] = explained_variance(
                before.values_NT, credit.returns_NT, credit.counted_NT
            )
        own_NT = None if algorithm.updates.count == 1 else old_NT
        return UpdateWork(batch, credit, before, loss, own_NT, advantages_NT, masked), metrics

    @property
    def has_signal(self) -> bool:
        """Whether any token of the batch has an advantage."""
        return bool((self.advantages_NT * self.batch.trained_NT).any())

    def value_weights(self, rows: Sequence[int]) -> Tensor | None:
        """[N, T] weights of the value loss, which is a mean over the counted tokens of these rows."""
        if self.before.values_NT is None or self.credit.counted_NT is None:
            return None
        counted_NT = torch.zeros_like(self.batch.mask_NT)
        counted_NT[list(rows)] = self.credit.counted_NT[list(rows)]
        return token_weights(counted_NT, aggregate="token_mean")
