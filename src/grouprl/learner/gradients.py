"""Adds the gradients of a batch's packs, which run side by side where that is faster, always in the same order.

Of several ranks each computes some packs, and all get the sum and the results of all packs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
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
"""Computes the loss of a pack, and what else its forward pass gives."""
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
        The second result of each loss that this rank computed, by its place among the losses.
    """
    shards = ranks.shards(costs)
    weights: list[Tensor] = [weight for network in networks for weight in network.parameters() if weight.requires_grad]
    if ranks.mesh is not None:
        return _add_sharded(losses, ranks.own(costs), ranks.passes(costs))
    weights += [] if prefix is None else prefix.leaves
    add = _add_in_a_tree if ranks.exact else _add_in_order
    done = add(losses, shards, weights, workers, ranks)
    if prefix is not None:
        list(side_by_side([prefix.backward], min(1, workers)))
    return done


def _add_in_order(
    losses: Sequence[Loss[Result]],
    shards: Sequence[Sequence[int]],
    weights: Sequence[Tensor],
    workers: int,
    ranks: Ranks,
) -> dict[int, Result]:
    """Adds the losses of this rank one after the other, then the sums of all ranks."""
    places = list(chain.from_iterable(shards))
    if workers < 2:
        results = list(side_by_side([partial(_backward, losses[place]) for place in places], workers))
    else:
        results = []
        for gradients, result in _side_by_side(losses, places, weights, workers):
            _accumulate(weights, gradients)
            results.append(result)
    if ranks.world > 1:
        _set(weights, _over_ranks([weight.grad for weight in weights], weights, ranks))
    return dict(zip(places, results, strict=True))


def step_if_finite(optimizer: Optimizer, loss: float) -> float:
    """Makes an update and returns the gradient's norm; without an update NaN, if the loss or the norm is not finite."""
    with suppress(FloatingPointError):
        if math.isfinite(loss):
            return optimizer.step()
    optimizer.discard()
    return math.nan


def _add_sharded(losses: Sequence[Loss[Result]], own: Sequence[int], passes: Sequence[int]) -> dict[int, Result]:
    """Adds with FSDP2, whose backward pass adds the gradients of all ranks, one pass after the other."""
    done: dict[int, Result] = {}
    for number, place in enumerate(passes):
        counts = number < len(own)
        result = _backward(losses[place], 1.0 if counts else 0.0)
        if counts:
            done[place] = result
    return done


def _add_in_a_tree(
    losses: Sequence[Loss[Result]],
    shards: Sequence[Sequence[int]],
    weights: Sequence[Tensor],
    workers: int,
    ranks: Ranks,
) -> dict[int, Result]:
    """Adds in an order that does not depend on the number of ranks: within a shard, then the shards in a tree."""
    done: dict[int, Result] = {}
    tree = TreeSum[_Gradients](_added)
    found = _side_by_side(losses, list(chain.from_iterable(shards)), weights, workers)
    for shard in shards:
        total: list[Tensor | None] = [None] * len(weights)
        for place in shard:
            gradients, done[place] = next(found)
            # A sum that begins with +0 has no -0, whose sign would depend on how many empty shards are added to it.
            total = [
                one if new is None else (torch.zeros_like(new) if one is None else one).add_(new)
                for one, new in zip(total, gradients, strict=True)
            ]
        tree.push(total)
    next(found, None)  # to its end
    _set(weights, _over_ranks(tree.total(), weights, ranks))
    return dict(sorted(done.items(), key=lambda item: item[0]))


def _added(left: _Gradients, right: _Gradients) -> _Gradients:
    """Adds to the left gradients, in place; what one side lacks counts as 0."""
    pairs = zip(left, right, strict=True)
    return [two if one is None else one if two is None else one.add_(two) for one, two in pairs]


def _over_ranks(own: _Gradients, weights: Sequence[Tensor], ranks: Ranks) -> _Gradients:
    """Adds the gradients of all ranks; a weight that has none on any rank stays without."""
    used = ranks.gather([gradient is not None for gradient in own], "gradients")
    places = [place for place, column in enumerate(zip(*used, strict=True)) if any(column)]
    if ranks.world == 1 or not places:
        return own
    parts = [own[place] for place in places]
    flat = torch.cat(
        [
            (torch.zeros_like(weights[place]) if part is None else part).flatten()
            for place, part in zip(places, parts, strict=True)
        ]
    )
    sizes = [weights[place].numel() for place in places]
    sums: list[Tensor | None] = [None] * len(own)
    for place, total in zip(places, torch.split(ranks.add(flat, "gradients"), sizes), strict=True):
        sums[place] = total.view_as(weights[place]).to(weights[place].dtype)
    return sums


def _side_by_side(
    losses: Sequence[Loss[Result]], places: Sequence[int], weights: Sequence[Tensor], workers: int
) -> Iterator[tuple[_Gradients, Result]]:
    return side_by_side([partial(_gradients, losses[place], weights) for place in places], workers)


def _set(weights: Sequence[Tensor], gradients: _Gradients) -> None:
    for weight, gradient in zip(weights, gradients, strict=True):
        weight.grad = gradient


def _accumulate(weights: Sequence[Tensor], gradients: _Gradients) -> None:
    for weight, gradient in zip(weights, gradients, strict=True):
        if gradient is not None:
            weight.grad = gradient if weight.grad is None else weight.grad.add_(gradient)


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
