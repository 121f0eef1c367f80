from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any, get_args

import pytest

from grouprl.checks.code import Code
from grouprl.checks.sandbox import BACKENDS, why_unavailable
from grouprl.checks.unit_tests import UnitTests, program
from grouprl.config.run import ScoringConfig
from grouprl.rewards.configured import open_scorer
from grouprl.rewards.functions import WeightedReward
from grouprl.tasks.base import Split
from grouprl.types import Problem, UserError

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


RIGHT = "def f(x):\n    return x + 1\n"
WRONG = "def f(x):\n    return 0\n"


def block(code: str, opening: str = "```python", closing: str = "```") -> str:
    return f"{opening}\n{code}{closing}\n"


def indented(text: str, by: str) -> str:
    return "".join(f"{by}{line}\n" for line in text.splitlines())


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("```python\na\n```", "a\n"),
        ("```python\na\n```\nor\n```python\nb\n```\nprints\n```\nc\n```", "b\n"),
        ("```py\na\n```\n```json\n{}\n```", "a\n"),
        ("```\na\n```\n```\nb\n```", "b\n"),
        ("  ```Python  \n  a\n  ```  ", "a\n"),
        ("```python\na\n```\n```python\nnever closed", "a\n"),
        ("```python\nnever closed", "```python\nnever closed"),
        ("```python-repl\n>>> a\n```\n```pycon\n>>> b\n```\n```\nc\n```", "c\n"),
        ("x = 1", "x = 1"),
        ("", ""),
    ],
)
def test_without_the_function_it_is_the_last_closed_block(text: str, code: str):
    assert program(text, "f") == code


@pytest.mark.parametrize(
    "text",
    [
        block(RIGHT) + block("print(f(1))\n"),
        block(RIGHT) + "Prints:\n" + block("2\n", "```") + block("assert f(1) == 2\n"),
        block(RIGHT) + block(">>> f(1)\n2\n"),
        block(RIGHT) + block("def f_test():\n    assert f(1) == 2\n") + block("f == 1\nff = f(1)\n"),
        block(RIGHT, "```") + "Use:\n" + block("from solution import f\nprint(f(1))\n"),
        block(WRONG) + "No, better:\n" + block(RIGHT),
        block(RIGHT) + block(WRONG, "```") + block(WRONG, "```text"),
    ],
)
def test_the_last_block_that_defines_the_function_is_taken(text: str):
    assert program(text, "f") == RIGHT


@pytest.mark.parametrize(
    "definition",
    ["async def f(x):\n    return x\n", "class f:\n    pass\n", "f = lambda x: x\n", "f: object = abs\n", "f=abs\n"],
)
def test_there_are_several_ways_to_define_a_function(definition: str):
    assert program(block(definition) + block("print(f(1))\n"), "f") == definition


@pytest.mark.parametrize(
    "text",
    [
        block(RIGHT, "~~~python", "~~~"),
        block(RIGHT, "````python", "````"),
        block(RIGHT, "```python", "`````"),
        block(RIGHT, "```python title=a.py"),
        block(RIGHT, "```{.python}"),
        block(RIGHT, "``` {.python .numberLines}"),
        block(RIGHT, "```{python}"),
        block(RIGHT, "```python:a.py"),
        block(RIGHT, "```Python3.11"),
        "1. So:\n" + indented(block(RIGHT), "   ") + "2. Done.",
        "- So:\n\n" + indented(block(RIGHT), "\t"),
        "```x``` is how.\n" + block(RIGHT),
        "Use ```f(1)``` to call\n" + block(RIGHT) + "done",
        "\ufeff" + block(RIGHT),
        block("\ufeff" + RIGHT),
        "\ufeff" + RIGHT,
    ],
)
def test_fences_of_every_kind_are_read(text: str):
    assert program(text, "f") == RIGHT


def test_a_fence_within_the_program_does_not_close_it():
    code = 'def f(x):\n    """Adds.\n\n    ```\n    f(1)\n    ```\n    ~~~\n    """\n    return x + 1\n'
    assert program(block(code), "f") == code
    four = "text = '''\n```\n'''\n" + RIGHT
    assert program(block(four, "````python", "````"), "f") == four


