"""Reward functions: with a name and weight, from a user's Python file, in TRL's form or verl's."""

from __future__ import annotations

import ast
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, get_args

from grouprl.files import read_file
from grouprl.rewards.calls import Invalid
from grouprl.rewards.workers.frames import CODE
from grouprl.types import UserError

RewardFunction = Callable[..., Any]
"""`reward(prompts, completions, completion_ids, **columns) -> list[float | None]`, or a coroutine function of it."""

Scope = Literal["group", "batch"]
"""The completions of one call: those of a group, or of all groups that are scored together."""

_LARGEST_WEIGHT = 1e6

_MOST_MODULES, _MOST_BYTES = 1000, 4 << 20  # of all the files; the tree of a source takes 400 times its size


@dataclass(frozen=True)
class FromFile:
    """A reward function in a Python file, which only the workers import, from the bytes that it has now.

    `code` is its source and that of the modules beside it that it imports, by path; see `read_code`. `function` is a
    function in TRL's form, or a class that is called with `arguments` to make one.
    """

    path: str
    function: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    code: Mapping[str, bytes] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not Path(self.path).is_file():
            raise UserError(
                f"reward {self.function}: expected a Python file at {self.path}, found none: check the path"
            )
        object.__setattr__(self, "code", read_code(Path(self.path)))


@dataclass(frozen=True)
class WeightedReward:
    """A reward function, the name under which its values are recorded, and its weight in the total.

    With `per_step` it is a process reward, which does not enter the total: its function returns for each completion a
    list of its reasoning steps as (end, reward), `end` in characters of its text up to and including the step; None =
    does not apply.

    With `scope="batch"` one call has the completions of all groups of a step, as in TRL, so that the function can
    compare them.
    """

    name: str
    function: RewardFunction | FromFile
    weight: float = 1.0
    per_step: bool = False
    scope: Scope = "group"

    def __post_init__(self) -> None:
        if self.scope not in get_args(Scope):
            raise UserError(
                f"reward {self.name}: expected a scope of 'group' or 'batch', got {self.scope!r}: write one of them"
            )
        if not abs(self.weight) <= _LARGEST_WEIGHT:
            raise UserError(
                f"reward {self.name}: expected a weight of at most {_LARGEST_WEIGHT:g} in size, got {self.weight}: "
                "write a number such as 1.0"
            )

    @property
    def in_process(self) -> bool:
        """Whether it runs in the run's process, once per step: functions that hold a model or a connection do."""
        return getattr(self.function, "in_process", False)

    @property
    def has_one_call(self) -> bool:
        """Whether one call has the completions of all groups; else each group has a call."""
        return self.in_process or self.scope == "batch"


def scores_one_completion(function: Callable[..., Any]) -> bool:
    """Whether a function has verl's form: it takes one `solution_str`."""
    return not isinstance(function, type) and "solution_str" in inspect.signature(function).parameters


def truth_of(columns: Mapping[str, Any]) -> Any:
    """The ground truth of a problem, as verl's data have it; None = it has none."""
    model = columns.get("reward_model")
    nested = model.get("ground_truth") if isinstance(model, Mapping) else None
    return nested if columns.get("ground_truth") is None else columns["ground_truth"]


@dataclass(frozen=True)
class ComputeScore:
    """Calls a function of verl's form for each completion; a dict that it returns has the value as `score`.

    `ground_truth` is the column of that name, or that part of the column `reward_model`, as in verl's data. Where the
    function takes one, a completion of a problem without one is invalid.
    """

    function: Callable[..., Any]
    arguments: Mapping[str, Any] = field(default_factory=dict)

    @property
    def needs_one_of(self) -> tuple[str, ...]:
        """Columns of which the problems have one, where the function takes a ground truth."""
        return ("ground_truth", "reward_model") if self._takes_truth else ()

    @property
    def _takes_truth(self) -> bool:
        known = inspect.signature(self.function).parameters.get("ground_truth")
        return known is not None and known.default is known.empty

    def __call__(
        self,
        completions: Sequence[Any],
        data_source: Sequence[Any] | None = None,
        ground_truth: Sequence[Any] | None = None,
        reward_model: Sequence[Any] | None = None,
        extra_info: Sequence[Any] | None = None,
    ) -> Any:
        """Returns one value per completion, or a coroutine that does."""
        none = [None] * len(completions)
        rows = zip(
            completions,
            data_source or none,
            ground_truth or none,
            reward_model or none,
            extra_info or none,
            strict=True,
        )
        given = []
        for one, source, truth, model, extra in rows:
            truth = truth_of({"ground_truth": truth, "reward_model": model})
            if truth is None and self._takes_truth:
                given.append(Invalid("the problem has no ground_truth"))
                continue
            text = one if isinstance(one, str) else one[-1]["content"]
            named = {"data_source": source, "extra_info": dict(extra or {}), **self.arguments}
            given.append(self.function(solution_str=text, ground_truth=truth, **named))
        return _awaited(given) if any(map(inspect.isawaitable, given)) else list(map(_score, given))


