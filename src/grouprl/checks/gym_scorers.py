"""Scorers that replace thirteen of reasoning-gym's (0.1.25).

Nine of them pass the answer to Python's `eval` or sympy's `parse_expr`, which would run text that a model wrote. Of the
others, `coin_flip` gives full marks to 0, `complex_arithmetic` to nan and `game_of_life_halting` to any text, and
`prime_factorization` raises for a wrong answer that is no number. Two more raise for JSON of another type than theirs,
which `can_score` finds first.
"""

from __future__ import annotations

import cmath
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from grouprl.tasks.answers import parse_value
from grouprl.tasks.arithmetic import Grammar, UnreadableError, evaluate, numbers, tokens

Scorer = Callable[[str, str, Mapping[str, Any]], bool]
"""Whether an answer is right, from the library's answer and metadata."""

_SIGNED = Grammar(signs=True)
# Points at which functions are compared. Points outside of the domain of a root or logarithm are skipped.
_POINTS = (-0.61, 0.19, 0.37, 0.83, 1.31, 1.87, 2.29)
_AGREE = 1e-6  # relative tolerance; an expanded power loses half of a float's 16 digits near its zero
_PART = r"[0-9]{1,9}(?:\.[0-9]{1,9})?"
_COMPLEX = re.compile(rf"(?=.)(?:[+-]?{_PART}(?![0-9.i]))?(?:[+-]?(?:{_PART})?i)?")
_FACTOR = re.compile(r"([0-9]+)|([A-Za-z])(?:\^([0-9]{1,4}))?")


def _same_text(answer: str, expected: str, _: Mapping[str, Any]) -> bool:
    return answer == expected.strip()


def _reaches(answer: str, operands: list[int], target: int) -> bool:
    try:
        return Counter(numbers(answer)) == Counter(operands) and bool(evaluate(answer, _SIGNED) == target)
    except UnreadableError:
        return False


def _probability(answer: str, _: str, metadata: Mapping[str, Any]) -> bool:
    value, exact = parse_value(answer), metadata["rational"]
    share = exact["numerator"] / exact["denominator"]
    return value is not None and abs(float(value) - share) <= 1e-3 * share


def _complex(answer: str, _: str, metadata: Mapping[str, Any]) -> bool:
    """Whether both parts agree to two decimals."""
    text = "".join(answer.split()).removeprefix("(").removesuffix(")")
    if not _COMPLEX.fullmatch(text):
        return False
    written = complex(text.replace("i", "j"))
    return all(abs(a - b) <= 0.00501 for a, b in zip((written.real, written.imag), metadata["result"], strict=True))


def _factors(answer: str, _: str, metadata: Mapping[str, Any]) -> bool:
    try:
        signs = tokens(answer)[1::2]
        return sorted(numbers(answer)) == sorted(metadata["factors"]) and set(signs) <= {"*"}
    except UnreadableError:
        return False


def _antiderivative(answer: str, _: str, metadata: Mapping[str, Any]) -> bool:
    """Whether the derivative of the answer is the integrand, by automatic differentiation."""
    variable = metadata["variable"]
    pairs = []
    for point in _POINTS:
        names: dict[str, Any] = {
            **_FUNCTIONS,
            "C": DualNumber(1.0),
            "E": DualNumber(math.e),
            "pi": DualNumber(math.pi),
            variable: DualNumber(point, 1.0),
        }
        grammar = Grammar(lambda digits: DualNumber(float(digits)), names, signs=True, powers=True)
        expected = _value(metadata["integrand"], grammar)
        if expected is not None:
            pairs.append((_value(answer, grammar), expected.value))
    if len(pairs) < 4:
        raise ValueError(f"expected an integrand that can be computed, got {metadata['integrand']!r:.100}")
    return all(
        written is not None and abs(written.slope - value) <= _AGREE * max(abs(written.slope), abs(value))
        for written, value in pairs
    )


def _value(text: str, grammar: Grammar) -> DualNumber | None:
    try:
        value: DualNumber = evaluate(text, grammar)
    except ValueError:
        return None
    return value if cmath.isfinite(value.value) and cmath.isfinite(value.slope) else None


