"""A mixture of tasks: train problems of several tasks in given ratios, and the held-out problems of each of them."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from typing import Any

from grouprl.leaves import leaf
from grouprl.tasks.answers import is_in_file
from grouprl.tasks.base import LazyProblems, Split, Task
from grouprl.types import Problem, UserError

PART = "part"
"""The column with the name of a problem's part."""
CORRECT = "correct"
"""The verifier of a mixture whose parts have different ones."""
_LONGEST_TURN = 10_000


@dataclass(frozen=True)
class MixturePart:
    """One task of a mixture, and how many problems it gives relative to the other parts."""

    task: Task
    ratio: float = 1.0  # 0 = its problems are for evaluation only


@dataclass(frozen=True)
class PartReward:
    """A reward that calls the function of a problem's part, or gives None (does not apply) where it has none.

    A function in TRL's form; a name stands for a built-in reward until `bound` replaces it.
    """

    functions: Mapping[str, Callable[..., Any] | str]  # by part

    def bound(self, built_in: Callable[[str], Any]) -> PartReward:
        """The reward with functions in the place of names."""
        pairs = self.functions.items()
        return PartReward({part: built_in(reward) if isinstance(reward, str) else reward for part, reward in pairs})

    @property
    def longest_call_seconds(self) -> float:
        """The longest time limit that one of the functions has of its own."""
        return max(getattr(function, "longest_call_seconds", 0.0) for function in self.functions.values())

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        completion_ids: Sequence[Sequence[int]],
        *,
        part: Sequence[str],
        **columns: Any,
    ) -> list[Any]:
        """One value for each completion."""
        keywords = {"prompts": prompts, "completions": completions, "completion_ids": completion_ids, PART: part}
        keywords |= {name: values for name, values in columns.items() if isinstance(values, list)}
        part_values: list[Any] = [None] * len(completions)
        for label in self.functions.keys() & set(part):
            rows = [row for row, other in enumerate(part) if other == label]
            function: Any = self.functions[label]
            accepted = inspect.signature(function).parameters
            takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in accepted.values())
            names = [name for name in keywords if takes_all or name in accepted]
            values = function(**{name: [keywords[name][row] for row in rows] for name in names})
            for row, value in zip(rows, values, strict=True):
                part_values[row] = value
        return part_values


