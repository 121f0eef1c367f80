"""The verbs of model folders: `check-model`, `merge` and `push`. They import what they call when they are called."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from grouprl.cli.words import (
    ANY_OPTION,
    ModelArgument,
    Settings,
    TrustOption,
    app,
    run_config,
    settings_of_run,
    suggest,
    watched,
)


@app.command("check-model", context_settings=ANY_OPTION)
@watched
def check_model(
    model: ModelArgument,
    settings: Settings = None,
    trust_code: TrustOption = None,
) -> None:
    """Check a checkpoint before a run: forward passes, context, window, template, end tokens, LoRA, memory.

    Exit code 1 when a run under these settings would be refused or wrong (docs/models.md).

    Example: grouprl check-model ./my-model

    Example: grouprl check-model Qwen/Qwen2.5-0.5B-Instruct rollout.max_tokens=1024
    """
    config = run_config([*settings_of_run(model), *(settings or [])], {"model.path": model}, trust=trust_code)
    from grouprl.cli.proofs import show_model_check

    if not show_model_check(config):
        raise typer.Exit(1)
    suggest(f"grouprl sample {model}", f"grouprl train --model {model}")


@app.command("import-model")
@watched
def import_model(
    file: Annotated[Path, typer.Argument(help="A GGUF file, as llama.cpp and Ollama have them.")],
    out: Annotated[Path | None, typer.Argument(help="New folder; default: beside the file, without .gguf.")] = None,
) -> None:
    """Write the model of a GGUF file in Hugging Face layout, in float32, with its tokenizer and chat template.

    Where a model is named, a GGUF file is imported in the same way, once (docs/models.md).

    Example: grouprl import-model SmolLM2-135M-Instruct.Q4_1.gguf smollm2
    """
    from grouprl.tools.gguf import import_gguf

    folder = import_gguf(file, out)
    typer.echo(f"Model: {folder}")
    suggest(f"grouprl sample {folder}", f"grouprl train --model {folder}")


@app.command()
@watched
def merge(
    adapter: ModelArgument,
    out: Annotated[Path, typer.Argument(help="New folder of the merged model.")],
) -> None:
    """Merge a LoRA adapter into its base model: an ordinary model in Hugging Face layout, float32 (docs/models.md).

    Example: grouprl merge runs/lora/checkpoints/step-000100 merged
    """
    from grouprl.run.checkpoint import merge_checkpoint

    merge_checkpoint(adapter, out)
    typer.echo(f"Model: {out}")
    suggest(f"grouprl sample {out}", f"grouprl eval {out}")


@app.command()
def push(
    model: ModelArgument,
    repository: Annotated[str, typer.Argument(help="OWNER/NAME on the Hugging Face hub.")],
    public: Annotated[bool, typer.Option("--public", help="Make a new repository public, not private.")] = False,
) -> None:
    """Upload a checkpoint to the Hugging Face hub, without the state of its run (docs/run_directory.md).

    Nothing else uploads anything. A new repository is private.

    Example: grouprl push runs/demo my-name/my-model
    """
    from grouprl.tools.push import push as upload

    typer.echo(f"Model: {upload(Path(model), repository, public=public)}")