@dataclass(frozen=True)
class DualNumber:
    """A dual number: a value and its derivative in the variable, for automatic differentiation."""

    value: complex
    slope: complex = 0.0

    def __add__(self, other: DualNumber) -> DualNumber:
        return DualNumber(self.value + other.value, self.slope + other.slope)

    def __sub__(self, other: DualNumber) -> DualNumber:
        return DualNumber(self.value - other.value, self.slope - other.slope)

    def __mul__(self, other: DualNumber) -> DualNumber:
        return DualNumber(self.value * other.value, self.slope * other.value + self.value * other.slope)

    def __truediv__(self, other: DualNumber) -> DualNumber:
        slope = (self.slope * other.value - self.value * other.slope) / other.value**2
        return DualNumber(self.value / other.value, slope)

    def __neg__(self) -> DualNumber:
        return DualNumber(-self.value, -self.slope)

    def __pow__(self, other: DualNumber) -> DualNumber:
        power = complex(self.value) ** other.value
        if other.slope == 0:
            return DualNumber(power, other.value * complex(self.value) ** (other.value - 1) * self.slope)
        log = cmath.log(self.value)
        return DualNumber(power, power * (other.slope * log + other.value * self.slope / self.value))


def _function(
    value: Callable[[complex], complex], slope: Callable[[complex], complex]
) -> Callable[[DualNumber], DualNumber]:
    return lambda at: DualNumber(value(at.value), slope(at.value) * at.slope)


_FUNCTIONS: Mapping[str, Callable[[DualNumber], DualNumber]] = {
    "exp": _function(cmath.exp, cmath.exp),
    "log": _function(cmath.log, lambda x: 1 / x),
    "ln": _function(cmath.log, lambda x: 1 / x),
    "sqrt": _function(cmath.sqrt, lambda x: 0.5 / cmath.sqrt(x)),
    "sin": _function(cmath.sin, cmath.cos),
    "cos": _function(cmath.cos, lambda x: -cmath.sin(x)),
    "tan": _function(cmath.tan, lambda x: 1 / cmath.cos(x) ** 2),
    "asin": _function(cmath.asin, lambda x: 1 / cmath.sqrt(1 - x * x)),
    "acos": _function(cmath.acos, lambda x: -1 / cmath.sqrt(1 - x * x)),
    "atan": _function(cmath.atan, lambda x: 1 / (1 + x * x)),
    "sinh": _function(cmath.sinh, cmath.cosh),
    "cosh": _function(cmath.cosh, cmath.sinh),
}


def _same_polynomial(answer: str, expected: str, _: Mapping[str, Any]) -> bool:
    """Whether the answer is the expanded product: a sum of terms without brackets."""
    written = polynomial(answer)
    return written is not None and written == polynomial(expected)


def polynomial(text: str) -> dict[str, int] | None:
    """The nonzero coefficient of each monomial; None when the text is not a sum of terms such as `-3*x**2*y`.

    >>> polynomial("2*x**2 + x*x - 7")
    {'x^2': 3, '': -7}
    """
    if len(text) > 5000:
        return None
    terms: Counter[str] = Counter()
    for term in re.sub(r"\s+", "", text).replace("**", "^").replace("-", "+-").removeprefix("+").split("+"):
        coefficient, powers = -1 if term.startswith("-") else 1, Counter[str]()
        for factor in term.removeprefix("-").split("*"):
            match = _FACTOR.fullmatch(factor)
            if match is None or len(match[1] or "") > 30:
                return None
            if match[1]:
                coefficient *= int(match[1])
            else:
                powers[match[2]] += int(match[3] or 1)
        monomial = " ".join(f"{letter}^{power}" for letter, power in sorted(powers.items()) if power)
        terms[monomial] += coefficient
    return {monomial: coefficient for monomial, coefficient in terms.items() if coefficient}


SCORERS: Mapping[str, Scorer] = {
    "binary_matrix": _same_text,
    "coin_flip": _probability,
    "complex_arithmetic": _complex,
    "countdown": lambda answer, _, metadata: _reaches(answer, metadata["numbers"], metadata["target"]),
    "game_of_life_halting": lambda answer, expected, _: answer.casefold() == expected.casefold(),
    "intermediate_integration": _antiderivative,
    "n_queens": lambda answer, _, metadata: answer in metadata["valid_answers"],
    "polynomial_multiplication": _same_polynomial,
    "prime_factorization": _factors,
    "puzzle24": lambda answer, _, metadata: _reaches(answer, metadata["numbers"], 24),
    "simple_integration": _antiderivative,
    "spiral_matrix": _same_text,
    "string_insertion": _same_text,
}

_JSON_KINDS: Mapping[str, type] = {"boxnet": dict, "game_of_life": list}


def can_score(dataset: str, answer: str) -> bool:
    """Whether the scorer can read an answer; False for a wrong answer for which the library's scorer would raise."""
    if dataset not in _JSON_KINDS:
        return True
    try:
        return isinstance(json.loads(answer), _JSON_KINDS[dataset])
    except (ValueError, RecursionError):
        return False
