from __future__ import annotations

import contextlib
import time
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grouprl.tasks.answers import (
    LONGEST_ANSWER,
    completion_text,
    final_answer,
    final_text,
    gold_answer,
    is_worked,
    last_boxed,
    parse_value,
    same_value,
)
from grouprl.tasks.arithmetic import DEEPEST, LONGEST, Grammar, UnreadableError, evaluate, numbers
from grouprl.tasks.spelling import unit_of
from grouprl.types import UserError


@pytest.mark.parametrize(
    ("text", "box"),
    [
        (r"\boxed{7}", "7"), (r"so \boxed{3}. No, wait: \boxed{7}.", "7"),
        (r"\boxed{\frac{14}{2}} left", r"\frac{14}{2}"), (r"\boxed{ 7 }", " 7 "), (r"\boxed {7}", "7"),
        (r"\boxed{\boxed{7}}", "7"), (r"\boxed{\{1, 2\}}", r"\{1, 2\}"), (r"\boxed{\}}", r"\}"), (r"\boxed{}", ""),
        ("no box: 7", None), (r"\boxed 7", None), (r"\boxed{7", None),
        (r"first \boxed{7}, then cut at \boxed{8", None), (r"\boxed{\frac{14}{2}", None),
    ],
)  # fmt: skip
def test_last_boxed(text: str, box: str | None) -> None:
    assert last_boxed(text) == box


@given(
    st.recursive(
        st.sampled_from(["7", "x", " ", ""]), lambda inner: st.lists(inner).map(lambda x: "{" + "".join(x) + "}")
    )
)
def test_a_balanced_content_comes_back_whole(content: str) -> None:
    assert last_boxed(rf"\boxed{{1}} then \boxed{{{content}}} and more {{text}}") == content


def test_gold_answer_is_the_text_after_the_last_mark() -> None:
    assert gold_answer("2 + 3 = <<2+3=5>>5\n#### 4\nsorry\n#### 1,005 ") == "1,005"


@pytest.mark.parametrize("text", ["The answer is 7", "", "work\n####  \n"])
def test_a_solution_without_an_answer_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="#### 7"):
        gold_answer(text)


def test_an_answer_column_is_bare_or_a_solution() -> None:
    assert [final_answer(answer) for answer in ("7 ", 7, 7.0, "3 + 4 = 7\n#### 7")] == ["7", "7", "7.0", "7"]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7", 7), ("007", 7), (" 7 ", 7), ("7.0", 7), ("7.", 7), (".5", Fraction(1, 2)), ("+7", 7), ("-7", -7),
        ("- 7", -7), ("−7", -7), ("1,000", 1000), ("1{,}000", 1000), ("12,345,678.90", Fraction(1234567890, 100)),
        ("14/2", 7), ("-1 / 3", Fraction(-1, 3)), ("1.5/0.5", 3), (r"\frac{14}{2}", 7),
        (r"-\dfrac{1}{3}", Fraction(-1, 3)), (r"\frac{-1}{3}", Fraction(-1, 3)), ("$7", 7),
        (r"\$7.50", Fraction(15, 2)), ("-$5", -5), ("$7$", 7), ("$7$.", 7), (r"\(7\)", 7), ("50%", 50), (r"50\%", 50),
        (r"7\text{ apples}", 7), (r"\text{7}", 7),
    ],
)  # fmt: skip
def test_numbers_in_many_forms(text: str, value: Fraction) -> None:
    assert parse_value(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "", "seven", "7 apples", "5 or 6 or 7", "5 6", "1,00", "1,0000", "1/0", r"\frac{1}{0}", "1/2/3", "2**9",
        "1e3", "0x7", "nan", "inf", "__import__('os')", "9" * 65, "1_000", "-", "7/", "$",
    ],
)  # fmt: skip
def test_everything_else_is_no_number(text: str) -> None:
    assert parse_value(text) is None


