"""The tokens of a small group whose stages can be worked out by hand."""

import math

import torch

from grouprl.algorithms.stages import GroupTokens

# Two completions of 1 and 2 tokens; the policy moved by the factors 1.5, and 0.5 and 1.1, since it sampled. The
# reference is twice as probable as the policy. Weights are 1/2 and, of two tokens, 1/4 each.
FACTORS = torch.tensor([[1.5, 1.0], [0.5, 1.1]]).log()
MASK = torch.tensor([[True, False], [True, True]])
TOKENS = GroupTokens(
    mask_GT=MASK,
    weights_GT=torch.tensor([[0.5, 0.0], [0.25, 0.25]]),
    advantages_GT=torch.tensor([[1.0, 0.0], [-1.0, -1.0]]),
    logprobs_GT=(FACTORS - 1) * MASK,
    old_GT=-1.0 * MASK,
    sampled_GT=-1.0 * MASK,
    reference_GT=(FACTORS - 1 + math.log(2)) * MASK,
    updated_GT=-0.5 * MASK,
)
