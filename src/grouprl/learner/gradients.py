"""Adds the gradients of a batch's packs, which run side by side where that is faster, always in the same order.

Of several ranks each computes some packs, and all get the sum and the results of all packs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import TypeVar

import torch
from torch import Tensor, nn

from grouprl.forward.prefix import LearnedPrefix
from grouprl.forward.progress import PROGRESS
from grouprl.forward.workers import side_by_side
from grouprl.learner.optimizer import Optimizer
from grouprl.ranks import Ranks, TreeSum

Result = TypeVar("Result")
Loss = Callable[[], tuple[Tensor, Result]]
"""Computes the loss of a pack, and a second result of its forward pass."""
_Gradients = Sequence[Tensor | None]  # of each weight; None = it has no part in the loss


def add_gradients(
    losses: Sequence[Loss[Result]],
    networks: Sequence[nn.Module],
    workers: int,
    *,
    costs: Sequence[int],
    ranks: Ranks,
    prefix: LearnedPrefix | None = None,
) -> dict[int, Result]:
    """Adds the gradient of each loss to `weight.grad`, in the order of the losses for any number of workers.

    Args:
        losses: one for each pack; their sum is the loss of the batch.
        networks: whose trainable weights take the gradient.
        workers: packs that run at once, see `worker_count`; each holds a gradient until it is added.
        costs: tokens of each pack, by which the ranks divide them.
        ranks: those that compute the batch together.
        prefix: the tokens before all packs, which get the sum of the packs' gradients once.

    Returns:
        The second result of each loss that this rank computed, by its index among the losses.
    """
    if ranks.mesh is not None:  # FSDP2, whose backward pass adds the gradients of all ranks
        results: dict[int, Result] = {}
        count = len(ranks.own(costs))
        for number, index in enumerate(ranks.passes(costs)):
            # A rank with fewer packs repeats one, because all ranks make as many passes; it counts as 0.
            result = _backward(losses[index], 1.0 if number < count else 0.0)
            if number < count:
                results[index] = result
        return results

    weights: list[Tensor] = [weight for network in networks for weight in network.parameters() if weight.requires_grad]
    weights += [] if prefix is None else prefix.leaves
    shards = ranks.shards(costs)
    indices = list(chain.from_iterable(shards))
    if ranks.exact:
        results = _add_in_a_tree(losses, shards, weights, workers, ranks)
    elif workers < 2:
        packs = side_by_side([partial(_backward, losses[index]) for index in indices], workers)
        results = dict(zip(indices, packs, strict=True))
    else:
        results = {}
        jobs = [partial(_gradients, losses[index], weights) for index in indices]
        for index, (gradients, result) in zip(indices, side_by_side(jobs, workers), strict=True):
            for weight, gradient in zip(weights, gradients, strict=True):
                if gradient is not None:
                    weight.grad = gradient if weight.grad is None else weight.grad.add_(gradient)
            results[index] = result
    if ranks.world > 1 and not ranks.exact:
        _set(weights, _over_ranks([weight.grad for weight in weights], weights, ranks))
    if prefix is not None:
        list(side_by_side([prefix.backward], min(1, workers)))
    return results


def step_if_finite(optimizer: Optimizer, loss: float) -> float:
    """Makes an update and returns the gradient's norm; without an update NaN, if the loss or the norm is not finite."""
    with suppress(FloatingPointError):
        if math.isfinite(loss):
            return optimizer.step()
    optimizer.discard()
    return math.nan


def _add_in_a_tree(
    losses: Sequence[Loss[Result]],
    shards: Sequence[Sequence[int]],
    weights: Sequence[Tensor],
    workers: int,
    ranks: Ranks,
) -> dict[int, Result]:
    """Adds in an order that does not depend on the number of ranks: within a shard, then the shards in a tree."""
    results: dict[int, Result] = {}
    tree = TreeSum[_Gradients](_sum)
    jobs = [partial(_gradients, losses[index], weights) for index in chain.from_iterable(shards)]
    packs = side_by_side(jobs, workers)
    for shard in shards:
        totals: list[Tensor | None] = [None] * len(weights)
        for index in shard:
            gradients, results[index] = next(packs)
            for at, gradient in enumerate(gradients):
                if gradient is not None:
                    # A sum that begins with +0 has no -0, whose sign would depend on how many empty shards are added.
                    total = totals[at]
                    totals[at] = (torch.zeros_like(gradient) if total is None else total).add_(gradient)
        tree.push(totals)
    next(packs, None)  # to its end
    _set(weights, _over_ranks(tree.total(), weights, ranks))
    return dict(sorted(results.items()))


def _sum(left: _Gradients, right: _Gradients) -> _Gradients:
    """Adds to the left gradients, in place; what one side lacks counts as 0."""
    sums: list[Tensor | None] = []
    for addend, other in zip(left, right, strict=True):
        sums.append(other if addend is None else addend if other is None else addend.add_(other))
    return sums


def _over_ranks(gradients: _Gradients, weights: Sequence[Tensor], ranks: Ranks) -> _Gradients:
    """Adds the gradients of all ranks; a weight that has none on any rank stays without."""
    used = ranks.gather([gradient is not None for gradient in gradients], "gradients")
    indices = [index for index, column in enumerate(zip(*used, strict=True)) if any(column)]
    if ranks.world == 1 or not indices:
        return gradients
    flat: list[Tensor] = []
    for index in indices:
        gradient = gradients[index]
        flat.append((torch.zeros_like(weights[index]) if gradient is None else gradient).flatten())
    totals = torch.split(ranks.add(torch.cat(flat), "gradients"), [len(part) for part in flat])
    sums: list[Tensor | None] = [None] * len(gradients)
    for index, total in zip(indices, totals, strict=True):
        sums[index] = total.view_as(weights[index]).to(weights[index].dtype)
    return sums


def _set(weights: Sequence[Tensor], gradients: _Gradients) -> None:
    for weight, gradient in zip(weights, gradients, strict=True):
        weight.grad = gradient


def _backward(loss: Loss[Result], factor: float = 1.0) -> Result:
    total, result = loss()
    (total if factor == 1.0 else total * factor).backward()  # type: ignore[no-untyped-call]
    PROGRESS.mark()
    return result


def _gradients(loss: Loss[Result], weights: Sequence[Tensor]) -> tuple[_Gradients, Result]:
    total, result = loss()
    gradients = torch.autograd.grad(total, weights, allow_unused=True)
    PROGRESS.mark()
    return gradients, result
