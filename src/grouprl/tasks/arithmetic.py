"""Reads arithmetic that a model wrote. It is parsed, never evaluated as code, and the text is bounded first."""

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
    """The text is no arithmetic of the grammar, or has no value (division by zero)."""


@dataclass(frozen=True)
class Grammar:
    """What a text may hold besides `+ - * /` and parentheses, and what its parts stand for."""

    number: Callable[[str], Any] = Fraction
    names: Mapping[str, Any] = field(default_factory=dict)  # of values, and of functions of one argument
    signs: bool = False  # -3 at the start of a text, of a bracket or of a factor
    powers: bool = False  # x**2 and x^2


PLAIN = Grammar()


def evaluate(text: str, grammar: Grammar = PLAIN) -> Any:
    r"""The value of a text, exact where the grammar's numbers are.

    Multiplication is always written, as `*`, `×`, `·`, `\times` or `\cdot`; division as `/`, `÷`, `\div` or
    `\frac{..}{..}` without inner braces. Costs linear time in the text, besides the arithmetic itself.

    Raises:
        UnreadableError: the text is longer or deeper than allowed, holds anything else, or has no value.

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
    """The whole numbers written in a text, in order; of anything else it raises UnreadableError."""
    written = [token for token in tokens(text) if token[0].isdigit()]
    if not all(token.isdigit() for token in written):
        raise UnreadableError("expected whole numbers")
    return [int(token) for token in written]


def tokens(text: str) -> list[str]:
    """Numbers, names and operators. Raises UnreadableError at anything else, and beyond LONGEST characters."""
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
    """One function for each level of precedence; each leaves `place` behind what it read."""

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
            raise UnreadableError(f"expected ( behind {token}")
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
