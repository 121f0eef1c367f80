"""Credit from the prefix tree of a group: completions that begin alike share the value of what they begin with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor

from grouprl.algorithms.advantages import Advantage, BatchRewards, Credit, Scale, Std, group_statistics
from grouprl.algorithms.option import option

TreeBaseline = Literal["mean", "leave_one_out"]


def tree_advantages(
    rewards_N: Tensor,
    group_ids_N: Tensor,
    edges_NT: Tensor,
    mask_NT: Tensor,
    *,
    baseline: TreeBaseline = "mean",
    scale: Scale = "group_std",
    std: Std = "population",
    eps: float = 1e-6,
) -> Tensor:
    """Computes each token's advantage: (reward - baseline + V(after the token) - V(before it)) / (deviation + eps).

    V of a prefix is the mean reward of the group's completions that share it (TEMPO, arXiv:2509.18314, and its code): a
    token that all of them or one alone continue with gets the advantage of GRPO, a token where they part more or less.
    With `leave_one_out` the baseline and V(before) are means of the *other* completions, at the longest prefix that
    another one shares.

    Summed over the completions that share a token, V(after) and the reward have one gradient. So the tree only changes
    the baseline: half of it is the mean of those that share the prefix. With `scale="none"` and equal weights of all
    tokens (`aggregate="constant"`) the expected gradient is

    - `leave_one_out`: twice the policy gradient, exactly: no baseline depends on the token that it is subtracted for;
    - `mean`, the paper's: biased. What the policy gradient has at a prefix that a completion continues with probability
      p is multiplied by 2 - 1/G - (1 - (1 - p)^G) / (G p): 2 - 2/G at the prompt, 1 - 1/G at rare prefixes.

    Args:
        rewards_N: [N] rewards; NaN = invalid: no mean includes it, and its advantages are exactly 0.
        group_ids_N: [N] integers; rows with the same id are one group, in any order, of any size.
        edges_NT: [N, T] integers: token ids, but another number where the policy was shown something else after the
            token. Rows with the same numbers up to a token share the prefix.
        mask_NT: [N, T] tokens that exist; they begin each row.
        baseline, scale, std, eps: as in `group_statistics`.

    Returns:
        [N, T] float32, 0 outside the mask. A group whose valid rewards are all equal, or with fewer than 2 valid, gets
        exactly 0.

    Raises:
        ValueError: shapes differ, or an option is unknown.
    """
    if baseline not in get_args(TreeBaseline):
        raise ValueError(f"baseline: got {baseline!r}, expected one of {', '.join(get_args(TreeBaseline))}")
    if edges_NT.shape != mask_NT.shape or edges_NT.shape[:1] != rewards_N.shape:
        raise ValueError(
            f"expected edges and mask of one shape [N, T] and rewards [N], got {tuple(edges_NT.shape)}, "
            f"{tuple(mask_NT.shape)}, {tuple(rewards_N.shape)}"
        )
    found = group_statistics(rewards_N, group_ids_N, baseline=baseline, scale=scale, std=std, eps=eps)
    valid_N, mask_NT = ~rewards_N.isnan(), mask_NT.bool()
    rewards_N = torch.where(valid_N, rewards_N, 0.0).double()
    # An ended completion does not share the prefix of those that continue: the value after its last token is its own.
    ends_NT = torch.arange(mask_NT.shape[1]) == mask_NT.sum(1, keepdim=True) - 1
    edges_NT = 2 * torch.unique(edges_NT, return_inverse=True)[1] + ends_NT
    numbers = 2 * edges_NT.numel()  # more than any edge
    advantages_NT = torch.zeros(mask_NT.shape, dtype=torch.float64)
    before_N, (_, node_N) = found.baseline_N, torch.unique(group_ids_N, return_inverse=True)
    for t in range(mask_NT.shape[1]):
        nodes, node_N = torch.unique(node_N * numbers + edges_NT[:, t], return_inverse=True)
        sum_N, count_N = (
            rewards_N.new_zeros(len(nodes)).index_add_(0, node_N, one)[node_N] for one in (rewards_N, valid_N.double())
        )
        after_N = sum_N / count_N.clamp(min=1)
        advantages_NT[:, t] = rewards_N - found.baseline_N + after_N - before_N
        if baseline == "mean":
            before_N = after_N
        else:
            before_N = torch.where(count_N > 1, (sum_N - rewards_N) / (count_N - 1).clamp(min=1), before_N)
        if len(nodes) == len(rewards_N):  # nobody shares anything from here on
            advantages_NT[:, t + 1 :] = (2 * rewards_N - found.baseline_N - before_N)[:, None]
            break
    counted_NT = mask_NT & found.signal_N[:, None]
    return torch.where(counted_NT, advantages_NT / found.divisor_N[:, None], 0.0).float()


@dataclass(frozen=True)
class TreeAdvantage(Advantage):
    """Compares a completion with its group, and each token with what the others do after the same beginning."""

    reward: ClassVar[str] = "r + V(t + 1) - V(t)"
    compares_totals: ClassVar[bool] = True

    credit: Literal["prefix"] = option("prefix", "unit with an advantage of its own: the prefix that completions share")
    baseline: TreeBaseline = option("mean", "subtracted: means of all that share a prefix, or of the others of them")
    scale: Scale = option("group_std", "divisor: deviation of the group, of the batch, or none")

    def assign(self, batch: BatchRewards) -> Credit:
        """See `tree_advantages`."""
        return Credit(
            tree_advantages(
                batch.rewards_N,
                batch.groups_N,
                batch.edges_NT,
                batch.mask_NT,
                baseline=self.baseline,
                scale=self.scale,
                std=self.std,
                eps=self.eps,
            )
        )
