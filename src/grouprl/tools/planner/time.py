"""How long a run takes on this machine's CPU, from the matrix products and memory reads of a model's shapes.

The floor of a step excludes attention's products, waiting, rewards and everything that is not a product or a read.
FLOPs are 2 x weights x tokens. A phase takes max(FLOPs / rate, bytes / bandwidth). `python benchmarks/floor.py`
compares it with measured times.

The pace of a run comes from products of the model's own shapes that are timed here: sampling and learning count as in
the floor, each at the rate of products with as many rows as it has, of weights that no cache holds; the optimizer as
reads and writes. Products take the shares `_SAMPLING` and `_LEARNING` of the time. Estimated over measured CPU seconds
of one thread, for SmolLM2-135M with 2 groups of 8 completions of up to 24 tokens: 1.07 of sampling, 0.95 to 1.0 of
updates from 224 and 385 tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple, dataclass, replace
from pathlib import Path

from grouprl.config.run import RunConfig
from grouprl.forward.prefix import shared_tokens
from grouprl.models.names import BUNDLED
from grouprl.models.prompts import prompt_token_ids
from grouprl.run.opened import OpenedRun
from grouprl.tools.planner.machine import Rates, product_rate
from grouprl.tools.planner.memory import FLOAT32, SIZES, Networks, StepShape
from grouprl.tools.planner.shapes import ModelShape
from grouprl.types import UserError

USUAL_PROMPT = 256
"""Tokens of a prompt whose length is not known."""
_SAMPLING, _LEARNING = 0.9, 0.75
_ROWS = 256  # of a pack's products: more are no faster
_OPTIMIZER = 7 * FLOAT32  # bytes that AdamW reads and writes of a weight with its gradient and moments
_PROBLEMS = 64  # whose prompts are counted


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
    size = SIZES[step.dtype]
    weights, token = shape.linear_parameters + shape.embedding_parameters, shape.cached_numbers * size
    full, rest = divmod(step.problems * step.group_size, step.rows)
    seconds = 0.0
    for rows, times in ((step.rows, full), (rest, 1 if rest else 0)):
        unshared = step.prompt_tokens - step.shared_tokens
        prompts = (
            -(-rows // step.group_size) * unshared + step.shared_tokens
        )  # one prompt per group, and what all share
        for position in range(1, step.completion_tokens if times else 1):
            read = weights * size + token * (prompts + rows * position)
            seconds += times * max(2 * weights * rows / rates.flops, read / rates.bandwidth)
    return StepTime(
        prompts=2 * body * (step.problems * (step.prompt_tokens - shared) + shared) / rates.flops,
        decoding=seconds,
        reference=forward if networks.reference else 0.0,
        critic=trunk * (1 + products * passes) if networks.critic else 0.0,
        reward_model=trunk if networks.reward_model else 0.0,
        learning=forward * products * passes,
    )


# A run on this machine


@dataclass(frozen=True)
class PromptSizes:
    """Tokens of the prompts of a run: of the first 64 problems that it trains on."""

    longest: int
    mean: int
    shared: int = 0  # that all begin with
    held_out: int = 1 << 30  # problems that evaluations use


def prompt_sizes(config: RunConfig, say: Callable[[str], None]) -> PromptSizes | None:
    """Counts the prompts of a run's task; None where its tokenizer is not here, or with a reason the task is not."""
    path = config.model.path
    if path not in BUNDLED and not (Path(path) / "tokenizer.json").is_file():
        return None
    try:
        run = OpenedRun(config)
        problems, held_out = run.task.problems("train")[:_PROBLEMS], len(run.held_out)
        prompts = [prompt_token_ids(problem, run.tokenizer, longest=1 << 30) for problem in problems]
    except UserError as error:
        say(f"Assuming prompts of {USUAL_PROMPT} tokens, because they cannot be counted: {error}")
        return None
    sizes = [*map(len, prompts)]
    return PromptSizes(max(sizes), -(-sum(sizes) // len(sizes)), shared_tokens(prompts), held_out)


@dataclass(frozen=True)
class Pace:
    """Estimated times; each pair is of completions half as long as allowed, and of completions that are as long."""

    sampling: float  # completion tokens per second, at full length
    learning: float  # tokens that an update reads per second
    step: tuple[float, ...]  # seconds
    evaluation: tuple[float, ...]  # seconds of each
    evaluations: int
    seconds: tuple[float, ...]  # of the run, without loading and saving


def measured_pace(
    config: RunConfig, shape: ModelShape, networks: Networks, step: StepShape, bandwidth: float, prompts: PromptSizes
) -> Pace:
    """Times products for a second, and estimates a run; `bandwidth`: bytes per second that this machine reads."""
    test, updates = config.evaluation, config.algorithm.updates
    rates = [
        Rates(product_rate(step.device, step.dtype, (rows, shape.hidden, shape.intermediate)), bandwidth)
        for rows in (step.rows, _ROWS)
    ]
    trained = shape.parameters if networks.lora_rank is None else shape.lora_parameters(networks.lora_rank)

    def sampled(batch: StepShape) -> float:
        floor = floor_of_step(shape, networks, batch, rates[0])
        return (floor.prompts + floor.decoding) / _SAMPLING

    def learned(batch: StepShape) -> float:
        floor = floor_of_step(shape, networks, batch, rates[1], passes=updates.passes)
        moved = updates.count * _OPTIMIZER * trained / bandwidth
        return (floor.total - floor.prompts - floor.decoding) / _LEARNING + moved

    usual, problems = replace(step, prompt_tokens=prompts.mean), min(test.problems, prompts.held_out)
    batches = [replace(usual, completion_tokens=-(-step.completion_tokens // part)) for part in (2, 1)]
    steps = tuple(sampled(batch) + learned(batch) for batch in batches)
    held_out, group_size = max(1, problems), 1 + test.samples
    tests = tuple(sampled(replace(batch, problems=held_out, group_size=group_size)) for batch in batches)
    evaluations = 2 + ((config.steps - 1) // test.every if test.every else 0) if problems else 0
    read = usual.shared_tokens + sum(pack.tokens for pack in usual.packs)
    return Pace(
        sampling=step.problems * step.group_size * step.completion_tokens / sampled(usual),
        learning=read * updates.count / learned(usual),
        step=steps,
        evaluation=tests,
        evaluations=evaluations,
        seconds=tuple(
            config.steps * each + evaluations * test_each for each, test_each in zip(steps, tests, strict=True)
        ),
    )
