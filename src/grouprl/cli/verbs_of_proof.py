"""The verbs that prove what a run did: `replay` and `selftest`. They import what they call when they are called."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from grouprl.cli.words import (
    ANY_OPTION,
    ModelOption,
    RewardOption,
    RunArgument,
    Settings,
    TaskOption,
    TrustOption,
    again,
    app,
    run_config,
    suggest,
    watched,
)
from grouprl.config.command_line import reward_settings
from grouprl.record.layout import RunDirectory


@app.command(context_settings=ANY_OPTION)
@watched
def replay(
    run: RunArgument,
    step: Annotated[int, typer.Argument(min=1, help="A recorded step.")],
    settings: Settings = None,
    reward: RewardOption = None,
    trust_code: TrustOption = None,
    as_json: Annotated[Path | None, typer.Option("--json", help="Write every value to this file.")] = None,
) -> None:
    """Recompute a recorded step without sampling, to the last bit, or under another algorithm or reward.

    Exit code 1 when the recomputed step does not equal the record. The run is not changed (docs/trust.md).

    Example: grouprl replay runs/demo 12

    Example: grouprl replay runs/demo 12 algorithm=dapo algorithm.clip_high=0.28

    Example: grouprl replay runs/demo 12 --reward my_rewards.py:short
    """
    saved = str(RunDirectory(run).config)
    config = run_config([saved], trust=trust_code)
    given = [*(settings or []), *(f"--reward {text}" for text in reward or ())]
    options = {"rewards": reward_settings(reward)}
    changed = run_config([saved, *(settings or [])], options, trust=trust_code) if given else None
    from grouprl.cli.proofs import show_replay
    from grouprl.tools.proof.replay import replay as recompute

    found = recompute(run, step, config, changed)
    show_replay(found, config.model.path, " ".join(given), as_json)
    if not found.is_identical:
        raise typer.Exit(1)
    suggest(f"grouprl replay {run} {step} algorithm=dapo", f"grouprl lab {run}")


@app.command(context_settings=ANY_OPTION)
@watched
def selftest(
    settings: Settings = None,
    model: ModelOption = None,
    task: TaskOption = None,
    trust_code: TrustOption = None,
) -> None:
    """Check your model and settings: the same log-probs and gradients in every layout, an exact resume after a kill.

    Exit code 1 when a check fails. It needs a minute for a small model and writes nothing (docs/trust.md).

    Example: grouprl selftest demo

    Example: grouprl selftest --model Qwen/Qwen2.5-0.5B-Instruct --task gsm8k
    """
    config = run_config(settings, {"model.path": model, "task.name": task}, trust=trust_code)
    from grouprl.cli.proofs import show_selftest

    if not show_selftest(config):
        raise typer.Exit(1)
    suggest(again("train", settings, {"--model": model, "--task": task}))
