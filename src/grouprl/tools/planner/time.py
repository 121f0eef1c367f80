"""Computes a lower bound of a step's time from its matrix products and memory reads at a machine's rates.

It excludes attention's products, waiting, rewards and everything that is not a product or a read. FLOPs are 2 x weights
x tokens. A phase takes max(FLOPs / rate, bytes / bandwidth). `python benchmarks/floor.py` compares this bound with
measured times.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass

from grouprl.tools.planner.memory import SIZES, Networks, StepShape
from grouprl.tools.planner.shapes import ModelShape


@dataclass(frozen=True)
class Rates:
    """The highest rates of a machine."""

    flops: float  # floating-point operations per second, in products of the computation's dtype
    bandwidth: float  # bytes read per second
    source: str  # origin of the numbers, as text


@dataclass(frozen=True)
class StepTime:
    """Lower bound in seconds of each phase of a step; 0 = there is no such phase."""

    prompts: float  # each prompt is read once, the tokens that all share once for all
    decoding: float
    reference: float
    critic: float  # values and updates
    reward_model: float
    learning: float

    @property
    def total(self) -> float:
        """The sum of all phases."""
        return float(sum(astuple(self)))


def floor_of_step(shape: ModelShape, networks: Networks, step: StepShape, rates: Rates, *, passes: int = 1) -> StepTime:
    """Computes the least time of a step; every completion counts with its largest length.

    Args:
        shape: shape of the policy; reference, critic and reward model are as large.
        networks: the networks of the run.
        step: the batch.
        rates: rates of the machine, in the dtype of the step.
        passes: passes over the batch in learning.
    """
    body, head = shape.linear_parameters, shape.embedding_parameters
    predicted = step.problems * step.group_size * step.completion_tokens
    parts, shared = step.problems / step.minibatch_problems, step.shared_tokens
    read = (sum(pack.tokens for pack in step.packs) + shared) * parts
    forward = 2 * (body * read + head * predicted) / rates.flops
    trunk = 2 * body * read / rates.flops
    # Forward, gradient of the inputs, gradient of the weights (none for the base of an adapter).
    products = (3 if networks.lora_rank is None else 2) + (1 if step.recompute else 0)
    return StepTime(
        prompts=2 * body * (step.problems * (step.prompt_tokens - shared) + shared) / rates.flops,
        decoding=_decoding(shape, step, rates),
        reference=forward if networks.reference else 0.0,
        critic=trunk * (1 + products * passes) if networks.critic else 0.0,
        reward_model=trunk if networks.reward_model else 0.0,
        learning=forward * products * passes,
    )


def _decoding(shape: ModelShape, step: StepShape, rates: Rates) -> float:
    """Seconds of all decode steps; each reads all weights and the cache once for the rows decoded together."""
    size = SIZES[step.dtype]
    weights, token = shape.linear_parameters + shape.embedding_parameters, shape.cached_numbers * size
    full, rest = divmod(step.problems * step.group_size, step.rows)
    seconds = 0.0
    for rows, times in ((step.rows, full), (rest, 1 if rest else 0)):
        own = step.prompt_tokens - step.shared_tokens
        prompts = -(-rows // step.group_size) * own + step.shared_tokens  # one prompt per group, and what all share
        for position in range(1, step.completion_tokens if times else 1):
            read = weights * size + token * (prompts + rows * position)
            seconds += times * max(2 * weights * rows / rates.flops, read / rates.bandwidth)
    return seconds
