"""The verbs `plan` and `doctor`, which start no run."""

from __future__ import annotations

from typing import Annotated

import typer

from grouprl.cli.words import ModelOption, Settings, app, run_config
from grouprl.types import UserError


@app.command()
def plan(
    settings: Settings = None,
    model: ModelOption = None,
    memory: Annotated[str | None, typer.Option(help="Such as 24GiB; default: this machine's GPU or RAM.")] = None,
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Length of the longest prompt.")] = 256,
    flops: Annotated[float | None, typer.Option(help="FLOPs per second, such as 4e14.")] = None,
    bandwidth: Annotated[float | None, typer.Option(help="Memory bandwidth in bytes per second, such as 3e12.")] = None,
    compare: Annotated[bool, typer.Option("--compare", help="PPO and GRPO for models of 1.5B to 70B.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """Estimate, before a run, its memory by part, the largest group that fits, and the least time of a step.

    This loads no model: its name or its config.json is enough.

    Example: grouprl plan demo

    Example: grouprl plan --model Qwen2.5-7B model.device=cuda --memory 80GiB --flops 4e14 --bandwidth 3e12

    Example: grouprl plan --compare model.device=cuda model.dtype=bfloat16
    """
    from grouprl.planner.screen import parse_memory, plan_run, show_comparison, show_plan
    from grouprl.planner.time import Rates

    if (flops is None) != (bandwidth is None):
        raise UserError("--flops, --bandwidth: expected both or neither, got one: add the other")
    config = run_config(settings, {"model.path": model})
    if compare:
        show_comparison(config, prompt_tokens, as_json=as_json)
        return
    rates = None if flops is None or bandwidth is None else Rates(flops, bandwidth, "as given")
    available = None if memory is None else parse_memory(memory)
    found = plan_run(config, prompt_tokens=prompt_tokens, available=available, rates=rates)
    show_plan(found, config.algorithm.name, as_json=as_json)


@app.command()
def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list instead of a table.")] = False,
) -> None:
    """Show what this machine can run: devices and their speed, kernels, sandbox, extras, versions, memory and disk.

    Example: grouprl doctor
    """
    from grouprl.planner.doctor import show_doctor

    show_doctor(as_json=as_json)
