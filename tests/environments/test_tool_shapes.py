"""The shapes of a user's code: what becomes a tool, what the policy is shown, and what is refused before sampling."""

import re
import runpy
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from pathlib import Path
from typing import Any, Literal

import pytest
from transformers.utils import get_json_schema

from grouprl.config.environment import EnvironmentConfig
from grouprl.environments.arguments import fitted, is_schema
from grouprl.environments.base import Call, Fault, Observation, Opening, Verdict
from grouprl.environments.guest import cut
from grouprl.environments.shapes import open_games, open_tools
from grouprl.types import Problem, UserError

PROBLEM = Problem("p-1", "Count.", {"target": 3})
TOOLS = '''
import asyncio, random
from beside import TWO

def add(a: int, b: int = TWO) -> int:
    """Adds two numbers.

    Args:
        a: The first number.
        b: The second number.
    """
    return a + b

async def wait(seconds: float) -> str:
    """Waits.

    Args:
        seconds: How long.
    """
    await asyncio.sleep(seconds)
    return "waited"

def bare(a):
    """Has no hint."""

def undocumented(a: int) -> int:
    return a

def untold(a: int) -> int:
    """Says nothing of its argument."""

def odd(a: object) -> int:
    """Takes a type without a schema.

    Args:
        a: Anything.
    """

def many(*a: int) -> int:
    """Takes what has no name.

    Args:
        a: Numbers.
    """

BOTH = [add, wait]

class Counter:
    def reset(self, target, **kwargs):
        self.count, self._target = 0, target
        self._kwargs = kwargs
        return f"Reach {target} from {sorted(kwargs)} by chance {random.random()}."

    def increment(self, step: int) -> int:
        """Increments the counter.

        Args:
            step: How much.
        """
        self.count += step
        return self.count

    def get_reward(self) -> float:
        return float(self.count == self._target)

class Echo:
    """As Quiet, with a reward that a coroutine gives."""

    def reset(self, **kwargs): ...

    async def shout(self, text: str) -> str:
        """Shouts.

        Args:
            text: What.
        """
        return text.upper()

    async def get_reward(self):
        return 0.5

class Quiet:
    def __init__(self):
        self.reward, self.done, self._secret, self.data = 0.25, False, 1, [1]

    @property
    def score(self):
        return 7

    def reset(self):
        return [{"type": "text", "text": "You "}, {"type": "text", "text": "begin."}]

    def add(self, a: int) -> int:
        """Adds.

        Args:
            a: A number.
        """

ENVIRONMENTS = {"counter": Counter, "echo": Echo}

class NoReset: ...

class NoTools:
    def reset(self): ...

    def get_reward(self):
        return 1.0

class Broken:
    def __init__(self):
        raise RuntimeError("no board")

class Exits:
    def __init__(self):
        import os
        os._exit(7)

class Gym:
    def reset(self, *, seed=None, options=None):
        self.left = 2
        return f"seed {seed}", {}

    def step(self, action):
        self.left -= 1
        return f"{action}?", 1.5, self.left == 0, False, {}

    def close(self):
        open(CLOSED, "a").write("closed")

class Old(Gym):
    def step(self, action):
        return action, 1, True, {}

class Skyrl(Gym):
    def step(self, action):
        return {"observations": [{"role": "user", "content": action[::-1]}], "reward": None, "done": False}

class Wrong(Gym):
    def step(self, action):
        return action

class Silent:
    def reset(self): ...

CLOSED = ""
'''


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("tools")
    (folder / "beside.py").write_text("TWO = 2\n")
    path = folder / "my_tools.py"
    path.write_text(TOOLS.replace('CLOSED = ""', f"CLOSED = {str(folder / 'closed')!r}"))
    return str(path)


def texts(found: list[Observation]) -> list[str]:
    return [each.text for each in found]


