"""The loss of one group in stages, by completion: what a run records of a watched group, and the page shows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from grouprl.algorithms.kl import Kl, kl_estimate
from grouprl.algorithms.spec import Algorithm


@dataclass(frozen=True)
class GroupTokens:
    """The tokens of a group's G completions as its last update met them: [G, T], 0 in the padding."""

    mask_GT: Tensor  # bool, tokens that exist
    weights_GT: Tensor  # of the tokens in the batch's loss
    advantages_GT: Tensor
    logprobs_GT: Tensor  # of the policy
    old_GT: Tensor  # below the ratio
    sampled_GT: Tensor  # of the behavior policy
    reference_GT: Tensor | None
    updated_GT: Tensor  # of the policy after the update

    def loss(self, algorithm: Algorithm, row: int, kl_coef: float) -> tuple[float, float, Mapping[str, Tensor]]:
        """The loss of one completion, the sum of its gradient by the tokens' log-probs, and the loss's statistics."""
        one, reference_GT, kl = slice(row, row + 1), self.reference_GT, algorithm.kl or Kl()
        logprobs_1T = self.logprobs_GT[one].clone().requires_grad_()
        loss, stats = algorithm.objective.loss(
            logprobs_1T,
            self.old_GT[one],
            self.advantages_GT[one],
            self.weights_GT[one],
            ref_logprobs_NT=None if reference_GT is None else reference_GT[one],
            kl_coef=kl_coef if algorithm.pulls and reference_GT is not None else 0.0,
            kl=kl.kl_estimator,
            kl_unbiased=kl.kl_unbiased,
            sampler_logprobs_NT=self.sampled_GT[one],
            mask_NT=self.mask_GT[one],
        )
        (slope_1T,) = torch.autograd.grad(loss, logprobs_1T)
        return float(loss.detach()), float(slope_1T.sum()), stats


def group_stages(algorithm: Algorithm, tokens: GroupTokens, *, kl_coef: float) -> dict[str, dict[str, Any]]:
    """Computes, in float64, what the update made of each completion of a group; each stage is a JSON object.

    Returns:
        `ratio`: mean and largest ratio of policy to old policy, and, with a clip range, the shares of tokens
        beyond it; `kl`: of the tokens, mean and sum, None without a reference; `loss`: by completion, the group's
        `share` in the batch's loss, and its parts from the `surrogate` and from the `kl`; `gradient`: the sum over the
        tokens' log-probs (below 0, the update makes the completion more probable) and the sum of their `weight`s;
        `update`: the completion's log-prob `before` and `after` the update.
    """
    tokens = replace(
        tokens,
        **{name: one.double() for name, one in vars(tokens).items() if one is not None and one.is_floating_point()},
    )
    objective, count = algorithm.objective, len(tokens.mask_GT)
    found = [tokens.loss(algorithm, row, kl_coef) for row in range(count)]
    surrogate = sum(tokens.loss(algorithm, row, 0.0)[0] for row in range(count))
    losses = [loss for loss, _, _ in found]
    sides = ("clip_low_fraction", "clip_high_fraction")
    ratios = [
        {"mean": float(stats["ratio_mean"]), "max": float(stats["ratio_max"])}
        | {side: float(stats[side]) for side in sides if objective.bounded}
        for _, _, stats in found
    ]
    sums = zip((slope for _, slope, _ in found), tokens.weights_GT.sum(1).tolist(), strict=True)
    logprobs = zip(_sums(tokens, tokens.logprobs_GT), _sums(tokens, tokens.updated_GT), strict=True)
    return {
        "ratio": {"completions": ratios},
        "kl": {"coefficient": kl_coef, "completions": _kl(algorithm, tokens)},
        "loss": {"completions": losses, "share": sum(losses), "surrogate": surrogate, "kl": sum(losses) - surrogate},
        "gradient": {"completions": [{"sum": slope, "weight": weight} for slope, weight in sums]},
        "update": {"completions": [{"before": before, "after": after} for before, after in logprobs]},
    }


def _sums(tokens: GroupTokens, values_GT: Tensor) -> list[float]:
    return torch.where(tokens.mask_GT, values_GT, 0.0).sum(1).tolist()


def _kl(algorithm: Algorithm, tokens: GroupTokens) -> list[dict[str, float]] | None:
    if tokens.reference_GT is None or algorithm.kl is None:
        return None
    # What is taken off the reward was known before the update.
    policy_GT = tokens.logprobs_GT if algorithm.kl.kl_in == "loss" else tokens.old_GT
    sums = _sums(tokens, kl_estimate(policy_GT, tokens.reference_GT, kind=algorithm.kl.kl_estimator))
    lengths = tokens.mask_GT.sum(1).clamp(min=1).tolist()
    return [{"mean": total / length, "sum": total} for total, length in zip(sums, lengths, strict=True)]
