"""`grouprl plan --gpus` shows the layouts of several GPUs side by side."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace

from rich.console import Console

from grouprl.config.run import RunConfig
from grouprl.tools.planner.layouts import LayoutPlan, parse_gpus, plan_layouts
from grouprl.tools.planner.memory import MOST_COMPLETIONS, MOST_TOKENS
from grouprl.tools.planner.screen import GIB, most, networks_of, step_of, table_of
from grouprl.tools.planner.shapes import shape_of


def show_layouts(
    config: RunConfig, gpus: str, prompt_tokens: int, *, as_json: bool, console: Console | None = None
) -> None:
    """Prints what each layout of some GPUs needs, and its least time of a step.

    Raises:
        UserError: the GPUs or the model's shape are unknown, or a number is out of range.
    """
    ranks, gpu = parse_gpus(gpus)
    dtype = "float32" if config.model.dtype == "float32" else "bfloat16"
    there = config.model.model_copy(update={"device": "cuda", "dtype": dtype})
    step = step_of(config.model_copy(update={"model": there}), prompt_tokens)
    shape, passes = shape_of(config.model.path), config.algorithm.updates.passes
    found = plan_layouts(shape, networks_of(config), step, ranks, gpu, passes=passes)
    if as_json:
        sums = ("peak", "step_seconds", "tokens_per_second")
        print(json.dumps([asdict(one) | {name: getattr(one, name) for name in sums} for one in found]))
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
    _print_table(console, found, gpu.memory)
    console.print(
        "\n[dim]GiB of the rank with the most groups. Seconds are a floor: products, reads and links at the rates of "
        "the data sheet, every completion at its longest. No layout was measured on GPUs.[/]"
    )


def _print_table(console: Console, found: Sequence[LayoutPlan], memory: int) -> None:
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
    fits = ["[green]yes[/]" if one.peak <= memory else "[red]no[/]" for one in found]
    table.add_row(f"fits in {memory / GIB:,.1f} GiB", *fits, end_section=True)
    table.add_row("largest group", *(most(one.largest_group, MOST_COMPLETIONS, "") for one in found))
    table.add_row("longest completion", *(most(one.longest_completion, MOST_TOKENS, "") for one in found))
    table.add_row("seconds a step, at least", *(f"{one.step_seconds:,.3g}" for one in found))
    table.add_row("  of it between ranks", *(f"{one.exchange:,.2g}" for one in found))
    table.add_row("tokens a second, at most", *(f"{one.tokens_per_second:,.0f}" for one in found))
    console.print(table)