def test_lines_end_as_they_did():
    assert program(block(RIGHT).replace("\n", "\r\n"), "f") == RIGHT.replace("\n", "\r\n")


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("<think>```python\nno\n```</think><answer>```python\nyes\n```</answer>", "yes\n"),
        ("<think>```python\nno\n```</think>```python\nyes\n```", "yes\n"),
        ("<think>~~~python\nno\n~~~</think>\n```python\nyes\n```", "yes\n"),
        ("```python\nno\n```<answer>x = 1</answer>", "x = 1"),
        (f"<answer>{block(WRONG)}</answer><answer>\n{block(RIGHT)}</answer> so", RIGHT),
        (f"<answer>\n{block(RIGHT)}</answer>\n{block(WRONG)}", RIGHT),
        (f"Don't guess. <answer>{block(RIGHT)}", RIGHT),
        (block(f"# <answer>\n{RIGHT}"), f"# <answer>\n{RIGHT}"),
        (block(f"T = '<answer>'\n{RIGHT}"), f"T = '<answer>'\n{RIGHT}"),
        (block(f'T = "put <answer>"\n{RIGHT}'), f'T = "put <answer>"\n{RIGHT}'),
        (f"<answer>\n{block(f'# </answer> {RIGHT}')}</answer>", f"# </answer> {RIGHT}"),
    ],
)
def test_an_answer_is_the_only_place_that_is_looked_at(text: str, code: str):
    assert program(text, "f") == code


@pytest.mark.parametrize(
    "text",
    [
        *("```python\nx\n" * 20_000, "```\ndef f\n" * 20_000, "```a" * 50_000, "\n" * 200_000),
        *("<answer>" * 20_000, "a" * 400_000, "`" * 400_000, "```python" + " " * 400_000),
        *(block(f"def{' ' * 400_000}g\n"), block(f"f{' ' * 400_000}g\n"), block("f:" * 200_000)),
    ],
    ids=lambda text: repr(text[:12]),
)
def test_nothing_takes_long(text: str):
    started = time.perf_counter()
    program(text, "f")
    assert time.perf_counter() - started < 2.0  # what grows with the square takes minutes


HUMAN_EVAL = {
    "task_id": "Own/0",
    "prompt": 'from typing import List\n\n\ndef last(items: List[int]) -> int:\n    """The last item."""\n',
    "canonical_solution": "    return items[-1]\n",
    "test": "def check(candidate):\n    assert candidate([1, 2]) == 2\n    assert candidate([3]) == 3\n",
    "entry_point": "last",
}


def mbpp(number: int, **change: Any) -> dict[str, Any]:
    return {
        "text": f"Add {number} to a number.",
        "code": f"def plus_{number}(x):\r\n  return x + {number}",
        "test_list": [f"assert plus_{number}(1) == {number + 1}", f"assert plus_{number}(-1) == {number - 1}"],
        **change,
    }


