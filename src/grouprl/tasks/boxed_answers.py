r"""The rewards and the prompt of tasks whose completions end in an answer in \boxed{...} or between answer tags."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from grouprl.tasks.answers import is_worked
from grouprl.types import Message

BOXED_PROMPT = "Reason step by step, and put your final answer within \\boxed{}."
EQUATION_STEPS: Mapping[str, float] = {"equation_steps": 1.0}
"""The process reward where solutions consist of equations: 1.0 for each worked equation that belongs to one."""


class BoxedAnswers:
    """The rewards of a `Task` whose verifier compares answers: 1.0 for the right answer, 0.5 for a box."""

    @property
    def verifier(self) -> str | None:
        """`correct_answer`, which compares the answer by value."""
        return "correct_answer"

    @property
    def default_rewards(self) -> Mapping[str, float]:
        """0.5 for a boxed answer, 1.0 for the right one; empty with a verifier in a file, which only the run loads."""
        if self.verifier is None:
            return {"boxed_format": 0.5}
        return {} if is_in_file(self.verifier) else {"boxed_format": 0.5, self.verifier: 1.0}

    @property
    def default_step_rewards(self) -> Mapping[str, float]:
        """None: the answer alone does not say which reasoning steps lead to a solution."""
        return {}

    @property
    def own_rewards(self) -> Mapping[str, Callable[..., Any]]:
        """None: the verifier is a built-in reward."""
        return {}

    def traits(self, text: str) -> Mapping[str, bool]:
        """`worked`: an equation stands before the answer."""
        return {"worked": is_worked(text)}


def is_in_file(verifier: str) -> bool:
    """Whether a verifier is a function in a Python file, `FILE.py:FUNCTION`, rather than a name."""
    return verifier.rpartition(":")[0].endswith(".py")


def boxed_prompt(question: str) -> tuple[Message, ...]:
    """The question as chat messages with the instruction to box the final answer."""
    return {"role": "system", "content": BOXED_PROMPT}, {"role": "user", "content": question}


def boxed(answer: str) -> str:
    r"""The shortest completion with this answer.

    >>> boxed("7")
    '\\boxed{7}'
    """
    return f"\\boxed{{{answer}}}"