@given(st.text(alphabet="0123456789,./-+ $%\\{}fractexbo\t", max_size=70))
def test_reading_a_value_never_fails(text: str) -> None:
    assert isinstance(parse_value(text), Fraction | None)


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        ("1,000", "1000", True), ("7.0", "7", True), ("14/2", "7", True), ("0.33", "1/3", False), ("-7", "7", False),
        ("B", r"\text{B}", True), (" x + 1", "x + 1 ", True), ("x", "y", False), ("7", "seven", False),
        ("9" * 70, "9" * 70, True), ("9" * 70, "9" * 71, False),
    ],
)  # fmt: skip
def test_answers_are_compared_by_value_else_by_text(a: str, b: str, same: bool) -> None:
    assert same_value(a, b) is same
    assert same_value(b, a) is same


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"\boxed{3} ... \boxed{1,000}", "1,000"), ("It is 7.", None), ("<answer>7</answer>", "7"),
        ("<answer>\n 7 </answer> and more", "7"), (r"\boxed{3} <answer>7</answer> \boxed{4}", "7"),
        ("<answer>3</answer> no: <answer>7</answer>", "7"),
        (r"<answer>so \boxed{3} or \boxed{7} it is</answer>", "7"), (r"<answer>\boxed{7</answer>", None),
        ("<answer>3</answer> <answer>7", None), (r"\boxed{7} <answer>", None), (r"</answer> \boxed{7}", "7"),
        ("<answer><answer>7</answer></answer>", "7"), ("<answer></answer>", ""), ("<ANSWER>7</ANSWER>", None),
        (r"\boxed{7", None), (r"\boxed{3} \boxed{7", None),
    ],
)  # fmt: skip
def test_exactly_one_place_is_the_answer(text: str, answer: str | None) -> None:
    assert final_text(text) == answer


@pytest.mark.parametrize(
    ("text", "unit"),
    [
        ("square square meter", None),
        ("square feet per second", {("foot", 2), ("second", -1)}),
        ("cubic meter second", {("meter", 3), ("second", 1)}),
        ("meter per second per second", {("meter", 1), ("second", -2)}),
        ("km/h squared", {("kilometer", 1), ("hour", -2)}),
        ("mph", {("mile", 1), ("hour", -1)}),
        ("apples", set()),
        ("apples pears", None),
        ("percent", set()),
    ],
)
def test_a_unit_is_the_powers_of_its_parts(text: str, unit: set[tuple[str, int]] | None) -> None:
    assert unit_of(text, upright=True) == unit


@given(st.lists(st.sampled_from(["<answer>", "</answer>", r"\boxed{", "}", "7", "8", " "]), max_size=30))
def test_the_answer_is_a_piece_of_the_text(parts: list[str]) -> None:
    answer = final_text("".join(parts))
    assert answer is None or answer in "".join(parts)


def test_a_book_is_no_answer() -> None:
    assert final_text(rf"\boxed{{{'7' * LONGEST_ANSWER}}}") == "7" * LONGEST_ANSWER
    assert final_text(f"<answer>{'7' * (LONGEST_ANSWER + 1)}</answer>") is None


def test_a_completion_is_text_or_a_message() -> None:
    assert completion_text("7") == completion_text([{"role": "assistant", "content": "7"}]) == "7"


@pytest.mark.parametrize(
    ("text", "worked"),
    [
        (r"15 - 3 = 12. \boxed{12}", True), (r"He has 4*6=24 pens. \boxed{24}", True),
        (r"2 \times 3 = 6, \boxed{6}", True), (r"$1,000 / 4 = $250 \boxed{250}", True), ("15 - 3 = 12", True),
        (r"I think there are 7. \boxed{7}", False), (r"\boxed{7} because 3 + 4 = 7", False),
        (r"x = 7 \boxed{7}", False), (r"between 3 - 5 of them \boxed{7}", False),
    ],
)  # fmt: skip
def test_worked_means_an_equation_before_the_answer(text: str, worked: bool) -> None:
    assert is_worked(text) is worked


@pytest.mark.parametrize(
    "text",
    [
        "1" * 50_000, r"\boxed{" * 10_000, "{" * 50_000, "1 + " * 20_000, "1 " + " " * 50_000, "<answer>" * 10_000,
        "<answer></answer>" * 10_000, r"<answer>\boxed{" * 10_000,
    ],
)  # fmt: skip
def test_hostile_text_costs_little(text: str) -> None:
    start = time.perf_counter()
    is_worked(text)
    final_text(text)
    same_value(final_text(rf"\boxed{{{text}}}") or text, text)
    assert time.perf_counter() - start < 1.0


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
