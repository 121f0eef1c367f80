"""The loss of one group in stages, by completion: what a run records of a watched group, and the page shows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from grouprl.algorithms.kl import kl_estimate
from grouprl.algorithms.losses import Objective, TokenGrid
from grouprl.algorithms.spec import Algorithm
from grouprl.algorithms.surrogates import clipped_tokens


def group_stages(
    algorithm: Algorithm, tokens: TokenGrid, updated_GT: Tensor, *, kl_coef: float
) -> dict[str, dict[str, Any]]:
    """Computes, in float64, what the update made of each completion of a group; each stage is a JSON object.

    `tokens` are the group's as the last update met them, `updated_GT` log-probs of the policy after it.

    Returns:
        `ratio`: mean and largest ratio of policy to old policy, and, with a clip range, the shares of tokens
        beyond it; `kl`: of the tokens, mean and sum, None without a reference; `loss`: by completion, the group's
        `share` in the batch's loss, and its parts from the `surrogate` and from the `kl`; `gradient`: the sum over the
        tokens' log-probs (below 0, the update makes the completion more probable) and the sum of their `weight`s;
        `update`: the completion's log-prob `before` and `after` the update.
    """
    exact: dict[str, Any] = {}
    for name, tensor in vars(tokens).items():
        if isinstance(tensor, Tensor):
            exact[name] = tensor.double() if tensor.is_floating_point() else tensor
    tokens = replace(tokens, **exact)
    rows = [
        replace(tokens, **{name: tensor[[row]] for name, tensor in exact.items()}) for row in range(len(updated_GT))
    ]
    objective, pull = algorithm.objective, kl_coef if algorithm.has_kl_loss and tokens.reference_NT is not None else 0.0
    results = [_loss(algorithm, row, pull) for row in rows]
    surrogate = sum(_loss(algorithm, row, 0.0)[0] for row in rows)
    losses = [loss for loss, _, _ in results]
    sides = ("clip_low_fraction", "clip_high_fraction")
    ratios = [
        {"mean": float(stats["ratio_mean"]), "max": float(stats["ratio_max"])}
        | {side: float(stats[side]) for side in sides if objective.bounded}
        for _, _, stats in results
    ]
    sums = zip((slope for _, slope, _ in results), tokens.weights_NT.sum(1).tolist(), strict=True)
    logprobs = zip(_sums(tokens, tokens.logprobs_NT), _sums(tokens, updated_GT.double()), strict=True)
    kls: list[dict[str, float]] | None = None
    if tokens.reference_NT is not None and algorithm.kl is not None:
        # What is taken off the reward was known before the update.
        policy_GT = tokens.logprobs_NT if algorithm.kl.kl_in == "loss" else tokens.old_logprobs_NT
        totals = _sums(tokens, kl_estimate(policy_GT, tokens.reference_NT, kind=algorithm.kl.kl_estimator))
        lengths = tokens.mask_NT.sum(1).clamp(min=1).tolist()
        kls = [{"mean": total / length, "sum": total} for total, length in zip(totals, lengths, strict=True)]
    return {
        "ratio": {"completions": ratios},
        "kl": {"coefficient": kl_coef, "completions": kls},
        "loss": {"completions": losses, "share": sum(losses), "surrogate": surrogate, "kl": sum(losses) - surrogate},
        "gradient": {"completions": [{"sum": slope, "weight": weight} for slope, weight in sums]},
        "update": {"completions": [{"before": before, "after": after} for before, after in logprobs]},
    }


def cut_sides(objective: Objective, ratios_NT: Tensor, advantages_NT: Tensor) -> dict[str, Tensor]:
    """[N, T] bool: tokens whose gradient the objective cuts because of their ratio, "low", "high" or "dual".

    A ratio beyond the range is cut on the side alone to which the advantage would move it further (`clipped_tokens`);
    "dual" is above dual_clip with a negative advantage. Surrogates without a clip cut nothing.
    """
    if objective.surrogate not in ("clip", "gmpo"):
        ratios_NT = torch.ones_like(ratios_NT)  # which no range excludes
    (low, high), largest = objective.range, objective.largest_ratio
    sides = clipped_tokens(ratios_NT, advantages_NT, clip_low=low, clip_high=high)
    dual_NT = (advantages_NT < 0) & (ratios_NT > (torch.inf if largest is None else largest))
    return dict(zip(("low", "high", "dual"), (*sides, dual_NT), strict=True))


def _loss(algorithm: Algorithm, completion: TokenGrid, kl_coef: float) -> tuple[float, float, Mapping[str, Tensor]]:
    """The loss of one completion, the sum of its gradient by the tokens' log-probs, and the loss's statistics."""
    logprobs_1T = completion.logprobs_NT.clone().requires_grad_()
    loss, stats = algorithm.objective.loss(replace(completion, logprobs_NT=logprobs_1T), algorithm.kl, kl_coef)
    (slope_1T,) = torch.autograd.grad(loss, logprobs_1T)
    return float(loss.detach()), float(slope_1T.sum()), stats


def _sums(tokens: TokenGrid, values_GT: Tensor) -> list[float]:
    return torch.where(tokens.mask_NT, values_GT, 0.0).sum(1).tolist()
