from __future__ import annotations

import re
import time
from typing import Any

import pytest

from grouprl.checks.unit_tests import UnitTests
from grouprl.config.run import ScoringConfig
from grouprl.rewards.configured import open_scorer
from grouprl.rewards.functions import WeightedReward
from grouprl.types import UserError

TESTS = ("assert double(2) == 4", "assert double(-3) == -6", "assert double('ab') == 'abab'")


def fenced(code: str) -> str:
    return f"Here:\n```python\n{code}\n```"


def score(backend: str, code: str, tests: Any = TESTS, setup: str = "", **settings: Any) -> float | None:
    reward = UnitTests(backend=backend, **settings)
    [value] = reward(["?"], [fenced(code)], [[]], test_list=[tests], test_setup_code=[setup])
    return value


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


def test_a_call_that_python_would_not_make_need_not_return(backend: str):
    tests = ["assert first([]) is None or first([1]) == 1", "assert first([2]) == 2 and not first([0])"]
    assert score(backend, "def first(x):\n    return x[0] if x else None", tests) == 1.0
    assert score(backend, "def first(x):\n    return None if not x else x[0] if x[0] != 1 else 1 / 0", tests) == 1.0
    assert score(backend, "def first(x):\n    return x[0]", tests) == 0.0
    assert score(backend, "def first(x):\n    return x[0]", ["assert not first([])"]) == 0.0


def test_a_limit_beyond_that_of_a_call_is_refused(backend: str):
    """It would make every program that hangs invalid instead of wrong."""
    reward = WeightedReward("unit_tests", UnitTests(backend=backend, seconds=12.0))
    message = r"unit_tests: expected rollout.scoring.seconds of 13 or more .* got 10"
    with pytest.raises(UserError, match=message), open_scorer([reward], limits=ScoringConfig(seconds=10.0)):
        pass
    other = WeightedReward("other", len)
    with (
        pytest.raises(UserError, match=message),
        open_scorer([other], verifier=reward, limits=ScoringConfig(seconds=10.0)),
    ):
        pass


def test_a_program_that_hangs_is_wrong_within_the_longest_call(backend: str):
    reward = UnitTests(backend=backend, seconds=0.5)
    started = time.monotonic()
    assert reward(["?"], [fenced("while True: pass")], [[]], test_list=[TESTS]) == [0.0]
    assert time.monotonic() - started < reward.longest_call_seconds == 1.5