def test_functions_of_a_file_and_of_python_are_tools(file: str) -> None:
    def greet(name: str, tone: Literal["plain", "loud"] = "plain") -> str:
        """Greets.

        Args:
            name: Whom.
            tone: How.
        """
        return f"Hello {name}" + "!" * (tone == "loud")

    with open_tools([f"{file}:BOTH", greet]) as source:
        environment = source.open(PROBLEM)
        assert [schema["function"]["name"] for schema in environment.tools] == ["add", "wait", "greet"]
        assert environment.tools[2] == get_json_schema(greet)
        assert environment.reset(PROBLEM, 0) == Opening()
        started = time.monotonic()
        calls = [Call("wait", {"seconds": 0.5})] * 4 + [Call("add", {"a": 1}), Call("greet", {"name": "Ada"})]
        found = environment.call(calls)
        assert texts(found) == [*["waited"] * 4, "3", "Hello Ada"]
        assert time.monotonic() - started < 1.9  # one after the other they would take 2 s
        assert found[0].seconds >= 0.5
        assert environment.reply("hi") is None
        assert environment.verdict() == Verdict()
        assert [
            each.fault for each in environment.call([Call("greet", {"name": "A", "tone": "odd"}), Call("x", {})])
        ] == [*(Fault.ARGUMENTS, Fault.UNKNOWN_TOOL)]
        environment.close()


SCRIPT = '''
from __future__ import annotations
from typing import Any, Literal
from grouprl.environments.shapes import open_tools
from grouprl.types import Problem

def convert(value: float, unit: Literal["m", "km"]) -> str:
    """Converts.

    Args:
        value: A number.
        unit: Its unit.
    """
    return f"{value} {unit}"

class Base:
    def move(self, by: dict[str, Any] | None = None) -> str:
        """Moves.

        Args:
            by: How.
        """
        return "moved"

class Maze(Base):
    def reset(self, **row: Any) -> str | None: ...

with open_tools([convert], Maze) as source:
    shown = source.open(Problem("p", "go")).tools
'''


def test_a_script_s_hints_may_be_text(tmp_path: Path) -> None:
    # Such names are of the script, which workers do not import.
    (tmp_path / "train.py").write_text(SCRIPT)
    shown = runpy.run_path(str(tmp_path / "train.py"), run_name="__main__")["shown"]
    assert [(tool["function"]["name"], tool["function"]["parameters"]["properties"]) for tool in shown] == [
        (
            "convert",
            {
                "value": {"type": "number", "description": "A number."},
                "unit": {"type": "string", "enum": ["m", "km"], "description": "Its unit."},
            },
        ),
        ("move", {"by": {"type": "object", "additionalProperties": {}, "nullable": True, "description": "How."}}),
    ]


def test_a_class_is_an_environment_in_the_form_of_trl(file: str) -> None:
    with open_tools([f"{file}:wait"], f"{file}:Counter") as source:
        one, other, third = (source.open(PROBLEM) for _ in range(3))
        assert [schema["function"]["name"] for schema in one.tools] == ["wait", "increment"]
        opening = one.reset(PROBLEM, 5)
        assert opening.text.startswith("Reach 3 from ['prompt'] by chance ")
        assert other.reset(PROBLEM, 5) == opening  # the same problem and seed
        assert third.reset(PROBLEM, 6) != opening
        assert texts(one.call([Call("increment", {"step": 1}), Call("increment", {"step": 2})])) == ["1", "3"]
        assert texts(other.call([Call("increment", {"step": 4})])) == ["4"]
        assert [each.verdict() for each in (one, other)] == [
            Verdict(1.0, "", {"count": 3}),
            Verdict(0.0, "", {"count": 4}),
        ]
        for each in (one, other, third):
            each.close()


