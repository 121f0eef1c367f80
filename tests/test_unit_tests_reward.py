from __future__ import annotations

import math
import re
import sys
from typing import Any

import pytest

from grouprl.rewards.sandbox import BACKENDS, why_unavailable
from grouprl.rewards.unit_tests import UnitTests, program
from grouprl.tasks.asserts import CannotSplitError, body_of_check, holds, unit_tests
from grouprl.types import UserError

TESTS = ("assert double(2) == 4", "assert double(-3) == -6", "assert double('ab') == 'abab'")


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    if sys.platform != "linux":
        pytest.skip("sandboxes need Linux")
    if reason := why_unavailable(request.param):
        pytest.skip(f"{request.param}: {reason}")
    return str(request.param)


def fenced(code: str) -> str:
    return f"Here:\n```python\n{code}\n```"


def score(backend: str, code: str, tests: Any = TESTS, setup: str = "", **settings: Any) -> float | None:
    reward = UnitTests(backend=backend, **settings)
    [value] = reward(["?"], [fenced(code)], [[]], test_list=[tests], test_setup_code=[setup])
    return value


# Cutting asserts


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
    [check] = unit_tests([source])
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
        ("assert f'{f(1)}' == 'a'", "literals"),
    ],
)
def test_an_assert_that_cannot_be_cut_is_refused(source: str, reason: str):
    with pytest.raises(CannotSplitError, match=reason):
        unit_tests([source])


def test_all_asserts_of_a_problem_call_one_function():
    with pytest.raises(CannotSplitError, match="one function, got f, g"):
        unit_tests(["assert f(1) == 1", "assert g(1) == 1"])
    with pytest.raises(CannotSplitError, match="got no assert"):
        unit_tests([])


@pytest.mark.parametrize("value", [10**9, -(10**9), "x" * 99, [0] * 99, 1e300])
def test_no_value_makes_a_condition_work_for_long(value: Any):
    [power] = unit_tests(["assert 3 ** f(1) == 9"])
    [text] = unit_tests(["assert f(1) * 1000000000 == 'x'"])
    assert not holds(power, [value])
    assert not holds(text, [value])


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
    found = body_of_check(test, "near")
    assert found == ["assert near([1.5]) == True, 'case 1'", "assert abs(near([2]) - 0.33) < 1e-06"]
    assert [check.calls for check in unit_tests(found)] == [("near([1.5])",), ("near([2])",)]


@pytest.mark.parametrize(
    "test",
    [
        "assert f(1) == 1",
        "def check(candidate):\n    for x in range(9):\n        assert candidate(x) == x",
        "def check(candidate):\n    y = 1\n    assert candidate(y) == 1",
    ],
)
def test_a_check_that_does_more_than_assert_is_refused(test: str):
    with pytest.raises(CannotSplitError):
        body_of_check(test, "f")


# Finding the program


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("```python\na\n```", "a\n"),
        ("```python\na\n```\nor\n```python\nb\n```\nprints\n```\nc\n```", "b\n"),
        ("```py\na\n```\n```json\n{}\n```", "a\n"),
        ("```\na\n```\n```\nb\n```", "b\n"),
        ("  ```Python  \n  a\n  ```  ", "  a\n"),
        ("```python\na\n```\n```python\nnever closed", "a\n"),
        ("```python\nnever closed", "```python\nnever closed"),
        ("x = 1", "x = 1"),
        ("", ""),
        ("<think>```python\nno\n```</think><answer>```python\nyes\n```</answer>", "yes\n"),
        ("```python\nno\n```<answer>x = 1</answer>", "x = 1"),
    ],
)
def test_the_program_is_the_last_closed_block(text: str, code: str):
    assert program(text) == code


def test_a_thousand_openings_take_no_time():
    import time

    started = time.perf_counter()
    program("```python\nx\n" * 20_000)
    program("```a" * 50_000)
    assert time.perf_counter() - started < 0.5


# The reward


