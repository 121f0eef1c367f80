"""The tree is the architecture: what may import what, how large things may be, and what the package never does."""

import ast
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from source_tree import LEAVES, ROOT, SRC, TRUNK, Module, modules, room_of

ORDER = TRUNK + " " + LEAVES
# Below each other in the order, and all the same never.
NEVER = {("rollout", "rewards"), ("learner", "record"), ("step", "record")}
SHOW_ALL = {"lab", "cli", "trl"}
RANK = {package: rank for rank, package in enumerate(ORDER.split())}
FILE_LINES, FUNCTION_LINES, RECIPE_LINES = 500, 100, 15
STEP_LINES = 120
# Say where a value stands in a sentence, not what it is; `own` in the rooms that tell a task's or trunk's from others.
PLACES_OF_VALUES = {"found", "one", "given", "made", "own", "place", "taught", "begun", "known", "whole"}
MAY_SAY_OWN = {"rewards.resolve", "leaves"}
VAGUE_NAMES = {"utils", "util", "helpers", "helper", "common", "misc"}
# Functions and columns on their way from a run to its own workers; nothing that was stored or downloaded.
MAY_PICKLE = "grouprl.rewards.workers.frames"
# What starts model-written programs, inside the sandbox only; and what asks whether a test is Python, and runs nothing.
MAY_COMPILE = ("grouprl.checks.sandbox.guest", "grouprl.checks.asserts")
PICKLES = {"pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
Function = ast.FunctionDef | ast.AsyncFunctionDef


def public_definitions(
    scope: ast.Module | ast.ClassDef, prefix: str = ""
) -> Iterator[tuple[str, Function | ast.ClassDef]]:
    """Dotted name and node of what others may use: no leading underscore anywhere, __call__ and its like apart."""
    for node in scope.body:
        if not isinstance(node, Function | ast.ClassDef):
            continue
        dunder = node.name.startswith("__") and node.name.endswith("__")
        if node.name.startswith("_") and not dunder:
            continue
        yield prefix + node.name, node
        if isinstance(node, ast.ClassDef):
            yield from public_definitions(node, f"{prefix}{node.name}.")


def imports_go_one_way(module: Module) -> Iterator[str]:
    if not module.room:
        return
    if module.room not in RANK:
        yield f"{module.name}: no room of that name; give it a place in ORDER"
        return
    for name in module.imports():
        room = room_of(name)
        if not room or room == module.room:
            continue
        if RANK.get(room, len(RANK)) >= RANK[module.room]:
            yield f"{module.name}: imports {name}, which is not below {module.room}"
        elif room in LEAVES.split() and module.room not in SHOW_ALL:
            yield f"{module.name}: imports the leaf {name}; name it in grouprl.leaves"
        elif (module.room, room) in NEVER:
            yield f"{module.name}: imports {name}, which {module.room} never needs"


def foundations_import_little(module: Module) -> Iterator[str]:
    """Third-party packages that the lowest packages may know."""
    # torch in types: for the type of a tensor alone
    foreign = {
        "types": {"torch"},
        "algorithms": {"torch", "pydantic"},
        "files": set(),
        "leaves": set(),
        "config": {"pydantic", "yaml"},
        "record": {"numpy"},
    }
    for name in module.imports():
        top = name.split(".")[0]
        known = top in sys.stdlib_module_names or top == "grouprl" or top in foreign.get(module.room, {top})
        if not known:
            yield f"{module.name}: imports {name}"


def the_package_itself_is_light(module: Module) -> Iterator[str]:
    """`import grouprl` brings in grouprl.types and grouprl.algorithms.spec at most: the rest comes lazily."""
    eager = [node for node in module.tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    names = Module(module.name, ast.unparse(ast.Module(eager, [])), module.is_package).imports()
    for name in names if module.name == "grouprl" else ():
        if name.split(".")[0] not in sys.stdlib_module_names and room_of(name) != "types":
            yield f"{module.name}: imports {name} when it is imported"


def sizes_stay_readable(module: Module) -> Iterator[str]:
    lines = len(module.source.splitlines())
    cap = STEP_LINES - 1 if module.name == "grouprl.step" else FILE_LINES
    if lines > cap:
        yield f"{module.name}: {lines} lines, at most {cap}"
    for node in ast.walk(module.tree):
        if isinstance(node, Function) and (length := code_lines(node)) > FUNCTION_LINES:
            yield f"{module.name}.{node.name}: {length} lines, at most {FUNCTION_LINES}"


def code_lines(node: Function) -> int:
    """Lines without the docstring: a contract with shapes, errors and source is no reason to split a function."""
    first = node.body[0]
    documented = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    return node.end_lineno - node.lineno + 1 - (first.end_lineno - first.lineno + 1 if documented else 0)


def names_say_what_is_inside(module: Module) -> Iterator[str]:
    if VAGUE_NAMES & set(module.name.split(".")):
        yield f"{module.name}: name the module after what it does"


def public_functions_name_their_arguments(module: Module) -> Iterator[str]:
    for name, node in public_definitions(module.tree):
        kwarg = None if isinstance(node, ast.ClassDef) else node.args.kwarg
        if kwarg and not (kwarg.arg == "columns" and module.room in ("tasks", "rewards", "problems", "checks")):
            yield f"{module.name}.{name}: takes **{kwarg.arg}; make it private if another library asks for it"


def everything_public_is_documented(module: Module) -> Iterator[str]:
    if not ast.get_docstring(module.tree):
        yield f"{module.name}: no docstring"
    for name, node in public_definitions(module.tree):
        if not name.endswith("__") and not ast.get_docstring(node):
            yield f"{module.name}.{name}: no docstring"


def nothing_runs_or_unpickles_data(module: Module) -> Iterator[str]:
    for name in module.imports():
        if (name.split(".")[0] in PICKLES and module.name != MAY_PICKLE) or name in ("torch.load", "torch.save"):
            yield f"{module.name}: imports {name}"
    for node in ast.walk(module.tree):
        match node:
            case ast.Call(func=ast.Name(id="eval" | "exec" as called)):
                yield f"{module.name}: calls {called}"
            case ast.Call(func=ast.Name(id="compile")) if module.name not in MAY_COMPILE:
                yield f"{module.name}: compiles text into a program"
            case ast.Attribute(value=ast.Name(id="torch"), attr="load" | "save" as attribute):
                yield f"{module.name}: uses torch.{attribute}; safetensors and JSON only"
            case ast.keyword(arg="trust_remote_code", value=value) if ast.unparse(value) != "False":
                yield f"{module.name}: may run code that came with a checkpoint"


def module_state_is_not_rebound(module: Module) -> Iterator[str]:
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Global):
            yield f"{module.name}: global {', '.join(node.names)}"


def values_have_nouns(module: Module) -> Iterator[str]:
    allowed = {"own"} if module.name.removeprefix("grouprl.") in MAY_SAY_OWN else set()
    fields = {
        id(node.target)
        for scope in ast.walk(module.tree)
        if isinstance(scope, ast.ClassDef)
        for node in scope.body
        if isinstance(node, ast.AnnAssign)
    }
    for node in ast.walk(module.tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) if id(node) not in fields and name in PLACES_OF_VALUES - allowed:
                yield f"{module.name}, line {node.lineno}: {name}"
            case ast.arg(arg=name) if name in PLACES_OF_VALUES - allowed:
                yield f"{module.name}, line {node.lineno}: argument {name}"


RULES: tuple[Callable[[Module], Iterator[str]], ...] = (
    imports_go_one_way,
    foundations_import_little,
    the_package_itself_is_light,
    sizes_stay_readable,
    names_say_what_is_inside,
    public_functions_name_their_arguments,
    everything_public_is_documented,
    nothing_runs_or_unpickles_data,
    module_state_is_not_rebound,
    values_have_nouns,
)


def recipe_lines(text: str) -> int:
    return sum(bool(line.strip()) and not line.lstrip().startswith("#") for line in text.splitlines())


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_package_keeps_the_rule(rule: Callable[[Module], Iterator[str]]):
    broken = [complaint for module in modules() for complaint in rule(module)]
    assert not broken, "\n".join(broken)


@pytest.mark.parametrize("recipe", sorted((SRC / "recipes").glob("*.yaml")), ids=lambda path: path.name)
def test_a_recipe_fits_on_a_card(recipe: Path):
    assert recipe_lines(recipe.read_text(encoding="utf-8")) <= RECIPE_LINES


def test_the_order_is_that_of_the_page_and_of_the_tree():
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert page.split("```")[3].split() == ORDER.split()
    assert {path.stem for path in SRC.iterdir() if not path.name.startswith("__")} - {"py"} == {
        *ORDER.split(),
        "recipes",
    }


def test_recipe_lines_leaves_out_comments_and_blank_lines():
    assert recipe_lines("# measured: 97 %\n\nsteps: 60\n  # why\nseed: 1  # a line all the same\n") == 2


LONG_FUNCTION = "def f():\n" + "    a = 1\n" * FUNCTION_LINES
BAD = [
    (imports_go_one_way, "tasks.base", "from grouprl.learner import update"),
    (imports_go_one_way, "tasks.base", "from grouprl import learner"),
    (imports_go_one_way, "tasks.base", "from ..learner import update"),
    (imports_go_one_way, "tasks.base", "def f():\n    from grouprl import cli"),
    (imports_go_one_way, "tasks.base", "if TYPE_CHECKING:\n    import grouprl.step"),
    (imports_go_one_way, "tasks.base", "from grouprl import Trainer"),
    (imports_go_one_way, "run.train", "from grouprl.supervised.sft import sft"),
    (imports_go_one_way, "algorithms.spec", "from grouprl.config.run import RunConfig"),
    (imports_go_one_way, "run.train", "from grouprl.lab.report.write import write_report"),
    (imports_go_one_way, "rewards.scorer", "from grouprl.engines.ray_scorers import RemoteRewards"),
    (imports_go_one_way, "rollout.native", "from grouprl.rewards.scorer import Scorer"),
    (imports_go_one_way, "learner.learner", "from grouprl.record.rows import truth"),
    (imports_go_one_way, "step", "from grouprl.record.read import read_run"),
    (imports_go_one_way, "tools.planner.doctor", "from grouprl.kernels.build import library"),
    (imports_go_one_way, "attic", ""),
    (foundations_import_little, "algorithms.kl", "import numpy"),
    (foundations_import_little, "config.run", "import torch"),
    (foundations_import_little, "record.read", "import torch"),
    (the_package_itself_is_light, "", "import torch"),
    (the_package_itself_is_light, "", "from .train import Trainer"),
    (sizes_stay_readable, "tasks.base", "a = 1\n" * (FILE_LINES + 1)),
    (sizes_stay_readable, "step", "a = 1\n" * STEP_LINES),
    (sizes_stay_readable, "tasks.base", LONG_FUNCTION),
    (names_say_what_is_inside, "tasks.utils", ""),
    (public_functions_name_their_arguments, "tasks.base", "def f(**kwargs): ..."),
    (public_functions_name_their_arguments, "models.load", "def f(**columns): ..."),
    (public_functions_name_their_arguments, "rewards.rules", "def f(**kwargs): ..."),
    (public_functions_name_their_arguments, "rewards.rules", "class A:\n    def __init__(self, **kwargs): ..."),
    (everything_public_is_documented, "tasks.base", "a = 1"),
    (everything_public_is_documented, "tasks.base", "'''Doc.'''\ndef f(): ..."),
    (everything_public_is_documented, "tasks.base", "'''Doc.'''\nclass A:\n    '''Doc.'''\n    def f(self): ..."),
    (nothing_runs_or_unpickles_data, "tasks.base", "import pickle"),
    (nothing_runs_or_unpickles_data, "tasks.base", "from torch import load"),
    (nothing_runs_or_unpickles_data, "tasks.base", "torch.load('x')"),
    (nothing_runs_or_unpickles_data, "tasks.base", "eval('1')"),
    (nothing_runs_or_unpickles_data, "checks.sandbox.runner", "compile('1', 'it', 'exec')"),
    (nothing_runs_or_unpickles_data, "tasks.base", "f(trust_remote_code=True)"),
    (nothing_runs_or_unpickles_data, "tasks.base", "f(trust_remote_code=asked)"),
    (module_state_is_not_rebound, "tasks.base", "def f():\n    global cache\n    cache = 1"),
    (values_have_nouns, "tasks.base", "found = 1"),
    (values_have_nouns, "lab.app", "[one for one in rows]"),
    (values_have_nouns, "tasks.base", "def f(given): ..."),
]
GOOD = [
    (imports_go_one_way, "tasks.base", "from grouprl.types import Problem\nfrom . import answers\nimport torch"),
    (imports_go_one_way, "lab.app", "from grouprl.tools.compare.read import read_comparison"),
    (imports_go_one_way, "cli", "from grouprl import __version__\nfrom grouprl.run.train import train"),
    (imports_go_one_way, "", "def f():\n    from grouprl.run.train import Trainer"),
    (foundations_import_little, "algorithms.kl", "import math\nimport torch.nn\nfrom grouprl.types import Algorithm"),
    (foundations_import_little, "record.rollouts", "import numpy"),
    (the_package_itself_is_light, "", "import sys\nif TYPE_CHECKING:\n    from grouprl.run.train import Trainer"),
    (sizes_stay_readable, "tasks.base", "a = 1\n" * FILE_LINES),
    (sizes_stay_readable, "tasks.base", LONG_FUNCTION.replace("    a = 1\n", "", 1)),
    (public_functions_name_their_arguments, "rewards.rules", "def f(prompts, **columns): ..."),
    (public_functions_name_their_arguments, "tasks.base", "def _f(**kwargs): ..."),
    (everything_public_is_documented, "tasks.base", "'''Doc.'''\ndef _f(): ...\nclass _A:\n    def f(self): ..."),
    (values_have_nouns, "tasks.base", "class A:\n    place: str\nrow = problem.place"),
    (nothing_runs_or_unpickles_data, "models.load", "policy.eval()\nf(trust_remote_code=False)\njson.load(x)"),
]


def complaints(rule: Callable[[Module], Iterator[str]], name: str, source: str) -> list[str]:
    return list(rule(Module(f"grouprl.{name}".rstrip("."), source, is_package=not name)))


@pytest.mark.parametrize(("rule", "name", "source"), BAD)
def test_a_broken_rule_is_noticed(rule: Callable[[Module], Iterator[str]], name: str, source: str):
    assert complaints(rule, name, source)


@pytest.mark.parametrize(("rule", "name", "source"), GOOD)
def test_good_code_passes(rule: Callable[[Module], Iterator[str]], name: str, source: str):
    assert complaints(rule, name, source) == []


def test_every_rule_can_fail_on_the_package_that_is_found():
    assert {rule for rule, _, _ in BAD} == set(RULES)
    assert {"grouprl", "grouprl.types", "grouprl.config"} <= {module.name for module in modules()}
