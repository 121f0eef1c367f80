"""The screens of `grouprl tasks`: the tasks, with examples."""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import fields
from itertools import chain
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from grouprl.checks.reasoning_gym import ReasoningGym, default_arguments, gym_names
from grouprl.tasks.base import Task
from grouprl.tasks.named import TASKS, load_task
from grouprl.types import Problem, UserError, unknown_name

_NEEDS = {"math": "math", "reasoning_gym": "gym"}
_FROM_FILES = {"gsm8k", "jsonl", "math"}
_SHOWN = 3
_HINT = (
    "Settings and problems of a task: grouprl tasks NAME. Train on it: grouprl train --task NAME. "
    "DeepSeek-R1's tags, for any task: task.format=think."
)
_LONGEST = 600  # characters of a prompt or gold completion on a screen


def show_tasks(name: str | None = None, console: Console | None = None) -> None:
    """Prints all tasks, or one task with example problems.

    Args:
        name: None = all; `reasoning_gym` = the names of its data sets; any other name of a task.
        console: the console to print on; None = standard output.

    Raises:
        UserError: the name is unknown, or a package that the task needs is missing.
    """
    console = console or Console()
    if name is None:
        table = _table("task, default rewards", "what it is, an example, a solution")
        for task_name, kind in TASKS.items():
            task: Task | None = None
            with suppress(UserError):  # its package is not installed: it is listed without details
                task = kind()
            title = Text(f"{task_name}:NAME" if task_name == "reasoning_gym" else task_name, "bold")
            needs = [Text(f"needs grouprl[{_NEEDS[task_name]}]", "dim")] if task_name in _NEEDS else []
            about = Group(_about(kind), _example(kind.example(), task))
            table.add_row(Group(title, *needs, _rewards(task)), Padding(about, (0, 0, 1, 0)))
        console.print(Group(table, Text(_HINT, "dim")))
    elif name == "reasoning_gym":
        table = _table("task.name", "asks")
        table.columns[1].no_wrap, table.columns[1].overflow = True, "ellipsis"
        table.columns[0].min_width = max(map(len, gym_names())) + len("reasoning_gym:")
        for dataset in gym_names():
            question = ReasoningGym(dataset).problems("train")[0].prompt[-1]
            text = question["content"] if isinstance(question, dict) else str(question)
            table.add_row(Text(f"reasoning_gym:{dataset}", "bold"), Text(" ".join(text.split())[:200]))
        console.print(table)
    elif name in TASKS or name.startswith("reasoning_gym:"):
        kind = TASKS[name.partition(":")[0]]
        task = load_task(name)
        problems = [kind.example()] if name in _FROM_FILES else task.problems("train")[:_SHOWN]
        head = (Text(name, "bold"), _about(kind), Text(), _settings(name, kind), Text(), _rewards(task))
        examples = ((Rule(style="dim"), _example(problem, task, columns=True)) for problem in problems)
        console.print(Group(*head, *chain.from_iterable(examples)))
    else:
        raise unknown_name("grouprl tasks", name, [*TASKS, "reasoning_gym:NAME"])


def _settings(name: str, kind: Any) -> RenderableType:
    """Makes a grid of the task's settings and their defaults."""
    grid = Table.grid(padding=(0, 2))
    defaults = {
        field.name: field.default for field in fields(kind) if field.name not in ("dataset", "arguments", "parts")
    }
    common = ("path", "difficulty", "train_problems", "eval_problems", "seed")
    for key in sorted(defaults, key=lambda key: (key not in common, key)):
        grid.add_row(Text(f"task.{key}" if key in common else f"task.arguments.{key}"), Text(str(defaults[key]), "dim"))
    if name.startswith("reasoning_gym:"):
        for key, value in default_arguments(name.partition(":")[2]).items():
            grid.add_row(Text(f"task.arguments.{key}"), Text(str(value)[:100], "dim"))
    return grid


def _about(kind: Any) -> Text:
    return Text((sys.modules[kind.__module__].__doc__ or "").partition("\n")[0], "dim")


def _example(problem: Problem, task: Task | None, *, columns: bool = False) -> RenderableType:
    gold = task.gold(problem) if task is not None else None
    chat = [] if isinstance(problem.prompt, str) else problem.prompt
    turns = [message["content"] for message in chat if message["role"] != "system"]
    parts: list[RenderableType] = [Text(_cut(problem.prompt if isinstance(problem.prompt, str) else "\n".join(turns)))]
    for key, value in problem.columns.items() if columns else ():
        lines = isinstance(value, list | tuple) and bool(value) and all(isinstance(item, str) for item in value)
        text = _cut("\n".join(value) if lines else str(value))
        if "\n" in text.strip():  # a block below its name
            parts += [Text(f"{key}:", "dim"), Padding(Text(text.rstrip(), "dim"), (0, 0, 0, 2))]
        else:
            parts.append(Text(f"{key}: {text.strip()}", "dim"))
    if gold is not None:
        parts.append(Text(_cut(gold), "green"))
    return Group(*parts)


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ..."


def _rewards(task: Task | None) -> Text:
    if task is None:
        return Text("not installed", "dim")
    marks = {task.verifier: " (verifier)"}
    return Text("\n".join(f"{weight} {name}{marks.get(name, '')}" for name, weight in task.default_rewards.items()))


def _table(*columns: str) -> Table:
    table = Table(*columns, box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.columns[0].no_wrap = True
    return table
