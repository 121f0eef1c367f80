"""Time of a step, as a floor: its matrix products and its reads at a machine's rates, and nothing else.

Left out: attention's own products, waiting, rewards, everything that is not a product or a read. FLOPs are 2 x weights
x tokens. A phase takes max(FLOPs / rate, bytes / bandwidth). `python benchmarks/floor.py` counts alike and says how
near the program comes.
"""

from __future__ import annotations

from dataclasses import dataclass

from grouprl.planner.memory import Networks, StepShape
from grouprl.planner.shapes import ModelShape


@dataclass(frozen=True)
class Rates:
    """What a machine does at best."""

    flops: float  # floating-point operations per second, in products of the computation's dtype
    bandwidth: float  # bytes read per second
    source: str  # where the numbers come from, for people


@dataclass(frozen=True)
class StepTime:
    """Seconds of one step by phase, at least; 0 = there is no such phase."""

    prompts: float  # read once each
    decoding: float
    reference: float
    critic: float  # values, and learning them
    reward_model: float
    learning: float

    @property
    def total(self) -> float:
        """One phase after the other."""
        return self.prompts + self.decoding + self.reference + self.critic + self.reward_model + self.learning


def floor_of_step(shape: ModelShape, networks: Networks, step: StepShape, rates: Rates, *, passes: int = 1) -> StepTime:
    """The least that a step can take; every completion is counted at its longest.

    Args:
        shape: of the policy; reference, critic and reward model are as large.
        networks: which there are.
        step: the batch.
        rates: of the machine, in the dtype of the step.
        passes: over the batch while learning.
    """
    body, head = _body_weights(shape), shape.embedding_parameters
    completions = step.problems * step.group_size
    predicted = completions * step.completion_tokens
    # Minibatches hold whole groups; the last one may be smaller.
    groups = -(-step.problems // min(step.minibatches, step.problems))
    read = sum(pack.tokens for pack in step.packs) * step.problems / groups
    forward = 2 * (body * read + head * predicted) / rates.flops
    trunk = 2 * body * read / rates.flops
    # Forward, gradient of the inputs, gradient of the weights (which an adapter's base has none of).
    products = (3 if networks.lora_rank is None else 2) + (1 if step.recompute else 0)
    return StepTime(
        prompts=2 * body * step.problems * step.prompt_tokens / rates.flops,
        decoding=_decoding(shape, step, rates),
        reference=forward if networks.reference else 0.0,
        critic=trunk * (1 + products * passes) if networks.critic else 0.0,
        reward_model=trunk if networks.reward_model else 0.0,
        learning=forward * products * passes,
    )


def _body_weights(shape: ModelShape) -> int:
    """Weights in the products of the layers."""
    return shape.layers * sum(inputs * outputs for inputs, outputs in shape.linears)


def _decoding(shape: ModelShape, step: StepShape, rates: Rates) -> float:
    """Decode steps: each reads all weights once for the rows that are decoded together, and their cache."""
    size = 2 if step.dtype == "bfloat16" else 4
    weights = _body_weights(shape) + shape.embedding_parameters
    token = 2 * shape.layers * shape.kv_heads * shape.head_size * size
    full, rest = divmod(step.problems * step.group_size, step.rows)
    seconds = 0.0
    for rows, times in ((step.rows, full), (rest, 1 if rest else 0)):
        prompts = -(-rows // step.group_size) * step.prompt_tokens  # of a group once
        for position in range(1, step.completion_tokens if times else 1):
            read = weights * size + token * (prompts + rows * position)
            seconds += times * max(2 * weights * rows / rates.flops, read / rates.bandwidth)
    return seconds
