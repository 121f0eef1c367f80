"""Every task of reasoning-gym (Stojanovski et al. 2025, arXiv:2505.24760) by its name; needs the extra `gym`.

A problem is a pure function of (arguments, seed, split, i), and its split follows from a hash of its question.
"""

from __future__ import annotations

import contextlib
import io
import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache, partial
from importlib import import_module
from typing import Any

from grouprl.tasks.answers import completion_text, final_text
from grouprl.tasks.base import Split
from grouprl.tasks.boxed_answers import BoxedAnswers, boxed, boxed_prompt
from grouprl.tasks.gym_scorers import SCORERS, can_score
from grouprl.tasks.lazy_problems import LazyProblems
from grouprl.tasks.splits import split_of
from grouprl.types import Problem, UserError, unknown_name

ATTEMPTS = 300  # draws for one problem; every tenth question belongs to a given held-out split
_MIXTURES = frozenset({"composite"})  # a mixture of others
# These data sets make all their problems in advance; the others make problem n of two billion on access.
_EAGER_DATASETS = frozenset({"acre", "gsm_symbolic", "list_functions", "word_ladder"})
_BATCHES, _BATCH = 64, 500
_TUPLES = frozenset({"arc_agi", "rearc"})  # their scorers compare tuples, which JSON turns into lists
_EXAMPLE_KEYS = ("example_correct_answer", "example_answer", "possible_answer")


@dataclass(frozen=True)
class ReasoningGym(BoxedAnswers):
    """The task `reasoning_gym:DATASET`.

    `arguments` go to the generator and set its difficulty; the library lists them with their defaults.
    Raises UserError without the package, for an unknown name, and for arguments that the generator refuses.
    """

    dataset: str = "spell_backward"
    arguments: Mapping[str, Any] = field(default_factory=dict)
    train_problems: int = 20_000
    eval_problems: int = 100
    seed: int = 0

    def __post_init__(self) -> None:
        if self.dataset not in gym_names():
            raise unknown_name(
                "task.name (reasoning_gym:NAME)", self.dataset, gym_names(), listed_by="`grouprl tasks reasoning_gym`"
            )
        known = default_arguments(self.dataset)
        for name in self.arguments:
            if name not in known:
                raise unknown_name(f"task.arguments of {self.name}", name, known)
        try:
            _library(self.dataset, self._settings, self.seed, 1)
        except (AssertionError, TypeError, ValueError) as error:
            raise UserError(
                f"task.arguments of {self.name}: expected arguments of its generator (defaults: {known}), got "
                f"{dict(self.arguments)}: {error}"
            ) from error

    @property
    def name(self) -> str:
        """`reasoning_gym:` and the name of the data set."""
        return f"reasoning_gym:{self.dataset}"

    @property
    def verifier(self) -> str | None:
        """`reasoning_gym`: the library's scorer, or a scorer of `tasks.gym_scorers` in its place."""
        return "reasoning_gym"

    @property
    def own_rewards(self) -> Mapping[str, Callable[..., Any]]:
        """`reasoning_gym`, the reward of this data set."""
        return {"reasoning_gym": GymReward(self.dataset, self.arguments)}

    @classmethod
    def example(cls) -> Problem:
        """A problem of `spell_backward`, which needs no package."""
        question = "Spell this word backward (example: sun -> nus): group"
        return Problem(
            "reasoning_gym:spell_backward/example", boxed_prompt(question), {"answer": "puorg", "metadata": {}}
        )

    def problems(self, split: Split) -> Sequence[Problem]:
        """The problems of a split. Train problems are made on access; held-out problems are all different."""
        if split == "train":
            return LazyProblems(self.train_problems, partial(_train_problem, self.dataset, self._settings, self.seed))
        return _held_out(self.dataset, self._settings, self.seed, split, self.eval_problems)

    def gold(self, problem: Problem) -> str | None:
        """A completion with the library's answer, or its example answer, that the reward scores 1.0; else None."""
        metadata = problem.columns["metadata"]
        known = [problem.columns["answer"], *(metadata.get(key) for key in _EXAMPLE_KEYS)]
        texts = [answer if isinstance(answer, str) else json.dumps(answer) for answer in known if answer is not None]
        # Some answers have unbalanced braces, which a box cannot hold.
        for completion in (form for text in texts for form in (boxed(text), f"<answer>{text}</answer>")):
            if _is_right(self.dataset, self._settings, completion, problem.columns["answer"], metadata):
                return completion
        return None

    @property
    def _settings(self) -> str:
        return json.dumps(dict(self.arguments), sort_keys=True)


@dataclass(frozen=True)
class GymReward:
    """1.0 when reasoning-gym's scorer of this data set gives the final answer full marks, else 0.0.

    `tasks.answers.final_text` finds the answer. `tasks.gym_scorers` replaces scorers that would run it as code.

    Range: 0 or 1. Partial marks of the library count 0, because some scorers give them to any answer of the right form.
    Failure modes: those of the library's scorer. Its errors are not caught.
    """

    dataset: str
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        completion_ids: Sequence[Sequence[int]],
        *,
        answer: Sequence[str | None],
        metadata: Sequence[Mapping[str, Any]],
        **columns: Any,
    ) -> list[float | None]:
        """1.0 or 0.0 for each completion."""
        settings = json.dumps(dict(self.arguments), sort_keys=True)
        return [
            float(_is_right(self.dataset, settings, completion_text(completion), expected, facts))
            for completion, expected, facts in zip(completions, answer, metadata, strict=True)
        ]


