from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grouprl.checks.asserts import Assertion, SplitError, asserts_of_check, holds, parse_asserts


@pytest.mark.parametrize(
    ("source", "calls", "passing", "failing"),
    [
        ("assert f(1) == 2", ["f(1)"], [[2], [2.0]], [[3], ["2"], [None]]),
        ("assert 2 == f(1), 'message'", ["f(1)"], [[2]], [[1]]),
        ("assert f([1, {'a': g}], k=-1) == (1, 'x')", ["f([1, {'a': g}], k=-1)"], [[(1, "x")]], [[[1, "x"]]]),
        ("assert (f(f(1)) == {1: [2]})", ["f(f(1))"], [[{1: [2]}]], [[{1: (2,)}]]),
        ("assert f(1)", ["f(1)"], [[True], [[0]], ["x"]], [[False], [0], [[]]]),
        ("assert not f(1)", ["f(1)"], [[False], [0]], [[True]]),
        ("assert f(1) is True", ["f(1)"], [[True]], [[1], ["True"]]),
        ("assert f(1) is None", ["f(1)"], [[None]], [[0]]),
        ("assert f(1) != 2", ["f(1)"], [[3]], [[2]]),
        ("assert 1 < f(1) <= 3", ["f(1)"], [[2], [3]], [[1], [4], ["2"]]),
        ("assert f(1) in (1, 2)", ["f(1)"], [[1]], [[3], [[]]]),
        ("assert 3 not in f(1)", ["f(1)"], [[[1]]], [[[3]], [3]]),
        ("assert abs(f(1) - 0.3) < 1e-6", ["f(1)"], [[0.1 + 0.2]], [[0.31], ["0.3"], [math.nan]]),
        ("assert math.isclose(f(1), 3.14, rel_tol=0.01)", ["f(1)"], [[3.15]], [[3.3], ["3.14"]]),
        ("assert round(f(1), 2) == 3.14", ["f(1)"], [[3.14159]], [[3.2], [None]]),
        ("assert set(f(1)) == set([1, 2])", ["f(1)"], [[[2, 1, 1]]], [[[1]], [3]]),
        ("assert sorted(f(1), reverse=True) == [2, 1]", ["f(1)"], [[[1, 2]]], [[[1, "2"]]]),
        ("assert tuple(f(1)) == tuple([1, 2])", ["f(1)"], [[[1, 2]]], [[[2, 1]]]),
        ("assert len(f(1)) == 2 and f(2) == 1", ["f(1)", "f(2)"], [["ab", 1]], [["a", 1], ["ab", 2]]),
        ("assert f(1)[0] == 5 or f(1)['k'] == 5", ["f(1)", "f(1)"], [[[5], {}], [[4], {"k": 5}]][:1], [[[4], {}]]),
        ("assert f(1) == [0] * 3 + [10 ** 2]", ["f(1)"], [[[0, 0, 0, 100]]], [[[0]]]),
        ("assert f(1) == list(range(3))", ["f(1)"], [[[0, 1, 2]]], [[[0]]]),
        ("assert f(1) == float('inf')", ["f(1)"], [[math.inf]], [[1e308]]),
        ("assert f(1) % 7 == 2", ["f(1)"], [[9]], [["%d"], [8]]),
    ],
)
def test_an_assert_is_cut_into_calls_and_a_condition(
    source: str, calls: list[str], passing: list[list[Any]], failing: list[list[Any]]
):
    [check] = parse_asserts([source])
    assert list(check.calls) == calls
    assert [holds(check, values) for values in passing] == [True] * len(passing)
    assert [holds(check, values) for values in failing] == [False] * len(failing)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("assert True", "calls a function"),
        ("assert 1 == len([2])", "calls a function"),
        ("f(1)", "expected one assert"),
        ("assert f(1) == 1; assert f(2) == 2", "expected one assert"),
        ("assert f(", "expected Python"),
        ("assert f(1) == f(1)", "itself"),
        ("assert f(1) == g(1)", "itself"),
        ("assert tuple(f([1])) == tuple(sorted_third([1]))", "itself"),
        ("assert f(1) == Counter('ab')", "itself"),
        ("assert f(1) == expected", "literals"),
        ("assert f(1) == [x for x in (1, 2)]", "literals"),
        ("assert f(1) == {**{}}", "literals"),
        ("assert (lambda: f(1))() == 1", "program's function"),
        ("assert f(1).startswith('a')", "program's function"),
        ("assert eval('f(1)') == 1", "program's function"),
        ("assert sorted(f(1), key=abs) == [1]", "literals"),
        ("assert __import__('os').system('true') == 0", "program's function"),
        ("assert list(range(f(1))) == [0]", "plain arguments"),
        ("assert f(1) if f(2) else f(3)", "literals"),
        ("assert f(2) - f(3) == 0", "itself"),
        ("assert f(1) + f(2) == [1, 2]", "itself"),
        ("assert math.isclose(f(1), f(2))", "itself"),
        ("assert f(1) in [f(2)]", "itself"),
        ("assert (f(1) == f(2)) == True", "itself"),
        ("assert len([f(1), f(2)]) == 2", "itself"),
        ("assert f(1) == 1 or f(2) == f(3)", "itself"),
        ("assert f(1) == 2 or True", "every part"),
        ("assert True or f(1) == 2", "every part"),
        ("assert not (f(1) == 2 and not (1 < 2))", "every part"),
        ("assert (f(1) == 2 or True) == True", "outside"),
        ("assert bool(f(1) or 1)", "outside"),
        ("assert (f(1) == 2, 'message')", "always true"),
        ("assert not [f(1)]", "always true"),
        ("assert math.abs(f(1)) == 1", "program's function"),
        ("assert f(await x) == 1", "expected Python"),
        ("assert f((yield)) == 1", "expected Python"),
        ("assert f(a=1, a=2) == 1", "expected Python"),
        ("assert f(1) is 300", "`is`"),
        ("assert f(1) is 'ab'", "`is`"),
        ("assert f(1) is not (1,)", "`is`"),
        ("assert 1 < f(1) is 5", "`is`"),
        ("assert f(1) == ...", "can return"),
        ("assert f(1) == range(3)", "can return"),
        ("assert range(3) != f(1)", "can return"),
        ("assert [range(3)] == [f(1)]", "can return"),
        ("assert str(f(1), 'idna') == 'a'", "plain arguments of str"),
        ("assert sum(f(1), []) == [1]", "plain arguments of sum"),
        ("assert f(1) == 1 / 0", "can be computed"),
        ("assert f(1) == int('x')", "can be computed"),
        ("assert f(1) == {[]: 1}", "can be computed"),
        ("assert f(1) == [1, 2][2]", "can be computed"),
        ("assert f(1) == len(3)", "can be computed"),
        ("assert f('\ud800') == 2", "UnicodeEncodeError"),
        ("assert f(1) == 2\0", "expected Python"),
        ("assert f(1) == " + "+".join(["1"] * 150), "levels"),
        ("assert f(1) == " + "+".join(["1"] * 3000), r"levels|RecursionError"),
        ("assert f(1) == " + "+".join(["1"] * 20_000), "expected Python|levels"),
        ("assert f(1) == " + "-" * 5000 + "1", "expected Python|levels"),
        ("assert f(1) == " + "-" * 500_000 + "1", "MemoryError"),
        ("assert f(" + "[" * 150 + "]" * 150 + ") == 1", "levels"),
        ("assert f(1)" + ".a" * 50_000, "expected Python"),
        ("assert f'{f(1)}' == 'a'", "literals"),
    ],
    ids=lambda text: ascii(text[:40]),
)
def test_an_assert_that_cannot_be_cut_is_refused(source: str, reason: str):
    with pytest.raises(SplitError, match=reason):
        parse_asserts([source])


