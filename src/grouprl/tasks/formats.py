r"""The form that a task asks for: an answer in \boxed{...}, or DeepSeek-R1's tags; and a system prompt of one's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from grouprl.tasks.answers import final_text
from grouprl.tasks.base import Split, Task
from grouprl.tasks.lazy import mapped
from grouprl.types import Problem

Format = Literal["boxed", "think"]

THINK_PROMPT = (
    "First think about the question, then answer it. Write your reasoning between <think> and </think>, and after it "
    "the final answer alone between <answer> and </answer>: <think> reasoning </think> <answer> answer </answer>"
)


def with_format(task: Task, format: Format = "boxed", system_prompt: str | None = None) -> Task:  # noqa: A002  as in a configuration
    """The task with another form of its completions, or another system prompt, or as it is.

    Args:
        task: any task.
        format: `think` asks for `<think>...</think><answer>...</answer>` (DeepSeek-R1, arXiv:2501.12948) and rewards it
            in place of the box; `boxed` leaves that to the task.
        system_prompt: in place of the task's; what `think` asks for is put behind it. "" = none at all. It is a message
            before those of the user, or a paragraph before a prompt that is plain text.
    """
    words = system_prompt
    if format == "think" and system_prompt != "":
        words = "\n\n".join(filter(None, (system_prompt, THINK_PROMPT)))
    return task if words is None and format == "boxed" else FormattedTask(task, format, words)


@dataclass(frozen=True)
class FormattedTask:
    """Another task's problems, asked for in another form; made by `with_format`."""

    task: Task
    format: Format
    system_prompt: str | None

    @property
    def name(self) -> str:
        """That of the task."""
        return self.task.name

    @property
    def default_rewards(self) -> Mapping[str, float]:
        """Those of the task, for the form that was asked for."""
        renamed = {"boxed_format": "think_format"} if self.format == "think" else {}
        return {renamed.get(name, name): weight for name, weight in self.task.default_rewards.items()}

    @property
    def default_step_rewards(self) -> Mapping[str, float]:
        """Those of the task."""
        return self.task.default_step_rewards

    @property
    def verifier(self) -> str | None:
        """That of the task: it finds an answer in either form."""
        return self.task.verifier

    @property
    def own_rewards(self) -> Mapping[str, Callable[..., Any]]:
        """Those of the task."""
        return self.task.own_rewards

    def problems(self, split: Split) -> Sequence[Problem]:
        """Those of the task, with the system prompt; as lazy as they were."""
        return mapped(self.task.problems(split), self._asked)

    def gold(self, problem: Problem) -> str | None:
        """That of the task, in the form that was asked for."""
        written = self.task.gold(problem)
        return written if written is None or self.format == "boxed" else in_tags(written)

    def traits(self, text: str) -> Mapping[str, bool]:
        """Those of the task."""
        return self.task.traits(text)

    def _asked(self, problem: Problem) -> Problem:
        if self.system_prompt is None:
            return problem
        if isinstance(problem.prompt, str):
            parts = [self.system_prompt, problem.prompt]
            return replace(problem, prompt="\n\n".join(filter(None, parts)))
        system = ({"role": "system", "content": self.system_prompt},) if self.system_prompt else ()
        others = (message for message in problem.prompt if message["role"] != "system")
        return replace(problem, prompt=(*system, *others))


def in_tags(completion: str) -> str:
    r"""A completion in R1's form: what stands before its answer as the thought; the whole as the answer if it has none.

    >>> in_tags("15 - 3 = 12. \\boxed{12}")
    '<think>15 - 3 = 12.</think>\n<answer>12</answer>'
    """
    answer = final_text(completion)
    before = completion.partition("<answer>")[0].rpartition("\\boxed")[0].strip() if answer is not None else ""
    thought = before.rstrip("$").strip() or "The answer is known."
    return f"<think>{thought}</think>\n<answer>{completion.strip() if answer is None else answer}</answer>"
