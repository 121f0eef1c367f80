"""What one call of a reward function gets in TRL's form, what it may return and log, and how it is checked."""

from __future__ import annotations

import asyncio
import base64
import inspect
import math
import traceback
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from grouprl.rewards.workers.frames import Parcel
from grouprl.types import Group, UserError, counted

PROVIDED = ("trainer_state", "log_extra", "log_metric")
_MOST, _LONGEST_NAME, _LONGEST_TEXT = 32, 64, 1000
Extra = bool | int | float | str | None
"""A value that a reward recorded beside a completion."""
VERDICT, OBJECTS = "environment_reward", "environments"  # of episodes
OWN_KEYWORDS = ("prompts", "completions", "completion_ids", VERDICT, OBJECTS, *PROVIDED)
LARGEST = 1e30  # largest value: squares of rewards and their sums must stay finite
_HERE = Path(__file__)
_T = TypeVar("_T")
PendingValues: TypeAlias = "Future[CallValues | list[PendingValues]]"
"""The `CallValues` of one call; after a failure, a list of `PendingValues`, one for each completion, called alone."""


@dataclass(frozen=True)
class Invalid:
    """Returned instead of a number: the group's statistics exclude the completion, and it is counted as invalid.

    >>> Invalid("the server did not answer").reason
    'the server did not answer'
    """

    reason: str


@dataclass(frozen=True)
class TrainingState:
    """The place of a call in the run."""

    global_step: int = 0  # steps finished: 0 in the first step
    max_steps: int = 0  # steps of the whole run
    steps_per_epoch: float = 0.0  # 0 = unknown

    @property
    def epoch(self) -> float:
        """Passes over the train problems that were made before this step; 0.0 where there is no run."""
        return self.global_step / self.steps_per_epoch if self.steps_per_epoch else 0.0


OUTSIDE = TrainingState()
"""The state of a call that belongs to no run."""


@dataclass(frozen=True)
class RewardCall:
    """One call of a reward function: the completions of a group, or with `whole` of several groups."""

    name: str
    keywords: Mapping[str, Sequence[Any]]  # of `call_keywords`
    per_step: bool = False
    about: str = ""  # the problem, for messages
    state: TrainingState = OUTSIDE
    is_batch: bool = False  # it compares its completions, so that it is never called for a part of them

    def __len__(self) -> int:
        return len(self.keywords["completions"])

    @property
    def divides(self) -> bool:
        """Whether the function can be called for each of the completions."""
        return not self.is_batch and len(self) > 1


class RewardLog:
    """What one call of a reward function records about its completions. The run checks what a worker sends by the same
    rules."""

    def __init__(self, count: int) -> None:
        """`count` is the number of completions."""
        self._count = count
        self.extra: dict[str, list[Extra]] = {}
        self.metrics: list[tuple[str, float]] = []

    def log_extra(self, column: str, values: Sequence[Any]) -> None:
        """Records a column with one value for each completion.

        Numbers, text up to 1,000 characters and None stay as they are; anything else becomes text.
        """
        values = values.tolist() if hasattr(values, "tolist") else list(values)
        _check_name("log_extra", column)
        if len(values) != self._count:
            raise ValueError(
                f"log_extra({column!r}): expected {self._count} values, one per completion, got {len(values)}"
            )
        if column in self.extra or len(self.extra) == _MOST:
            raise ValueError(f"log_extra({column!r}): expected a new column, at most {_MOST} in a call")
        logged: list[Extra] = []
        for value in values:
            value = value.tolist() if hasattr(value, "tolist") else value  # of numpy or torch
            is_plain = value is None or isinstance(value, bool)
            if is_plain or (isinstance(value, int | float) and abs(value) < 2**63):  # False for NaN and infinity
                logged.append(value)
                continue
            text = str(value)
            logged.append(text if len(text) <= _LONGEST_TEXT else text[: _LONGEST_TEXT - 1] + "…")
        self.extra[column] = logged

    def log_metric(self, name: str, value: Any) -> None:
        """Records a number; the step records the mean over the calls."""
        _check_name("log_metric", name)
        number = float(value)
        if not math.isfinite(number):
            raise ValueError(f"log_metric({name!r}): expected a finite number, got {number}")
        if len(self.metrics) == _MOST:
            raise ValueError(f"log_metric({name!r}): expected at most {_MOST} numbers in a call")
        self.metrics.append((name, number))