def test_a_problem_names_its_environment_and_sees_its_tools_alone(file: str) -> None:
    def problem(name: str) -> Problem:
        return Problem("p-2", "x", {"environment": name, "target": 1})

    with open_tools((), f"{file}:ENVIRONMENTS") as source:
        counter, echo = source.open(problem("counter")), source.open(problem("echo"))
        assert [[one["function"]["name"] for one in each.tools] for each in (counter, echo)] == [
            ["increment"],
            ["shout"],
        ]
        assert "from ['prompt']" in counter.reset(problem("counter"), 0).text
        assert echo.reset(problem("echo"), 0) == Opening()
        assert texts(echo.call([Call("shout", {"text": "hi"}), Call("increment", {"step": 1})])) == [
            "HI",
            "error: expected one of the tools shout, got 'increment'",
        ]
        assert echo.verdict().reward == 0.5
        with pytest.raises(UserError, match=r"p-2.*`environment` with one of counter, echo, got 'other'"):
            source.open(problem("other"))


def test_what_rewards_read_of_an_object_is_in_the_verdict(file: str) -> None:
    with open_tools((), f"{file}:Quiet") as source:
        environment = source.open(PROBLEM)
        assert environment.reset(PROBLEM, 0).text == "You begin."
        assert environment.verdict() == Verdict(None, "", {"reward": 0.25, "done": False, "score": 7})


def test_games_answer_messages(file: str) -> None:
    games = {name: f"{file}:{name}" for name in ("Gym", "Old", "Skyrl", "Wrong")}
    found: dict[str, list[Any]] = {}
    with open_games(games) as source:
        for name in games:
            problem = Problem("p", "x", {"environment": name})
            game = source.open(problem)
            assert game.tools == ()
            assert game.reset(problem, 9) == Opening("seed 9")
            seen = [game.reply("ab"), game.reply("cd")]
            found[name] = [(each.text, each.reward, each.done) for each in seen if each] + [game.verdict().reward]
            game.close()
    assert found["Gym"] == [("ab?", 1.5, False), ("cd?", 1.5, True), 3.0]
    assert found["Old"] == [("ab", 1.0, True), ("cd", 1.0, True), 2.0]
    assert found["Skyrl"] == [("ba", None, False), ("dc", None, False), None]
    assert found["Wrong"][0][0].startswith("error: TypeError: expected step to return (observation, reward, ")
    assert Path(file).with_name("closed").read_text() == "closed" * 4  # each once


HINTS = "expected type hints and a docstring"


@pytest.mark.parametrize(
    ("tools", "environment", "said"),
    [
        ("bare", None, (f"tool bare: {HINTS}, got no type hint of a", "write type hints")),
        ("undocumented", None, (f"tool undocumented: {HINTS}, got no docstring", "Google docstring")),
        ("untold", None, (f"tool untold: {HINTS}", "no description for the argument 'a'")),
        ("odd", None, (f"tool odd: {HINTS}", "custom class")),
        ("many", None, ("tool many: expected arguments with names, got a", "name each argument")),
        ("TWO", None, ("tool 2: expected a Python function", "write one around it")),
        ("nothing", None, ("my_tools.py:nothing: AttributeError: expected 'nothing' in", "add")),
        ("add BOTH", None, ("expected tools of different names, got two of the name 'add': rename one",)),
        ("add", "Quiet", ("environment Quiet: expected tools of different names, got two of the name 'add'",)),
        ("", "NoReset", ("environment NoReset: expected a method `reset`, got NoReset without one",)),
        ("", "NoTools", ("NoTools: expected public methods, which are its tools, got NoTools with reset",)),
        ("", "Broken", ("Broken: expected a class or function that makes the environment without arguments",)),
        ("", "Exits", ("expected code that can be built and described, got a process that ended",)),
        (None, "Silent", ("expected a method `step`, got Silent",)),
    ],
)
def test_what_cannot_be_built_is_refused_before_sampling(
    file: str, tools: str | None, environment: str | None, said: tuple[str, ...]
) -> None:
    made = environment and f"{file}:{environment}"
    opened = open_games(made) if tools is None else open_tools([f"{file}:{one}" for one in tools.split()], made)
    with opened as source, pytest.raises(UserError) as raised:
        source.ready()
    assert all(part in str(raised.value) for part in said)
    assert "\n" not in str(raised.value)


