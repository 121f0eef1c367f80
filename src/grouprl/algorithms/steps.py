"""Process supervision: rewards for the reasoning steps of a completion, spread over the tokens that lead to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from grouprl.algorithms.advantages import Advantage, BatchRewards, Credit, Std, group_statistics
from grouprl.algorithms.option import option


def step_advantages(
    step_rewards: Sequence[Sequence[float]],
    step_ends: Sequence[Sequence[int]],
    group_ids: Sequence[int],
    lengths: Sequence[int],
    *,
    std: Std = "population",
    eps: float = 1e-6,
) -> Tensor:
    """Computes each token's advantage: the sum of the normalized rewards of the steps that end at or after it.

    Rewards are normalized over all steps of all completions of a group (DeepSeekMath, arXiv:2402.03300, 4.1.3).

    Args:
        step_rewards: [N] lists: the rewards of each completion's steps; NaN = invalid, excluded.
        step_ends: [N] lists: the index of each step's last token, less than the completion's length.
        group_ids: [N] rows with the same id are one group.
        lengths: [N] tokens of each completion.
        std, eps: as in `group_statistics`.

    Returns:
        [N, T] float32, T the largest length; 0 beyond a completion's length, and for a group whose valid step
        rewards are all equal or fewer than 2.

    Raises:
        ValueError: rewards and ends do not match, or an end lies outside its completion.
    """
    groups_K = torch.tensor([int(group) for group, row in zip(group_ids, step_rewards, strict=True) for _ in row])
    rewards_K = torch.tensor([reward for row in step_rewards for reward in row], dtype=torch.float64)
    normalized = iter(group_statistics(rewards_K, groups_K, std=std, eps=eps).normalized(rewards_K).tolist())
    advantages_NT = torch.zeros(len(lengths), max(lengths, default=0), dtype=torch.float64)
    for row, (rewards, ends, length) in enumerate(zip(step_rewards, step_ends, lengths, strict=True)):
        if len(rewards) != len(ends) or any(not 0 <= end < length for end in ends):
            raise ValueError(
                f"completion {row}: expected one end within its {length} tokens for each of {len(rewards)} rewards, "
                f"got {list(ends)}"
            )
        for end in ends:
            advantages_NT[row, : end + 1] += next(normalized)
    return advantages_NT.float()


@dataclass(frozen=True)
class StepAdvantage(Advantage):
    """Compares reasoning steps with all steps of the group; the completion's reward counts as its last step."""

    credit: Literal["step"] = option("step", "unit with an advantage of its own: the reasoning step")
    baseline: Literal["mean"] = option("mean", "subtracted from a reward: mean over the reasoning steps of the group")
    scale: Literal["group_std"] = option("group_std", "divisor: deviation over the reasoning steps of the group")

    def assign(self, batch: BatchRewards) -> Credit:
        """Adds the completion's reward as one more step, because right steps must also lead to an answer."""
        lengths = batch.mask_NT.sum(1).tolist()
        rows = [
            [*steps, (reward, length - 1)] if reward == reward else []  # NaN = invalid
            for steps, reward, length in zip(batch.steps, batch.rewards_N.tolist(), lengths, strict=True)
        ]
        rewards = [[reward for reward, _ in row] for row in rows]
        ends = [[end for _, end in row] for row in rows]
        groups = batch.groups_N.tolist()
        return Credit(step_advantages(rewards, ends, groups, lengths, std=self.std, eps=self.eps))

    @property
    def formula(self) -> str:
        """The advantage as an equation, for the page."""
        return "sum from t on of (r_step - mean(group's steps)) / std(group's steps)"
