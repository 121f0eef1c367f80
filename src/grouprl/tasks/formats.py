r"""Changes the format that a task asks for, \boxed{...} or DeepSeek-R1's tags, and its system prompt."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from grouprl.tasks.answers import final_text
from grouprl.tasks.base import Split, Task
from grouprl.tasks.lazy_problems import LazyProblems
from grouprl.types import Problem

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
    return FormattedTask(
        task,
        format,
        instruction,
        name=task.name,
        verifier=task.verifier,
        default_rewards={renamed.get(name, name): weight for name, weight in task.default_rewards.items()},
        default_step_rewards=task.default_step_rewards,
        own_rewards=task.own_rewards,
        traits=task.traits,
        verifier_given=getattr(task, "verifier_given", not type(task).__module__.startswith("grouprl.")),
    )


@dataclass(frozen=True)
class FormattedTask:
    """Another task's problems in another format; made by `with_format`."""

    task: Task
    format: Format
    system_prompt: str | None
    name: str
    verifier: str | None
    default_rewards: Mapping[str, float]
    default_step_rewards: Mapping[str, float]
    own_rewards: Mapping[str, Callable[..., Any]]
    traits: Callable[[str], Mapping[str, bool]]
    verifier_given: bool

    @property
    def given(self) -> Collection[Split] | None:
        """What the task says; None = its problems are no rows."""
        return getattr(self.task, "given", None)

    def problems(self, split: Split) -> Sequence[Problem]:
        """The problems of the task with the system prompt; lazy where the task's are lazy."""
        problems = self.task.problems(split)
        if isinstance(problems, list | tuple):
            return tuple(map(self._with_system_prompt, problems))
        in_memory = tuple(map(self._with_system_prompt, getattr(problems, "in_memory", ())))
        return LazyProblems(len(problems), lambda place: self._with_system_prompt(problems[place]), in_memory)

    def gold(self, problem: Problem) -> str | None:
        """The task's solution in this format."""
        written = self.task.gold(problem)
        return written if written is None or self.format == "boxed" else with_think_tags(written)

    def _with_system_prompt(self, problem: Problem) -> Problem:
        if self.system_prompt is None:
            return problem
        if isinstance(problem.prompt, str):
            parts = [self.system_prompt, problem.prompt]
            return replace(problem, prompt="\n\n".join(filter(None, parts)))
        system = ({"role": "system", "content": self.system_prompt},) if self.system_prompt else ()
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
