"""Process rewards: the end and the value of each reasoning step of a completion."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from grouprl.rewards.rules import Ids, Texts, completion_text
from grouprl.tasks.answers import parse_value

_TERM = r"\$?[0-9][0-9,.]{0,15}"
_SIGN = r"\s{0,3}(?:[-+*/x×÷−]|\\times|\\div|\\cdot)\s{0,3}"
_EQUATION = re.compile(rf"(-?{_TERM}(?:{_SIGN}{_TERM}){{1,8}})\s{{0,3}}=\s{{0,3}}(-?{_TERM})")
_PARTS = re.compile(rf"({_TERM})|({_SIGN})")
_MARK = re.compile(r"<<[^<>=]{1,60}=(-?[0-9.,]{1,20})>>")
_TIMES, _OVER = ("*", "x", "×", "\\times", "\\cdot"), ("/", "÷", "\\div")


def equation_steps(
    prompts: Texts, completions: Texts, completion_ids: Ids, *, answer: Sequence[Any], **columns: Any
) -> list[list[tuple[int, float]] | None]:
    """Scores each worked equation of a completion, such as `15 - 3 = 12`, as a reasoning step.

    An equation earns 1.0 when it is right and leads to a result of the gold solution (its `<<15-3=12>>` marks, each
    counted once), else 0.0: repeated steps and true but useless steps earn nothing. Without marks in `answer` every
    right equation earns 1.0 once, useful or not: mark the solutions if the policy could exploit that.
    """
    steps_N: list[list[tuple[int, float]] | None] = []
    for completion, gold in zip(completions, answer, strict=True):
        if gold is None:
            steps_N.append(None)
            continue
        marks = [value for mark in _MARK.findall(str(gold)) if (value := parse_value(mark)) is not None]
        open_results, seen, steps = list(marks), set[str](), list[tuple[int, float]]()
        for match in _EQUATION.finditer(completion_text(completion)):
            expression, written = "".join(match[1].split()), match[2].rstrip(".,")
            result = parse_value(written)
            right = result is not None and _value(expression) == result
            right = right and (result in open_results if marks else expression not in seen)
            if right and marks and result is not None:
                open_results.remove(result)
            seen.add(expression)
            steps.append((match.start(2) + len(written), float(right)))
        steps_N.append(steps)
    return steps_N


def _value(expression: str) -> Fraction | None:
    """Evaluates `a + b * c ...`, products first; None when a number is malformed or a divisor is 0."""
    terms: list[Fraction] = []
    sign = "+"
    for number, operator in _PARTS.findall(expression):
        if operator:
            sign = operator.strip()
            continue
        value = parse_value(number.rstrip(".,"))
        if value is None:
            return None
        if sign in _TIMES:
            terms[-1] *= value
        elif sign in _OVER:
            if value == 0:
                return None
            terms[-1] /= value
        else:
            terms.append(value if sign == "+" else -value)
    return sum(terms, Fraction(0))