def in_python(source: str, function: Callable[..., Any]) -> bool:
    """Whether Python lets an assert pass."""
    try:
        exec(source, {"f": function, "math": math})
    except (AssertionError, TypeError, ValueError, ArithmeticError, LookupError):
        return False
    return True


def outside(check: Assertion, function: Callable[..., Any]) -> bool:
    """Whether it passes when only its calls are made by Python."""
    returned = {}
    for number, call in enumerate(check.calls):
        with suppress(TypeError, ValueError, ArithmeticError, LookupError):
            returned[number] = eval(call, {"f": function})
    return holds(check, returned)


@pytest.mark.parametrize(
    ("source", "right"),
    [
        ("assert f(3) ** 2 == 81", lambda x: 9),
        ("assert f(3) ** -2 == 0.25", lambda x: -2),
        ("assert 2 ** f(1) == 1024", lambda x: 10),
        ("assert (-1) ** f(1) == 1", lambda x: 10**9),
        ("assert f(1) + [2] == [1, 2]", lambda x: [x]),
        ("assert [0] + f(1) + [2] == [0, 1, 2]", lambda x: [x]),
        ("assert (0,) + f(1) == (0, 1)", lambda x: (x,)),
        ("assert 'x' + f(1) == 'xab'", lambda x: "ab"),
        ("assert b'x' + f(1) == b'xab'", lambda x: b"ab"),
        ("assert f(1) - {1} == set()", lambda x: {x}),
        ("assert {1, 2} - f(1) == {2}", lambda x: {x}),
        ("assert '%d' % f(1) == '2'", lambda x: 2),
        ("assert '%.2f and %5s' % f(1) == '0.50 and     a'", lambda x: (0.5, "a")),
        ("assert f(1) % 7 == 'x7'", lambda x: "x%d"),
        ("assert b'%d' % f(1) == b'2'", lambda x: 2),
        ("assert [0] * f(2) == [0, 0]", lambda x: x),
        ("assert f(2) * [0] == [0, 0]", lambda x: x),
        ("assert 3 * f(2) == 'ababab'", lambda x: "ab"),
        ("assert f(2) * -1 == []", lambda x: [1]),
        ("assert True * f(2) == 2", lambda x: x),
        ("assert f(1) // 3 == 2 and f(2) / 4 == 0.5", lambda x: {1: 7, 2: 2}[x]),
        ("assert round(f(1), -2) == 1200", lambda x: 1234),
        ("assert round(f(1), ndigits=1) == 0.3", lambda x: 0.30001),
        ("assert round(f(1)) == 3", lambda x: 3.3),
        ("assert f(1) in range(3)", lambda x: 2),
        ("assert 1 in f(1) and f(2) not in (3,)", lambda x: [x]),
        ("assert str(f(1)) == '[1]' and sum(f(2)) == 2", lambda x: [x]),
        ("assert f(1) is None or f(2) == 3", lambda x: None if x == 1 else 1 / 0),
        ("assert not f(1) and f(1)[0:1] == []", lambda x: []),
        ("assert max(f(1), default=0) == 0", lambda x: []),
        ("assert abs(f(1)) == 5.0", lambda x: 3 + 4j),
        ("assert f(1) + f(2) == [1, 2]", lambda x: [x]),
        ("assert sum(f(1), []) == [1, 2]", lambda x: [[1], [2]]),
        ("assert f(1) == range(2)", lambda x: range(2)),
    ],
)
def test_the_verdict_is_python_s_or_the_assert_is_refused(source: str, right: Callable[..., Any]):
    assert in_python(source, right)
    try:
        checks = parse_asserts([source])
    except SplitError:
        assert any(part in source for part in ("f(1) + f(2)", "sum(f(1), [])", "== range", "[0:1]"))
        return
    for function in (
        right,
        lambda x: None,
        lambda x: x,
        lambda x: [x, x],
        lambda x: "%s",
        lambda x: {},
        lambda x: 1 / 0,
    ):
        assert outside(checks[0], function) == in_python(source, function)