def _check_name(function: str, name: object) -> None:
    if not isinstance(name, str) or not name.isprintable() or not 0 < len(name) <= _LONGEST_NAME:
        raise ValueError(f"{function}: expected a name of 1 to {_LONGEST_NAME} printable characters, got {name!r:.80}")


def call_keywords(groups: Sequence[Group]) -> dict[str, list[Any]]:
    """Makes the keywords of a reward function in TRL's form: plain lists with one item for each completion.

    A last message of the assistant in a prompt begins the completions, as in TRL. A
    problem's columns are repeated for each of its completions; a column that a problem lacks is None.
    Raises UserError when a column has the name of a TRL keyword.
    """
    pairs = [(group.problem, completion) for group in groups for completion in group.completions]
    episodes = [completion.episode for _, completion in pairs]
    columns = dict.fromkeys(key for group in groups for key in group.problem.columns)
    for name in columns.keys() & set(OWN_KEYWORDS):
        raise UserError(f"expected columns other than {', '.join(OWN_KEYWORDS)}, got a column {name!r}: rename it")
    prompts: list[Any] = []
    texts: list[Any] = []
    for problem, completion in pairs:
        answer: Any = problem.prefill + completion.text
        if isinstance(problem.prompt, str):
            prompts.append(problem.prompt)
        else:
            prompts.append([dict(message) for message in problem.prompt[: -1 if problem.prefill else None]])
            answer = [{"role": "assistant", "content": answer}]
        texts.append(answer if completion.episode is None else completion.episode.transcript)
    of_episodes: dict[str, list[Any]] = {}
    if any(episodes):
        of_episodes[VERDICT] = [episode.reward if episode else None for episode in episodes]
        # Copies of the environments' objects at the end, which a record no longer has.
        held = [episode.held for episode in episodes if episode and episode.held is not None]
        if len(held) == len(episodes):
            of_episodes[OBJECTS] = [Parcel(base64.b64decode(packed)) for packed in held]
    return {
        "prompts": prompts,
        "completions": texts,
        "completion_ids": [list(completion.token_ids) for _, completion in pairs],
        **of_episodes,
        **{name: [problem.columns.get(name) for problem, _ in pairs] for name in columns},
    }


Value = float | None | Invalid | tuple[tuple[int, float], ...]
"""The value of one completion; a process reward gives pairs of (end, value)."""


@dataclass(frozen=True)
class CallValues:
    """What a call gave."""

    values: Sequence[Value]  # one for each completion
    extra: Mapping[str, Sequence[Extra]]  # columns that it logged, with a value for each completion
    metrics: Sequence[tuple[str, float]] = ()  # numbers that it logged, by name


class WrongCountError(ValueError):
    """A function did not return one value per completion."""


@dataclass(frozen=True)
class Signature:
    """The arguments that a reward function accepts."""

    required: tuple[str, ...]  # columns that it needs, and the objects of environments if it does
    accepted: tuple[str, ...] | None  # None = all columns
    one_of: tuple[str, ...] = ()  # columns of which it needs one

    @property
    def provided(self) -> tuple[str, ...]:
        """Those of PROVIDED that it accepts."""
        return tuple(name for name in PROVIDED if self.accepted is None or name in self.accepted)

    def arguments(self, keywords: Mapping[str, Sequence[Any]]) -> dict[str, Sequence[Any]]:
        """Selects the accepted keywords; a required column that a problem lacks is None, as in TRL's data sets."""
        count = len(keywords["completions"])
        missing = {name: [None] * count for name in self.required if name not in (*keywords, OBJECTS)}
        return {name: v for name, v in keywords.items() if self.accepted is None or name in self.accepted} | missing