def write(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def every(task: Code) -> list[Problem]:
    """Each problem once: of few rows a split without one shares those of another."""
    splits = [problem for split in get_args(Split) for problem in task.problems(split)]
    return list({problem.prompt_text: problem for problem in splits}.values())


def judged(problems: list[Problem], completions: list[str]) -> list[float | None]:
    reward = UnitTests()
    return [
        reward([problem.prompt], [text], [[]], **{name: [value] for name, value in problem.columns.items()})[0]
        for problem, text in zip(problems, completions, strict=True)
    ]


sandboxed = pytest.mark.skipif(all(why_unavailable(name) for name in BACKENDS), reason="no sandbox works here")


@sandboxed
def test_the_bundled_solutions_pass_and_others_do_not():
    task = Code()
    problems = every(task)
    assert {split: len(task.problems(split)) for split in get_args(Split)} == {"train": 19, "validation": 3, "test": 3}
    assert judged(problems, [task.gold(problem) or "" for problem in problems]) == [1.0] * 25
    assert judged(problems, [task.gold(problem) or "" for problem in [*problems[1:], problems[0]]]) == [0.0] * 25


@sandboxed
def test_the_shown_tests_are_not_all_tests():
    """A program that holds the shown answers and nothing else fails every bundled problem."""
    problems = every(Code())
    shown = [problem.columns["test_list"][0].removeprefix("assert ") for problem in problems]
    assert all(test in problem.prompt_text for test, problem in zip(shown, problems, strict=True))
    for problem in problems:
        assert not any(test in problem.prompt_text for test in problem.columns["test_list"][1:])


@sandboxed
def test_both_forms_are_read_and_their_solutions_pass(tmp_path: Path):
    task = Code(write(tmp_path / "a.jsonl", [HUMAN_EVAL, mbpp(1), mbpp(2, test_imports=["import math"])]))
    problems = every(task)
    assert judged(problems, [task.gold(problem) or "" for problem in problems]) == [1.0] * 3
    [head] = [problem for problem in problems if "Complete" in problem.prompt_text]
    assert head.columns["test_list"] == ["assert last([1, 2]) == 2", "assert last([3]) == 3"]
    assert judged([head, head], ["    return items[-1]", "    return items[0]"]) == [1.0, 0.0]


def test_the_prompt_has_the_text_the_name_and_the_first_assert(tmp_path: Path):
    path = write(tmp_path / "a.jsonl", [mbpp(number) for number in range(3)])
    prompts = [problem.prompt_text for problem in every(Code(path)) if "Add 2" in problem.prompt_text]
    assert prompts == [
        "Add 2 to a number.\nName the function `plus_2`.\nIt should pass this test:\n```python\n"
        "assert plus_2(1) == 3\n```\nWrite the code in one ```python block."
    ]
    none = [problem.prompt_text for problem in every(Code(path, shown_tests=0)) if "Add 2" in problem.prompt_text]
    assert none == ["Add 2 to a number.\nName the function `plus_2`.\nWrite the code in one ```python block."]
    assert all("(-1)" in problem.prompt_text for problem in every(Code(path, shown_tests=2)))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (mbpp(7, test_list=["assert plus_7(1) == plus_7(1)"]), r"a.jsonl:4: .*itself.*leave_out=true"),
        (mbpp(7, test_list=[]), r"a.jsonl:4: .*no assert"),
        (mbpp(7, test_list="assert plus_7(1) == 8"), r"a.jsonl:4: expected asserts in column 'test_list'"),
        ({"text": "x"}, r"a.jsonl:4: expected asserts in column 'test_list', got None"),
        (mbpp(7, text=""), r"a.jsonl:4: expected text in column 'text'"),
        (
            {**HUMAN_EVAL, "test": "def check(candidate):\n    for i in range(3):\n        assert candidate([i]) == i"},
            "nothing but",
        ),
    ],
)
def test_a_row_that_is_no_problem_is_named(tmp_path: Path, row: dict[str, Any], message: str):
    path = write(tmp_path / "a.jsonl", [*map(mbpp, range(3)), row])
    with pytest.raises(UserError, match=message):
        Code(path).problems("train")


LONG = "+".join(["1"] * 3000)


@pytest.mark.parametrize(
    "row",
    [
        *(mbpp(10, test_list=[f"assert plus_10(1) == {value}"]) for value in (LONG, "'\ud800'", "10**10**8")),
        {**HUMAN_EVAL, "test": f"def check(candidate):\n    assert candidate([1]) == {LONG}\n"},
    ],
    ids=["a long sum", "half a character", "a tower", "a long sum in a check"],
)
def test_a_test_that_python_itself_cannot_read_is_refused_with_its_line(tmp_path: Path, row: dict[str, Any]):
    path = write(tmp_path / "a.jsonl", [*map(mbpp, range(9)), row])
    with pytest.raises(UserError, match=r"a.jsonl:10: .*leave_out=true"):
        Code(path).problems("train")
    assert len(every(Code(path, leave_out=True))) == 9


def test_the_example_and_the_traits():
    assert "middle" in Code.example().prompt_text
    assert Code().traits("```python\nx\n```") == {"fenced": True}
    assert Code().traits("x") == {"fenced": False}
    assert (Code().name, Code().verifier, Code().default_rewards) == ("code", "unit_tests", {"unit_tests": 1.0})