LITERALS = ["0", "1", "-2", "1.5", "'a'", "'%s'", "b'a'", "[]", "[1]", "(1, 'a')", "{1}", "{'a': 1}", "None", "True"]
CONSTANTS = st.sampled_from(LITERALS)
ARITHMETIC = st.sampled_from(["+", "-", "*", "/", "//", "%"])
COMPARISONS = st.sampled_from(["==", "!=", "<", ">=", "in", "not in"])
CALLED = st.recursive(
    st.just("f(0)"),
    lambda inner: st.one_of(
        st.builds("({} {} {})".format, inner, ARITHMETIC, CONSTANTS),
        st.builds("({} {} {})".format, CONSTANTS, ARITHMETIC, inner),
        st.builds("({}{})".format, st.sampled_from(["not ", "-", "+"]), inner),
        st.builds("{}({})".format, st.sampled_from(["abs", "bool", "len", "list", "max", "sorted", "set"]), inner),
        st.builds("{}({})".format, st.sampled_from(["str", "sum", "tuple", "int", "round", "float"]), inner),
        st.builds("[{}, {}]".format, inner, CONSTANTS),
        st.builds("{}[{}]".format, inner, CONSTANTS),
    ),
    max_leaves=3,
)
COMPARED = st.one_of(
    st.builds("{} {} {}".format, CALLED, COMPARISONS, CONSTANTS),
    st.builds("{} {} {}".format, CONSTANTS, COMPARISONS, CALLED),
    CALLED,
)
CONDITIONS = st.recursive(
    COMPARED,
    lambda inner: st.one_of(
        st.builds("({}) {} ({})".format, inner, st.sampled_from(["and", "or"]), inner),
        st.builds("not ({})".format, inner),
    ),
    max_leaves=3,
)


