"""The loss of a reward model: the chosen completion of a pair should score higher than the rejected one."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


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
    if chosen_scores_N.shape != rejected_scores_N.shape:
        raise ValueError(
            f"expected two tensors of one shape [N], got {tuple(chosen_scores_N.shape)}, "
            f"{tuple(rejected_scores_N.shape)}"
        )
    margin_N = chosen_scores_N - rejected_scores_N
    stats = {
        "accuracy": (margin_N > 0).float().mean(),
        "margin": margin_N.mean(),
        "chosen_score": chosen_scores_N.mean(),
        "rejected_score": rejected_scores_N.mean(),
    }
    return -F.logsigmoid(margin_N).mean(), {name: value.detach() for name, value in stats.items()}
