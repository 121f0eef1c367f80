"""Groups of completions as the learner's padded tensors."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from grouprl.algorithm import Algorithm
from grouprl.algorithms import token_weights
from grouprl.types import Batch, Group, Sampling


def make_batch(groups: Sequence[Group], advantages_N: Tensor, algorithm: Algorithm, sampling: Sampling) -> Batch:
    """The batch of a step.

    Args:
        groups: in the order of the advantages' rows.
        advantages_N: [N] one per completion.
        algorithm: its aggregation sets the token weights.
        sampling: what the completions were drawn under.
    """
    completions = [completion for group in groups for completion in group.completions]
    lengths_N = torch.tensor([len(completion) for completion in completions])
    mask_NT = torch.arange(int(lengths_N.max())) < lengths_N[:, None]
    return Batch(
        prompts=tuple(group.prompt_ids for group in groups),
        group_of_N=tuple(index for index, group in enumerate(groups) for _ in group.completions),
        token_ids_NT=padded([completion.token_ids for completion in completions], mask_NT, torch.long),
        mask_NT=mask_NT,
        old_logprobs_NT=padded([completion.logprobs for completion in completions], mask_NT, torch.float32),
        advantages_N=advantages_N,
        weights_NT=token_weights(
            mask_NT,
            aggregate=algorithm.aggregate,
            constant_length=sampling.max_tokens,
        ),
        sampling=sampling,
    )


def padded(rows: Sequence[Sequence[float]], mask_NT: Tensor, dtype: torch.dtype) -> Tensor:
    """[N, T] tensor of the rows' values where the mask is true, 0 elsewhere."""
    grid = torch.zeros(mask_NT.shape, dtype=dtype)
    grid[mask_NT] = torch.tensor([value for row in rows for value in row], dtype=dtype)
    return grid