@given(CONDITIONS, st.sampled_from(LITERALS))
@settings(max_examples=200, deadline=None)
def test_any_condition_is_judged_as_python_does_or_refused(condition: str, returned: str):
    source, value = f"assert {condition}", eval(returned)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python has an opinion of `1[0]`
        try:
            [check] = parse_asserts([source])
        except SplitError:
            return
        assert holds(check, [value] * len(check.calls)) == in_python(source, lambda _: value)


def test_all_asserts_of_a_problem_call_one_function():
    with pytest.raises(SplitError, match="one function, got f, g"):
        parse_asserts(["assert f(1) == 1", "assert g(1) == 1"])
    with pytest.raises(SplitError, match="got no assert"):
        parse_asserts([])


ENDLESS = [
    ("3 ** {}", 10**9), ("{} ** 100000", 10**9), ("10 ** 10 ** {}", 8), ("{} * 'a'", 10**11),
    ("[[0] * 10**5] * {}", 10**5), ("[0] * {} + [1]", 10**7), ("round(10**6, {})", -(10**7)),
    ("round(1234, ndigits={})", -(10**9)), ("'%*d' % {}", (10**9, 1)), ("{} % 1", "%1000000000d"),
    ("{} % {'a': 'x' * 90000}", "%(a)s" * 900), ("{} * 10 ** 200000", int("f" * 250_000, 16)),
    ("{} // 10 ** 200000", int("f" * 250_000, 16)), ("{} % 10 ** 200000", int("f" * 250_000, 16)),
]  # fmt: skip


@pytest.mark.parametrize(("condition", "value"), ENDLESS, ids=[condition for condition, _ in ENDLESS])
def test_no_value_makes_a_condition_work_for_long(condition: str, value: Any):
    [check] = parse_asserts([f"assert {condition.replace('{}', 'f(1)', 1).replace('{}', '2')}"])
    started = time.perf_counter()
    assert not holds(check, [value])
    assert time.perf_counter() - started < 1.0


@pytest.mark.parametrize(
    "constant",
    [
        *(condition.replace("{}", f"({value!r})") for condition, value in ENDLESS[:-3]),
        "10**10**8",
        "'a'*10**11",
        "list(range(10**12))",
        "sum(range(10**9))",
        "len(set(range(0, 10**23, 2**61 - 1)))",
        "2**900000 // 2**450000",
        " * ".join(["10**200000"] * 90),
        " + ".join(["'a' * 10**6"] * 90),
        "str([[0] * 1000] * 1000 * 1000)",
        "sum([[0]] * 10**6, [])",
        "'%s' * 100 % (('x' * 10**5,) * 100)",
    ],
)
def test_no_constant_makes_the_reading_work_for_long(constant: str):
    started = time.perf_counter()
    with pytest.raises(SplitError, match=r"can be computed|plain arguments"):
        parse_asserts([f"assert f(1) == {constant}"])
    assert time.perf_counter() - started < 2.0


def test_constants_of_a_usual_size_are_worked_out():
    [check] = parse_asserts(["assert f(1) == [0] * 1000 + list(range(1000)) + [2 ** 4000 % 7, 'ab' * 3, 10 ** 300]"])
    assert holds(check, [[*[0] * 1000, *range(1000), 2**4000 % 7, "ababab", 10**300]])


def test_the_body_of_check_becomes_asserts_with_the_function_s_own_name():
    test = """
METADATA = {'author': 'x'}
def check(candidate):
    '''Cases.'''
    assert candidate([1.5]) == True, "case 1"
    # an edge case
    assert abs(candidate([2]) - 0.33) < 1e-6

    assert True, "This prints if this assert fails"
"""
    found = asserts_of_check(test, "near")
    assert found == ["assert near([1.5]) == True, 'case 1'", "assert abs(near([2]) - 0.33) < 1e-06"]
    assert [check.calls for check in parse_asserts(found)] == [("near([1.5])",), ("near([2])",)]


@pytest.mark.parametrize(
    "test",
    [
        "assert f(1) == 1",
        "def check(candidate):\n    for x in range(9):\n        assert candidate(x) == x",
        "def check(candidate):\n    y = 1\n    assert candidate(y) == 1",
    ],
)
def test_a_check_that_does_more_than_assert_is_refused(test: str):
    with pytest.raises(SplitError):
        asserts_of_check(test, "f")