@dataclass(frozen=True)
class Mixture:
    """The task `mixture`: problems of several tasks in given ratios.

    The train split is a sequence of equal turns, each with every part as often as its ratio says, evenly spread: with
    3 to 1 a turn has four problems. It is as long as every train problem of every part needs to occur, and problems
    of the other parts occur again under an id of their own, as with `stopping_strategy="all_exhausted"` of
    `datasets.interleave_datasets` (Hugging Face datasets). The problem order shuffles the whole of it for every epoch:
    an epoch has the ratios exactly, a step by chance. Place i is a pure function of the parts and i.

    A held-out split has all held-out problems of all parts, evenly spread, so that the first of them are of all parts.
    Problems have their part in the column `part`. Rewards and verifiers apply to the problems of the parts that name
    them. Raises UserError for ratios that are no shares, and for parts without a verifier that only the task needs.
    """

    parts: Mapping[str, MixturePart] = field(
        default_factory=lambda: {name: MixturePart(leaf(f"task.{name}")()) for name in ("word_problems", "countdown")}
    )
    name = "mixture"

    def __post_init__(self) -> None:
        for label, part in self.parts.items():
            where, verifier = f"task.arguments.{label}", part.task.verifier
            number = isinstance(part.ratio, int | float) and not isinstance(part.ratio, bool)
            if not number or not 0 <= part.ratio < math.inf:
                raise UserError(f"{where}.ratio: expected a number of 0 or more, got {part.ratio!r}: write 3 or 0.5")
            if verifier is None or is_in_file(verifier):
                raise UserError(
                    f"{where}: expected a task whose verifier is built in, got {verifier or 'none'}: give it answers, "
                    "or train on it without a mixture"
                )
        if not any(part.ratio for part in self.parts.values()):
            raise UserError("task.arguments: expected a part with a ratio above 0, got none: write countdown=1")
        if sum(self._turn.values()) > _LONGEST_TURN:
            raise UserError(
                f"task.arguments: expected ratios that whole numbers up to {_LONGEST_TURN} can write, got "
                f"{', '.join(str(part.ratio) for part in self.parts.values())}: round them"
            )
        _ = self.default_rewards

    @classmethod
    def example(cls) -> Problem:
        """The first problem."""
        return cls().problems("train")[0]

    @property
    def verifier(self) -> str:
        """The verifier of all parts, or `correct`, which calls that of a problem's part."""
        names = {str(part.task.verifier) for part in self.parts.values()}
        return names.pop() if len(names) == 1 else CORRECT

    @property
    def default_rewards(self) -> Mapping[str, float]:
        """Those of the parts, with their verifiers as one reward."""
        weights: dict[str, float] = {}
        for label, part in self.parts.items():
            for name, weight in part.task.default_rewards.items():
                if weights.setdefault(self._name_of(name, part.task), weight) != weight:
                    raise UserError(
                        f"task.arguments.{label}: expected the weight {weights[name]} that {name} has in another part, "
                        f"got {weight}: make the parts' default rewards agree"
                    )
        return weights

    @property
    def default_step_rewards(self) -> Mapping[str, float]:
        """Those that all parts share."""
        first, *others = (part.task.default_step_rewards for part in self.parts.values())
        return {name: weight for name, weight in first.items() if all(name in other for other in others)}

    @property
    def own_rewards(self) -> Mapping[str, Callable[..., Any]]:
        """The rewards of the parts, each for the parts that name it; none where all name the same built-in reward."""
        functions_by_name: dict[str, dict[str, Callable[..., Any] | str]] = {}
        for label, part in self.parts.items():
            rewards, verifier = part.task.own_rewards, str(part.task.verifier)
            for name in rewards:
                functions_by_name.setdefault(name, {})[label] = rewards[name]
            for name in (*part.task.default_rewards, verifier):
                functions_by_name.setdefault(self._name_of(name, part.task), {})[label] = rewards.get(name, name)
        return {
            name: PartReward(functions)
            for name, functions in functions_by_name.items()
            if set(functions.values()) != {name} or len(functions) < len(self.parts)
        }

    def problems(self, split: Split) -> Sequence[Problem]:
        """The problems of a split, in a fixed order; those of train are made on access."""
        if split == "train":
            return self._train
        problems = {label: part.task.problems(split) for label, part in self.parts.items()}
        order = _spread({label: len(part_problems) for label, part_problems in problems.items()})
        return tuple(self._marked(label, problems[label][index]) for label, index in order)

    def gold(self, problem: Problem) -> str | None:
        """What the problem's part gives."""
        return self.parts[problem.columns[PART]].task.gold(problem)

    def traits(self, text: str) -> Mapping[str, bool]:
        """Those of all parts; the first part that has one decides it."""
        of_parts = [part.task.traits(text) for part in reversed(list(self.parts.values()))]
        return {name: has for traits in of_parts for name, has in traits.items()}

    def _name_of(self, reward: str, task: Task) -> str:
        return self.verifier if reward == task.verifier else reward

    @cached_property
    def _turn(self) -> dict[str, int]:
        """How many problems of each part a turn has: the ratios as the smallest whole numbers."""
        exact = {label: Fraction(str(part.ratio)) for label, part in self.parts.items()}
        denominator = math.lcm(*(ratio.denominator for ratio in exact.values()))
        counts = {label: int(ratio * denominator) for label, ratio in exact.items()}
        common = math.gcd(*counts.values())
        return {label: count // common for label, count in counts.items()}

    @cached_property
    def _train(self) -> Sequence[Problem]:
        problems = {label: self.parts[label].task.problems("train") for label, count in self._turn.items() if count}
        turn = _spread(self._turn)
        turns = max(math.ceil(len(problems[label]) / self._turn[label]) for label in problems)

        def make(position: int) -> Problem:
            done, at = divmod(position, len(turn))
            label, number = turn[at]
            time, index = divmod(done * self._turn[label] + number, len(problems[label]))
            return self._marked(label, problems[label][index], time)

        listed = ((label, part) for label, part in problems.items() if isinstance(part, list | tuple))
        in_memory = [self._marked(label, problem) for label, part in listed for problem in part]
        return LazyProblems(turns * len(turn), make, in_memory)

    def _marked(self, label: str, problem: Problem, time: int = 0) -> Problem:
        if PART in problem.columns:
            raise UserError(
                f"task.arguments.{label}: expected problems without a column {PART!r}, which a mixture adds, got one: "
                "rename it"
            )
        name = problem.id if self.parts[label].task.name == label else f"{label}/{problem.id}"
        return replace(problem, id=f"{name}#{time + 1}" if time else name, columns={**problem.columns, PART: label})


def _spread(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    """All pairs of a name and a number below its count, in an order in which every name is evenly spread.

    >>> _spread({"a": 3, "b": 1})
    [('a', 0), ('a', 1), ('b', 0), ('a', 2)]
    """
    pairs = [
        (Fraction(2 * number + 1, count), label, number) for label, count in counts.items() for number in range(count)
    ]
    return [(label, number) for _, label, number in sorted(pairs, key=lambda pair: pair[0])]
