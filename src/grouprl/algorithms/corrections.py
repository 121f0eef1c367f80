"""Importance weights for a sampler whose log-probs are not the learner's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from grouprl.algorithms.option import Part, option

CorrectionKind = Literal["truncate", "mask"]
Level = Literal["token", "sequence"]


def mismatch_weights(
    learner_logprobs_NT: Tensor,
    sampler_logprobs_NT: Tensor,
    mask_NT: Tensor,
    *,
    kind: CorrectionKind = "truncate",
    level: Level = "token",
    cap: float = 2.0,
    floor: float = 0.5,
) -> Tensor:
    """Importance weight of each token, because the sampler drew it and not the learner's policy of the same version.

    The weight is p_learner / p_sampler of the token, or the product of these over the completion. "truncate" bounds
    it by `cap` (truncated importance sampling, Yao et al. 2025, "Your efficient RL framework secretly brings you
    off-policy RL training"); "mask" puts 0 where it leaves [floor, cap] (IcePop, Ling team 2025, arXiv:2510.18855).

    Args:
        learner_logprobs_NT: [N, T] log-probs that the learner computes before the update; no gradient flows.
        sampler_logprobs_NT: [N, T] log-probs that the sampler reported.
        mask_NT: [N, T] which tokens exist.
        kind: "truncate" or "mask", as above.
        level: "token", or "sequence" for one weight per completion.
        cap: at least 1.
        floor: of "mask", at most 1; 0 = masks large weights alone.

    Returns:
        [N, T] float32, 0 outside the mask.
    """
    mask_NT = mask_NT.bool()
    log_weight_NT = torch.where(mask_NT, learner_logprobs_NT.detach() - sampler_logprobs_NT, 0.0)
    if level == "sequence":
        log_weight_NT = log_weight_NT.sum(1, keepdim=True).expand_as(log_weight_NT)
    weight_NT = log_weight_NT.exp()
    if kind == "truncate":
        weight_NT = weight_NT.clamp(max=cap)
    else:
        weight_NT = torch.where((weight_NT <= cap) & (weight_NT >= floor), weight_NT, 0.0)
    return torch.where(mask_NT, weight_NT, 0.0)


@dataclass(frozen=True)
class Correction(Part):
    """Multiplies advantages by importance weights, for a sampler whose log-probs differ from the learner's."""

    absent: ClassVar[Mapping[str, Any]] = {"correction_kind": "none"}

    correction_kind: CorrectionKind = option(
        "truncate", "weight of learner to sampler outside the bounds: truncate = cut to the cap, mask = 0"
    )
    correction_level: Level = option("token", "one weight for each token, or one for each completion")
    correction_cap: float = option(2.0, "upper bound of the weight", low=1.0)
    correction_floor: float = option(0.5, "with mask: lower bound of the weight", low=0.0, high=1.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.correction_kind == "truncate":
            self.refuse_idle("correction_floor", beside="correction_kind")

    def weights(self, learner_logprobs_NT: Tensor, sampler_logprobs_NT: Tensor, mask_NT: Tensor) -> Tensor:
        """[N, T]; see `mismatch_weights`."""
        return mismatch_weights(
            learner_logprobs_NT,
            sampler_logprobs_NT,
            mask_NT,
            kind=self.correction_kind,
            level=self.correction_level,
            cap=self.correction_cap,
            floor=self.correction_floor,
        )
