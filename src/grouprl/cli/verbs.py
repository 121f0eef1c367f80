"""The verbs: each builds a configuration and calls one function, which it imports when it is called."""

from __future__ import annotations

import json
import shlex
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from grouprl.cli.words import (
    ANY_OPTION,
    ModelArgument,
    ModelOption,
    RewardOption,
    RunArgument,
    RunOrFolderArgument,
    Settings,
    TaskOption,
    TrustOption,
    again,
    app,
    check_models,
    configured,
    is_settings_file,
    place_of_run,
    run_config,
    settings_of_run,
    suggest,
    watched,
)
from grouprl.config.command_line import reward_settings
from grouprl.leaves import leaf
from grouprl.record.layout import RunDirectory, has_failed, run_at
from grouprl.types import UserError


@app.command(context_settings=ANY_OPTION)
@watched
def train(
    settings: Settings = None,
    model: ModelOption = None,
    task: TaskOption = None,
    reward: RewardOption = None,
    algorithm: Annotated[
        str | None, typer.Option(help="A name of docs/algorithms.md, or FILE.py:NAME of an Algorithm of your own.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Folder of the run inside runs/.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume from the run's newest checkpoint.")] = False,
    step: Annotated[
        int | None, typer.Option(min=0, help="With --resume: the checkpoint to resume from; 0 = the start.")
    ] = None,
    trust_code: TrustOption = None,
) -> None:
    """Train a policy with GRPO or another algorithm of its family (docs/algorithms.md).

    Example: grouprl train demo seed=1 --name demo-1

    Example: grouprl train demo algorithm=dapo algorithm.clip_high=0.3

    Example: grouprl train --model Qwen/Qwen2.5-0.5B-Instruct --task gsm8k rollout.max_tokens=512

    Example: grouprl train demo algorithm=my_algorithms.py:mine

    Example: grouprl train --resume runs/demo-1

    Example: grouprl train demo --reward correct_answer --reward my_rewards.py:short=0.2
    """
    options_by_key = {"model.path": model, "task.name": task, "name": name, "rewards": reward_settings(reward)}
    options_by_key |= {"algorithm.name": algorithm}
    for text in settings or [] if resume else ():
        if "=" not in text and not text.startswith("-") and not is_settings_file(text):
            run_at(text)
    options = place_of_run(settings) if resume else {}
    options |= {key: value for key, value in options_by_key.items() if value is not None}
    config = run_config(settings, options, trust=trust_code)
    from grouprl.run.resume import resumes, saved_path, with_run_dtype

    if step is not None and not resume:
        raise UserError("--step: expected --resume with it, got none: add --resume")
    directory = Path(config.runs_dir) / config.name
    resume = resumes(directory, asked=resume)
    if resume:
        saved = str(saved_path(directory))
        config = run_config([saved, *(settings or [])], options, trust=trust_code)
    from grouprl.run.opened import OpenedRun
    from grouprl.run.train import run_to_end
    from grouprl.trainer.terminal import Terminal

    run = OpenedRun(with_run_dtype(config, resume=resume))
    display, code = Terminal(), trust_code or ()
    end = run_to_end(run.config, run.task, run.rewards, display=display, resume=resume, step=step, trust_code=code)
    if not end.finished:
        raise typer.Exit(130)


@app.command(context_settings=ANY_OPTION)
@watched
def sft(settings: Settings = None, model: ModelOption = None, task: TaskOption = None) -> None:
    """Fine-tune on prompt/completion pairs: the cold start before reinforcement learning.

    Example: grouprl sft abacus_sft out=my-abacus

    Example: grouprl sft --model runs/a/model pairs.path=pairs.jsonl learner.learning_rate=1e-4

    Example: grouprl sft --model abacus pairs.run=runs/demo learner.learning_rate=5e-4
    """
    check_models(settings, {"model.path": model})
    config = configured(leaf("supervised.sft"), settings, {"model.path": model, "task.name": task})
    from grouprl.supervised.sft import sft as run

    model = str(run(config))
    typer.echo(f"Model: {model}")
    suggest(f"grouprl sample {model}", f"grouprl train --model {model}")


