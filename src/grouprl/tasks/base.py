"""What a task is: its protocol, its splits, and problems that are listed, drawn, or made from another task's."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from math import ceil
from typing import Any, Literal, Protocol, cast, overload

from grouprl.types import Problem, UserError

_CONVERSES = ("tools", "environment", "game")

Split = Literal["train", "validation", "test"]


class Task(Protocol):
    """Problems to train and to evaluate on. One short file per task implements this protocol."""

    @property
    def name(self) -> str:
        """The name users write in a configuration."""

    @property
    def default_rewards(self) -> Mapping[str, float]:
        """Names and weights of the rewards of a run whose configuration names none."""

    @property
    def default_step_rewards(self) -> Mapping[str, float]:
        """Names and weights of further process rewards, for algorithms that give credit to reasoning steps."""

    @property
    def verifier(self) -> str | None:
        """The reward that gives 1.0 or more for a correct completion; accuracy and evaluation use it.

        None for a task without a verifier, which has no accuracy.
        """

    @property
    def own_rewards(self) -> Mapping[str, Callable[..., Any]]:
        """Reward functions in TRL's form that only this task has; their names come before those of built-in rewards."""

    def problems(self, split: Split) -> Sequence[Problem]:
        """The problems of a split, in a fixed order; splits are disjoint."""

    def gold(self, problem: Problem) -> str | None:
        """The text of a completion that solves the problem; None where the task knows none."""

    def traits(self, text: str) -> Mapping[str, bool]:
        """Yes/no properties of a completion for the metrics, never for the reward, such as {"worked": True}."""


def solution(task: Task, problem: Problem, setting: str) -> str:
    """The task's solution of a problem; raises UserError, which names the setting that takes a file, if it has none."""
    gold = task.gold(problem)
    if gold is None:
        raise UserError(
            f"task {task.name}: expected a solution, got none for {problem.where}: name a file with the columns prompt "
            f"and completion ({setting}=FILE.jsonl), or the column of a data file that holds its solutions "
            "(task.arguments.gold_column)"
        )
    return gold


def check_setting(name: str, value: object, ok: bool, expected: str) -> None:
    """Raises UserError for a setting that is not ok."""
    if not ok:
        raise UserError(f"{name}: expected {expected}, got {value!r}: change it")


