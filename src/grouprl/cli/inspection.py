"""The screens of `grouprl eval` and `grouprl sample`: an evaluation, a group with its rewards and advantages."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import groupby, zip_longest

from rich.table import Table
from rich.text import Text

from grouprl.config.run import RunConfig
from grouprl.evaluation.evaluate import Evaluation
from grouprl.evaluation.paired import paired_by_name
from grouprl.evaluation.statistics import pass_counts
from grouprl.lab.report.prompts import SharedBeginning
from grouprl.lab.report.worked import Spread, deviation_kind
from grouprl.rewards.functions import WeightedReward
from grouprl.run.machine import with_dtype
from grouprl.run.opened import OpenedRun
from grouprl.trainer.terminal import Terminal, visible
from grouprl.trainer.trial import evaluate_model, sample_group
from grouprl.types import Episode, Problem, UserError, counted

_OTHERS = 20  # problems whose prompts are compared


def show_evaluation(config: RunConfig, *, as_json: bool) -> None:
    """Evaluates `config.model` on `config.task` and prints the metrics."""
    terminal = Terminal(errors=as_json)
    evaluation = _evaluated(config, terminal)
    values = evaluation.metrics
    if as_json:
        print(json.dumps(values))
        return
    title = f"{config.model.path}: {counted(len(evaluation.greedy), 'problem')} of {config.task.name}"
    table = Table(title=title, title_justify="left")
    table.add_column()
    table.add_column("value", justify="right")
    table.add_column("95 % interval", justify="right")
    for name, value in values.items():
        if name != "problems" and not isinstance(value, tuple):
            interval = values.get(name.removesuffix("_accuracy") + "_interval")  # greedy_interval, pass_at_1_interval
            is_reward = name == "reward" or name.startswith("rewards/")
            form = ".1f" if name == "mean_length" else ".3f" if is_reward else ".1%"
            shown = "" if not isinstance(interval, tuple) else f"{interval[0]:{form}} to {interval[1]:{form}}"
            table.add_row(name, f"{value:{form}}", shown)
    terminal.console.print(table)


def show_pass_at(configs: Mapping[str, RunConfig], *, as_json: bool) -> None:
    """Evaluates one model or two, by name, and prints pass@k for k = 1, 2, 4 ... `evaluation.samples`.

    The difference is the first model's less the second's, paired by problem. As JSON it also has the number of correct
    completions of each problem, from which every other k follows.

    Raises:
        UserError: the task has no verifier, so that no completion is correct or wrong.
    """
    terminal = Terminal(errors=as_json)
    evaluations = {name: _evaluated(config, terminal) for name, config in configs.items()}
    results = [evaluation.results for evaluation in evaluations.values()]
    if not all(result.correct for result in results):
        raise UserError("--pass-at: expected a task with a verifier, got one without: choose another --task")
    counts = pass_counts(results[0].samples)
    sides = {k: [result.pass_at_by_problem(k) for result in results] for k in counts}
    paired = {k: paired_by_name(*both) for k, both in sides.items() if len(both) == 2}
    differences = {k: difference for k, difference in paired.items() if difference is not None}
    if as_json:
        models = {
            name: evaluation.metrics
            | {key: value for key, value in asdict(evaluation.results).items() if key != "rewards"}
            for name, evaluation in evaluations.items()
        }
        named = {f"pass_at_{k}": asdict(difference) for k, difference in differences.items()}
        print(json.dumps({"models": models, "differences": named}))
        return
    table = Table(title=f"pass@k, {counted(len(results[0].problem_ids), 'problem')}, 95 % intervals")
    for name in ("k", *(visible(name) for name in evaluations), *(["difference"] if differences else [])):
        table.add_column(name, justify="right")
    for k in counts:
        name, difference = f"pass_at_{k}", differences.get(k)
        metrics = [evaluation.metrics for evaluation in evaluations.values()]
        cells = [_with_interval(values[name], values[f"{name}_interval"], ".1%") for values in metrics]
        if difference is not None:
            cells.append(_with_interval(difference.mean, difference.interval, "+.1%"))
        table.add_row(str(k), *cells)
    terminal.console.print(table)


def _with_interval(value: object, interval: object, form: str) -> str:
    return f"{value:{form}} ({interval[0]:{form}} to {interval[1]:{form}})" if isinstance(interval, tuple) else "-"


def _evaluated(config: RunConfig, terminal: Terminal) -> Evaluation:
    run = OpenedRun(with_dtype(config))
    rewards: tuple[WeightedReward, ...] = ()  # none for a task without any
    if config.rewards or run.task.default_rewards or run.task.verifier is not None:
        try:
            rewards = run.rewards
        except UserError as error:  # the functions of a program, which only it has
            if any(reward.path is not None for reward in config.rewards):
                raise
            terminal.say(f"Rewards are not evaluated ({error}). Functions of a program: use Trainer.evaluate() in it.")
    with terminal.progress("evaluate", len(run.held_out) * (config.evaluation.samples + 1)) as advance:
        return evaluate_model(run, rewards, on_finished=advance)


def show_group(config: RunConfig, *, problem: int, prompt: str | None) -> None:
    """Samples one group from `config.model` and prints each completion with its reward and advantage."""
    run = OpenedRun(with_dtype(config))
    terminal, problems = Terminal(), run.task.problems(config.evaluation.split) if prompt is None else ()
    if prompt is None and problem >= len(problems):
        size = f"{len(problems)}, the size of the split {config.evaluation.split}"
        raise UserError(f"--problem: expected less than {size}, got {problem}")
    if prompt is None:
        sampled = sample_group(run, problems[problem], run.rewards)
    else:
        sampled = sample_group(run, prompt, ())
    terminal.say(f"\n{_prompt(sampled.group.problem, problems[:_OTHERS])}\n")
    grid = Table.grid(padding=(0, 2, 0, 0))  # numbers above each text: a narrow terminal has no room for both in a row
    for completion, outcome, advantage in zip_longest(sampled.group.completions, sampled.outcomes, sampled.advantages):
        scores = [f"{counted(len(completion), 'token')}, ended by {completion.stop_reason.value}"]
        if outcome and advantage is not None and outcome.valid:
            scores.insert(0, f"advantage {advantage:+.3f}")
        if outcome:
            scores.insert(0, f"reward {outcome.total:.2f}" if outcome.valid else f"invalid: {outcome.reason}")
        grid.add_row(str(completion.index), Text("  ".join(scores), "bold"))
        if outcome:
            components = [f"{name} {'-' if value is None else value}" for name, value in outcome.components.items()]
            grid.add_row("", Text("  ".join(components), "dim"))
        # Text, not markup: rich would interpret brackets in a completion.
        talk = completion.text if completion.episode is None else _conversation(completion.episode)
        grid.add_row("", Text(visible(talk) + "\n"))
    terminal.console.print(grid, soft_wrap=False)
    if outcomes := sampled.outcomes:
        std = deviation_kind(config.algorithm)
        spread = Spread.of([outcome.total if outcome.valid else None for outcome in outcomes], std)
        if spread.count < 2:
            completions = counted(len(outcomes), "completion")
            terminal.say(f"{spread.count} of {completions} with a valid reward; a comparison needs two")
        else:
            terminal.say(f"group mean {spread.mean:.3f}, {std} deviation {spread.deviation:.3f}")


def _prompt(problem: Problem, others: Sequence[Problem]) -> str:
    """The turns of a prompt under their roles, without those that all problems share."""
    chats = [() if isinstance(other.prompt, str) else other.prompt for other in (problem, *others)]
    shared, lines = SharedBeginning.of([other.prompt_text for other in (problem, *others)], chats), []
    chat = shared.marked(problem.prompt_text, chats[0] or None) or [{"content": problem.prompt_text}]
    for folded, turns in groupby(chat, key=lambda turn: turn.get("shared", False)):
        texts = [visible(": ".join(filter(None, (turn.get("role"), turn["content"])))) for turn in turns]
        lines += [f"({counted(len(texts), 'turn')}, the same in every prompt)"] if folded else texts
    return "\n".join(lines)


def _conversation(episode: Episode) -> str:
    """What was said in an episode, each message below its role, and how it ended."""
    lines, calls = [], iter(episode.calls)
    for message in episode.messages:
        if message["role"] == "tool":
            call = next(calls)
            took = f"{call.seconds:.2f} s" + (f", {call.fault}" if call.fault else "")
            lines += [f"[tool] {call.tool} {call.arguments} ({took})", call.result]
        else:
            lines += [f"[{message['role']}]", message["content"]]
    verdict = "" if episode.reward is None else f"; the environment's reward: {episode.reward:g}"
    invalid = f"; invalid: {episode.invalid}" if episode.invalid else ""
    return "\n".join((*lines, f"(ended: {episode.ended}{verdict}{invalid})"))