def signature(function: Callable[..., Any]) -> Signature:
    """Reads the signature of a function. Raises TypeError if it cannot be called with keywords."""
    parameters = inspect.signature(function).parameters.values()
    for parameter in parameters:
        if parameter.kind is parameter.POSITIONAL_ONLY and parameter.default is parameter.empty:
            raise TypeError(f"expected parameters that can be given by name, got {parameter.name!r} by position only")
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    standard = {*OWN_KEYWORDS} - {OBJECTS}
    required = tuple(p.name for p in named if p.default is p.empty and p.name not in standard)
    everything = any(p.kind is p.VAR_KEYWORD for p in parameters)
    accepted = None if everything else tuple(p.name for p in named)
    return Signature(required, accepted, getattr(function, "needs_one_of", ()))


def call(
    function: Callable[..., Any],
    arguments: Mapping[str, Sequence[Any]],
    completions: Sequence[Any],
    *,
    provided: Sequence[str] = (),
    state: TrainingState = OUTSIDE,
    per_step: bool = False,
    run: Callable[[Coroutine[Any, Any, Any]], Any],
) -> CallValues:
    """Calls a function; returns one value per completion. A result that is not a number becomes `Invalid`.

    `provided` names those of PROVIDED that the function gets; `run` runs a coroutine to its end. Raises the function's
    exceptions, and WrongCountError unless it returns a list with one value per completion.
    """
    log = RewardLog(len(completions))
    offered = dict(zip(PROVIDED, (state, log.log_extra, log.log_metric), strict=True))
    result = function(**arguments, **{name: offered[name] for name in provided})
    values = run(_awaited(result)) if inspect.isawaitable(result) else result
    if hasattr(values, "tolist"):  # an array or a tensor; of times tolist makes plain numbers
        values = list(values) if _is_time(values) else values.tolist()
    return CallValues(checked_values(values, completions, per_step=per_step), log.extra, log.metrics)


def checked_values(values: object, completions: Sequence[Any], *, per_step: bool) -> list[Value]:
    """What a function returned, or a worker sent, as one value per completion; raises WrongCountError otherwise."""
    if not isinstance(values, list | tuple) or len(values) != len(completions):
        got = f"{len(values)}" if isinstance(values, list | tuple) else type(values).__name__
        expected = counted(len(completions), "value")
        raise WrongCountError(f"expected a list of {expected}, one per completion, got {got}")
    if per_step:
        return [_steps(value, text) for value, text in zip(values, completions, strict=True)]
    return [_number(value) for value in values]


async def _awaited(awaitable: Any) -> Any:
    return await awaitable


def run_in_thread(main: Coroutine[Any, Any, _T]) -> _T:
    """Runs a coroutine in a new thread, because a notebook's thread already runs an event loop."""
    with started_in_thread(main, name="reward-coroutine") as result:
        return result.result()


@contextmanager
def started_in_thread(main: Coroutine[Any, Any, _T], *, name: str) -> Iterator[Future[_T]]:
    """Starts a coroutine in a new thread; at the end of the block it is cancelled when it still runs."""
    running: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any] | None]] = Future()

    async def started() -> _T:
        running.set_result((asyncio.get_running_loop(), asyncio.current_task()))
        return await main

    with ThreadPoolExecutor(1, thread_name_prefix=name) as threads:
        result = threads.submit(asyncio.run, started())
        try:
            yield result
        finally:
            if not result.done():  # Ctrl-C: cancel the requests instead of waiting for replies
                loop, task = running.result()
                with suppress(RuntimeError):  # finished meanwhile
                    loop.call_soon_threadsafe(task.cancel if task else loop.stop)


