"""Estimates how long a run takes on this machine, from products of the model's own shapes that are timed here.

Sampling and learning are counted as in `planner.time`, each at the rate of products with as many rows as it has, of
weights that no cache holds; the optimizer as reads and writes. Products take the shares `_SAMPLING` and `_LEARNING` of
the time. Estimated over measured CPU seconds of one thread, for SmolLM2-135M with 2 groups of 8 completions of up to 24
tokens: 1.07 of sampling, 0.95 to 1.0 of updates from 224 and 385 tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from grouprl.config.run import RunConfig
from grouprl.models.load import load_tokenizer
from grouprl.models.names import BUNDLED
from grouprl.models.prefix import shared_tokens
from grouprl.models.prompts import prompt_token_ids
from grouprl.planner.machine import product_rate
from grouprl.planner.memory import Networks, StepShape
from grouprl.planner.shapes import ModelShape
from grouprl.planner.time import Rates, floor_of_step
from grouprl.tasks import load_task
from grouprl.types import UserError

USUAL_PROMPT = 256
"""Tokens of a prompt whose length is not known."""

_SAMPLING, _LEARNING = 0.9, 0.75
_ROWS = 256  # of a pack's products: more are no faster
_OPTIMIZER = 7 * 4  # bytes that AdamW reads and writes of a weight with its gradient and moments
_PROBLEMS = 64  # whose prompts are counted


@dataclass(frozen=True)
class Pace:
    """Estimated times; each pair is of completions half as long as allowed, and of completions that are as long."""

    sampling: float  # completion tokens per second, at full length
    learning: float  # tokens that an update reads per second
    step: tuple[float, float]  # seconds
    evaluation: tuple[float, float]  # seconds of each
    evaluations: int
    seconds: tuple[float, float]  # of the run, without loading and saving


def measured_pace(
    config: RunConfig, shape: ModelShape, networks: Networks, step: StepShape, bandwidth: float, prompts: PromptSizes
) -> Pace:
    """Times products for half a second each, and estimates a run.

    Args:
        config: the run.
        shape: of its policy.
        networks: its others.
        step: its batch.
        bandwidth: bytes per second that the machine reads.
        prompts: of its problems.
    """
    usual, held_out = replace(step, prompt_tokens=prompts.mean), config.evaluation
    problems = min(held_out.problems, prompts.held_out)
    asked = replace(usual, problems=max(1, problems), group_size=1 + held_out.samples)
    few, many = ((rows, shape.hidden, shape.intermediate) for rows in (step.rows, _ROWS))
    rates = [Rates(product_rate(step.device, step.dtype, sizes), bandwidth, "") for sizes in (few, many)]
    trained = shape.parameters if networks.lora_rank is None else shape.lora_parameters(networks.lora_rank)
    updates = config.algorithm.updates

    def sampled(batch: StepShape) -> float:
        found = floor_of_step(shape, networks, batch, rates[0])
        return (found.prompts + found.decoding) / _SAMPLING

    def learned(batch: StepShape) -> float:
        found = floor_of_step(shape, networks, batch, rates[1], passes=updates.passes)
        moved = updates.count * _OPTIMIZER * trained / bandwidth
        return (found.total - found.prompts - found.decoding) / _LEARNING + moved

    longest = step.completion_tokens
    batches = [replace(usual, completion_tokens=length) for length in (-(-longest // 2), longest)]
    steps = [sampled(batch) + learned(batch) for batch in batches]
    tests = [sampled(replace(asked, completion_tokens=batch.completion_tokens)) for batch in batches]
    between = (config.steps - 1) // held_out.every if held_out.every else 0
    evaluations = 2 + between if problems else 0
    whole = [config.steps * one + evaluations * test for one, test in zip(steps, tests, strict=True)]
    read = usual.shared_tokens + sum(pack.tokens for pack in usual.packs)
    return Pace(
        sampling=step.problems * step.group_size * longest / sampled(usual),
        learning=read * updates.count / learned(usual),
        step=(steps[0], steps[1]),
        evaluation=(tests[0], tests[1]),
        evaluations=evaluations,
        seconds=(whole[0], whole[1]),
    )


@dataclass(frozen=True)
class PromptSizes:
    """Tokens of the prompts of a run: of the first 64 problems that it trains on."""

    longest: int
    mean: int
    shared: int = 0  # that all begin with
    held_out: int = 1 << 30  # problems that evaluations can use


def prompt_sizes(config: RunConfig, say: Callable[[str], None]) -> PromptSizes | None:
    """Counts the prompts of a run's task; None where the model's tokenizer is not on this machine.

    None too where the task cannot be read, which `say` gets in a sentence: a plan needs no data.
    """
    path = config.model.path
    if path not in BUNDLED and not (Path(path) / "tokenizer.json").is_file():
        return None
    try:
        tokenizer, task = load_tokenizer(config.model), load_task(**config.task.model_dump())
        problems, held_out = task.problems("train"), len(task.problems(config.evaluation.split))
        prompts = [prompt_token_ids(problem, tokenizer, longest=1 << 30) for problem in problems[:_PROBLEMS]]
    except UserError as error:
        say(f"Assuming prompts of {USUAL_PROMPT} tokens, because they cannot be counted: {error}")
        return None
    sizes = [*map(len, prompts)]
    return PromptSizes(max(sizes), math.ceil(sum(sizes) / len(sizes)), shared_tokens(prompts), held_out)
