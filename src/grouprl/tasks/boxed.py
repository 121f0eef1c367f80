r"""What tasks share whose completions end in an answer: in \boxed{...}, or between answer tags."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from grouprl.tasks.answers import is_worked
from grouprl.types import Message

BOXED_PROMPT = "Reason step by step, and put your final answer within \\boxed{}."


class BoxedAnswers:
    """The judging half of a `Task` that has a verifier, and pays half as much for the form of an answer."""

    @property
    def verifier(self) -> str | None:
        """`correct_answer`: the answer compared by value."""
        return "correct_answer"

    @property
    def default_rewards(self) -> Mapping[str, float]:
        """0.5 for a boxed answer, 1.0 for the right one."""
        return {"boxed_format": 0.5} | ({} if self.verifier is None else {self.verifier: 1.0})

    @property
    def default_step_rewards(self) -> Mapping[str, float]:
        """None: nothing says which steps lead to a solution."""
        return {}

    @property
    def own_rewards(self) -> Mapping[str, Callable[..., Any]]:
        """None: a built-in reward judges."""
        return {}

    def traits(self, text: str) -> Mapping[str, bool]:
        """`worked`: an equation stands before the answer."""
        return {"worked": is_worked(text)}


def asked(question: str) -> tuple[Message, ...]:
    """The question as chat messages, told where to put the answer."""
    return {"role": "system", "content": BOXED_PROMPT}, {"role": "user", "content": question}


def boxed(answer: str) -> str:
    r"""The shortest completion with that answer.

    >>> boxed("7")
    '\\boxed{7}'
    """
    return f"\\boxed{{{answer}}}"
