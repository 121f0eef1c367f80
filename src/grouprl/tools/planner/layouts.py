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
    found = re.fullmatch(r"([1-9][0-9]{0,4})x([A-Za-z0-9]+)", text.strip())
    if not found:
        raise UserError(f"--gpus: expected a number and a GPU, such as 8xH100, got {text!r}: write it so")
    if found[2].upper() not in GPUS:
        raise unknown_name("--gpus", found[2], GPUS)
    return int(found[1]), GPUS[found[2].upper()]


def plan_layouts(shape: ModelShape, networks: Networks, step: StepShape, ranks: int, gpu: Gpu) -> list[LayoutPlan]:
    """The layouts of some GPUs: whole weights on each rank, and weights sharded over the ranks of a machine.

    Args:
        shape: of the policy; reference, critic and reward model are as large.
        networks: the networks of the run.
        step: the batch of all ranks together.
        ranks: the GPUs.
        gpu: their kind.
    """
    found = [plan_layout(shape, networks, step, RankLayout(ranks, 1), gpu)]
    saves = networks.paged or networks.reference_on_cpu
    whole = saves or {networks.weights, networks.moments} != {"float32"}  # refused with shards
    if (shard := min(ranks, gpu.machine)) > 1 and not whole:
        found.append(plan_layout(shape, networks, step, RankLayout(ranks, shard), gpu))
    return found


def plan_layout(shape: ModelShape, networks: Networks, step: StepShape, layout: RankLayout, gpu: Gpu) -> LayoutPlan:
    """The plan of one layout; see `plan_layouts`."""
    own = replace(step, problems=math.ceil(step.problems / layout.ranks))
    learning = sampling = 0  # bytes of whole weights beside the shards
    if layout.shard > 1:
        size, layers = SIZES[step.dtype], shape.decoder_parameters - shape.embedding_parameters
        embeddings, layer = shape.parameters - layers, layers // shape.layers
        # Two layers: the one that computes, and the next; and the whole gradient of one, before it is divided.
        gradient = FLOAT32 * (layer + embeddings) if networks.lora_rank is None else 0
        learning = FLOAT32 * embeddings + 2 * size * layer + gradient
        sampling = FLOAT32 * embeddings + size * layers

    def peak(tried: StepShape) -> int:
        rank = replace(tried, problems=own.problems)
        memory = memory_of_rank(shape, networks, rank, layout)
        return max(memory.learning + learning, memory.sampling + sampling)

    return LayoutPlan(
        layout=layout,
        memory=memory_of_rank(shape, networks, own, layout),
        gathered_learning=learning,
        gathered_sampling=sampling,
        largest_group=largest_group(step, gpu.memory, peak),
        longest_completion=longest_completion(step, gpu.memory, peak),
    )


def memory_of_rank(shape: ModelShape, networks: Networks, own: StepShape, layout: RankLayout) -> MemoryPlan:
    """Bytes of a rank, without whole weights beside its shards; `own` is its part of the batch."""
    whole = plan_memory(shape, networks, own, sharded=layout.shard > 1)
    if layout.shard == 1:
        return whole
    held = {
        field.name: math.ceil(getattr(whole.networks, field.name) / layout.shard) for field in fields(whole.networks)
    }
    return replace(
        whole,
        networks=replace(whole.networks, **held),
        update=replace(
            whole.update,
            gradients=math.ceil(whole.update.gradients / layout.shard),
            critic_gradients=math.ceil(whole.update.critic_gradients / layout.shard),
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
    there = config.model.model_copy(update={"device": "cuda", "dtype": dtype})
    step = step_of(config.model_copy(update={"model": there}), prompt_tokens)
    shape = shape_of(config.model.path)
    found = plan_layouts(shape, networks_of(config), step, ranks, gpu)
    if as_json:
        print(json.dumps([asdict(one) | {"peak": one.peak} for one in found]))
        return
    console = console or Console(highlight=False)
    own = -(-step.problems // ranks)
    packs = replace(step, problems=own).packs
    console.print(f"[bold]{shape.name}[/], {shape.parameters:,} parameters, {config.algorithm.name}, on {gpus}")
    console.print(
        f"{step.problems} problems x {step.group_size} completions = {step.problems * step.group_size} a step, at most "
        f"{own} x {step.group_size} a rank, in {step.minibatches} minibatches of {len(packs)} packs, the largest of "
        f"{max(pack.tokens for pack in packs):,} tokens; {step.prompt_tokens} + {step.completion_tokens} tokens, "
        f"{step.dtype}\n"
    )
    names = [
        "whole weights" if one.layout.shard == 1 else f"distributed.shard=true, on {one.layout.shard}" for one in found
    ]
    table = table_of("a rank", *names)
    rows = [
        ("weights, moments, cache", [one.memory.held for one in found]),
        ("peak of an update", [one.memory.learning + one.gathered_learning for one in found]),
        ("  of it gathered weights", [one.gathered_learning for one in found]),
        ("peak of sampling", [one.memory.sampling + one.gathered_sampling for one in found]),
        ("  of it gathered weights", [one.gathered_sampling for one in found]),
    ]
    for name, sizes in rows:
        table.add_row(name, *(f"{size / GIB:,.1f}" for size in sizes))
    fits = ["[green]yes[/]" if one.peak <= gpu.memory else "[red]no[/]" for one in found]
    table.add_row(f"fits in {gpu.memory / GIB:,.1f} GiB", *fits, end_section=True)
    table.add_row("largest group", *(most(one.largest_group, MOST_COMPLETIONS, "") for one in found))
    table.add_row("longest completion", *(most(one.longest_completion, MOST_TOKENS, "") for one in found))
    console.print(table)
    console.print(
        "\n[dim]GiB of the rank with the most groups, every completion at its longest. No layout was measured on "
        "GPUs.[/]"
    )
