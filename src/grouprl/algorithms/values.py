"""The loss of a critic, which learns to predict the return of each token, and the critic's options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from grouprl.algorithms.option import Part, option


def value_loss(
    values_NT: Tensor, old_values_NT: Tensor, returns_NT: Tensor, weights_NT: Tensor, *, clip: float | None = 0.2
) -> tuple[Tensor, dict[str, Tensor]]:
    """Computes half the squared error of the critic, with PPO's clipping: the larger of plain and clipped error.

    sum(weights * max((V - R)^2, (clip(V, V_old - c, V_old + c) - R)^2)) / 2, as in OpenAI baselines' ppo2 (the
    clipping is not in arXiv:1707.06347; Huang et al. 2022, "The 37 implementation details of PPO", number 9).

    Args:
        values_NT: [N, T] the critic's values; the gradient flows through these alone.
        old_values_NT: [N, T] its values before the first update on this batch.
        returns_NT: [N, T] from `gae` or `token_advantages`.
        weights_NT: [N, T] weight of each token, e.g. from `token_weights`; 0 = the loss excludes it.
        clip: how far a value may move; None = no clipping.

    Returns:
        The scalar loss and detached scalars over the tokens with weight: value_clip_fraction.

    Raises:
        ValueError: shapes differ.
    """
    shapes = [tuple(t.shape) for t in (values_NT, old_values_NT, returns_NT, weights_NT)]
    if len(set(shapes)) > 1:
        raise ValueError(f"expected values, old values, returns and weights of one shape [N, T], got {shapes}")
    counted_NT = weights_NT > 0
    # Padding may hold any value, inf and NaN too.
    values_NT, old_NT, returns_NT = (
        torch.where(counted_NT, tensor, 0.0) for tensor in (values_NT, old_values_NT, returns_NT)
    )
    plain_NT = (values_NT - returns_NT).square()
    worst_NT = plain_NT
    if clip is not None:
        near_NT = old_NT + (values_NT - old_NT).clamp(-clip, clip)
        worst_NT = torch.maximum(plain_NT, (near_NT - returns_NT).square())
    clipped = (worst_NT > plain_NT).detach().sum() / counted_NT.sum().clamp(min=1)
    return (weights_NT * worst_NT).sum() / 2, {"value_clip_fraction": clipped}


@dataclass(frozen=True)
class CriticPart(Part):
    """A network that predicts returns; an algorithm with critic=None has no critic."""

    absent: ClassVar[Mapping[str, Any]] = {"critic_kind": "none"}

    value_clip: float | None = option(
        0.2, "largest move of a value from its value before the update; null = no bound", low=1e-9
    )


@dataclass(frozen=True)
class CopiedCritic(CriticPart):
    """A value head on a copy of the policy, with an optimizer of its own."""

    critic_kind: Literal["copy"] = option("copy", "value head on a copy of the policy, or on the policy itself")
    critic_warmup: int = option(0, "first steps, which update only the critic", low=0)


@dataclass(frozen=True)
class SharedCritic(CriticPart):
    """A value head on the policy itself, whose loss joins the policy's."""

    critic_kind: Literal["shared"] = option("shared", "value head on a copy of the policy, or on the policy itself")
    value_coef: float = option(0.1, "weight of the value loss", low=0.0)
