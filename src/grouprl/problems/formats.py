"""Rewards for the format of a completion. They do not check correctness: give them less weight than the answer."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from grouprl.rewards.rules import Ids, Texts, Values, bounded, check_arguments, completion_text
from grouprl.types import UserError

_TAGS = ("<think>", "</think>", "<answer>", "</answer>")
# Each tag occurs once in the text to match, so that no part of the pattern can match in two ways (linear time).
_R1 = re.compile(r"\s*<think>(.*)</think>\s*<answer>(.*)</answer>\s*", re.DOTALL)


@dataclass(frozen=True)
class ThinkFormat:
    """1.0 when the whole completion is `<think>...</think><answer>...</answer>`, else 0.0 (DeepSeek-R1, 2501.12948).

    Each tag occurs exactly once, in this order; neither content is empty; only whitespace surrounds them. With
    `opened` the prompt already ends in `<think>`, as in some chat templates, and the completion lacks it.

    Range: 0 or 1. Failure modes: one character of thought and one of answer are enough, so this reward alone teaches
    empty forms; a thought that quotes a tag counts as malformed.
    """

    opened: bool = False

    def __post_init__(self) -> None:
        check_arguments("think_format", self, ("opened", isinstance(self.opened, bool), "true or false"))

    def __call__(self, prompts: Texts, completions: Texts, completion_ids: Ids, **columns: Any) -> Values:
        """Returns 1.0 or 0.0 for each completion."""
        start = "<think>" if self.opened else ""
        values: Values = []
        for completion in completions:
            text = start + completion_text(completion)
            match = _R1.fullmatch(text) if all(text.count(tag) == 1 for tag in _TAGS) else None
            values.append(float(match is not None and all(part.strip() for part in match.groups())))
        return values


@dataclass(frozen=True)
class Regex:
    """1.0 when `pattern` is found in the completion, or with `full` matches the whole of it, else 0.0.

    The pattern is in the syntax of Python's `re`; `(?s)` in front lets a dot match line breaks, `(?i)` ignores case.

    Range: 0 or 1. Failure modes: a match anywhere is enough, whatever surrounds it (anchor the pattern, or set `full`);
    a pattern with nested repeats such as `(a+)+$` takes exponential time on some texts: the worker's limit then ends
    the call and the completion is invalid. Raises ValueError for a completion of more than LONGEST_TEXT characters.
    """

    pattern: str
    full: bool = False

    def __post_init__(self) -> None:
        check_arguments(
            "regex",
            self,
            ("pattern", isinstance(self.pattern, str), "a regular expression as text"),
            ("full", isinstance(self.full, bool), "true or false"),
        )
        try:
            re.compile(self.pattern)
        except re.error as error:
            raise UserError(
                f"reward regex: expected a regular expression, got {self.pattern!r}: {error}: fix the pattern"
            ) from error

    def __call__(self, prompts: Texts, completions: Texts, completion_ids: Ids, **columns: Any) -> Values:
        """Returns 1.0 or 0.0 for each completion."""
        pattern = re.compile(self.pattern)
        matches = pattern.fullmatch if self.full else pattern.search
        return [float(matches(bounded(completion_text(completion))) is not None) for completion in completions]