def _number(value: object) -> Value:
    if value is None or isinstance(value, Invalid):
        return value
    try:
        # float() alone would read a text of NumPy, and drop the imaginary part of its complex numbers.
        plain = value.item() if hasattr(value, "item") else value
        if not isinstance(plain, Real) or _is_time(value):
            return Invalid(f"gave {value!r:.60} ({type(value).__name__}), expected a number or None")
        number = float(plain)
    except (TypeError, ValueError, RuntimeError):  # an array of several numbers
        return Invalid(f"gave {value!r:.60} ({type(value).__name__}), expected a number or None")
    except OverflowError:
        return Invalid(f"gave a number beyond {LARGEST:g}")
    if not math.isfinite(number):
        return Invalid(f"gave {number}")
    return number if abs(number) <= LARGEST else Invalid(f"gave {number}, expected at most {LARGEST:g} in size")


def _is_time(value: object) -> bool:
    """Whether a value or an array is a time or a duration of NumPy, which counts as a whole number there."""
    return getattr(getattr(value, "dtype", None), "kind", "") in ("m", "M")


def _steps(steps: object, completion: str | Sequence[Mapping[str, Any]]) -> Value:
    """Checks pairs of (end, value): `end` is the number of characters up to the end of the step."""
    if isinstance(steps, Invalid):
        return steps
    length = len(completion if isinstance(completion, str) else str(completion[-1]["content"]))
    pairs = () if steps is None else steps
    ok = isinstance(pairs, list | tuple) and all(
        isinstance(pair, list | tuple)
        and len(pair) == 2
        and isinstance(pair[0], int)
        and not isinstance(pair[0], bool)
        and isinstance(pair[1], Real)
        and not _is_time(pair[1])
        and 1 <= pair[0] <= length
        for pair in pairs
    )
    if not ok:
        return Invalid(f"gave {steps!r:.60}, expected steps (end, value) with an end of 1 to {length} characters")
    checked = [(end, _number(value)) for end, value in pairs]  # type: ignore[attr-defined]
    bad = [value for _, value in checked if isinstance(value, Invalid)]
    if bad:
        return Invalid(bad[0].reason.replace("gave", "gave a step", 1))
    return tuple((end, value) for end, value in checked if isinstance(value, float))


def describe(error: BaseException) -> str:
    """Describes an error in one line: type, message, file and line."""
    called = [(Path(frame.filename), frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    theirs = [
        (path, line)
        for path, line in called
        if path != _HERE and path.parent != _HERE.parent / "workers" and not path.name.startswith("<frozen")
    ]
    location = f" ({theirs[-1][0].name}:{theirs[-1][1]})" if theirs else ""
    try:
        said = str(error)
    except BaseException:  # noqa: BLE001  a user's exception whose text cannot be made
        said = "no message"
    return f"{type(error).__name__}: {readable(said)}{location}"


def readable(text: str) -> str:
    """Shortens a text to 300 characters and replaces unprintable ones, such as terminal escapes."""
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text[:300])


def decode(reply: Mapping[str, Any], call: RewardCall) -> CallValues:
    """Decodes a worker's reply to a call from JSON. Raises ValueError, or the like, for anything else."""
    log = RewardLog(len(call))
    values = [Invalid(readable(value["invalid"])) if isinstance(value, dict) else value for value in reply["values"]]
    for column, logged in reply["extra"].items():
        log.log_extra(column, logged)
    for name, number in reply["metrics"]:
        log.log_metric(name, number)
    checked = checked_values(values, call.keywords["completions"], per_step=call.per_step)
    return CallValues(checked, log.extra, log.metrics)


def gather(scored: PendingValues) -> CallValues:
    """Waits for a call and returns what it gave, in the order of its completions."""
    result = scored.result()
    if isinstance(result, CallValues):
        return result
    singles = [gather(item) for item in result]
    columns = dict.fromkeys(name for single in singles for name in single.extra)
    return CallValues(
        [single.values[0] for single in singles],
        {name: [single.extra.get(name, [None])[0] for single in singles] for name in columns},
        [pair for single in singles for pair in single.metrics],
    )
