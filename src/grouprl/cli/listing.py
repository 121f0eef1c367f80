"""The screens of `grouprl tasks`: the tasks, with examples."""

from __future__ import annotations

import sys
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
        console.print(_overview())
    elif name == "reasoning_gym":
        console.print(_gym_overview())
    elif name in TASKS or name.startswith("reasoning_gym:"):
        console.print(_one(name))
    else:
        raise unknown_name("grouprl tasks", name, [*TASKS, "reasoning_gym:NAME"])


def _overview() -> RenderableType:
    table = _table("task, default rewards", "what it is, an example, a solution")
    for name, kind in TASKS.items():
        task = _made(kind)
        title = Text(f"{name}:NAME" if name == "reasoning_gym" else name, "bold")
        needs = [Text(f"needs grouprl[{_NEEDS[name]}]", "dim")] if name in _NEEDS else []
        left = Group(title, *needs, _rewards(task))
        table.add_row(left, Padding(Group(_about(kind), _example(kind.example(), task)), (0, 0, 1, 0)))
    return Group(table, Text(_HINT, "dim"))


def _gym_overview() -> RenderableType:
    table = _table("task.name", "asks")
    table.columns[1].no_wrap, table.columns[1].overflow = True, "ellipsis"
    table.columns[0].min_width = max(map(len, gym_names())) + len("reasoning_gym:")
    for name in gym_names():
        question = ReasoningGym(name).problems("train")[0].prompt[-1]
        text = question["content"] if isinstance(question, dict) else str(question)
        table.add_row(Text(f"reasoning_gym:{name}", "bold"), Text(" ".join(text.split())[:200]))
    return table


def _one(name: str) -> RenderableType:
    kind = TASKS[name.partition(":")[0]]
    task = load_task(name)
    problems = [kind.example()] if name in _FROM_FILES else task.problems("train")[:_SHOWN]
    head = (Text(name, "bold"), _about(kind), Text(), _settings(name, kind), Text(), _rewards(task))
    examples = ((Rule(style="dim"), _example(problem, task, columns=True)) for problem in problems)
    return Group(*head, *chain.from_iterable(examples))


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


def _made(kind: Any) -> Task | None:
    try:
        task: Task = kind()
        return task
    except UserError:  # its package is not installed; the overview lists it without details
        return None


def _about(kind: Any) -> Text:
    return Text((sys.modules[kind.__module__].__doc__ or "").partition("\n")[0], "dim")


def _example(problem: Problem, task: Task | None, *, columns: bool = False) -> RenderableType:
    gold = task.gold(problem) if task is not None else None
    parts: list[RenderableType] = [Text(_cut(_question(problem)))]
    if columns:
        parts += chain.from_iterable(_column(key, value) for key, value in problem.columns.items())
    if gold is not None:
        parts.append(Text(_cut(gold), "green"))
    return Group(*parts)


def _column(name: str, value: object) -> list[RenderableType]:
    """Shows a column on one line, or as a block below its name if the value has several lines."""
    lines = isinstance(value, list | tuple) and bool(value) and all(isinstance(item, str) for item in value)
    text = _cut("\n".join(value) if lines else str(value))  # type: ignore[arg-type]
    if "\n" not in text.strip():
        return [Text(f"{name}: {text.strip()}", "dim")]
    return [Text(f"{name}:", "dim"), Padding(Text(text.rstrip(), "dim"), (0, 0, 0, 2))]


def _question(problem: Problem) -> str:
    if isinstance(problem.prompt, str):
        return problem.prompt
    return "\n".join(message["content"] for message in problem.prompt if message["role"] != "system")


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
