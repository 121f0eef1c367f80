"""The learner's padded tensors: completions, and their evaluation by the networks before the first update."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from grouprl.types import Batch, Group, RewardOutcome, Sampling, StopReason


@dataclass(frozen=True)
class ScoredGroups:
    """The groups of a step with one outcome for each completion."""

    step: int
    groups: Sequence[Group]  # [P]
    outcomes: Sequence[Sequence[RewardOutcome]]  # [P][G]
    kept: Sequence[bool]  # [P] whether the group enters the loss
    weights: Mapping[str, float]  # of each reward in the total
    sampling: Sampling


# Nats. Log-probs of equal weights differ by the rounding of the forward pass: in float32 by up to 2e-5, in bfloat16,
# which keeps 8 bits, by up to 0.1 (the demo). A policy this near to its reference on every token of a batch has no KL:
# whitened or divided by Adam, the rounding would move the weights by the whole learning rate.
AT_REFERENCE = {"float32": 1e-4, "bfloat16": 0.25}


@dataclass(frozen=True)
class PolicyEvaluation:
    """[N, T] float32 tensors on the learner's device, 0 outside the completions; None = the algorithm needs none."""

    reference_NT: Tensor | None = None  # log-probs of the reference
    values_NT: Tensor | None = None  # the critic's values before each token
    policy_NT: Tensor | None = None  # log-probs of the learner's policy, if the algorithm needs them
    entropies_NT: Tensor | None = None  # entropies of the learner's policy, in nats
    at_reference: bool = False  # policy and reference differ by rounding alone on this batch, see `AT_REFERENCE`


def make_batch(groups: Sequence[Group], sampling: Sampling, *, mask_overlong: bool = False) -> Batch:
    """Makes the batch of a step.

    Args:
        groups: groups with at least one completion in all.
        sampling: the sampling parameters of the completions.
        mask_overlong: whether the loss excludes truncated completions.
    """
    completions = [completion for group in groups for completion in group.completions]
    lengths_N = torch.tensor([len(completion) for completion in completions])
    mask_NT = torch.arange(int(lengths_N.max())) < lengths_N[:, None]
    whole_N = torch.tensor([completion.stop_reason is not StopReason.LENGTH for completion in completions])
    return Batch(
        prompts=tuple(group.prompt_ids for group in groups),
        group_of_N=tuple(index for index, group in enumerate(groups) for _ in group.completions),
        token_ids_NT=padded([completion.token_ids for completion in completions], mask_NT, torch.long),
        mask_NT=mask_NT,
        trained_NT=mask_NT & whole_N[:, None] if mask_overlong else mask_NT,
        old_logprobs_NT=padded([completion.logprobs for completion in completions], mask_NT, torch.float32),
        sampling=sampling,
    )


def padded(rows: Sequence[Sequence[float]], mask_NT: Tensor, dtype: torch.dtype) -> Tensor:
    """Makes an [N, T] tensor of the rows' values where the mask is true, 0 elsewhere."""
    grid = torch.zeros(mask_NT.shape, dtype=dtype)
    grid[mask_NT] = torch.tensor([value for row in rows for value in row], dtype=dtype)
    return grid