@app.command(context_settings=ANY_OPTION)
@watched
def dpo(settings: Settings = None, model: ModelOption = None) -> None:
    """Learn from preference pairs without sampling: direct preference optimization.

    The pairs are the best and worst completions of a recorded run's groups, or a file's lines of
    {"prompt": ..., "chosen": ..., "rejected": ...}.

    Example: grouprl dpo abacus_dpo preferences.run=runs/demo

    Example: grouprl dpo --model runs/a/model preferences.path=pairs.jsonl learner.learning_rate=1e-6
    """
    check_models(settings, {"model.path": model})
    config = configured(leaf("supervised.dpo"), settings, {"model.path": model})
    from grouprl.supervised.preference_learning import dpo as run

    model = str(run(config))
    typer.echo(f"Model: {model}")
    suggest(f"grouprl eval {model}", f"grouprl sample {model}")


@app.command("reward-model", context_settings=ANY_OPTION)
@watched
def reward_model(settings: Settings = None, model: ModelOption = None) -> None:
    """Train a reward model on preference pairs, for use as a reward in training.

    The pairs are the best and worst completions of a recorded run's groups, or a file's lines of
    {"prompt": ..., "chosen": ..., "rejected": ...}.

    Example: grouprl reward-model abacus_reward_model preferences.run=runs/demo

    Example: grouprl train demo 'rewards=[{name: reward_model, path: runs/reward-model/model}]'
    """
    check_models(settings, {"model.path": model})
    config = configured(leaf("supervised.reward-model"), settings, {"model.path": model})
    from grouprl.supervised.preference_learning import train_reward_model

    model = str(train_reward_model(config))
    typer.echo(f"Reward model: {model}")
    suggest(f"grouprl train --reward {model}:reward_model")


@app.command("eval", context_settings=ANY_OPTION)
@watched
def evaluate(
    checkpoint: ModelArgument,
    settings: Settings = None,
    task: TaskOption = None,
    trust_code: TrustOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
    pass_at: Annotated[
        int | None, typer.Option("--pass-at", min=1, help="pass@k for k = 1, 2, 4 ... this number of samples.")
    ] = None,
    beside: Annotated[
        str | None, typer.Option("--beside", help="With --pass-at: a second model, such as the one before training.")
    ] = None,
) -> None:
    """Evaluate a model on held-out problems: greedy accuracy, pass@k, 95 % intervals.

    A checkpoint of a run is evaluated on that run's task by default.

    Example: grouprl eval runs/demo

    Example: grouprl eval runs/demo/checkpoints/step-000060 evaluation.samples=16

    Example: grouprl eval runs/demo --pass-at 256 --beside abacus
    """
    options: dict[str, object] = {"model.path": checkpoint, "task.name": task, "evaluation.samples": pass_at}
    of_run = settings_of_run(checkpoint)
    config = run_config([*of_run, *(settings or [])], options, trust=trust_code)
    from grouprl.cli.inspection import show_evaluation, show_pass_at

    models = {checkpoint: config}
    if beside is not None:
        if beside == checkpoint:
            raise UserError(f"--beside: expected another model than {checkpoint}, got the same: name a second one")
        try:
            check_models(None, {"model.path": beside})
        except UserError as error:
            raise UserError(f"--beside: {error}") from None
        if pass_at is None:
            raise UserError(f"--beside {beside}: expected --pass-at with it, got none: add --pass-at 64")
        models[beside] = run_config([*of_run, *(settings or [])], {**options, "model.path": beside}, trust=trust_code)
    if pass_at is None:
        show_evaluation(config, as_json=as_json)
    else:
        show_pass_at(models, as_json=as_json)
    theirs, split = run_config(of_run, options, trust=trust_code).evaluation.split, config.evaluation.split
    if of_run and theirs != split != "train":
        typer.echo(f"The run evaluates {theirs}: if its data has no split {split}, it trained on these rows.", err=True)
    if not as_json:
        suggest(f"grouprl sample {checkpoint}")


@app.command(context_settings=ANY_OPTION)
@watched
def sample(
    model: ModelArgument = "abacus",
    settings: Settings = None,
    task: TaskOption = None,
    problem: Annotated[int, typer.Option(min=0, help="Index of a problem in evaluation.split.")] = 0,
    prompt: Annotated[str | None, typer.Option(help="Your own prompt instead, without rewards.")] = None,
    trust_code: TrustOption = None,
) -> None:
    """Show one prompt's group of completions, with rewards and advantages.

    Example: grouprl sample abacus --problem 3 rollout.group_size=8
    """
    options = {"model.path": model, "task.name": task}
    if len(words := [text for text in settings or [] if "=" not in text and not is_settings_file(text)]) > 1:
        text = " ".join(words)
        raise UserError(f"{text}: expected KEY=VALUE, got several words: quote a prompt, --prompt {shlex.quote(text)}")
    config = run_config([*settings_of_run(model), *(settings or [])], options, trust=trust_code)
    from grouprl.cli.inspection import show_group

    show_group(config, problem=problem, prompt=prompt)
    suggest(f"grouprl sample {model} --problem {problem + 1}", f"grouprl eval {model}")


