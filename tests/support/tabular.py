"""A policy so small that every completion can be written down: expectations are sums, and gradients exact.

Three tokens, at most three of them, one softmax for each of the 13 prefixes, float64. `FIXED` holds all 27 sequences
of length 3; in `ENDING` token 0 ends a completion, which leaves 15 of lengths 1 to 3.
"""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from grouprl.algorithms import policy_loss, token_weights

PREFIXES, VOCABULARY = 13, 3
Advantages = Callable[[Tensor, Tensor], Tensor]  # of (rewards_N, group_ids_N)


@dataclass(frozen=True)
class World:
    """Every completion (Y of them) and what it earns."""

    completions: tuple[tuple[int, ...], ...]
    rewards_Y: Tensor
    mask_YT: Tensor  # bool
    prefix_YT: Tensor  # which softmax the token is drawn from, 0 in the padding
    token_YT: Tensor

    def logprobs(self, logits: Tensor) -> Tensor:
        """[Y, T], 0 in the padding."""
        return torch.where(self.mask_YT, logits.log_softmax(-1)[self.prefix_YT, self.token_YT], 0.0)

    def chances(self, logits: Tensor) -> Tensor:
        """[Y] probability of each completion."""
        return self.logprobs(logits).sum(1).exp()

    def expected_reward(self, logits: Tensor) -> Tensor:
        return (self.chances(logits) * self.rewards_Y).sum()

    def sequence_kl(self, logits: Tensor, reference: Tensor) -> Tensor:
        """KL of whole completions, by definition."""
        log_ratio_Y = (self.logprobs(logits) - self.logprobs(reference)).sum(1)
        return (self.chances(logits) * log_ratio_Y).sum()


def world(completions: Sequence[tuple[int, ...]], rewards: Sequence[float]) -> World:
    mask = torch.tensor([[t < len(row) for t in range(3)] for row in completions])
    prefix = [[number(row[:t]) if t < len(row) else 0 for t in range(3)] for row in completions]
    token = [[row[t] if t < len(row) else 0 for t in range(3)] for row in completions]
    rewards_Y = torch.tensor(rewards, dtype=torch.float64)
    return World(tuple(completions), rewards_Y, mask, torch.tensor(prefix), torch.tensor(token))


def number(prefix: Sequence[int]) -> int:
    """0 for the empty prefix, 1 to 3 for those of one token, 4 to 12 for those of two."""
    return [0, 1, 4][len(prefix)] + sum(token * 3**place for place, token in enumerate(reversed(prefix)))


SEQUENCES = list(itertools.product(range(3), repeat=3))
ENDED = sorted({row[: row.index(0) + 1] if 0 in row else row for row in SEQUENCES})
# Multiples of 3/4: float32 holds the advantages of groups of 2, 3 and 4 exactly where no deviation divides.
FIXED = world(SEQUENCES, [0.75 * (int(digit) % 4) for digit in "314159265358979323846264338"])
ENDING = world(ENDED, [0.75 * (int(digit) % 4) for digit in "271828182845904"])
RIGHT_OR_WRONG = world(ENDED, [float(sum(row) == 3) for row in ENDED])
K = torch.arange(PREFIXES * VOCABULARY, dtype=torch.float64).view(PREFIXES, VOCABULARY)
LOGITS, REFERENCE = (K * K).sin(), (K * K).sin() + 1.5 * (K * K * K).cos()


def gradient(function: Callable[[Tensor], Tensor], at: Tensor = LOGITS) -> Tensor:
    """[13, 3] exact derivative of a scalar by the logits."""
    logits = at.clone().requires_grad_()
    return torch.autograd.grad(function(logits), logits, allow_unused=True, materialize_grads=True)[0]


@lru_cache
def groups(completions: int, size: int) -> tuple[Tensor, Tensor]:
    """[M, G] every group up to order, and [M] in how many orders it can be drawn."""
    rows = list(itertools.combinations_with_replacement(range(completions), size))
    orders = [math.factorial(size) / math.prod(map(math.factorial, Counter(row).values())) for row in rows]
    return torch.tensor(rows), torch.tensor(orders, dtype=torch.float64)


def expected_update(
    world: World, size: int, advantages: Advantages, aggregate: str = "constant", at: Tensor = LOGITS, **options: object
) -> Tensor:
    """[13, 3] minus the exact expectation, over all groups of `size`, of the gradient of the library's loss.

    Each group is a batch of its own, on policy. With aggregate "constant" the length that divides is 1, so that an
    unbiased estimator gives the gradient of the expected reward itself.
    """
    groups_MG, orders_M = groups(len(world.completions), size)
    old_YT = world.logprobs(at)
    chance_M = orders_M * world.chances(at)[groups_MG].prod(1)
    assert abs(chance_M.sum() - 1) < 1e-12
    rows_N = groups_MG.flatten()
    ids_N = torch.arange(len(groups_MG)).repeat_interleave(size)
    weights_MGT = torch.stack(
        [
            token_weights(mask_GT, aggregate=aggregate, constant_length=1, group_ids_N=torch.zeros(size))
            for mask_GT in world.mask_YT[groups_MG]
        ]
    )
    weights_NT = (weights_MGT * chance_M[:, None, None]).flatten(0, 1)
    advantages_N = advantages(world.rewards_Y[rows_N], ids_N).double()

    def loss(logits: Tensor) -> Tensor:
        return policy_loss(world.logprobs(logits)[rows_N], old_YT[rows_N], advantages_N, weights_NT, **options)[0]

    return -gradient(loss, at)


def expected_token_update(
    world: World, advantages: Tensor, at: Tensor = LOGITS, sampler: Tensor = LOGITS, **options: object
) -> Tensor:
    """[13, 3] the same for single completions, with advantages [Y] or [Y, T], drawn from `sampler`."""
    weights_YT = world.mask_YT * world.chances(sampler)[:, None]
    old_YT = world.logprobs(at)
    return -gradient(
        lambda logits: policy_loss(world.logprobs(logits), old_YT, advantages, weights_YT, **options)[0], at
    )


def cosine(one: Tensor, other: Tensor) -> float:
    return float((one * other).sum() / one.norm() / other.norm())
