"""`grouprl plan` shows the memory of a run, and its time on this CPU, on one screen before anything is loaded."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass

import torch
from rich.console import Console
from rich.table import Table

from grouprl.algorithms.values import CopiedCritic
from grouprl.config.run import RunConfig
from grouprl.forward.devices import device_type
from grouprl.forward.precision import faster_dtype
from grouprl.forward.recompute import recomputes
from grouprl.learner.optimizer import refuse_paged
from grouprl.tools.planner.fits import MOST_COMPLETIONS, MOST_TOKENS, largest_group, longest_completion
from grouprl.tools.planner.machine import read_rate, total_memory
from grouprl.tools.planner.memory import BLOCKS, PARTS, MemoryPlan, Networks, StepShape, plan_memory
from grouprl.tools.planner.shapes import ModelShape, shape_of
from grouprl.tools.planner.time import Pace, PromptSizes, measured_pace
from grouprl.types import UserError

GIB = 1 << 30
_UNITS = {"MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40, "MB": 10**6, "GB": 10**9, "TB": 10**12}


@dataclass(frozen=True)
class RunPlan:
    """The memory and time of a run, and what fits."""

    shape: ModelShape
    networks: Networks
    step: StepShape
    memory: MemoryPlan
    available: int  # bytes
    largest_group: int  # completions that fit; 0 = none
    longest_completion: int  # tokens that fit; 0 = none
    pace: Pace | None  # an estimate; None = not of this machine's CPU

    @property
    def fits(self) -> bool:
        """Whether the peak fits in the available memory."""
        return self.memory.peak <= self.available


def plan_run(
    config: RunConfig,
    *,
    prompt_tokens: int,
    available: int | None,
    sizes: PromptSizes | None = None,
) -> RunPlan:
    """Makes the plan of a configuration.

    Args:
        config: the run; it reads only config.json of the model.
        prompt_tokens: length of the longest prompt, which the configuration does not contain.
        available: bytes; None = the memory of this machine's GPU, or of this machine.
        sizes: what is known of the prompts; None = all are as long, and share nothing.

    Raises:
        UserError: the model's shape is unknown, or a number is out of range.
    """
    sizes = sizes or PromptSizes(prompt_tokens, prompt_tokens)
    shape, networks = shape_of(config.model.path), networks_of(config)
    step = step_of(config, prompt_tokens, sizes.shared, sizes.held_out)
    memory = plan_memory(shape, networks, step)

    def peak(tried: StepShape) -> int:
        return plan_memory(shape, networks, tried).peak

    if available is None:
        available = total_memory(step.device)
    pace = None
    if step.device == "cpu":
        bandwidth = read_rate("cpu", memory.networks.policy + memory.rollout.cache)
        pace = measured_pace(config, shape, networks, step, bandwidth, sizes)
    return RunPlan(
        shape=shape,
        networks=networks,
        step=step,
        memory=memory,
        available=available,
        largest_group=largest_group(step, available, peak),
        longest_completion=longest_completion(step, available, peak),
        pace=pace,
    )


def networks_of(config: RunConfig) -> Networks:
    """Returns the networks of a configuration. A critic that shares the policy's trunk counts as none."""
    lora, distill = config.model.lora, config.algorithm.distill
    teacher = None if distill is None or distill.path is None else shape_of(distill.path, "algorithm.distill_teacher")
    return Networks(
        reference=config.algorithm.kl is not None,
        critic=isinstance(config.algorithm.critic, CopiedCritic),
        reward_model=any(reward.path and not reward.path.endswith(".py") for reward in config.rewards),
        teacher_hidden=0 if distill is None else (teacher or shape_of(config.model.path)).hidden,
        teacher=0 if teacher is None else teacher.parameters,
        lora_rank=None if lora is None else lora.rank,
        weights=config.model.weights,
        moments=config.learner.moments,
        paged=config.learner.paged,
        reference_on_cpu=config.model.reference == "cpu",
    )


