"""`grouprl plan --gpus`: memory of a rank on several GPUs, with whole or sharded weights.

Nothing here was measured on several GPUs. What a rank holds is exact (tests/tools); a sharded rank also keeps the
embeddings whole while it learns, two layers at a time, and all weights while it samples.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from types import MappingProxyType

from rich.console import Console

from grouprl.config.run import RunConfig
from grouprl.forward.devices import GPU
from grouprl.tools.planner.fits import MOST_COMPLETIONS, MOST_TOKENS, largest_group, longest_completion
from grouprl.tools.planner.memory import FLOAT32, SIZES, MemoryPlan, Networks, StepShape, plan_memory
from grouprl.tools.planner.screen import GIB, most, networks_of, step_of, table_of
from grouprl.tools.planner.shapes import ModelShape, shape_of
from grouprl.types import UserError, unknown_name


@dataclass(frozen=True)
class Gpu:
    """A GPU, from its maker's data sheet."""

    memory: int  # bytes
    machine: int  # GPUs of a machine, usually


GPUS: Mapping[str, Gpu] = MappingProxyType(
    {
        "RTX4090": Gpu(25_700_000_000, 2),
        "L40S": Gpu(48_000_000_000, 8),
        "A100": Gpu(80_000_000_000, 8),
        "H100": Gpu(80_000_000_000, 8),
        "H200": Gpu(141_000_000_000, 8),
        "B200": Gpu(180_000_000_000, 8),
    }
)


@dataclass(frozen=True)
class RankLayout:
    """Ranks, one for each GPU."""

    ranks: int
    shard: int  # ranks among which weights, gradients and moments are divided; 1 = each has them whole


@dataclass(frozen=True)
class LayoutPlan:
    """A layout for a run: of the rank with the most groups."""

    layout: RankLayout
    memory: MemoryPlan
    gathered_learning: int  # bytes of whole weights beside the shards, in an update and
    gathered_sampling: int  # in sampling
    largest_group: int
    longest_completion: int

    @property
    def peak(self) -> int:
        """Bytes of a rank."""
        return max(self.memory.learning + self.gathered_learning, self.memory.sampling + self.gathered_sampling)


def parse_gpus(text: str) -> tuple[int, Gpu]:
    """Parses a number of GPUs: 8xH100.

    Raises:
        UserError: it is no number of GPUs, or one of an unknown GPU.
    """
    match = re.fullmatch(r"([1-9][0-9]{0,4})x([A-Za-z0-9]+)", text.strip())
    if not match:
        raise UserError(f"--gpus: expected a number and a GPU, such as 8xH100, got {text!r}: write it so")
    if match[2].upper() not in GPUS:
        raise unknown_name("--gpus", match[2], GPUS)
    return int(match[1]), GPUS[match[2].upper()]


def plan_layouts(shape: ModelShape, networks: Networks, step: StepShape, ranks: int, gpu: Gpu) -> list[LayoutPlan]:
    """The layouts of some GPUs: whole weights on each rank, and weights sharded over the ranks of a machine.

    Args:
        shape: of the policy; reference, critic and reward model are as large.
        networks: the networks of the run.
        step: the batch of all ranks together.
        ranks: the GPUs.
        gpu: their kind.
    """
    plans = [plan_layout(shape, networks, step, RankLayout(ranks, 1), gpu)]
    saves = networks.paged or networks.reference_on_cpu
    needs_whole_weights = saves or {networks.weights, networks.moments} != {"float32"}  # refused with shards
    if (shard := min(ranks, gpu.machine)) > 1 and not needs_whole_weights:
        plans.append(plan_layout(shape, networks, step, RankLayout(ranks, shard), gpu))
    return plans


def plan_layout(shape: ModelShape, networks: Networks, step: StepShape, layout: RankLayout, gpu: Gpu) -> LayoutPlan:
    """The plan of one layout; see `plan_layouts`."""
    rank_step = step.of_rank(layout.ranks)
    learning = sampling = 0  # bytes of whole weights beside the shards
    if layout.shard > 1:
        size, layers = SIZES[step.dtype], shape.decoder_parameters - shape.embedding_parameters
        embeddings, layer = shape.parameters - layers, layers // shape.layers
        # Two layers: the one that computes, and the next; and the whole gradient of one, before it is divided.
        gradient = FLOAT32 * (layer + embeddings) if networks.lora_rank is None else 0
        learning = FLOAT32 * embeddings + 2 * size * layer + gradient
        sampling = FLOAT32 * embeddings + size * layers

    def peak(tried: StepShape) -> int:
        memory = memory_of_rank(shape, networks, tried.of_rank(layout.ranks), layout)
        return max(memory.learning + learning, memory.sampling + sampling)

    return LayoutPlan(
        layout=layout,
        memory=memory_of_rank(shape, networks, rank_step, layout),
        gathered_learning=learning,
        gathered_sampling=sampling,
        largest_group=largest_group(step, gpu.memory, peak),
        longest_completion=longest_completion(step, gpu.memory, peak),
    )