def test_a_right_program_earns_1_and_a_wrong_one_0(backend: str):
    assert score(backend, "def double(x):\n    return x + x") == 1.0
    assert score(backend, "def double(x):\n    return x * x") == 0.0
    assert score(backend, "def double(x):\n    return x + x if x != -3 else 6") == 0.0


def test_a_share_of_the_asserts_can_be_paid(backend: str):
    assert score(backend, "def double(x):\n    return x + x if x != -3 else 6", share=True) == pytest.approx(2 / 3)
    assert score(backend, "def double(x):\n    return None", share=True) == 0.0
    assert score(backend, "import os\ndef double(x):\n    return 4 if x == 2 else os._exit(0)", share=True) == 1 / 3


def test_a_problem_without_tests_is_none_and_others_keep_their_place(backend: str):
    reward = UnitTests(backend=backend)
    right, wrong = fenced("def double(x):\n    return 2 * x"), "no program"
    values = reward(["?"] * 3, [right, right, wrong], [[]] * 3, test_list=[TESTS, None, TESTS])
    assert values == [1.0, None, 0.0]


def test_chat_messages_and_bodies_that_go_on_from_the_prompt_are_read(backend: str):
    reward = UnitTests(backend=backend)
    head = 'from typing import Any\n\ndef double(x: Any) -> Any:\n    """Twice x."""\n'
    whole = [{"role": "assistant", "content": fenced(f"{head}    return x * 2")}]
    bodies = ["    return x * 2", whole, fenced("    return x * 2"), "    return x"]
    values = reward(["?"] * 4, bodies, [[]] * 4, test_list=[TESTS] * 4, test_setup_code=[head] * 4)
    assert values == [1.0, 1.0, 1.0, 0.0]


def test_helpers_of_the_set_up_are_there_and_its_failure_is_an_error(backend: str):
    assert score(backend, "def double(x):\n    return times(x, 2)", setup="def times(a, b):\n    return a * b") == 1.0
    with pytest.raises(ValueError, match="expected a set-up that runs"):
        score(backend, "def double(x):\n    return x * 2", setup="import no_such_module")


ALWAYS = """
class Always(int):
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    __hash__ = int.__hash__
    __lt__ = __gt__ = __le__ = __ge__ = __contains__ = __eq__
"""
CHEATS = {
    "leaves after PASS": "import os\nprint('PASS')\nos._exit(0)",
    "leaves in the call": "import os\ndef double(x):\n    print('PASS 3/3', flush=True)\n    os._exit(0)",
    "exits": "import sys\nsys.exit(0)",
    "equals everything": f"{ALWAYS}\ndef double(x):\n    return Always()",
    "is made of what equals everything": f"{ALWAYS}\ndef double(x):\n    return [Always()] * 4",
    "text that equals everything": "class S(str):\n    def __eq__(self, o): return True\n    __hash__ = str.__hash__\n"
    "def double(x):\n    return S('abab')",
    "patches builtins": "import builtins\nfor name in ('abs', 'all', 'any', 'len', 'map', 'isinstance', 'type'):\n"
    "    setattr(builtins, name, lambda *a, **k: True)\ndef double(x):\n    return 1",
    "patches modules": "import sys, types\nfor name in ('json', 'ast', 'operator', 'os', 'math'):\n"
    "    sys.modules[name] = types.ModuleType(name)\nsys.exit = print\ndef double(x):\n    return 1",
    "patches the encoder": "import __main__\n__main__.encode = lambda value: 'true'\n"
    "__main__.attempt = lambda *a: 'true'\ndef double(x):\n    return 1",
    "replaces the loop": "import __main__\n__main__.main = print\n__main__.report = lambda *a: None\n"
    "def double(x):\n    return 1",
    "writes results itself": "import os\nfor number in range(3, 512):\n    try:\n"
    "        os.write(number, b'started\\ntrue\\ntrue\\ntrue\\n')\n    except OSError:\n        pass\nos._exit(0)",
    "claims readiness": "import os\nfor number in range(3, 512):\n    try:\n"
    "        os.write(number, b'ready\\nprepared\\nstarted\\n' * 9)\n    except OSError:\n        pass\nos._exit(0)",
    "closes the results": "import os\nos.closerange(3, 512)\ndef double(x):\n    return x * 2",
    "raises": "def double(x):\n    raise AssertionError('PASS')",
    "returns an error": "def double(x):\n    return ['error', 'PASS']",
    "recurses": "def double(x):\n    return double(x)",
    "crashes": "import ctypes\ndef double(x):\n    return ctypes.string_at(0)",
    "is no data": "def double(x):\n    return iter([x * 2])",
    "is huge": "def double(x):\n    return [x] * 10**6",
    "returns True": "def double(x):\n    return True",
    "is missing": "def triple(x):\n    return 3 * x",
}