@app.command(context_settings=ANY_OPTION)
def compare(
    settings: Settings = None,
    vary: Annotated[str | None, typer.Option(help="KEY=VALUE,VALUE: one variant for each value.")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Number of seeds, from 0.")] = None,
    name: Annotated[str | None, typer.Option(help="Folder of the comparison inside runs/.")] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="With its key `quick`: a few minutes instead of hours.")
    ] = False,
    trust_code: TrustOption = None,
) -> None:
    """Compare algorithms or settings on the same problems and seeds: paired intervals, curves, one report.

    The same command continues a stopped comparison, and writes the report of a finished one again.

    Example: grouprl compare demo --vary algorithm=grpo,dr_grpo,rloo --seeds 3 --name mine

    Example: grouprl compare claims --quick jobs=2 only=[group_size]

    Example: grouprl compare runs/mine trl:theirs/checkpoint-500/trainer_state.json
    """
    if settings and settings[-1].startswith("trl:"):
        from grouprl.tools.compare.trl_log import rows_beside

        rows = list(rows_beside(settings[0], Path(settings[-1].removeprefix("trl:"))))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            typer.echo("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)))
        return
    options = {"seeds": None if seeds is None else list(range(seeds)), "name": name}
    changes = [f"{key}={json.dumps(value)}" for key, value in options.items() if value is not None]
    from grouprl.tools.compare.settings import load_comparison
    from grouprl.tools.compare.variants import compare as run

    config = load_comparison([*(settings or []), *changes], vary, quick=quick)
    compared = run(config, partial(run_config, trust=trust_code))
    if compared.failed:
        raise typer.Exit(1)
    if not compared.finished:
        raise typer.Exit(130)
    suggest(f"grouprl lab {Path(config.runs_dir) / config.name}")


@app.command("check-reward", context_settings=ANY_OPTION)
@watched
def check_reward(
    settings: Settings = None,
    task: TaskOption = None,
    reward: RewardOption = None,
    problems: Annotated[int, typer.Option(min=1, help="Number of train problems to try.")] = 32,
    run: Annotated[Path | None, typer.Option(help="A run: its settings, and its completions are scored, too.")] = None,
    trust_code: TrustOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """Check, before training, whether cheap tricks earn more than gold answers. Exit code 1 when one does.

    Example: grouprl check-reward --task countdown

    Example: grouprl check-reward demo --reward my_rewards.py:short

    Example: grouprl check-reward --run runs/demo
    """
    options = {"task.name": task, "rewards": reward_settings(reward)}
    saved = [] if run is None else [str(RunDirectory(run).config)]
    config = run_config([*saved, *(settings or [])], options, trust=trust_code)
    from grouprl.tools.check_reward import check_reward as check

    if not check(config, problems=problems, run=run, as_json=as_json).passed:
        raise typer.Exit(1)
    if not as_json:
        suggest(again("train", settings, {"--task": task}))


@app.command("check-data", context_settings=ANY_OPTION)
@watched
def check_data(
    settings: Settings = None,
    model: ModelOption = None,
    task: TaskOption = None,
    reward: RewardOption = None,
    problems: Annotated[int, typer.Option(min=2, help="Number of train problems to try.")] = 200,
    samples: Annotated[int, typer.Option(min=2, max=1024, help="Completions of each.")] = 16,
    band: Annotated[tuple[float, float], typer.Option(help="Pass rates of problems to train on.")] = (0.1, 0.9),
    write: Annotated[Path | None, typer.Option(help="New file of them: rollout.curriculum.chosen=FILE.")] = None,
    page: Annotated[Path | None, typer.Option(help="New file of a page to look at, such as data.html.")] = None,
    trust_code: TrustOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """Check, before training, how many groups of this data will teach this model something, and at what cost.

    Example: grouprl check-data demo

    Example: grouprl check-data smollm2_words --samples 32 --write inside.jsonl
    """
    options = {"model.path": model, "task.name": task, "rewards": reward_settings(reward)}
    config = run_config(settings, options, trust=trust_code)
    from grouprl.tools.check_data import check_data as check

    check(config, problems=problems, samples=samples, band=band, write=write, page=page, as_json=as_json)
    if not as_json:
        chosen = "" if write is None else f" rollout.curriculum.chosen={write}"
        suggest(again("train", settings, {"--model": model, "--task": task}) + chosen)


@app.command()
def export(
    run: RunOrFolderArgument,
    out: Annotated[
        Path | None, typer.Argument(help="Parquet file, or folder of the site; default: rollouts.parquet in the run.")
    ] = None,
    site: Annotated[bool, typer.Option(help="Write the lab's pages of all runs in the folder RUN.")] = False,
) -> None:
    """Write every completion of a run as Parquet, for DuckDB, polars or pandas; or recorded runs as a site.

    A site opens from a folder or any static host, without GroupRL.

    Example: grouprl export runs/demo

    Example: grouprl export --site runs site
    """
    if site:
        from grouprl.lab.site import write_site

        page = write_site(run, out or Path("site"))
        typer.echo(f"Site: {page}")
        suggest(f"python -m http.server -b 127.0.0.1 -d {page.parent}, or open {page} in a browser")
        return
    from grouprl.tools.export import export as write

    run = run_at(run)
    rollouts = write(run, out or RunDirectory(run).parquet)
    typer.echo(f"Rollouts: {rollouts}")
    suggest(f"python -c \"import pandas; print(pandas.read_parquet('{rollouts}'))\"")


@app.command()
def report(run: RunArgument) -> None:
    """Write report.html again: the page of a run with its data inside.

    Example: grouprl report runs/demo
    """
    from grouprl.lab.report.write import write_report
    from grouprl.record.read import read_run
    from grouprl.trainer.terminal import visible
    from grouprl.trainer.verdict import verdict

    if has_failed((recorded := read_run(run)).summary):
        typer.echo(visible(verdict(recorded)))
    typer.echo(f"Report: {write_report(run)}")
    suggest(f"grouprl lab {run}")


@app.command()
def lab(
    runs: Annotated[Path, typer.Argument(help="Folder of the runs, or one run.")] = Path("runs"),
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 = a free one.")] = 0,
    browser: Annotated[bool, typer.Option(help="Open the link.")] = True,
) -> None:
    """Open the lab: a local page that follows runs live, shows every completion and explains GRPO (docs/lab.md).

    Example: grouprl lab

    Example: grouprl lab runs/demo --port 8000 --no-browser
    """
    from grouprl.lab.server import serve

    serve(runs, port=port, open_browser=browser, say=typer.echo)


@app.command(context_settings=ANY_OPTION)
def plan(
    settings: Settings = None,
    model: ModelOption = None,
    memory: Annotated[str | None, typer.Option(help="Such as 24GiB; default: this machine's GPU or RAM.")] = None,
    prompt_tokens: Annotated[
        int | None, typer.Option(min=1, help="Length of the longest prompt; default: of the task's, or 256.")
    ] = None,
    gpus: Annotated[str | None, typer.Option(help="Memory on several GPUs, such as 8xH100.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
    trust_code: TrustOption = None,
) -> None:
    """Estimate, before a run, its memory by part, the largest group that fits, and how long it takes on this CPU.

    This loads no model: its name or its config.json is enough. A folder's tokenizer counts the prompts of the task.

    Example: grouprl plan demo

    Example: grouprl plan --model Qwen2.5-7B model.device=cuda --memory 80GiB

    Example: grouprl plan --model Qwen2.5-7B --gpus 8xH100 model.dtype=bfloat16
    """
    from grouprl.config.checks import check_sections
    from grouprl.tools.planner.screen import parse_memory, plan_run, show_plan
    from grouprl.tools.planner.time import USUAL_PROMPT, prompt_sizes

    config = run_config(settings, {"model.path": model}, trust=trust_code, loads_model=False)
    check_sections(config)
    if gpus is not None:
        from grouprl.tools.planner.layouts import show_layouts

        show_layouts(config, gpus, prompt_tokens or USUAL_PROMPT, as_json=as_json)
        return
    available = None if memory is None else parse_memory(memory)
    sizes = prompt_sizes(config, say=partial(typer.echo, err=True)) if prompt_tokens is None else None
    longest = prompt_tokens or (sizes.longest if sizes else USUAL_PROMPT)
    plan = plan_run(config, prompt_tokens=longest, available=available, sizes=sizes)
    show_plan(plan, config.algorithm.name, as_json=as_json)
    if not as_json:
        suggest(again("train", settings, {"--model": model}))
