from __future__ import annotations

import contextlib
import time
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grouprl.tasks.arithmetic import DEEPEST, LONGEST, Grammar, UnreadableError, evaluate, numbers

EXPRESSIONS = st.recursive(
    st.integers(0, 99).map(str),
    lambda inner: st.tuples(inner, st.sampled_from("+-*/"), inner, st.booleans()).map(
        lambda parts: f"({parts[0]} {parts[1]} {parts[2]})" if parts[3] else f"{parts[0]}{parts[1]}{parts[2]}"
    ),
    max_leaves=10,
)


def by_python(text: str) -> Fraction | None:
    """Python's own grammar is the oracle, for texts that this file made."""
    try:
        return eval(
            "".join(f"Fraction({part})" if part.isdigit() else part for part in _split(text)), {"Fraction": Fraction}
        )
    except ZeroDivisionError:
        return None


def _split(text: str) -> list[str]:
    spaced = "".join(c if c.isdigit() else f" {c} " for c in text)
    return spaced.split()


@given(EXPRESSIONS)
def test_values_and_precedence_are_python_s(text: str) -> None:
    expected = by_python(text)
    if expected is None:
        with pytest.raises(UnreadableError):
            evaluate(text)
    else:
        assert evaluate(text) == expected


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2 + 3 * 4", 14), ("20 - 3 - 4", 13), ("20 / 2 / 5", 2), ("1 / 3 * 3", 1), ("(2 + 3) × 4", 20),
        ("8 ÷ 2 − 1", 3), (r"2 \times 3 \cdot 4 \div 6", 4), (r"\frac{3 + 5}{2} * 7", 28),
        (r"\left(2 + 3\right) * 4", 20), ("$2 + 3$", 5), ("0.5 * 3", Fraction(3, 2)), ("((((7))))", 7),
    ],
)  # fmt: skip
def test_arithmetic_as_models_write_it(text: str, value: Fraction) -> None:
    assert evaluate(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "-3 + 5", "3 + -5", "+3", "2**3", "2^3", "2 3", "2(3)", "(2)(3)", "2 +", "* 2", "(2", "2)", "()",
        "2 = 2", "2 // 3", "2 % 3", "5!", "1e3", "1_000", "0x10", "٣", "²", "x", "abs(3)",
        "__import__('os').system('true')", "2 if 1 else 3", "lambda: 3", "[3]", "2;3", "2 # 3", "3/0", "3/(2-2)",
        "1.2.3", "9999999999", "\x00", "2\u202e3", "(" * (DEEPEST + 1) + "2" + ")" * (DEEPEST + 1),
        "2" + "+2" * LONGEST,
    ],
)  # fmt: skip
def test_everything_else_is_refused(text: str) -> None:
    with pytest.raises(UnreadableError):
        evaluate(text)


@given(st.text(alphabet="0123456789+-*/()^ .x\\frac{}$=", max_size=60))
def test_nothing_else_is_ever_raised(text: str) -> None:
    with contextlib.suppress(UnreadableError):
        assert isinstance(evaluate(text), Fraction)


@pytest.mark.parametrize("text", ["9" * 10**6, "(" * 10**6, "1+" * 10**6, "9**" * 10**5, r"\frac{" * 10**5])
def test_hostile_texts_cost_nothing(text: str) -> None:
    start = time.perf_counter()
    with pytest.raises(UnreadableError):
        evaluate(text, Grammar(signs=True, powers=True, names={"x": Fraction(3)}))
    assert time.perf_counter() - start < 0.5


def test_signs_powers_and_names_where_a_grammar_has_them() -> None:
    grammar = Grammar(float, {"x": 3.0, "twice": lambda value: 2 * value}, signs=True, powers=True)
    assert evaluate("-x**2", grammar) == -9.0
    assert evaluate("2**-1", grammar) == 0.5
    assert evaluate("2**3**2", grammar) == 512.0
    assert evaluate("--x - -twice(x + 1)", grammar) == 11.0
    for text in ("y", "twice", "twice x", "x(3)", "twice(x"):
        with pytest.raises(UnreadableError):
            evaluate(text, grammar)


def test_the_numbers_of_a_text() -> None:
    assert numbers("(3 + 15) * 3 / 07") == [3, 15, 3, 7]
    for text in ("3.5 + 1", "3 ~ 4"):
        with pytest.raises(UnreadableError):
            numbers(text)
