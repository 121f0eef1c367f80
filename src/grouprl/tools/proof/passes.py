"""Log-probs by the learner's packs, gradients from log-probs, and how far two of them are apart."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from grouprl.learner.packs import make_packs, pack_forward
from grouprl.types import Batch


def packed_logprobs(model: PreTrainedModel, batch: Batch, budget: int) -> list[Tensor]:
    """The same by the learner's packs of at most `budget` tokens, under the batch's sampling parameters."""
    found: dict[int, Tensor] = {}
    for pack in make_packs(batch, range(len(batch.group_of_N)), budget, model.device):
        values = pack_forward(model, pack, batch.sampling).logprobs_C
        for place, row in enumerate(pack.rows):
            found[row] = values[pack.row_C == place]
    return [found[row] for row in range(len(found))]


def gradients(model: PreTrainedModel, rows: Sequence[Tensor]) -> list[Tensor]:
    """The gradients of all trained weights of a sum of the rows in which every token has another weight."""
    weighted = [(row * torch.linspace(-1, 1, len(row), device=row.device)).sum() for row in rows]
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    found = torch.autograd.grad(torch.stack(weighted).sum(), weights, allow_unused=True)
    return [gradient for gradient in found if gradient is not None]


def relative(found: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """Norm of the difference over the norm of what is expected."""
    pairs = [(a.detach().double(), b.detach().double()) for a, b in zip(found, expected, strict=True)]
    gap, size = sum(float((a - b).square().sum()) for a, b in pairs), sum(float(b.square().sum()) for _, b in pairs)
    return (gap / size) ** 0.5 if size else math.inf