def gym_names() -> list[str]:
    """The names of the data sets. Raises UserError without the package."""
    return sorted(_datasets().keys() - _MIXTURES)


def default_arguments(dataset: str) -> dict[str, Any]:
    """The generator's arguments and their defaults, without seed and size, which the task sets."""
    _, settings = _datasets()[dataset]
    made = settings()
    return {entry.name: getattr(made, entry.name) for entry in fields(settings) if entry.name not in ("seed", "size")}


def _datasets() -> Mapping[str, tuple[Any, Any]]:
    try:
        import_module("reasoning_gym")
    except ImportError as error:
        raise UserError(
            "task.name: expected the package reasoning-gym for reasoning_gym:NAME, got none: run pip install "
            "'grouprl[gym]'"
        ) from error
    known: Mapping[str, tuple[Any, Any]] = import_module("reasoning_gym.factory").DATASETS
    return known


@lru_cache(maxsize=_BATCHES + 8)
def _library(dataset: str, settings: str, seed: int, size: int) -> Any:
    with _isolate(seed):
        return import_module("reasoning_gym").create_dataset(dataset, seed=seed, size=size, **json.loads(settings))


def _is_right(dataset: str, settings: str, completion: str, expected: str | None, metadata: Mapping[str, Any]) -> bool:
    answer = final_text(completion)
    if answer is None or not can_score(dataset, answer):
        return False
    if dataset in SCORERS:
        return SCORERS[dataset](answer, expected or "", metadata)
    facts = {key: _as_tuples(value) for key, value in metadata.items()} if dataset in _TUPLES else dict(metadata)
    with _isolate(0):
        score = _library(dataset, settings, 0, 1).score_answer(answer, {"answer": expected, "metadata": facts})
    return bool(score >= 1.0)


def _as_tuples(value: Any) -> Any:
    return tuple(map(_as_tuples, value)) if isinstance(value, list | tuple) else value


@lru_cache(maxsize=1 << 14)
def _train_problem(dataset: str, settings: str, seed: int, index: int) -> Problem:
    return _problem(dataset, "train", index, next(_entries(dataset, settings, seed, "train", index)))


@lru_cache(maxsize=8)
def _held_out(dataset: str, settings: str, seed: int, split: Split, count: int) -> tuple[Problem, ...]:
    taken: set[str] = set()
    problems = []
    for index in range(count):
        drawn = _entries(dataset, settings, seed, split, index)
        entry = next((entry for entry in drawn if entry["question"] not in taken), None)
        if entry is None:
            break
        taken.add(entry["question"])
        problems.append(_problem(dataset, split, index, entry))
    if len(problems) < count:
        raise UserError(
            f"task.eval_problems: expected no more different problems for {split} than reasoning_gym:{dataset} has "
            f"with these arguments (about {len(problems)}), got {count}: lower it, or make the problems harder"
        )
    return tuple(problems)


def _entries(dataset: str, settings: str, seed: int, split: Split, index: int) -> Iterator[Mapping[str, Any]]:
    """Candidates for problem `index` of a split: drawn problems whose question belongs to the split."""
    rng = random.Random(f"reasoning_gym/{seed}/{split}/{index}")
    for _ in range(ATTEMPTS):
        number = rng.randrange(2**31)
        entry = _entry(dataset, settings, number)
        if split_of(entry["question"]) == split:
            yield entry
    if split == "train":
        raise UserError(
            f"task.arguments: expected more different problems of reasoning_gym:{dataset}, got none for train in "
            f"{ATTEMPTS} attempts: make the problems harder"
        )


def _entry(dataset: str, settings: str, number: int) -> Mapping[str, Any]:
    if dataset in _EAGER_DATASETS:
        batch, place = number % _BATCHES, number // _BATCHES % _BATCH
        library = _library(dataset, settings, batch, _BATCH)
    else:
        library, place = _library(dataset, settings, 0, 2**31), number
    with _isolate(number):
        entry: Mapping[str, Any] = library[place]
    return entry


@contextlib.contextmanager
def _isolate(seed: int) -> Iterator[None]:
    """Keeps generators that draw from the global random state or print from changing the run."""
    numpy = import_module("numpy")
    states = random.getstate(), numpy.random.get_state()
    random.seed(seed)
    numpy.random.seed(seed % 2**32)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        random.setstate(states[0])
        numpy.random.set_state(states[1])


def _problem(dataset: str, split: Split, index: int, entry: Mapping[str, Any]) -> Problem:
    # Through JSON, so that a problem in memory is scored like the same problem from a record.
    metadata = json.loads(json.dumps(entry["metadata"], default=str))
    identity = f"reasoning_gym:{dataset}/{split}/{index}"
    return Problem(identity, boxed_prompt(entry["question"]), {"answer": entry["answer"], "metadata": metadata})
