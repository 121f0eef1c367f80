"""Adds the gradients of a batch's packs, which run side by side where that is faster, always in the same order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor, nn

from grouprl.models.progress import PROGRESS
from grouprl.models.workers import side_by_side

Result = TypeVar("Result")
Loss = Callable[[], tuple[Tensor, Result]]
"""Computes the loss of a pack, and what else its forward pass gives."""


def add_gradients(losses: Sequence[Loss[Result]], networks: Sequence[nn.Module], workers: int) -> list[Result]:
    """Adds the gradient of each loss to `weight.grad`, in the order of the losses for any number of workers.

    Args:
        losses: one for each pack; their sum is the loss of the batch.
        networks: whose trainable weights take the gradient.
        workers: packs that run at once, see `worker_count`; each holds a gradient until it is added.

    Returns:
        The second result of each loss.
    """
    if workers < 2:
        return list(side_by_side([partial(_backward, loss) for loss in losses], workers))
    weights = [weight for network in networks for weight in network.parameters() if weight.requires_grad]
    results = []
    for gradients, result in side_by_side([partial(_gradients, loss, weights) for loss in losses], workers):
        for weight, gradient in zip(weights, gradients, strict=True):
            if gradient is not None:
                weight.grad = gradient if weight.grad is None else weight.grad.add_(gradient)
        results.append(result)
    return results


def _backward(loss: Loss[Result]) -> Result:
    total, result = loss()
    total.backward()  # type: ignore[no-untyped-call]
    PROGRESS.mark()
    return result


def _gradients(loss: Loss[Result], weights: Sequence[Tensor]) -> tuple[tuple[Tensor | None, ...], Result]:
    total, result = loss()
    gradients = torch.autograd.grad(total, weights, allow_unused=True)
    PROGRESS.mark()
    return gradients, result