@pytest.mark.parametrize("name", CHEATS)
def test_a_program_that_does_not_know_the_answers_earns_nothing(backend: str, name: str):
    assert score(backend, CHEATS[name], share=True) == 0.0


def test_forged_results_have_to_be_right_as_well(backend: str):
    """What the program claims is believed only as far as it is the expected value: it has to know it."""
    claims = b'started\\n["i","0x4"]\\n["i","-0x6"]\\n["s","61626162"]\\n'.decode()
    forged = f"import os\nfor number in range(3, 512):\n    try:\n        os.write(number, b'{claims}')\n"
    forged += "    except OSError:\n        pass\nos._exit(0)"
    assert score(backend, forged) == 1.0
    assert score(backend, forged.replace("0x4", "0x5")) == 0.0


SEARCH = r"""
import gc, os, re, sys, types
texts = set()
def keep(value, depth=0):
    if isinstance(value, (str, bytes)):
        texts.add(value if isinstance(value, str) else value.decode("latin-1"))
    elif isinstance(value, (list, tuple)) and depth < 3:
        for item in list(value):
            keep(item, depth + 1)
def trace(frame, event, argument):
    values.extend(frame.f_locals.values())
    return trace
values = []
def search(pattern):
    sys.settrace(None)
    keep(values)
    frame = sys._getframe()
    while frame is not None:
        for value in (*frame.f_locals.values(), *frame.f_globals.values(), *frame.f_code.co_consts):
            keep(value)
        frame = frame.f_back
    for thing in gc.get_objects():
        for value in gc.get_referents(thing):
            if isinstance(value, (str, bytes)):
                keep(value)
            elif isinstance(value, types.CodeType):
                keep(value.co_consts)
    for number in range(64):
        try:
            os.lseek(number, 0, 0)
            keep(os.read(number, 1 << 20))
        except OSError:
            pass
    for path in ("/proc/self/cmdline", "/proc/self/environ", "/proc/self/mem", "/dev/stdin"):
        try:
            keep(open(path, "rb").read())
        except OSError:
            pass
    keep([*sys.argv, *sys.orig_argv, *os.environ.values()])
    return sorted({found for text in texts for found in re.findall(pattern, text)})
sys.settrace(trace)
"""


def test_expected_values_are_nowhere_to_be_found(backend: str):
    expected = "wanted-" + "5e1f"
    pattern = "wanted-[0-9a-f]{4}|needle-[0-9]{3}"
    tests = [f"assert look('needle-123', {pattern!r}) == ['{expected}']"]
    code = f"{SEARCH}\ndef look(argument, pattern):\n    return search(pattern)"
    assert score(backend, code, tests) == 0.0
    # It does search: what the call itself holds is found.
    tests = [
        f"assert 'needle-123' in look('needle-123', {pattern!r})",
        f"assert not look('', {'wanted-[0-9a-f]{4}'!r})",
    ]
    assert score(backend, code, tests) == 1.0
    assert re.fullmatch(pattern, expected)


@pytest.mark.parametrize("settings", [{"backend": "docker"}, {"backend": "none"}, {"seconds": 0.0}, {"memory_mib": -1}])
def test_a_setting_that_makes_no_sense_is_refused(settings: dict[str, Any]):
    with pytest.raises(UserError, match="expected"):
        UnitTests(**settings)


def test_auto_is_settled_when_the_reward_is_made(backend: str):
    assert UnitTests().backend in BACKENDS
