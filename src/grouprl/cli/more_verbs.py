"""The verbs beside a run: imports of configurations and models, lists, checks, uploads and proofs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from grouprl.cli import completion
from grouprl.cli.words import (
    ANY_OPTION,
    ModelArgument,
    ModelOption,
    RewardOption,
    RunArgument,
    Settings,
    TaskOption,
    TrustOption,
    again,
    app,
    run_config,
    settings_of_run,
    suggest,
    watched,
)
from grouprl.config.command_line import reward_settings
from grouprl.record.layout import RunDirectory
from grouprl.types import UserError

if TYPE_CHECKING:
    from grouprl.tools.imported.recipe import Line

_STYLES = {"unsupported": "red", "changed": "yellow", "equal": "green", "not needed": "cyan"}
_LONGEST = 60  # characters of a value in the table; the recipe has all of it
_NEEDED = {"model": "--model PATH", "task": "--task FILE.jsonl", "reward": "--reward FILE.py:FUNCTION"}


@app.command("import-config", context_settings=ANY_OPTION)
def import_config(
    file: Annotated[str, typer.Argument(help="TRL's YAML or JSON, or verl's YAML; or their command, pasted.")],
    changes: Annotated[
        list[str] | None, typer.Argument(help="KEY=VALUE, or --KEY VALUE, of that library, in place of the file's.")
    ] = None,
    output: Annotated[Path | None, typer.Option(help="The recipe; NAME.yaml, or NAME-grouprl.yaml beside it.")] = None,
    world: Annotated[
        int | None, typer.Option(min=1, help="Processes that train, which a TRL file does not say; 1.")
    ] = None,
    allow: Annotated[list[str] | None, typer.Option(help="An unsupported key to leave out. Repeatable.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
) -> None:
    """Make a recipe from a configuration of TRL or verl, and show what became of every key.

    Example: grouprl import-config grpo.yaml --world 4

    Example: grouprl import-config --learning_rate 1e-6 --num_generations 4

    Example: grouprl import-config --output qwen.yaml algorithm.adv_estimator=grpo actor_rollout_ref.rollout.n=8
    """
    from grouprl.tools.imported.read import read_words
    from grouprl.tools.imported.recipe import import_foreign, write_recipe

    path, foreign = read_words([file, *(changes or ())])
    imported = import_foreign(foreign, world=world or foreign.world or 1, allow=allow or ())
    target = output or Path(f"{path.stem if path else foreign.library}.yaml")
    if output is None and path is not None and target.exists() and target.samefile(path):
        target = Path(f"{path.stem}-grouprl.yaml")
    write_recipe(imported, path.name if path else f"settings of {foreign.library}", target, force=force)
    console = Console()
    for verdict, style in _STYLES.items():
        lines = [line for line in imported.lines if line.outcome.verdict == verdict]
        if not lines:
            continue
        heading = f"{verdict}: {len(lines)} {'key' if len(lines) == 1 else 'keys'}"
        console.print(Text(heading + (", skipped" if verdict == "unsupported" else ""), f"bold {style}"))
        if verdict == "not needed":
            reasons = dict.fromkeys(line.outcome.words for line in lines)
            for reason in reasons:
                console.print(Padding(Text(reason, "dim"), (0, 0, 0, 2), expand=False))
                keys = [_there(line) for line in lines if line.outcome.words == reason]
                console.print(Padding(Text(", ", overflow="fold").join(keys), (0, 0, 0, 6), expand=False))
            continue
        for line in lines:
            here = ", ".join(f"{key}={_shown(value)}" for key, value in line.outcome.ours.items())
            words = Text(f" -> {here}" if here else "")
            if line.outcome.words:
                words.append(f" ({line.outcome.words})", "dim")
            console.print(Padding(_there(line) + words, (0, 0, 0, 2), expand=False))
    if any(not line.is_named for line in imported.lines):
        library = {"trl": "TRL 1.16", "verl": "verl 0.9.1"}[imported.library]
        console.print(Text(f"(KEY): a default of {library}, which the file does not name", "dim"))
    needed = "".join(f" {_NEEDED[name]}" for name in imported.missing)
    typer.echo(f"Wrote {target}. Run it: grouprl train {target}{needed}")


def _there(line: Line) -> Text:
    text = f"{line.key}={_shown(getattr(line.value, 'text', line.value))}"
    return Text(text if line.is_named else f"({text})", overflow="fold")


def _shown(value: Any) -> str:
    text = " ".join((value if isinstance(value, str) else json.dumps(value, default=str)).split())
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


@app.command()
def tasks(
    name: Annotated[
        str | None, typer.Argument(help="One task, with examples.", autocompletion=completion.tasks)
    ] = None,
) -> None:
    """List the tasks: their problems, verifiers and an example of each.

    Example: grouprl tasks countdown
    """
    from grouprl.cli.listing import show_tasks

    show_tasks(name)


@app.command()
def settings(
    prefix: Annotated[
        str,
        typer.Argument(help="A section or the beginning of a key, such as rollout.", autocompletion=completion.keys),
    ] = "",
) -> None:
    """List the settings of a run: key, default, meaning.

    Example: grouprl settings rollout
    """
    from grouprl.cli.settings import show_settings

    show_settings(prefix)


@app.command()
def doctor(
    model: ModelOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list instead of a table.")] = False,
) -> None:
    """Show what this machine can run: devices and their speed, kernels, sandbox, extras, versions, memory and disk.

    With a model, how many tokens a second it samples and learns from here; `grouprl plan RECIPE` gives minutes.

    Example: grouprl doctor

    Example: grouprl doctor --model smollm2
    """
    from grouprl.tools.planner.doctor import show_doctor

    show_doctor(model, as_json=as_json)


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


@app.command("export-model")
@watched
def export_model(
    model: ModelArgument,
    out: Annotated[Path, typer.Argument(help="New file that ends in .gguf.")],
    kind: Annotated[str, typer.Option("--type", help="Of the matrices: f16, q8_0 or f32.")] = "q8_0",
) -> None:
    """Write a model as a GGUF file, for llama.cpp, Ollama and vLLM; an adapter is merged (docs/models.md).

    Example: grouprl export-model runs/smollm2_sums sums.gguf --type f16
    """
    from grouprl.tools.gguf_export import export_gguf

    typer.echo(f"Model: {export_gguf(model, out, kind)}")
    suggest(f"grouprl sample {out}")


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
    repository: Annotated[str, typer.Argument(help="OWNER/NAME on the Hugging Face hub, or a NAME of yours.")],
    public: Annotated[bool, typer.Option("--public", help="Make a new repository public, not private.")] = False,
) -> None:
    """Upload a checkpoint to the Hugging Face hub, without the state of its run (docs/run_directory.md).

    Nothing else uploads anything. A new repository is private.

    Example: grouprl push runs/demo my-name/my-model
    """
    from grouprl.tools.push import push as upload

    typer.echo(f"Model: {upload(Path(model), repository, public=public).commit_url}")


@app.command(context_settings=ANY_OPTION)
@watched
def replay(
    run: RunArgument,
    step: Annotated[int, typer.Argument(min=1, help="A recorded step.")],
    settings: Settings = None,
    reward: RewardOption = None,
    trust_code: TrustOption = None,
    as_json: Annotated[Path | None, typer.Option("--json", help="Write every value to this file.")] = None,
    branch: Annotated[bool, typer.Option("--branch", help="Show what other tokens of a completion change.")] = False,
    problem: Annotated[str | None, typer.Option(help="With --branch: its id; else one with a signal.")] = None,
    completion: Annotated[int, typer.Option(min=0, help="With --branch: its index in the group.")] = 0,
    position: Annotated[list[int] | None, typer.Option(help="With --branch: of a token, from 0. Repeatable.")] = None,
    tokens: Annotated[int, typer.Option(min=1, help="With --branch: most positions, without --position.")] = 16,
    alternatives: Annotated[int, typer.Option(min=1, help="With --branch: most other tokens at a position.")] = 3,
    least: Annotated[float, typer.Option(min=0, max=1, help="With --branch: their least probability.")] = 0.01,
) -> None:
    """Recompute a recorded step without sampling, to the last bit, or under another algorithm or reward.

    Exit code 1 when the recomputed step does not equal the record. The run is not changed (docs/trust.md).

    With --branch: change single tokens of a completion, and sample the rest at the same random numbers.

    Example: grouprl replay runs/demo 12

    Example: grouprl replay runs/demo 12 --branch --completion 2

    Example: grouprl replay runs/demo 12 algorithm=dapo algorithm.clip_high=0.28

    Example: grouprl replay runs/demo 12 --reward my_rewards.py:short
    """
    saved = str(RunDirectory(run).config)
    config = run_config([saved], trust=trust_code)
    from grouprl.cli.proofs import show_branches
    from grouprl.run.code import refuse_changed_algorithm
    from grouprl.tools.proof.branches import Selection

    refuse_changed_algorithm(run, config.algorithm.name, trust_code or ())
    selection = Selection(problem, completion, tuple(position or ()), tokens, alternatives, least)
    if (settings or reward or as_json) if branch else selection != Selection():
        raise UserError(
            "replay: expected --branch without KEY=VALUE, --reward and --json, and its own options only with it, got "
            "a mix: remove one"
        )
    if branch:
        show_branches(run, step, config, selection)
        suggest(f"grouprl lab {run}")
        return
    changes = [*(settings or []), *(f"--reward {text}" for text in reward or ())]
    options = {"rewards": reward_settings(reward)}
    changed = run_config([saved, *(settings or [])], options, trust=trust_code) if changes else None
    from grouprl.cli.proofs import show_replay
    from grouprl.tools.proof.replay import replay as recompute

    replayed = recompute(run, step, config, changed)
    show_replay(replayed, config.model.path, " ".join(changes), as_json)
    if not replayed.is_identical:
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
