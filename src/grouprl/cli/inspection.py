"""The screens of `grouprl eval` and `grouprl sample`: an evaluation, a group with its rewards and advantages."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import zip_longest

import torch
from rich.table import Table
from rich.text import Text
from transformers import PreTrainedTokenizerBase

from grouprl.algorithms.advantages import CompletionAdvantage
from grouprl.config.run import RunConfig
from grouprl.evaluation.evaluate import evaluate
from grouprl.learner.credit import component
from grouprl.models.load import context_length, load_model, load_tokenizer
from grouprl.models.precision import resolve_device, with_dtype
from grouprl.models.prompts import prompt_token_ids
from grouprl.report.terminal import Terminal, visible
from grouprl.report.verdict import counted
from grouprl.report.worked import Spread, deviation_kind
from grouprl.rewards.configured import configured_rewards, configured_scorer
from grouprl.rollout import NativeEngine, Request
from grouprl.scoring.functions import SOFT_OVERLONG, WeightedReward
from grouprl.tasks import Task, load_task
from grouprl.types import Group, Problem, RewardOutcome, UserError


def show_evaluation(config: RunConfig, *, as_json: bool) -> None:
    """Evaluates `config.model` on `config.task` and prints the metrics."""
    config, task = with_dtype(config), load_task(**config.task.model_dump())
    engine, tokenizer, longest = _engine(config)
    problems = task.problems(config.evaluation.split)[: config.evaluation.problems]
    prompts = [Request(problem, prompt_token_ids(problem, tokenizer, longest=longest), 1) for problem in problems]
    terminal = Terminal()
    with (
        configured_scorer(config, task, ()) as scorer,
        terminal.progress("evaluate", len(prompts) * (config.evaluation.samples + 1)) as advance,
    ):
        values = evaluate(
            engine,
            task,
            scorer,
            prompts,
            samples=config.evaluation.samples,
            max_tokens=config.rollout.max_tokens,
            on_finished=advance,
        ).metrics
    if as_json:
        print(json.dumps(values))
        return
    table = Table(title=f"{config.model.path}: {counted(len(prompts), 'problem')} of {task.name}", title_justify="left")
    table.add_column()
    table.add_column("value", justify="right")
    table.add_column("95 % interval", justify="right")
    for name, value in values.items():
        if name != "problems" and not isinstance(value, tuple):
            interval = values.get(name.removesuffix("_accuracy") + "_interval")  # greedy_interval, pass_at_1_interval
            shown = "" if not isinstance(interval, tuple) else f"{interval[0]:.1%} to {interval[1]:.1%}"
            table.add_row(name, f"{value:.1f}" if name == "mean_length" else f"{value:.1%}", shown)
    terminal.console.print(table)


def show_group(config: RunConfig, *, problem: int, prompt: str | None) -> None:
    """Samples one group from `config.model` and prints each completion with its reward and advantage."""
    config, task = with_dtype(config), load_task(**config.task.model_dump())
    engine, tokenizer, longest = _engine(config)
    asked = _problem(config, task, problem) if prompt is None else _own(prompt, tokenizer)
    request = Request(asked, prompt_token_ids(asked, tokenizer, longest=longest), config.rollout.group_size)
    group = engine.generate([request], config.rollout.sampling)[0]
    rewards = configured_rewards(config, task) if prompt is None else ()
    outcomes = _outcomes(config, task, group, rewards, tokenizer) if rewards else ()
    terminal = Terminal()
    terminal.say(f"\n{visible(asked.prompt_text)}\n")
    terminal.console.print(_completion_grid(group, outcomes, _advantages(config, outcomes, rewards)), soft_wrap=False)
    if outcomes:
        terminal.say(_spread(config, outcomes))


def _outcomes(
    config: RunConfig,
    task: Task,
    group: Group,
    rewards: Sequence[WeightedReward],
    tokenizer: PreTrainedTokenizerBase,
) -> tuple[RewardOutcome, ...]:
    # max_invalid=1, because this screen shows why completions are invalid.
    with configured_scorer(config, task, rewards, max_invalid=1.0) as scorer:
        return scorer.finish([scorer.begin(group)], tokenizer)[0]


def _completion_grid(group: Group, outcomes: Sequence[RewardOutcome], advantages: Sequence[float]) -> Table:
    """Makes a grid with numbers above each text, because a narrow terminal has no room for both in a row.

    Rewards and advantages are absent when `outcomes` and `advantages` are empty.
    """
    grid = Table.grid(padding=(0, 2, 0, 0))
    for completion, outcome, advantage in zip_longest(group.completions, outcomes, advantages):
        scores = [f"{len(completion)} tokens, ended by {completion.stop_reason.value}"]
        if outcome and advantage is not None and outcome.valid:
            scores.insert(0, f"advantage {advantage:+.3f}")
        if outcome:
            scores.insert(0, f"reward {outcome.total:.2f}" if outcome.valid else f"invalid: {outcome.reason}")
        grid.add_row(str(completion.index), Text("  ".join(scores), "bold"))
        if outcome:
            components = [f"{name} {'-' if value is None else value}" for name, value in outcome.components.items()]
            grid.add_row("", Text("  ".join(components), "dim"))
        # Text, not markup: rich would interpret brackets in a completion.
        grid.add_row("", Text(visible(completion.text) + "\n"))
    return grid


def _spread(config: RunConfig, outcomes: Sequence[RewardOutcome]) -> str:
    std = deviation_kind(config.algorithm)
    found = Spread.of([outcome.total if outcome.valid else None for outcome in outcomes], std)
    if found.count < 2:
        return f"{found.count} of {counted(len(outcomes), 'completion')} with a valid reward; a comparison needs two"
    return f"group mean {found.mean:.3f}, {std} deviation {found.deviation:.3f}"


def _advantages(config: RunConfig, outcomes: Sequence[RewardOutcome], rewards: Sequence[WeightedReward]) -> list[float]:
    """Computes the advantages [G]; empty where they are per token or per reasoning step, or there are no rewards."""
    advantage = config.algorithm.advantage
    if not outcomes or not isinstance(advantage, CompletionAdvantage):
        return []
    weights = {SOFT_OVERLONG: 1.0} | {reward.name: reward.weight for reward in rewards}
    components = {name: component(outcomes, name) for name in weights}
    totals_G = torch.tensor([outcome.total for outcome in outcomes], dtype=torch.float64)
    advantages_G = advantage.compare(totals_G, components, weights, torch.zeros(len(outcomes), dtype=torch.long))
    return [float(value) for value in advantages_G]


def _problem(config: RunConfig, task: Task, index: int) -> Problem:
    problems = task.problems(config.evaluation.split)
    if index >= len(problems):
        size = f"{len(problems)}, the size of the split {config.evaluation.split}"
        raise UserError(f"--problem: expected less than {size}, got {index}")
    return problems[index]


def _own(prompt: str, tokenizer: PreTrainedTokenizerBase) -> Problem:
    if tokenizer.chat_template is None:
        return Problem("own", prompt)
    return Problem("own", ({"role": "user", "content": prompt},))


def _engine(config: RunConfig) -> tuple[NativeEngine, PreTrainedTokenizerBase, int]:
    torch.set_num_threads(config.model.threads or torch.get_num_threads())
    model = load_model(config.model, device=resolve_device(config.model.device), weights=config.model.weights)
    tokenizer = load_tokenizer(config.model)
    engine = NativeEngine(
        model, tokenizer, seed=config.seed, max_rows=config.rollout.max_rows, dtype=config.model.dtype
    )
    return engine, tokenizer, context_length(model) - config.rollout.max_tokens
