"""Second half of a group's walk-through: ratio, KL, loss and gradient of each completion, by `policy_loss`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from grouprl.algorithms import kl_estimate, policy_ratios
from grouprl.algorithms.spec import Algorithm
from grouprl.config.algorithm import options

# Fields of an algorithm that decide which equations and numbers are shown.
_SHOWN = (
    *("baseline", "scale", "std", "credit", "reward_mix", "gamma", "lam"),
    *("surrogate", "ratio", "clip_low", "clip_high", "dual_clip", "aggregate", "kl_in", "passes", "minibatches"),
)


@dataclass(frozen=True)
class Material:
    """A group as the learner meets it: float64 tensors [G, T], 0 in the padding."""

    algorithm: Algorithm
    kl_coef: float  # of the step
    mask_GT: Tensor  # bool, tokens that exist
    trained_GT: Tensor  # bool, those of them that are learned from
    max_tokens: int
    weights_GT: Tensor  # of the tokens in the batch's loss
    logprobs_GT: Tensor  # of the policy
    old_GT: Tensor  # of the behavior policy
    reference_GT: Tensor | None
    advantages_GT: Tensor

    @property
    def lengths(self) -> list[int]:
        """Tokens of each completion."""
        return [int(length) for length in self.mask_GT.sum(1)]

    def loss(
        self,
        logprobs_GT: Tensor,
        *,
        rows: slice = slice(None),
        weights_GT: Tensor | None = None,
        advantages_GT: Tensor | None = None,
        anchored: bool = True,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The algorithm's loss of some of the completions; `anchored=False` leaves the KL term out."""
        a, reference_GT = self.algorithm, self.reference_GT
        return a.objective.loss(
            logprobs_GT[rows],
            self.old_GT[rows],
            (self.advantages_GT if advantages_GT is None else advantages_GT)[rows],
            (self.weights_GT if weights_GT is None else weights_GT)[rows],
            ref_logprobs_NT=None if reference_GT is None else reference_GT[rows],
            kl_coef=self.kl_coef if anchored and self.in_loss else 0.0,
            kl=a.kl.kl_estimator if a.kl else "k3",
            mask_NT=self.mask_GT[rows],
        )

    @property
    def in_loss(self) -> bool:
        """Whether the KL is a term of the loss."""
        return self.reference_GT is not None and self.algorithm.kl is not None and self.algorithm.kl.kl_in == "loss"

    def gradient(self, *, anchored: bool = True) -> Tensor:
        """[G, T] derivative of the loss by the log-prob of each token."""
        logprobs_GT = self.logprobs_GT.clone().requires_grad_()
        loss, _ = self.loss(logprobs_GT, anchored=anchored)
        return torch.autograd.grad(loss, logprobs_GT)[0]


def algorithm_part(material: Material) -> dict[str, Any]:
    """What the loss is made with."""
    a = material.algorithm
    known = options(a)
    return (
        {"name": a.name, "formula": a.advantage.formula}
        | {name: known.get(name) for name in _SHOWN}
        | {
            "kl": known.get("kl_estimator"),
            "kl_coef": material.kl_coef,
            "updates_per_batch": a.updates.passes * a.updates.minibatches,
        }
    )


def ratio_stage(material: Material, reasons: Sequence[str | None]) -> dict[str, Any]:
    """Ratios of policy to behavior policy, token by token, and what the clip makes of them, where there is one.

    Args:
        material: the group.
        reasons: of each completion, why its ratio is what it is, where that needs a word.
    """
    a, ratios_GT = material.algorithm, _ratios(material)
    bounded = a.objective.surrogate != "plain"
    completions = []
    for row, length in enumerate(material.lengths):
        _, stats = material.loss(material.logprobs_GT, rows=slice(row, row + 1))
        completions.append(
            {
                "ratios": ratios_GT[row, :length].tolist(),
                "mean": float(stats["ratio_mean"]),
                "max": float(stats["ratio_max"]),
                "clip_low_fraction": float(stats["clip_low_fraction"]) if bounded else None,
                "clip_high_fraction": float(stats["clip_high_fraction"]) if bounded else None,
                "reason": reasons[row],
            }
        )
    low, high = a.objective.range
    bounds = [1 - low, 1 + high] if bounded else []
    return {"bounds": bounds, "level": a.objective.ratio, "completions": completions}


def _ratios(material: Material) -> Tensor:
    """[G, T] ratios of the loss."""
    a = material.algorithm
    return policy_ratios(material.logprobs_GT, material.old_GT, material.mask_GT, ratio=a.objective.ratio)


def kl_stage(material: Material, reason: str | None) -> dict[str, Any]:
    """The KL estimate from the policy to the reference, of each completion: mean per token, and sum.

    `reason` says why there is none, or whose log-probs it is made from.
    """
    a, reference_GT = material.algorithm, material.reference_GT
    known = {
        "kind": a.kl.kl_estimator if a.kl else "k3",
        "coefficient": material.kl_coef,
        "in": a.kl.kl_in if a.kl else "loss",
        "reason": reason,
    }
    if reference_GT is None or a.kl is None:
        return {**known, "completions": None}
    # What is taken off the reward was known before the update: it is the sampler's.
    policy_GT = material.logprobs_GT if a.kl.kl_in == "loss" else material.old_GT
    kl_GT = kl_estimate(policy_GT, reference_GT, kind=a.kl.kl_estimator)
    rows = [kl_GT[row, :length] for row, length in enumerate(material.lengths)]
    return {**known, "completions": [{"mean": float(row.mean()), "sum": float(row.sum())} for row in rows]}


def loss_stage(material: Material) -> dict[str, Any]:
    """The group's `share` in the batch's loss, in parts and by completion; `alone`: as if the group were the batch."""
    at, nothing_GT = material.logprobs_GT, torch.zeros_like(material.advantages_GT)
    alone_GT = material.algorithm.objective.weights(material.trained_GT, max_tokens=material.max_tokens)
    rows = [slice(row, row + 1) for row in range(len(at))]
    return {
        "share": float(material.loss(at)[0]),
        "surrogate": float(material.loss(at, anchored=False)[0]),
        "kl": float(material.loss(at, advantages_GT=nothing_GT)[0]),
        "alone": float(material.loss(at, weights_GT=alone_GT.to(at.dtype))[0]),
        "completions": [float(material.loss(at, rows=row)[0]) for row in rows],
    }


def gradient_stage(material: Material) -> dict[str, Any]:
    """How the loss changes with the log-probs of each completion's tokens; below 0, the update makes it more likely."""
    whole_GT, surrogate_GT = material.gradient(), material.gradient(anchored=False)
    completions = []
    for row, length in enumerate(material.lengths):
        tokens, alone = whole_GT[row, :length], surrogate_GT[row, :length]
        moved = (material.advantages_GT[row, :length] != 0) & material.trained_GT[row, :length]
        completions.append(
            {
                "sum": float(tokens.sum()),
                "mean": float(tokens.mean()),
                "surrogate_sum": float(alone.sum()),
                "weight": float(material.weights_GT[row, :length].sum()),
                "dead_tokens": int((moved & (alone == 0)).sum()),
            }
        )
    return {"completions": completions}