def memory_of_rank(shape: ModelShape, networks: Networks, rank_step: StepShape, layout: RankLayout) -> MemoryPlan:
    """Bytes of a rank, without whole weights beside its shards; `own` is its part of the batch."""
    plan = plan_memory(shape, networks, rank_step, sharded=layout.shard > 1)
    if layout.shard == 1:
        return plan
    held = {field.name: math.ceil(getattr(plan.networks, field.name) / layout.shard) for field in fields(plan.networks)}
    return replace(
        plan,
        networks=replace(plan.networks, **held),
        update=replace(
            plan.update,
            gradients=math.ceil(plan.update.gradients / layout.shard),
            critic_gradients=math.ceil(plan.update.critic_gradients / layout.shard),
        ),
        # Layers are gathered in the computation's dtype, which is their rounded copy.
        rounded=0,
    )


def show_layouts(
    config: RunConfig, gpus: str, prompt_tokens: int, *, as_json: bool, console: Console | None = None
) -> None:
    """Prints what each layout of some GPUs needs.

    Raises:
        UserError: the GPUs or the model's shape are unknown, or a number is out of range.
    """
    ranks, gpu = parse_gpus(gpus)
    dtype = "float32" if config.model.dtype == "float32" else "bfloat16"
    there = config.model.model_copy(update={"device": GPU, "dtype": dtype})
    step = step_of(config.model_copy(update={"model": there}), prompt_tokens)
    shape = shape_of(config.model.path)
    plans = plan_layouts(shape, networks_of(config), step, ranks, gpu)
    if as_json:
        print(json.dumps([asdict(plan) | {"peak": plan.peak} for plan in plans]))
        return
    console = console or Console(highlight=False)
    rank_step = step.of_rank(ranks)
    rank_problems, packs = rank_step.problems, rank_step.packs
    console.print(f"[bold]{shape.name}[/], {shape.parameters:,} parameters, {config.algorithm.name}, on {gpus}")
    console.print(
        f"{step.problems} problems x {step.group_size} completions = {step.problems * step.group_size} a step, at most "
        f"{rank_problems} x {step.group_size} a rank, in {step.minibatches} minibatches of {len(packs)} packs, the "
        f"largest of {max(pack.tokens for pack in packs):,} tokens; {step.prompt_tokens} + {step.completion_tokens} "
        f"tokens, {step.dtype}\n"
    )
    names = [
        "whole weights" if plan.layout.shard == 1 else f"distributed.shard=true, on {plan.layout.shard}"
        for plan in plans
    ]
    table = table_of("a rank", *names)
    rows = [
        ("weights, moments, cache", [plan.memory.held for plan in plans]),
        ("peak of an update", [plan.memory.learning + plan.gathered_learning for plan in plans]),
        ("  of it gathered weights", [plan.gathered_learning for plan in plans]),
        ("peak of sampling", [plan.memory.sampling + plan.gathered_sampling for plan in plans]),
        ("  of it gathered weights", [plan.gathered_sampling for plan in plans]),
    ]
    for name, sizes in rows:
        table.add_row(name, *(f"{size / GIB:,.1f}" for size in sizes))
    fits = ["[green]yes[/]" if plan.peak <= gpu.memory else "[red]no[/]" for plan in plans]
    table.add_row(f"fits in {gpu.memory / GIB:,.1f} GiB", *fits, end_section=True)
    table.add_row("largest group", *(most(plan.largest_group, MOST_COMPLETIONS, "") for plan in plans))
    table.add_row("longest completion", *(most(plan.longest_completion, MOST_TOKENS, "") for plan in plans))
    console.print(table)
    console.print(
        "\n[dim]GiB of the rank with the most groups, every completion at its longest. No layout was measured on "
        "GPUs.[/]"
    )
