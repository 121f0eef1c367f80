r"""Finds final answers in text and compares them by value. It never evaluates text as code."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from grouprl.types import UserError

LONGEST_VALUE = 64  # characters; longer text is no plain number, and parsing huge digit strings is slow
LONGEST_ANSWER = 10_000  # characters; longer text is no final answer, and comparing it might be slow

_BOX = re.compile(r"\\boxed\s?\{")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)  # an escaped brace is text, not structure
_NUMBER = r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?|[0-9]+(?:\.[0-9]*)?|\.[0-9]+)"
_SIGNED = rf"[+-]? ?{_NUMBER}"
_RATIO = re.compile(rf"({_SIGNED})(?: ?/ ?({_SIGNED}))?")
_LATEX_RATIO = re.compile(rf"([+-]?) ?\\[dt]?frac\{{ ?({_SIGNED}) ?\}}\{{ ?({_SIGNED}) ?\}}")
_UNIT = re.compile(r"(?<=[0-9}%.])\s*\\(?:text|mathrm)\{[^{}]*\}$")
_WRAPPED = re.compile(r"\\(?:text|textbf|mathrm|mathbf)\{([^{}]*)\}")
_CURRENCY = re.compile(r"^([+-]?) ?(?:\\\$|[$€£]) ?")
# Bounded repeats keep the time linear for a completion that is only digits.
_TERM = r"\$?[0-9][0-9,.]{0,15}"
_EQUATION = re.compile(
    rf"{_TERM}\s{{0,3}}(?:[-+*/x×÷−]|\\times|\\div|\\cdot)\s{{0,3}}{_TERM}\s{{0,3}}=\s{{0,3}}-?{_TERM}"
)


def last_boxed(text: str) -> str | None:
    r"""The content of the last \boxed{...}, with balanced braces; None without a box or when the last is not closed.

    >>> last_boxed(r"\boxed{3}, no: \boxed{\frac{14}{2}}")
    '\\frac{14}{2}'
    """
    starts = [match.end() for match in _BOX.finditer(text)]
    if not starts:
        return None
    depth = 1
    for brace in _BRACE.finditer(text, starts[-1]):
        depth += {"{": 1, "}": -1}.get(brace.group(), 0)
        if depth == 0:
            return text[starts[-1] : brace.start()]
    return None


def final_text(text: str) -> str | None:
    r"""The final answer of a completion, or None. It has exactly one place, so writing several answers never pays.

    The answer is the text in the last `<answer>...</answer>`, or in the last box inside that tag. Without a tag it is
    the text in the last \boxed{...}. A last tag or box that is not closed, or more than LONGEST_ANSWER characters,
    give None.

    >>> final_text(r"\boxed{3} <answer>so it is \boxed{4}</answer> \boxed{5}"), final_text("It is 4.")
    ('4', None)
    """
    _, opened, rest = text.rpartition("<answer>")
    if opened:
        inside, closed, _ = rest.partition("</answer>")
        answer = (last_boxed(inside) if _BOX.search(inside) else inside) if closed else None
    else:
        answer = last_boxed(text)
    return None if answer is None or len(answer) > LONGEST_ANSWER else answer.strip()


def completion_text(completion: str | Sequence[Mapping[str, Any]]) -> str:
    """The text of a completion, which comes as text or as an assistant message."""
    return completion if isinstance(completion, str) else str(completion[-1]["content"])


def gold_answer(text: str) -> str:
    """The final answer of a GSM8K solution: the text after its last `####`.

    Raises UserError when there is no `####` or no text after it.
    """
    _, mark, answer = text.rpartition("####")
    if not mark or not answer.strip():
        raise UserError(f"expected a solution that ends in '#### 7', got {text[-60:]!r}: add the final answer")
    return answer.strip()


def final_answer(answer: object) -> str:
    """The bare answer of an `answer` column, which holds the answer itself or a solution that ends in `#### 7`."""
    text = str(answer)
    return gold_answer(text) if "####" in text else text.strip()


def _bare(text: str) -> str:
    r"""Text without the usual decoration of a number: math and currency signs, units in \text, a full stop."""
    text = text.replace("{,}", ",").replace("\\!", "").replace("−", "-").strip().removesuffix(".")
    text = text.removeprefix("\\(").removesuffix("\\)").strip().strip("$").strip()
    text = _WRAPPED.sub(r"\1", _UNIT.sub("", text)).strip().removesuffix(".").strip()
    return _CURRENCY.sub(r"\1", text)


def parse_value(text: str) -> Fraction | None:
    r"""The number that a short text means, or None.

    It reads 1,000; 7.0; -3; 14/2; \frac{14}{2}; a currency sign before the number; a full stop, a percent sign or a
    \text{unit} after it. It drops a percent sign without dividing: `50%` is 50, as GSM8K writes its answers.

    >>> parse_value("$1,000.50"), parse_value("5 or 6")
    (Fraction(2001, 2), None)
    """
    if len(text) > LONGEST_VALUE:
        return None
    bare = _bare(text).removesuffix("%").removesuffix("\\").strip()
    if match := _LATEX_RATIO.fullmatch(bare):
        return _ratio(match[1] + "1", "1", match[2], match[3])
    if match := _RATIO.fullmatch(bare):
        return _ratio("1", "1", match[1], match[2] or "1")
    return None


def _ratio(*numbers: str) -> Fraction | None:
    a, b, c, d = (Fraction(number.replace(",", "").replace(" ", "")) for number in numbers)
    return a * c / (b * d) if b * d else None


def same_value(a: str, b: str) -> bool:
    """Whether two answers are equal: as numbers when both are numbers, else as text without decoration."""
    values = parse_value(a), parse_value(b)
    if None in values:
        return _bare(a) == _bare(b)
    return values[0] == values[1]


def is_worked(text: str) -> bool:
    r"""Whether an equation such as `15 - 3 = 12` stands before the last box (anywhere when there is no box).

    >>> is_worked(r"15 - 3 = 12. \boxed{12}"), is_worked(r"I think \boxed{12}")
    (True, False)
    """
    boxes = [match.start() for match in _BOX.finditer(text)]
    return _EQUATION.search(text[: boxes[-1]] if boxes else text) is not None