def test_a_file_that_cannot_be_imported_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    path.write_text("import no_such_module\n")
    with open_tools([f"{path}:f"]) as source, pytest.raises(UserError, match=r"ModuleNotFoundError.*\(broken.py:1\)"):
        source.ready()
    with pytest.raises(UserError, match=r"expected FILE.py:NAME, got 'tools'"):
        open_tools(["tools"])
    with pytest.raises(UserError, match="expected a Python file, found none"):
        open_tools([str(tmp_path / "missing.py:f")])
    with pytest.raises(UserError, match="expected an object that can be sent to another process"):
        open_tools([(held for held in ()).send])


class Color(Enum):
    RED = "red"
    BLUE = "blue"


def everything(
    s: str,
    i: int = 0,
    x: float = 0.0,
    b: bool = False,
    o: int | None = None,
    u: int | str = 0,
    n: list[int] = [],  # noqa: B006
    p: tuple[int, str] = (0, ""),
    d: dict[str, float] = {},  # noqa: B006
    c: Color = Color.RED,
    m: list[int] | dict[str, int] = [],  # noqa: B006
    a: Any = None,
) -> str:
    """Takes everything.

    Args:
        s: text
        i: integer
        x: number
        b: boolean
        o: optional
        u: either
        n: list
        p: pair
        d: mapping
        c: color
        m: list or mapping
        a: anything
    """
    return ""


ARGUMENTS: list[tuple[object, str]] = [
    ({"s": ""}, ""),
    ({"s": "", "i": 1, "x": 1, "b": True, "o": None, "u": "x", "n": [1], "p": [1, "x"], "d": {"k": 1.5}}, ""),
    ({"s": "", "c": "red", "m": {"k": 1}, "a": [{"x": None}]}, ""),
    ([1], "expected an object of arguments, got [1] (array)"),
    ({}, "expected the arguments s, i, x, b, o, u, n, p, d, c, m, a, got none"),
    ({"s": "", "t": 1}, "expected the arguments s, i, x, b, o, u, n, p, d, c, m, a, got s, t"),
    ({"s": 1}, "expected s of type string, got 1 (integer)"),
    ({"s": None}, "expected s of type string, got None (null)"),
    ({"s": "", "i": "1"}, "expected i of type integer, got '1' (string)"),
    ({"s": "", "i": True}, "expected i of type integer, got True (boolean)"),
    ({"s": "", "i": 1.0}, ""),
    ({"s": "", "n": [1.0, -2e3], "d": {"k": 5.0}, "m": {"k": 3.0}, "o": 2.0}, ""),
    ({"s": "", "i": 5.5}, "expected i of type integer, got 5.5 (number)"),
    ({"s": "", "i": float("inf")}, "expected i of type integer, got inf (float)"),
    ({"s": "", "x": 10**400}, "expected x of type number, got 1" + "0" * 79 + " (integer)"),
    ({"s": "", "b": 1}, "expected b of type boolean, got 1 (integer)"),
    ({"s": "", "o": "x"}, "expected o of type integer, got 'x' (string)"),
    ({"s": "", "u": 1.5}, "expected u of type integer or string, got 1.5 (number)"),
    ({"s": "", "n": [1, "x"]}, "expected n[1] of type integer, got 'x' (string)"),
    ({"s": "", "n": {"x": 1}}, "expected n of type array, got {'x': 1} (object)"),
    ({"s": "", "p": [1]}, "expected p of 2 items, got 1"),
    ({"s": "", "p": [1, 2]}, "expected p[1] of type string, got 2 (integer)"),
    ({"s": "", "d": {"k": "x"}}, "expected d.k of type number, got 'x' (string)"),
    ({"s": "", "c": "green"}, "expected c of 'red', 'blue', got 'green' (string)"),
    ({"s": "", "m": "x"}, "expected m of type array, got 'x' (string)"),
]


