"""Direct preference optimization: learning from pairs without sampling."""

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
    shapes = {
        tuple(tensor.shape)
        for tensor in (chosen_logprobs_N, rejected_logprobs_N, ref_chosen_logprobs_N, ref_rejected_logprobs_N)
    }
    if len(shapes) > 1:
        raise ValueError(f"expected four tensors of one shape [N], got {sorted(shapes)}")
    chosen_N = beta * (chosen_logprobs_N - ref_chosen_logprobs_N)
    rejected_N = beta * (rejected_logprobs_N - ref_rejected_logprobs_N)
    margin_N = chosen_N - rejected_N
    stats = {
        "accuracy": (margin_N > 0).float().mean(),
        "margin": margin_N.mean(),
        "chosen_reward": chosen_N.mean(),
        "rejected_reward": rejected_N.mean(),
    }
    return -F.logsigmoid(margin_N).mean(), {name: value.detach() for name, value in stats.items()}
