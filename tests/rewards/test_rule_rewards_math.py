"""math_verify: what it takes for equal, decided by hand, and what it never does with the policy's text."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from answer_pairs import PAIRS
from grouprl.types import UserError

pytest.importorskip("math_verify")

from grouprl.checks.symbolic import MathVerify
from grouprl.problems.lengths import CosineLength


def verdict(answer: str, gold: object) -> float | None:
    (value,) = MathVerify()(["?"], [rf"so it is \boxed{{{answer}}}"], [[1]], answer=[gold])
    return value


def test_one_place_is_looked_at() -> None:
    texts = [
        r"\boxed{\frac{14}{2}} \boxed{8}",
        r"\boxed{8} \boxed{\frac{14}{2}}",
        r"\boxed{7} <answer>8</answer>",
        r"<answer>8</answer><answer>\boxed{x = 7}</answer>",
        "The answer is $7$.",
    ]
    assert MathVerify()(["?"] * 5, texts, [[1]] * 5, answer=["7"] * 5) == [0.0, 1.0, 0.0, 1.0, 0.0]


@pytest.mark.parametrize(
    "gold", ["", r"\sum_{i=1}^n i", r"0.\overline{3}", r"\operatorname{lcm}(2, 3)", "x+" * 200 + "x"]
)
@pytest.mark.parametrize("answer", ["7", r"\text{anything}", ""])
def test_a_gold_answer_that_cannot_be_read_is_an_error_whatever_was_answered(gold: str, answer: str) -> None:
    with pytest.raises(ValueError, match="expected a gold answer"):
        verdict(answer, gold)


def test_a_problem_without_an_answer_is_not_judged() -> None:
    assert verdict("7", None) is None


def test_it_can_be_the_verifier_of_the_length_reward() -> None:
    reward = CosineLength(max_tokens=4, verifier="math_verify")
    texts = [r"\boxed{2\sqrt{2}}", r"\boxed{3\sqrt{2}}"]
    assert reward(["?"] * 2, texts, [[1, 2]] * 2, answer=[r"\sqrt{8}"] * 2) == [0.75, -0.75]


def test_the_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "math_verify", None)
    with pytest.raises(UserError, match=r"grouprl\[math\]"):
        MathVerify()
    with pytest.raises(UserError, match=r"grouprl\[math\]"):
        CosineLength(max_tokens=4, verifier="math_verify")


SMALL = st.fractions(min_value=-20, max_value=20, max_denominator=12)


def surd(whole: Fraction, part: Fraction, *, swapped: bool) -> str:
    """whole + part * sqrt(2), which is one number for every pair."""
    terms = [rf"\frac{{{whole.numerator}}}{{{whole.denominator}}}"]
    terms.append(rf"\frac{{{part.numerator} \sqrt{{2}}}}{{{part.denominator}}}")
    return " + ".join(terms[::-1] if swapped else terms)


@settings(max_examples=40)
@given(SMALL, SMALL, SMALL, SMALL, st.booleans())
def test_surds_are_equal_exactly_when_their_parts_are(
    a: Fraction, b: Fraction, c: Fraction, d: Fraction, swapped: bool
) -> None:
    assert verdict(surd(a, b, swapped=swapped), surd(a, b, swapped=not swapped)) == 1.0
    assert verdict(surd(c, d, swapped=swapped), surd(a, b, swapped=False)) == float((a, b) == (c, d))


@settings(max_examples=40)
@given(st.lists(SMALL, min_size=1, max_size=4), st.lists(SMALL, min_size=1, max_size=4))
def test_lists_are_equal_exactly_when_their_sets_are_and_never_equal_to_one_value(
    a: list[Fraction], b: list[Fraction]
) -> None:
    written, gold = ", ".join(map(str, a)), ", ".join(map(str, b))
    one = len(b) == 1
    expected = a == b if one else set(a) == set(b) and (len(a) > 1 or len(set(b)) == 1)
    assert verdict(written, gold) == float(expected)


# Nothing that a model wrote is evaluated

PolicyEvaluation = list[str]


@pytest.fixture
def evaluated(monkeypatch: pytest.MonkeyPatch) -> Iterator[PolicyEvaluation]:
    """Every text that sympy is asked to evaluate, from wherever it is asked."""
    import math_verify.parser as library
    import sympy.parsing.sympy_parser as parser
    import sympy.physics.units  # noqa: F401  its names are made by evaluation, and simplify imports it
    from sympy.core.cache import clear_cache

    seen: PolicyEvaluation = []
    made = parser.stringify_expr

    def stringify_expr(text: str, *others: Any) -> str:
        seen.append(text)
        return made(text, *others)

    monkeypatch.setattr(parser, "stringify_expr", stringify_expr)
    for cache in (library.parse_latex_cached, library.extract_latex, library.parse_expr_cached):
        cache.cache_clear()
    clear_cache()  # what sympy has evaluated once, it remembers
    yield seen
    clear_cache()


def test_no_text_is_evaluated(evaluated: PolicyEvaluation) -> None:
    for answer, gold, _, _ in PAIRS[::2]:
        verdict(answer, gold)
    for answer in ("31415.926", "0.1234567x", "9871 + 0.5", "00089", "3.25, 4.75", "[0.125, 99/7]", r"123456\%x"):
        for gold in ("x+1", r"\sqrt{3}", "1, 2", "(0, 5)"):
            verdict(answer, gold)
    for code in ("__import__('os').system('true')", "().__class__", r"\text{__import__('os')}", "f(exec)"):
        verdict(code, "x+1")
    assert evaluated == []


def test_the_watch_sees_what_the_library_does_by_itself(evaluated: PolicyEvaluation) -> None:
    import sympy
    from latex2sympy2_extended import latex2sympy2
    from math_verify import ExprExtractionConfig, parse

    parse("40 + 2", [ExprExtractionConfig()], parsing_timeout=None)
    sympy.Number("271828")
    sympy.nsimplify(sympy.Float("1.4142135623730951"))
    assert evaluated == ["40 + 2", "271828", "(sqrt(8)/2)"]
    assert latex2sympy2.latex2sympy("0.75") == sympy.Rational(3, 4)  # the reader's numbers are ours