@pytest.mark.parametrize(("arguments", "said"), ARGUMENTS)
def test_arguments_are_checked_against_the_schema(arguments: object, said: str) -> None:
    parameters = get_json_schema(everything)["function"]["parameters"]
    if said:
        with pytest.raises(ValueError, match=f"^{re.escape(said)}$"):
            fitted(arguments, parameters)
    else:
        assert fitted(arguments, parameters) == arguments
    # An independent judge of the same schema; it knows no `nullable`, counts no items, and takes 10^400.
    jsonschema = pytest.importorskip("jsonschema")
    differs = said.endswith(("1.0 (number)", "items, got 1", "0 (integer)")) or "'o': None" in str(arguments)
    assert differs or jsonschema.Draft202012Validator({**parameters, "additionalProperties": False}).is_valid(
        arguments
    ) == (not said)


def test_the_zygote_has_no_torch(file: str) -> None:
    code = (
        "import sys; from grouprl.environments.guest import EnvironmentWork\n"
        f"tools, maker = [('tool', ('{file}', 'BOTH', {{}}))], [('', 'class', ('{file}', 'Counter', {{}}))]\n"
        "EnvironmentWork(tools, maker, False, 96, 300).load(lambda name: None)\n"
        "print('torch' in sys.modules, 'transformers' in sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert found.stdout.split() == ["False", "False"]


def test_many_episodes_wait_side_by_side(file: str) -> None:
    """32 episodes with latencies of 0 to 1/2 s take about the longest; one after the other they would take 8 s."""
    with open_tools([f"{file}:wait"], limits=EnvironmentConfig(tool_seconds=30.0)) as source:
        source.ready()

        def episode(place: int) -> str:
            environment = source.open(PROBLEM)
            (found,) = environment.call([Call("wait", {"seconds": place / 62})])
            environment.close()
            return found.text

        started = time.monotonic()
        with ThreadPoolExecutor(32) as threads:
            assert list(threads.map(episode, range(32))) == ["waited"] * 32
        assert time.monotonic() - started < 6.0  # of which the machine's load may be most
        assert source.processes.pids == []


def test_whole_numbers_arrive_as_integers() -> None:
    parameters = get_json_schema(everything)["function"]["parameters"]
    fit = fitted({"s": "", "i": 5.0, "n": [1.0, 2], "d": {"k": 5.0}, "u": 3.0, "x": 5.0}, parameters)
    assert repr(fit) == "{'s': '', 'i': 5, 'n': [1, 2], 'd': {'k': 5.0}, 'u': 3, 'x': 5.0}"


DEEP: dict[str, Any] = {}
for _ in range(40):
    DEEP = {"items": DEEP}


@pytest.mark.parametrize(
    ("schema", "right"),
    [
        ({"type": "object", "properties": {"a": {"type": ["integer", "null"], "enum": [1, None]}}}, True),
        ({"type": "array", "items": {"anyOf": [{}, {"type": "string"}]}}, True),
        ({"properties": []}, False),
        ({"properties": {"a": True}}, False),
        ({"type": 5}, False),
        ({"required": "a"}, False),
        ({"anyOf": {}}, False),
        ({"enum": 5}, False),
        (DEEP, False),
        ([], False),
    ],
)
def test_a_schema_of_a_stranger_is_read_or_refused(schema: object, right: bool) -> None:
    assert is_schema(schema) == right


def test_a_mapping_has_the_types_of_its_properties_and_any_others() -> None:
    properties = {"o": {"type": "object", "properties": {"k": {"type": "integer"}}}}
    assert repr(fitted({"o": {"k": 5.0, "z": 5.0}}, {"properties": properties})) == "{'o': {'k': 5, 'z': 5.0}}"
    with pytest.raises(ValueError, match=r"expected o\.k of type integer, got 'x'"):
        fitted({"o": {"k": "x"}}, {"properties": properties})


def test_a_text_is_cut_behind_its_limit_alone() -> None:
    assert [cut("abc", most) for most in (4, 3, 2)] == ["abc", "abc", "ab… [cut: 3 characters]"]
