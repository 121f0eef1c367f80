"""Losses of preference pairs: of a policy (DPO) and of a reward model (Bradley-Terry)."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def dpo_loss(
    chosen_logprobs_N: Tensor,
    rejected_logprobs_N: Tensor,
    ref_chosen_logprobs_N: Tensor,
    ref_rejected_logprobs_N: Tensor,
    *,
    beta: float = 0.1,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Computes the mean of -log sigmoid(beta * (chosen log-ratio - rejected log-ratio)), arXiv:2305.18290, equation 7.

    Args:
        chosen_logprobs_N, rejected_logprobs_N: [N] log-probs of whole completions under the policy.
        ref_chosen_logprobs_N, ref_rejected_logprobs_N: [N] log-probs of whole completions under the reference.
        beta: how strongly the policy is held to the reference; above 0.

    Returns:
        The scalar loss and detached scalars: accuracy (share of pairs in the right order), margin, chosen_reward and
        rejected_reward (beta times the log-ratios).

    Raises:
        ValueError: shapes differ.
    """
    _check_shapes(chosen_logprobs_N, rejected_logprobs_N, ref_chosen_logprobs_N, ref_rejected_logprobs_N)
    chosen_N = beta * (chosen_logprobs_N - ref_chosen_logprobs_N)
    rejected_N = beta * (rejected_logprobs_N - ref_rejected_logprobs_N)
    return _pair_loss(chosen_N, rejected_N, "reward")


def bradley_terry_loss(chosen_scores_N: Tensor, rejected_scores_N: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Computes the mean of -log sigmoid(chosen score - rejected score).

    The negative log-likelihood of the pairs where P(chosen over rejected) = sigmoid(difference of scores) (Bradley
    and Terry 1952; InstructGPT, arXiv:2203.02155, equation 1). It determines differences of scores, not their zero.

    Args:
        chosen_scores_N, rejected_scores_N: [N] scores of the two completions of each pair.

    Returns:
        The scalar loss and detached scalars: accuracy (share of pairs in the right order), margin, chosen_score and
        rejected_score.

    Raises:
        ValueError: shapes differ.
    """
    _check_shapes(chosen_scores_N, rejected_scores_N)
    return _pair_loss(chosen_scores_N, rejected_scores_N, "score")


def _pair_loss(chosen_N: Tensor, rejected_N: Tensor, name: str) -> tuple[Tensor, dict[str, Tensor]]:
    margin_N = chosen_N - rejected_N
    stats = {
        "accuracy": (margin_N > 0).float().mean(),
        "margin": margin_N.mean(),
        f"chosen_{name}": chosen_N.mean(),
        f"rejected_{name}": rejected_N.mean(),
    }
    return -F.logsigmoid(margin_N).mean(), {name: value.detach() for name, value in stats.items()}


def _check_shapes(*tensors: Tensor) -> None:
    shapes = [tuple(tensor.shape) for tensor in tensors]
    if len(set(shapes)) > 1:
        raise ValueError(f"expected tensors of one shape [N], got {', '.join(map(str, shapes))}")