def position(text: str) -> float:
    """A pseudo-random number in [0, 1) that depends on the text alone."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=6).digest()) / 2**48


def split_of(text: str) -> Split:
    """The split of a generated text: test with 10 %, validation with 10 %, else train."""
    share = position(text)
    if share < 0.1:
        return "test"
    return "validation" if share < 0.2 else "train"


def partition(texts: Iterable[str], *, validation: float, test: float) -> dict[str, Split]:
    """The split of every text of a list. Shares are in [0, 1); a positive share gets at least one text.

    Two texts have no validation, and a single text is for training: `or_shared` fills what is empty then.
    """
    ordered = sorted(set(texts), key=position)
    tests, validations = ceil(test * len(ordered)), ceil(validation * len(ordered))
    validations = max(0, min(validations, len(ordered) - tests - 1))
    tests = max(0, min(tests, len(ordered) - 1))
    held_out: dict[str, Split] = dict.fromkeys(ordered[:tests], "test")
    held_out |= dict.fromkeys(ordered[tests : tests + validations], "validation")
    return {text: held_out.get(text, "train") for text in ordered}


def or_shared(parts: Mapping[Split, Sequence[Problem]]) -> dict[Split, Sequence[Problem]]:
    """The splits with a problem in each: one without any is the other held-out one, or the first problem of train."""
    test = parts["test"] or parts["validation"] or parts["train"][:1]
    return {"train": parts["train"], "validation": parts["validation"] or test, "test": test}


class LazyProblems(Sequence[Problem]):
    """A sequence of `count` problems; the pure function `make(index)` makes each of them and may cache it.

    `in_memory`: those among them that exist already, such as the rows of a file, which a check before a run reads.
    """

    def __init__(self, count: int, make: Callable[[int], Problem], in_memory: Sequence[Problem] = ()) -> None:
        self._count, self._make, self.in_memory = count, make, in_memory

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Problem: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Problem]: ...
    def __getitem__(self, index: int | slice) -> Problem | Sequence[Problem]:
        indices = range(self._count)[index]
        return [self._make(number) for number in indices] if isinstance(indices, range) else self._make(indices)


class DrawnProblems(ABC):
    """The problems of a `Task` that draws them, a frozen dataclass; the hash of a problem's key decides its split.

    Problem i of a split is a pure function of (settings, seed, split, i), and no two splits share a key, whatever the
    seeds. Raises UserError for a split without problems.
    """

    train_problems: int
    eval_problems: int  # size of validation and of test

    @property
    @abstractmethod
    def name(self) -> str:
        """The name of the task."""

    def __post_init__(self) -> None:
        for name in ("train_problems", "eval_problems"):
            value = getattr(self, name)
            check_setting(f"task.{name}", value, value >= 1, "at least 1")

    @classmethod
    def example(cls) -> Problem:
        """The first problem."""
        return cls().problems("train")[0]

    def problems(self, split: Split) -> Sequence[Problem]:
        """The problems of a split. Train problems are made on access; held-out problems are all different."""
        if split == "train":
            return LazyProblems(self.train_problems, partial(_train_problem, self))
        return _held_out(self, split)

    @abstractmethod
    def draw(self, split: Split, index: int) -> Iterator[tuple[str, Problem]]:
        """Keys and problems; the first of them that belongs to the split and is not taken becomes problem `index`."""

    def too_few(self, split: Split, count: int) -> UserError:
        """The error for a split with only `count` different problems."""
        return UserError(
            f"task.eval_problems: expected no more different problems for {split} than {self.name} has with these "
            f"arguments (about {count}), got {self.eval_problems}: lower it, or make the problems harder"
        )


def _candidates(task: DrawnProblems, split: Split, index: int) -> Iterator[tuple[str, Problem]]:
    return ((key, problem) for key, problem in task.draw(split, index) if split_of(key) == split)


@lru_cache(maxsize=1 << 14)
def _train_problem(task: DrawnProblems, index: int) -> Problem:
    for _, problem in _candidates(task, "train", index):
        return problem
    raise UserError(
        f"task.arguments: expected more different problems of {task.name}, got none for train: make the problems harder"
    )


@lru_cache(maxsize=8)
def _held_out(task: DrawnProblems, split: Split) -> tuple[Problem, ...]:
    taken: dict[str, Problem] = {}
    for index in range(task.eval_problems):
        new = next((pair for pair in _candidates(task, split, index) if pair[0] not in taken), None)
        if new is None:
            raise task.too_few(split, len(taken))
        key, problem = new
        taken[key] = problem
    return tuple(taken.values())


@dataclass(frozen=True)
class DerivedTask:
    """A `Task` whose parts are given one by one; made by `derived`."""

    problems: Callable[[Split], Sequence[Problem]]
    gold: Callable[[Problem], str | None]
    name: str
    verifier: str | None
    default_rewards: Mapping[str, float]
    default_step_rewards: Mapping[str, float]
    own_rewards: Mapping[str, Callable[..., Any]]
    traits: Callable[[str], Mapping[str, bool]]
    verifier_given: bool  # whether the user chose the verifier
    rows_of: Task | None  # held-out splits may be cut from its train rows
    tools: Sequence[Any] = ()  # these three are `_CONVERSES`
    environment: Any = None
    game: Any = None

    @property
    def given(self) -> Collection[Split] | None:
        """The splits that its data has; None = its problems are no rows."""
        return getattr(self.rows_of, "given", None)


def derived(
    task: Task,
    problems: Callable[[Split], Sequence[Problem]],
    *,
    gold: Callable[[Problem], str | None] | None = None,
    default_rewards: Mapping[str, float] | None = None,
    cut: bool = True,
) -> Task:
    """The task with other problems; None keeps its own.

    `cut`: whether held-out splits may still be cut from its train rows, see `held_out.trained_on_the_rest`.
    """
    return DerivedTask(
        problems,
        task.gold if gold is None else gold,
        name=task.name,
        verifier=task.verifier,
        default_rewards=task.default_rewards if default_rewards is None else default_rewards,
        default_step_rewards=task.default_step_rewards,
        own_rewards=task.own_rewards,
        traits=task.traits,
        verifier_given=getattr(task, "verifier_given", not type(task).__module__.startswith("grouprl.")),
        rows_of=task if cut else None,
        **{kind: getattr(task, kind) for kind in _CONVERSES if hasattr(task, kind)},
    )


def converses(task: Task) -> bool:
    """Whether the task's completions have several turns; see `grouprl.rollout.episodes`."""
    return any(getattr(task, kind, None) for kind in _CONVERSES)


def with_environment(task: Task, tools: Sequence[Any], environment: Any) -> Task:
    """The task with tools and an environment for its problems."""
    if not tools and environment is None:
        return task
    return replace(cast(DerivedTask, derived(task, task.problems)), tools=tools, environment=environment)


def each(problems: Sequence[Problem], change: Callable[[Problem], Problem], first: int = 0) -> Sequence[Problem]:
    """The changed problems from number `first` on; lazy where the problems are lazy."""
    if isinstance(problems, list | tuple):
        return tuple(map(change, problems[first:]))
    in_memory = tuple(map(change, getattr(problems, "in_memory", ())[first:]))
    return LazyProblems(max(0, len(problems) - first), lambda index: change(problems[first + index]), in_memory)