async def _awaited(given: Sequence[Any]) -> list[Any]:
    return [_score(await one if inspect.isawaitable(one) else one) for one in given]


def _score(value: Any) -> Any:
    return value["score"] if isinstance(value, Mapping) else value


def read_code(path: Path) -> dict[str, bytes]:
    """The bytes of a Python file, and of the modules beside it that it and they import by a statement, by path.

    Raises:
        UserError: a file is missing, cannot be read, or is too large; or there are too many.
    """
    found: dict[str, bytes] = {}
    waiting = [path]
    while waiting:
        file = waiting.pop()
        if str(file) in found:
            continue
        data = read_file(file)
        if data is None:
            raise UserError(f"{file}: expected a Python file, found none: check the path")
        found[str(file)] = data
        if len(found) > _MOST_MODULES or sum(map(len, found.values())) > _MOST_BYTES:
            most = f"{_MOST_MODULES} modules of {_MOST_BYTES} bytes in all"
            raise UserError(f"{path}: expected at most {most} beside it, got more: import fewer")
        package = file.relative_to(path.parent).parent.parts
        waiting += [one for name in _imports(data, package) for one in _files(path.parent, name)]
    return found


def _imports(source: bytes, package: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """The dotted names that a source imports anywhere, as parts."""
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return  # who loads it says so
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (tuple(one.name.split(".")) for one in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = tuple(package[: len(package) - node.level + 1]) if node.level else ()
            base = above + tuple(node.module.split(".") if node.module else ())
            yield from ((*base, one.name) for one in node.names)


def _files(folder: Path, name: Sequence[str]) -> Iterator[Path]:
    if name and not _is_library(folder, name[0]):
        for depth in range(1, len(name) + 1):
            place = folder.joinpath(*name[:depth])
            yield from filter(Path.is_file, (place / "__init__.py", place.with_name(f"{place.name}.py")))


def _is_library(folder: Path, name: str) -> bool:
    own = ("", str(folder), str(folder.resolve()))
    places = [place for place in sys.path if str(place) not in own]
    return name in sys.stdlib_module_names or PathFinder.find_spec(name, places) is not None


class _BytesLoader(SourceFileLoader):
    """Loads one module from bytes that were read before."""

    def __init__(self, name: str, path: str, source: bytes) -> None:
        super().__init__(name, path)
        self._source = source

    def get_code(self, fullname: str) -> object:  # type: ignore[override]
        """Compiles the bytes; bytecode is neither read nor written."""
        return self.source_to_code(self._source, self.path)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """The module of this file that is there already: its classes are those of every file that imports it."""
        known = CODE.get(os.path.realpath(self.path))
        return known if known is not None and getattr(known.__loader__, "_source", None) == self._source else None

    def exec_module(self, module: ModuleType) -> None:
        """Runs the module, once; objects of its classes name it by its file."""
        path = os.path.realpath(self.path)
        if CODE.get(path) is module:
            return
        CODE[path] = module
        try:
            super().exec_module(module)
        except BaseException:
            del CODE[path]
            raise


class _Finder:
    """Finds the modules beside a reward file, after every other finder."""

    def __init__(self, folder: Path, code: Mapping[str, bytes]) -> None:
        self._folder = folder
        self._modules = {Path(path).relative_to(folder): (path, source) for path, source in code.items()}

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """The module of this name: its source, its package, or a folder with modules of it."""
        place = Path(*name.split("."))
        for file, inside in ((place / "__init__.py", [str(self._folder / place)]), (place.with_suffix(".py"), None)):
            if file in self._modules:
                loader = _BytesLoader(name, *self._modules[file])
                return spec_from_file_location(name, loader.path, loader=loader, submodule_search_locations=inside)
        if any(place in file.parents for file in self._modules):
            spec = ModuleSpec(name, None, is_package=True)
            spec.submodule_search_locations = [str(self._folder / place)]
            return spec
        if (self._folder / place).with_suffix(".py").is_file():
            raise ModuleNotFoundError(f"{name}: expected an `import` statement with its name in the reward's files")
        return None


def import_code(path: str, code: Mapping[str, bytes], name: str) -> ModuleType:
    """Runs a reward file as the module `name`; the modules beside it in `code` can be imported from now on."""
    sys.meta_path.append(_Finder(Path(path).parent, code))
    loader = _BytesLoader(name, path, code[str(Path(path))])
    spec = spec_from_file_location(name, path, loader=loader)
    assert spec is not None
    module = module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look up their module; the name must not hide another module
    loader.exec_module(module)
    return module