def step_of(config: RunConfig, prompt_tokens: int, shared_tokens: int = 0, held_out: int = 1 << 30) -> StepShape:
    """Returns the step of a configuration.

    Its prompts begin with the same `shared_tokens`; the task has `held_out` problems for evaluations.

    Raises:
        UserError: the moments are paged, and the device cannot move its memory to the machine's.
    """
    rollout, device, dtype = config.rollout, device_type(config.model.device), config.model.dtype
    dtype = dtype if config.model.weights == "float32" else "bfloat16"
    refuse_paged(config.learner, device)
    return StepShape(
        problems=rollout.problems_per_step,
        group_size=rollout.group_size,
        prompt_tokens=prompt_tokens,
        completion_tokens=rollout.max_tokens,
        max_rows=rollout.max_rows,
        minibatches=config.algorithm.updates.minibatches,
        micro_batch_tokens=config.learner.micro_batch_tokens,
        dtype=faster_dtype(torch.device(device)) if dtype == "auto" else dtype,
        device=device,
        recompute=recomputes(config.learner.recompute, device),
        threads=config.model.threads or torch.get_num_threads(),
        shared_tokens=shared_tokens,
        held_out=min(config.evaluation.problems, held_out),
        samples=config.evaluation.samples,
    )


def parse_memory(text: str) -> int:
    """Parses an amount such as 24GiB or 80GB to bytes.

    >>> parse_memory("1.5GiB"), parse_memory("80 GB")
    (1610612736, 80000000000)
    """
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?([A-Za-z]+)", text.strip())
    if not match or match[2] not in _UNITS:
        raise UserError(f"--memory: expected an amount with a unit ({', '.join(_UNITS)}), got {text!r}: write 24GiB")
    return int(float(match[1]) * _UNITS[match[2]])


def show_plan(plan: RunPlan, algorithm: str, *, as_json: bool, console: Console | None = None) -> None:
    """Prints one plan: memory by part, what fits, the time on this CPU."""
    if as_json:
        print(json.dumps(asdict(plan) | {"fits": plan.fits, "parameters": plan.shape.parameters, **plan.memory.sums}))
        return
    console = console or Console(highlight=False)
    step, shape = plan.step, plan.shape
    console.print(f"[bold]{shape.name}[/], {shape.parameters:,} parameters, {algorithm}")
    console.print(
        f"{step.problems} problems x {step.group_size} completions, {step.prompt_tokens} + {step.completion_tokens} "
        f"tokens, {step.dtype} on {step.device}"
        + (f"; the first {step.shared_tokens} of every prompt are read once\n" if step.shared_tokens else "\n")
    )
    table = table_of("memory", "GiB")
    for name, parts in plan.memory.blocks.items():
        for part, size in parts.items():
            table.add_row(f"  {PARTS[part]}", f"[dim]{_gib(size)}[/]")
        table.add_row(f"[bold]{BLOCKS[name]}[/]", f"[bold]{_gib(plan.memory.sums[name])}[/]", end_section=True)
    console.print(table)
    verdict = "[green]fits in[/]" if plan.fits else "[red]does not fit in[/]"
    console.print(f"\nThe peak of {_gib(plan.memory.peak)} GiB {verdict} {_gib(plan.available)} GiB.")
    console.print(f"Largest group that fits: {most(plan.largest_group, MOST_COMPLETIONS, 'completions')}.")
    console.print(
        f"Longest completion that fits: {most(plan.longest_completion, MOST_TOKENS, 'tokens')}.\n"
        "[dim]Memory counts tensors, every completion at its longest; a process needs about 0.4 GiB more.[/]"
    )
    if (pace := plan.pace) is not None:
        few, many = (f"{seconds / 60:,.1f}" for seconds in pace.seconds)
        each, test = (" to ".join(f"{seconds:,.3g}" for seconds in pair) for pair in (pace.step, pace.evaluation))
        console.print(
            f"\nThis machine samples about {pace.sampling:,.0f} tokens a second and learns from {pace.learning:,.0f}. "
            f"[bold]{few} to {many} minutes[/]: steps of {each} s, {pace.evaluations} evaluations of {test} s.\n[dim]"
            "Estimated from products of this model's sizes, timed now, for completions half as long as allowed and as "
            "long; groups without signal take less. Loading, saving and rewards come on top.[/]"
        )


def table_of(first: str, *others: str) -> Table:
    """A table with a first column of names, and numbers."""
    table = Table(header_style="bold", show_edge=False, pad_edge=False)
    table.add_column(first, no_wrap=True)
    for heading in others:
        table.add_column(heading, justify="right")
    return table


def most(count: int, limit: int, unit: str) -> str:
    """A number that fits; `limit` is the largest that was tried."""
    if not count:
        return "none"
    return f"{count:,} {unit}".strip() + (" or more" if count == limit else "")


def _gib(size: int) -> str:
    return f"{size / GIB:,.3f}" if size < GIB else f"{size / GIB:,.1f}"
