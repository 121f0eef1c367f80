"""Parses arithmetic that a model wrote. It checks the length of the text first, and never evaluates it as code."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import accumulate
from typing import Any

LONGEST = 1000  # characters
DEEPEST = 20  # brackets inside each other

_TOKEN = re.compile(r"\s*(?:([0-9]{1,9}(?:\.[0-9]{1,9})?)(?![0-9.])|([A-Za-z]+)|(\*\*|[-+*/^()]))")
_SYMBOLS = {"−": "-", "–": "-", "×": "*", "·": "*", "÷": "/", "$": "", "\\left": "", "\\right": ""}
_LATEX = {"\\times": "*", "\\cdot": "*", "\\div": "/"}
_FRACTION = re.compile(r"\\[dt]?frac\{([^{}]*)\}\{([^{}]*)\}")
_OPERATIONS: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


class UnreadableError(ValueError):
    """The text is not arithmetic of the grammar, or has no value (division by zero)."""


@dataclass(frozen=True)
class Grammar:
    """What a text may use in addition to `+ - * /` and parentheses, and the meaning of its numbers and names."""

    number: Callable[[str], Any] = Fraction  # turns digits into a number
    names: Mapping[str, Any] = field(default_factory=dict)  # constants, and functions of one argument
    signs: bool = False  # allows -3 at the start of a text, of a bracket or of a factor
    powers: bool = False  # allows x**2 and x^2


PLAIN = Grammar()


def evaluate(text: str, grammar: Grammar = PLAIN) -> Any:
    r"""The value of an arithmetic text, exact where the grammar's numbers are exact.

    Multiplication needs a sign: `*`, `×`, `·`, `\times` or `\cdot`. Division is `/`, `÷`, `\div` or `\frac{..}{..}`
    without inner braces. Precedence is Python's, whose parser reads the text with a name in place of each number.

    Raises:
        UnreadableError: the text is too long, too deeply nested, not arithmetic, or has no value.

    >>> evaluate("(3 + 5) * 7 / 2")
    Fraction(28, 1)
    """
    parts = tokens(text)
    if max(accumulate((token == "(") - (token == ")") for token in parts), default=0) > DEEPEST:
        raise UnreadableError(f"expected brackets at most {DEEPEST} deep")
    written = {f"_{index}": grammar.number(token) for index, token in enumerate(parts) if token[0].isdigit()}
    named = (f"_{index}" if token[0].isdigit() else token for index, token in enumerate(parts))
    try:
        tree = ast.parse(" ".join(named).replace("^", "**"), mode="eval")
        return _value(tree.body, grammar, {**grammar.names, **written})
    except (SyntaxError, MemoryError, RecursionError, ZeroDivisionError, OverflowError) as error:
        raise UnreadableError(str(error)) from error


def _value(node: ast.expr, grammar: Grammar, names: Mapping[str, Any]) -> Any:
    match node:
        case ast.Name(id=name) if name in names and not callable(names[name]):
            return names[name]
        case ast.Call(func=ast.Name(id=name), args=[argument], keywords=[]) if callable(names.get(name)):
            return names[name](_value(argument, grammar, names))
        case ast.UnaryOp(op=ast.UAdd(), operand=inner) if grammar.signs:
            return _value(inner, grammar, names)
        case ast.UnaryOp(op=ast.USub(), operand=inner) if grammar.signs:
            return -_value(inner, grammar, names)
        case ast.BinOp(left=left, op=ast.Pow(), right=right) if grammar.powers:
            return _value(left, grammar, names) ** _value(right, grammar, names)
        case ast.BinOp(left=left, op=operation, right=right) if type(operation) in _OPERATIONS:
            return _OPERATIONS[type(operation)](_value(left, grammar, names), _value(right, grammar, names))
    raise UnreadableError(f"expected arithmetic, got {ast.unparse(node)[:20]!r}")


def numbers(text: str) -> list[int]:
    """The whole numbers written in a text, in order. Raises UnreadableError for other numbers or symbols."""
    written = [token for token in tokens(text) if token[0].isdigit()]
    if not all(token.isdigit() for token in written):
        raise UnreadableError("expected whole numbers")
    return [int(token) for token in written]


def tokens(text: str) -> list[str]:
    """The numbers, names and operators of a text. Raises UnreadableError for other symbols or too long a text."""
    if len(text) > LONGEST:
        raise UnreadableError(f"expected at most {LONGEST} characters, got {len(text)}")
    for written, meant in (_SYMBOLS | _LATEX).items():
        text = text.replace(written, meant)
    text = _FRACTION.sub(r"((\1)/(\2))", text).strip()
    parts, at = [], 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise UnreadableError(f"expected arithmetic, got {text[at : at + 20]!r}")
        parts.append(match[0].strip())
        at = match.end()
    return parts
