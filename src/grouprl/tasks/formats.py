r"""Changes the format that a task asks for, \boxed{...} or DeepSeek-R1's tags, and its system prompt."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from grouprl.tasks.answers import final_text
from grouprl.tasks.base import Task
from grouprl.tasks.derived import derived, each
from grouprl.types import Message, Problem

Format = Literal["boxed", "think"]

THINK_PROMPT = (
    "First think about the question, then answer it. Write your reasoning between <think> and </think>, and after it "
    "the final answer alone between <answer> and </answer>: <think> reasoning </think> <answer> answer </answer>"
)


def with_format(task: Task, format: Format = "boxed", system_prompt: str | None = None) -> Task:  # noqa: A002  as in a configuration
    """The task with another format of its completions and another system prompt, or unchanged.

    Args:
        task: any task.
        format: `think` asks for `<think>...</think><answer>...</answer>` (DeepSeek-R1, arXiv:2501.12948) and rewards
            these tags in place of the box; `boxed` keeps the task's own format.
        system_prompt: replaces the task's; `think` appends its instruction. "" = no system prompt. It is a message
            before the user's, or a paragraph before a plain-text prompt. None = the task's own.
    """
    instruction = system_prompt
    if format == "think" and system_prompt != "":
        instruction = "\n\n".join(filter(None, (system_prompt, THINK_PROMPT)))
    if instruction is None and format == "boxed":
        return task
    renamed = {"boxed_format": "think_format"} if format == "think" else {}

    def gold(problem: Problem) -> str | None:
        written = task.gold(problem)
        return written if written is None or format == "boxed" else with_think_tags(written)

    return derived(
        task,
        lambda split: each(task.problems(split), lambda problem: _with_system_prompt(problem, instruction)),
        gold=gold,
        default_rewards={renamed.get(name, name): weight for name, weight in task.default_rewards.items()},
    )


def _with_system_prompt(problem: Problem, instruction: str | None) -> Problem:
    if instruction is None:
        return problem
    if isinstance(problem.prompt, str):
        return replace(problem, prompt="\n\n".join(filter(None, (instruction, problem.prompt))))
    system: tuple[Message, ...] = ({"role": "system", "content": instruction},) if instruction else ()
    others = (message for message in problem.prompt if message["role"] != "system")
    return replace(problem, prompt=(*system, *others))


def with_think_tags(completion: str) -> str:
    r"""A completion in R1's format: the text before its answer is the thought; without an answer the whole text is one.

    >>> with_think_tags("15 - 3 = 12. \\boxed{12}")
    '<think>15 - 3 = 12.</think>\n<answer>12</answer>'
    """
    answer = final_text(completion)
    before = completion.partition("<answer>")[0].rpartition("\\boxed")[0].strip() if answer is not None else ""
    thought = before.rstrip("$").strip() or "The answer is known."
    return f"<think>{thought}</think>\n<answer>{completion.strip() if answer is None else answer}</answer>"
