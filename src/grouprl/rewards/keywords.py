"""The keywords of a reward function in TRL's form, from groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from grouprl.rewards.workers.calling import OWN_KEYWORDS
from grouprl.types import Completion, Group, Problem, UserError


def call_keywords(groups: Sequence[Group]) -> dict[str, list[Any]]:
    """Makes the keywords of a reward function in TRL's form: plain lists with one item for each completion.

    A last message of the assistant in a prompt begins the completions, as in TRL. A
    problem's columns are repeated for each of its completions; a column that a problem lacks is None.
    Raises UserError when a column has the name of a TRL keyword.
    """
    pairs = [(group.problem, completion) for group in groups for completion in group.completions]
    columns = dict.fromkeys(key for group in groups for key in group.problem.columns)
    for name in columns.keys() & set(OWN_KEYWORDS):
        raise UserError(f"expected columns other than {', '.join(OWN_KEYWORDS)}, got a column {name!r}: rename it")
    return {
        "prompts": [_prompt(problem) for problem, _ in pairs],
        "completions": [_completion(problem, completion) for problem, completion in pairs],
        "completion_ids": [list(completion.token_ids) for _, completion in pairs],
        **{name: [problem.columns.get(name) for problem, _ in pairs] for name in columns},
    }


def _prompt(problem: Problem) -> str | list[dict[str, str]]:
    messages = problem.prompt
    if isinstance(messages, str):
        return messages
    return [dict(message) for message in (messages[:-1] if problem.begun else messages)]


def _completion(problem: Problem, completion: Completion) -> str | list[dict[str, str]]:
    text = problem.begun + completion.text
    return text if isinstance(problem.prompt, str) else [{"role": "assistant", "content": text}]
