"""The tokens of a small group whose stages can be worked out by hand."""

import math

import torch

from grouprl.algorithms.losses import TokenGrid

# Two completions of 1 and 2 tokens; the policy moved by the factors 1.5, and 0.5 and 1.1, since it sampled. The
# reference is twice as probable as the policy. Weights are 1/2 and, of two tokens, 1/4 each.
FACTORS = torch.tensor([[1.5, 1.0], [0.5, 1.1]]).log()
MASK = torch.tensor([[True, False], [True, True]])
TOKENS = TokenGrid(
    (FACTORS - 1) * MASK,
    -1.0 * MASK,
    torch.tensor([[1.0, 0.0], [-1.0, -1.0]]),
    torch.tensor([[0.5, 0.0], [0.25, 0.25]]),
    MASK,
    reference_NT=(FACTORS - 1 + math.log(2)) * MASK,
)
UPDATED = -0.5 * MASK
