"""Answers by value, against exact arithmetic on fractions, and both verifiers against the table of `answer_pairs`."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from answer_pairs import BOTH, MATH, PAIRS
from grouprl.rewards.rules import correct_answer
from grouprl.tasks.answers import parse_value, same_value


def value(text: str, answer: object) -> float | None:
    (given_value,) = correct_answer(["?"], [text], [[1]], answer=[answer])
    return given_value


@pytest.mark.parametrize(
    ("text", "answer", "expected"),
    [
        (r"<think>\boxed{8}</think><answer>7</answer>", "7", 1.0), (r"<answer>\boxed{7}</answer>", "7", 1.0),
        (r"\boxed{7} <answer>8</answer>", "7", 0.0), (r"\boxed{8} \boxed{7}", "7", 1.0),
        (r"\boxed{7} \boxed{8}", "7", 0.0), (r"\boxed{}", "7", 0.0), ("7", "7", 0.0), (r"\boxed{7}", None, None),
    ],
)  # fmt: skip
def test_one_place_holds_the_answer(text: str, answer: object, expected: float | None) -> None:
    assert value(text, answer) == expected


@pytest.mark.parametrize("answer", ["", "  ", "\n"])
def test_an_empty_gold_answer_is_an_error_and_not_equal_to_an_empty_box(answer: str) -> None:
    with pytest.raises(ValueError, match="expected a gold answer"):
        value(r"\boxed{}", answer)


def with_commas(number: int) -> str:
    return f"{number:,}"


def decimal(number: Fraction) -> str:
    """Exact: the denominator divides a power of ten."""
    digits = f"{abs(number.numerator) * 10**6 // number.denominator:07d}"
    return f"{'-' if number < 0 else ''}{digits[:-6]}.{digits[-6:]}"


FORMS: dict[str, Callable[[Fraction], str]] = {
    "ratio": lambda x: f"{x.numerator}/{x.denominator}",
    "ratio with spaces": lambda x: f"{x.numerator} / {x.denominator}",
    "unreduced": lambda x: f"{x.numerator * 6}/{x.denominator * 6}",
    "two signs": lambda x: f"{-x.numerator}/{-x.denominator}",
    "commas": lambda x: f"{with_commas(x.numerator)}/{with_commas(x.denominator)}",
    "LaTeX": lambda x: rf"\frac{{{x.numerator}}}{{{x.denominator}}}",
    "LaTeX, sign in front": lambda x: f"{'-' if x < 0 else ''}\\dfrac{{{abs(x.numerator)}}}{{{x.denominator}}}",
    "LaTeX of decimals": lambda x: rf"\tfrac{{{x.numerator}.0}}{{{x.denominator}.00}}",
    "in dollars": lambda x: f"${x.numerator}/{x.denominator}$.",
    "in parentheses": lambda x: rf"\(\frac{{{x.numerator}}}{{{x.denominator}}}\)",
    "percent": lambda x: rf"{x.numerator}/{x.denominator}\%",
    "unit": lambda x: rf"\frac{{{x.numerator}}}{{{x.denominator}}} \text{{ cm}}",
    "typographic minus": lambda x: str(x).replace("-", "−"),
}
NUMBERS = st.fractions(min_value=-(10**7), max_value=10**7, max_denominator=10**4)
TENTHS = st.integers(-(10**12), 10**12).map(lambda n: Fraction(n, 10**6))


@given(NUMBERS, st.sampled_from(sorted(FORMS)), st.sampled_from(sorted(FORMS)))
def test_a_number_is_equal_to_itself_in_every_form(number: Fraction, one: str, other: str) -> None:
    a, b = FORMS[one](number), FORMS[other](number)
    assert parse_value(a) == number
    assert same_value(a, b)
    assert value(rf"so \boxed{{{a}}}", b) == 1.0


@given(NUMBERS, NUMBERS, st.sampled_from(sorted(FORMS)), st.sampled_from(sorted(FORMS)))
def test_numbers_are_equal_exactly_when_their_fractions_are(x: Fraction, y: Fraction, one: str, other: str) -> None:
    a, b = FORMS[one](x), FORMS[other](y)
    assert same_value(a, b) == same_value(b, a) == (x == y)


@given(TENTHS, st.sampled_from(["", "$", "€", r"\$"]), st.sampled_from(["", ".", "0", "000", r"\text{ kg}"]))
def test_decimals_are_exact(number: Fraction, before: str, after: str) -> None:
    text = before + decimal(number) + after
    assert parse_value(text) == number
    assert not same_value(text, decimal(number + Fraction(1, 10**6)))


@given(st.text(max_size=30), st.text(max_size=30))
def test_equality_of_any_two_texts_is_symmetric_and_never_fails(a: str, b: str) -> None:
    assert same_value(a, b) == same_value(b, a)
    assert same_value(a, a)


def accepted(verifier, answer: str, gold: object) -> float:
    (value,) = verifier(
        prompts=["?"], completions=[rf"so it is \boxed{{{answer}}}."], completion_ids=[[1]], answer=[gold]
    )
    return value


def test_both_verifiers_decide_every_pair_of_the_table_as_a_person_would() -> None:
    pytest.importorskip("math_verify")
    from grouprl.checks.symbolic import MathVerify

    for verifier, right in ((correct_answer, {BOTH}), (MathVerify(), {BOTH, MATH})):
        assert [pair for pair in PAIRS if accepted(verifier, *pair[:2]) != float(pair[2] in right)] == []
        # A policy that writes what the data set has is paid; of a solution that is the answer at its end.
        golds = {gold: gold.rpartition("####")[2].strip() for _, gold, *_ in PAIRS if isinstance(gold, str)}
        written = {gold: answer if "####" in gold else gold for gold, answer in golds.items()}
        paid = [accepted(verifier, answer, gold) for gold, answer in written.items() if r"\boxed" not in answer]
        assert set(paid) == {1.0}
