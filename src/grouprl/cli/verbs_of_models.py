"""The verbs of model folders: `check-model`, `merge` and `push`. They import what they call when they are called."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from grouprl.cli import completion
from grouprl.cli.words import ANY_OPTION, Settings, TrustOption, app, run_config, settings_of_run, suggest, watched
from grouprl.record.places import model_at


@app.command("check-model", context_settings=ANY_OPTION)
@watched
def check_model(
    model: Annotated[str, typer.Argument(help="A bundled name, a folder in Hugging Face layout, or a hub id.")],
    settings: Settings = None,
    trust_code: TrustOption = None,
) -> None:
    """Check a checkpoint before a run: forward passes, context, window, template, end tokens, LoRA, memory.

    Exit code 1 when a run under these settings would be refused or wrong (docs/models.md).

    Example: grouprl check-model ./my-model

    Example: grouprl check-model Qwen/Qwen2.5-0.5B-Instruct rollout.max_tokens=1024
    """
    model = model_at(model)
    config = run_config([*settings_of_run(model), *(settings or [])], {"model.path": model}, trust=trust_code)
    from grouprl.cli.proofs import show_model_check

    if not show_model_check(config):
        raise typer.Exit(1)
    suggest(f"grouprl sample {model}", f"grouprl train --model {model}")


@app.command()
@watched
def merge(
    adapter: Annotated[str, typer.Argument(help="Folder of a LoRA adapter, such as a checkpoint.")],
    out: Annotated[Path, typer.Argument(help="New folder of the merged model.")],
) -> None:
    """Merge a LoRA adapter into its base model: an ordinary model in Hugging Face layout, float32 (docs/lora.md).

    Example: grouprl merge runs/lora/checkpoints/step-000100 merged
    """
    from grouprl.run.checkpoint import merge_checkpoint

    merge_checkpoint(model_at(adapter), out)
    typer.echo(f"Model: {out}")
    suggest(f"grouprl sample {out}", f"grouprl eval {out}")


@app.command()
def push(
    model: Annotated[
        str, typer.Argument(help="Run (its newest checkpoint), or model folder.", autocompletion=completion.models)
    ],
    repository: Annotated[str, typer.Argument(help="OWNER/NAME on the Hugging Face hub.")],
    public: Annotated[bool, typer.Option("--public", help="Make a new repository public, not private.")] = False,
) -> None:
    """Upload a checkpoint to the Hugging Face hub, without the state of its run (docs/run_directory.md).

    Nothing else uploads anything. A new repository is private.

    Example: grouprl push runs/demo my-name/my-model
    """
    from grouprl.run.push import push as upload

    typer.echo(f"Model: {upload(Path(model_at(model)), repository, public=public)}")
