"""Parses arithmetic that a model wrote. It checks the length of the text first, and never evaluates it as code."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

LONGEST = 1000  # characters
DEEPEST = 20  # brackets inside each other

_TOKEN = re.compile(r"\s*(?:([0-9]{1,9}(?:\.[0-9]{1,9})?)(?![0-9.])|([A-Za-z]+)|(\*\*|[-+*/^()]))")
_SYMBOLS = {"−": "-", "–": "-", "×": "*", "·": "*", "÷": "/", "$": "", "\\left": "", "\\right": ""}
_LATEX = {"\\times": "*", "\\cdot": "*", "\\div": "/"}
_FRACTION = re.compile(r"\\[dt]?frac\{([^{}]*)\}\{([^{}]*)\}")


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
    without inner braces. Parsing takes linear time in the length of the text.

    Raises:
        UnreadableError: the text is too long, too deeply nested, not arithmetic, or has no value.

    >>> evaluate("(3 + 5) * 7 / 2")
    Fraction(28, 1)
    """
    if len(text) > LONGEST:
        raise UnreadableError(f"expected at most {LONGEST} characters, got {len(text)}")
    reader = _Reader(tokens(text), grammar)
    try:
        value = reader.sum()
    except (ZeroDivisionError, OverflowError) as error:
        raise UnreadableError(str(error)) from error
    reader.end()
    return value


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
    found, place = [], 0
    while place < len(text):
        match = _TOKEN.match(text, place)
        if match is None:
            raise UnreadableError(f"expected arithmetic, got {text[place : place + 20]!r}")
        found.append(match[0].strip())
        place = match.end()
    return found


class _Reader:
    """A recursive-descent parser: one method for each level of precedence, which moves `_place` past what it reads."""

    def __init__(self, found: list[str], grammar: Grammar) -> None:
        self._tokens, self._grammar = found, grammar
        self._place = self._depth = 0

    def sum(self) -> Any:
        value = self._product()
        while self._next() in ("+", "-"):
            value = value + self._product() if self._take() == "+" else value - self._product()
        return value

    def end(self) -> None:
        if self._next():
            raise UnreadableError(f"expected the end, got {self._next()!r}")

    def _product(self) -> Any:
        value = self._signed()
        while self._next() in ("*", "/"):
            value = value * self._signed() if self._take() == "*" else value / self._signed()
        return value

    def _signed(self) -> Any:
        negative = False
        while self._grammar.signs and self._next() in ("+", "-"):
            negative ^= self._take() == "-"
        return -self._power() if negative else self._power()

    def _power(self) -> Any:
        base = self._atom()
        if self._grammar.powers and self._next() in ("**", "^"):
            self._take()
            return base ** self._nested(self._signed)
        return base

    def _atom(self) -> Any:
        token = self._take()
        if token[:1].isdigit():
            return self._grammar.number(token)
        if token == "(":
            return self._bracket()
        found = self._grammar.names.get(token)
        if found is None:
            raise UnreadableError(f"expected a number, got {token!r}")
        if not callable(found):
            return found
        if self._take() != "(":
            raise UnreadableError(f"expected ( after {token}")
        return found(self._bracket())

    def _bracket(self) -> Any:
        value = self._nested(self.sum)
        if self._take() != ")":
            raise UnreadableError("expected )")
        return value

    def _nested(self, read: Callable[[], Any]) -> Any:
        self._depth += 1
        if self._depth > DEEPEST:
            raise UnreadableError(f"expected brackets at most {DEEPEST} deep")
        value = read()
        self._depth -= 1
        return value

    def _next(self) -> str:
        return self._tokens[self._place] if self._place < len(self._tokens) else ""

    def _take(self) -> str:
        token = self._next()
        self._place += 1
        return token
