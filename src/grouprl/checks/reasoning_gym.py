"""Every task of reasoning-gym (Stojanovski et al. 2025, arXiv:2505.24760) by its name; needs the extra `gym`."""

from __future__ import annotations

import contextlib
import io
import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from importlib import import_module
from typing import Any

from grouprl.checks.gym_scorers import SCORERS, can_score
from grouprl.tasks.answers import BoxedAnswers, boxed, boxed_prompt, completion_text, final_text
from grouprl.tasks.base import DrawnProblems, Split
from grouprl.types import Problem, UserError, import_extra, unknown_name

ATTEMPTS = 300  # draws for one problem; every tenth question belongs to a given held-out split
# These data sets make all their problems in advance; the others make problem n of two billion on access.
_EAGER_DATASETS = frozenset({"acre", "gsm_symbolic", "list_functions", "word_ladder"})
_BATCHES, _BATCH = 64, 500
_TUPLES = frozenset({"arc_agi", "rearc"})  # their scorers compare tuples, which JSON turns into lists
_EXAMPLE_KEYS = ("example_correct_answer", "example_answer", "possible_answer")


@dataclass(frozen=True)
class ReasoningGym(DrawnProblems, BoxedAnswers):
    """The task `reasoning_gym:DATASET`.

    `arguments` go to the generator and set its difficulty; the library lists them with their defaults.
    Raises UserError without the package, for an unknown name, and for arguments that the generator refuses.
    """

    dataset: str = "spell_backward"
    arguments: Mapping[str, Any] = field(default_factory=dict, hash=False)  # a dict has no hash
    train_problems: int = 20_000
    eval_problems: int = 100
    seed: int = 0
    verifier = "reasoning_gym"

    def __post_init__(self) -> None:
        if self.dataset not in gym_names():
            raise unknown_name(
                "task.name (reasoning_gym:NAME)", self.dataset, gym_names(), listed_by="`grouprl tasks reasoning_gym`"
            )
        defaults = default_arguments(self.dataset)
        for name in self.arguments:
            if name not in defaults:
                raise unknown_name(f"task.arguments of {self.name}", name, defaults)
        try:
            _library(self.dataset, self.arguments, self.seed, 1)
        except (AssertionError, TypeError, ValueError) as error:
            raise UserError(
                f"task.arguments of {self.name}: expected arguments of its generator (defaults: {defaults}), got "
                f"{dict(self.arguments)}: {error}"
            ) from error
        super().__post_init__()

    @property
    def name(self) -> str:
        """`reasoning_gym:` and the name of the data set."""
        return f"reasoning_gym:{self.dataset}"

    @property
    def own_rewards(self) -> Mapping[str, Callable[..., Any]]:
        """`reasoning_gym`, the reward of this data set."""
        return {"reasoning_gym": GymReward(self.dataset, self.arguments)}

    @classmethod
    def example(cls) -> Problem:
        """A problem of `spell_backward`, which needs no package."""
        question = "Spell this word backward (example: sun -> nus): group"
        columns = {"answer": "puorg", "metadata": {}}
        return Problem("reasoning_gym:spell_backward/example", boxed_prompt(question), columns)

    def draw(self, split: Split, index: int) -> Iterator[tuple[str, Problem]]:
        """Problems with random numbers; the key is the question."""
        rng = random.Random(f"reasoning_gym/{self.seed}/{split}/{index}")
        for _ in range(ATTEMPTS):
            number = rng.randrange(2**31)
            if self.dataset in _EAGER_DATASETS:
                batch, position = number % _BATCHES, number // _BATCHES % _BATCH
                library = _library(self.dataset, self.arguments, batch, _BATCH)
            else:
                library, position = _library(self.dataset, self.arguments, 0, 2**31), number
            with _isolate(number):
                entry: Mapping[str, Any] = library[position]
            # Through JSON, so that a problem in memory is scored like the same problem from a record.
            metadata = json.loads(json.dumps(entry["metadata"], default=str))
            columns = {"answer": entry["answer"], "metadata": metadata}
            yield entry["question"], Problem(f"{self.name}/{split}/{index}", boxed_prompt(entry["question"]), columns)

    def gold(self, problem: Problem) -> str | None:
        """A completion with the library's answer, or its example answer, that the reward scores 1.0; else None."""
        answer, metadata = problem.columns["answer"], problem.columns["metadata"]
        answers = [answer, *(metadata.get(key) for key in _EXAMPLE_KEYS)]
        texts = [text if isinstance(text, str) else json.dumps(text) for text in answers if text is not None]
        # Some answers have unbalanced braces, which a box cannot hold.
        forms = (form for text in texts for form in (boxed(text), f"<answer>{text}</answer>"))
        reward = GymReward(self.dataset, self.arguments)
        return next((form for form in forms if reward.is_right(form, answer, metadata)), None)


@dataclass(frozen=True)
class GymReward:
    """1.0 when reasoning-gym's scorer of this data set gives the final answer full marks, else 0.0.

    `tasks.answers.final_text` finds the answer. `gym_scorers` replaces scorers that would run it as code.

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
        return [
            float(self.is_right(completion_text(completion), expected, facts))
            for completion, expected, facts in zip(completions, answer, metadata, strict=True)
        ]

    def is_right(self, completion: str, expected: str | None, metadata: Mapping[str, Any]) -> bool:
        """Whether a completion gets full marks, from the library's answer and metadata."""
        answer = final_text(completion)
        if answer is None or not can_score(self.dataset, answer):
            return False
        if self.dataset in SCORERS:
            return SCORERS[self.dataset](answer, expected or "", metadata)
        facts = dict(metadata)
        if self.dataset in _TUPLES:
            facts = {key: _as_tuples(value) for key, value in metadata.items()}
        library = _library(self.dataset, self.arguments, 0, 1)
        with _isolate(0):
            return bool(library.score_answer(answer, {"answer": expected, "metadata": facts}) >= 1.0)


def gym_names() -> list[str]:
    """The names of the data sets. Raises UserError without the package."""
    return sorted(_datasets().keys() - {"composite"})  # a mixture of others


def default_arguments(dataset: str) -> dict[str, Any]:
    """The generator's arguments and their defaults, without seed and size, which the task sets."""
    config = _datasets()[dataset][1]()
    return {entry.name: getattr(config, entry.name) for entry in fields(config) if entry.name not in ("seed", "size")}


def _datasets() -> Mapping[str, tuple[Any, Any]]:
    import_extra("reasoning_gym", "gym", "task.name reasoning_gym:NAME")
    datasets: Mapping[str, tuple[Any, Any]] = import_module("reasoning_gym.factory").DATASETS
    return datasets


def _library(dataset: str, arguments: Mapping[str, Any], seed: int, size: int) -> Any:
    return _created(dataset, json.dumps(dict(arguments), sort_keys=True), seed, size)


@lru_cache(maxsize=_BATCHES + 8)
def _created(dataset: str, arguments: str, seed: int, size: int) -> Any:
    with _isolate(seed):
        return import_module("reasoning_gym").create_dataset(dataset, seed=seed, size=size, **json.loads(arguments))


def _as_tuples(value: Any) -> Any:
    return tuple(map(_as_tuples, value)) if isinstance(value, list | tuple) else value


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
