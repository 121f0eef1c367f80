"""Scores groups of completions. Scoring of a group starts as soon as it is sampled, while others are sampled."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from grouprl.scoring.calling import OWN_KEYWORDS, Signature, Value, call, describe, run_in_thread, signature
from grouprl.scoring.functions import SOFT_OVERLONG, FromFile, WeightedReward
from grouprl.scoring.invalid import Invalid, InvalidCount
from grouprl.scoring.overlong import Overlong
from grouprl.scoring.parcels import ParcelError, pack_function
from grouprl.scoring.pool import Limits, PendingValues, RewardPool, gather
from grouprl.scoring.step_ends import last_tokens
from grouprl.scoring.zygote import Source
from grouprl.types import Completion, Group, Problem, RewardOutcome, StepReward, UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class PendingGroup:
    """A group and its reward calls in progress."""

    group: Group
    calls: Mapping[str, PendingValues]  # by reward name


class Scoring:
    """Scores groups while others are still sampled; made by `Scorer.scoring`."""

    def __init__(self, scorer: Scorer) -> None:
        self._scorer = scorer
        self._pending: dict[int, PendingGroup] = {}

    def begin(self, place: int, group: Group) -> None:
        """Starts the calls for a group in the workers; `place` is the group's place in the result."""
        self._pending[place] = self._scorer.begin(group)

    def finish(self, tokenizer: PreTrainedTokenizerBase | None = None) -> list[tuple[RewardOutcome, ...]]:
        """Waits for all started groups: see `Scorer.finish`."""
        return self._scorer.finish([self._pending[place] for place in sorted(self._pending)], tokenizer)


@contextmanager
def open_scorer(
    rewards: Sequence[WeightedReward],
    *,
    verifier: WeightedReward | None = None,
    limits: Limits | None = None,
    max_invalid: float = 0.1,
    overlong: Overlong | None = None,
) -> Iterator[Scorer]:
    """Opens a scorer with its worker processes, which load the functions in the background and end with the block.

    Args:
        rewards: the rewards that score the completions.
        verifier: a completion is correct when this reward is 1.0 or more.
        limits: limits of one call in a worker.
        max_invalid: share of the completions, in [0, 1], beyond which the run stops.
        overlong: the length penalty of each completion; None = there is none.

    Raises:
        UserError: a function cannot be sent to a worker, or may need longer than `limits` for one completion.
    """
    limits = limits or Limits()
    known = {reward.name: reward for reward in rewards}
    if verifier is not None:
        if verifier.name in known and known[verifier.name].function != verifier.function:
            verifier = replace(verifier, name=f"{verifier.name} (verifier)")  # the user's reward has the name
        known.setdefault(verifier.name, verifier)
    for reward in known.values():
        _check_time(reward, limits)
    sources = {name: _source(reward) for name, reward in known.items() if not reward.in_process}
    with RewardPool(sources, limits) as pool:
        yield Scorer(tuple(rewards), verifier, pool, max_invalid, overlong)


class Scorer:
    """Turns groups into reward outcomes; made by `open_scorer`."""

    def __init__(
        self,
        rewards: tuple[WeightedReward, ...],
        verifier: WeightedReward | None,
        pool: RewardPool,
        max_invalid: float,
        overlong: Overlong | None = None,
    ) -> None:
        self.rewards, self.verifier, self.pool, self.overlong = rewards, verifier, pool, overlong
        self._max_invalid = max_invalid
        self._window: deque[tuple[int, int]] = deque()  # (completions, invalid ones) of the last steps
        names = [reward.name for reward in rewards]
        self._called = rewards if verifier is None or verifier.name in names else (*rewards, verifier)

    @property
    def weights(self) -> dict[str, float]:
        """The weight of each component of the total, by name; the length penalty comes first."""
        penalty = {} if self.overlong is None else {SOFT_OVERLONG: 1.0}
        return penalty | {reward.name: reward.weight for reward in self.rewards if not reward.per_step}

    def usage(self) -> dict[str, float]:
        """Returns the usage metrics of rewards that count their requests, since the run began."""
        used: Counter[str] = Counter()
        for reward in self._called:
            if hasattr(reward.function, "usage"):
                used.update(reward.function.usage())
        return dict(used)

    def scoring(self) -> Scoring:
        """Starts the scoring of one step's groups."""
        return Scoring(self)

    def check_columns(self, problems: Sequence[Problem]) -> None:
        """Raises UserError for a reward that needs a column that no problem has, such as a misspelled one."""
        columns = dict.fromkeys(name for problem in problems for name in problem.columns)
        for reward in self._called:
            for name in self._signature(reward).required:
                if name not in columns:
                    raise UserError(
                        f"reward {reward.name}: expected problems with the column {name!r}, got "
                        f"{', '.join(columns) or 'none'}: rename the column or the function's parameter"
                    )

    def begin(self, group: Group) -> PendingGroup:
        """Starts the calls for a group in the workers."""
        return self._begin(group, self._called)

    def finish(
        self, pending: Sequence[PendingGroup], tokenizer: PreTrainedTokenizerBase | None = None
    ) -> list[tuple[RewardOutcome, ...]]:
        """Returns one outcome for each completion of each group, in order.

        The total is the weighted sum of the rewards that apply, plus the length penalty. A completion is invalid (NaN
        total, with the reason) when no reward applies or a reward failed: a broken verifier must not look like a wrong
        answer.

        Args:
            pending: the groups of a step.
            tokenizer: needed for process rewards, whose steps end at a token.

        Raises:
            UserError: too many completions are invalid.
        """
        groups = [waiting.group for waiting in pending]
        together = {reward.name: self._together(reward, groups) for reward in self._called if reward.in_process}
        count = InvalidCount(self._max_invalid, self._window, sum(len(group.completions) for group in groups))
        outcomes = []
        for place, waiting in enumerate(pending):
            values = {name: gather(scored) for name, scored in waiting.calls.items()}
            values |= {name: rows[place] for name, rows in together.items()}
            rows = [{name: column[n] for name, column in values.items()} for n in range(len(waiting.group.completions))]
            judged = [
                _outcome(row, self.rewards, completion, tokenizer)
                for row, completion in zip(rows, waiting.group.completions, strict=True)
            ]
            reasons = [outcome.reason for outcome in judged]
            if self.verifier is not None and self.verifier not in self.rewards:
                said = [row[self.verifier.name] for row in rows]
                reasons = [
                    reason or _failure(self.verifier.name, value) for reason, value in zip(reasons, said, strict=True)
                ]
            count.add(reasons)
            if self.verifier is not None:
                judged = [
                    replace(outcome, correct=_is_correct(row[self.verifier.name]))
                    for outcome, row in zip(judged, rows, strict=True)
                ]
            outcomes.append(tuple(judged if self.overlong is None else self.overlong.penalized(waiting.group, judged)))
        count.close()
        return outcomes

    def verify(self, groups: Sequence[Group]) -> list[tuple[bool | None, ...]]:
        """Checks whether each completion is correct; None where the verifier failed, or there is none.

        Raises:
            UserError: the verifier failed for too many completions.
        """
        if self.verifier is None:
            return [(None,) * len(group.completions) for group in groups]
        if self.verifier.in_process:
            values = self._together(self.verifier, groups)
        else:
            waiting = [self._begin(group, (self.verifier,)) for group in groups]
            values = [gather(one.calls[self.verifier.name]) for one in waiting]
        count = InvalidCount(self._max_invalid, deque(), sum(map(len, values)))
        for row in values:
            count.add([_failure(self.verifier.name, value) for value in row])
        return [tuple(map(_is_correct, row)) for row in values]

    def _begin(self, group: Group, rewards: Sequence[WeightedReward]) -> PendingGroup:
        keywords = call_keywords([group])
        return PendingGroup(
            group,
            {
                reward.name: self.pool.submit(reward.name, keywords, per_step=reward.per_step)
                for reward in rewards
                if not reward.in_process
            },
        )

    def _together(self, reward: WeightedReward, groups: Sequence[Group]) -> list[list[Value]]:
        """Returns the values [P][G] of a reward that runs in this process, on all completions at once."""
        keywords = call_keywords(groups)
        arguments = self._signature(reward).arguments(keywords)
        try:
            values = iter(call(reward.function, arguments, keywords["completions"], run=run_in_thread))  # type: ignore[arg-type]
        except UserError:
            raise
        except Exception as error:
            raise UserError(
                f"reward {reward.name}: expected values, got {describe(error)}: fix the function"
            ) from error
        return [[next(values) for _ in group.completions] for group in groups]

    def _signature(self, reward: WeightedReward) -> Signature:
        return signature(reward.function) if reward.in_process else self.pool.signatures()[reward.name]  # type: ignore[arg-type]


def call_keywords(groups: Sequence[Group]) -> dict[str, list[Any]]:
    """Makes the keywords of a reward function in TRL's form: plain lists with one item for each completion.

    A problem's columns are repeated for each of its completions; a column that a problem lacks is None.
    Raises UserError when a column has the name of a TRL keyword.
    """
    pairs = [(group.problem, completion) for group in groups for completion in group.completions]
    columns = dict.fromkeys(key for group in groups for key in group.problem.columns)
    for name in columns.keys() & set(OWN_KEYWORDS):
        raise UserError(f"expected columns other than {', '.join(OWN_KEYWORDS)}, got a column {name!r}: rename it")
    return {
        "prompts": [_prompt(problem) for problem, _ in pairs],
        "completions": [_completion(problem, completion) for problem, completion in pairs],
        "completion_ids": [list(completion.token_ids) for _, completion in pairs],
        **{name: [problem.columns.get(name) for problem, _ in pairs] for name in columns},
    }


def _prompt(problem: Problem) -> str | list[dict[str, str]]:
    return problem.prompt if isinstance(problem.prompt, str) else [dict(message) for message in problem.prompt]


def _completion(problem: Problem, completion: Completion) -> str | list[dict[str, str]]:
    text = completion.text
    return text if isinstance(problem.prompt, str) else [{"role": "assistant", "content": text}]


def _source(reward: WeightedReward) -> Source:
    function = reward.function
    if isinstance(function, FromFile):
        return function.path, function.function, dict(function.arguments)
    try:
        return pack_function(function)
    except ParcelError as error:
        raise UserError(
            f"reward {reward.name}: expected a function that can be sent to another process, got {error}: put it, "
            "and the values it uses, into a file such as my_rewards.py"
        ) from error


def _failure(name: str, value: Value) -> str:
    return f"{name} {value.reason}" if isinstance(value, Invalid) else ""


def _check_time(reward: WeightedReward, limits: Limits) -> None:
    needed = getattr(reward.function, "longest_call_seconds", 0.0)  # set by rewards with a time limit of their own
    if needed > limits.seconds:
        raise UserError(
            f"reward {reward.name}: expected scoring.seconds of {needed:g} or more for its own limit, got "
            f"{limits.seconds:g}: raise it, or lower the reward's"
        )


def _is_correct(value: Value) -> bool | None:
    return value >= 1.0 if isinstance(value, float | int) else None


def _outcome(
    row: Mapping[str, Value],
    rewards: Sequence[WeightedReward],
    completion: Completion,
    tokenizer: PreTrainedTokenizerBase | None,
) -> RewardOutcome:
    """Combines the rewards of one completion. The steps of a process reward do not enter the total."""
    broken = [f"{r.name} {value.reason}" for r in rewards if isinstance(value := row[r.name], Invalid)]
    components: dict[str, float | None] = {}
    terms: list[float] = []
    steps: tuple[StepReward, ...] = ()
    for reward in rewards:
        value = row[reward.name]
        if isinstance(value, tuple):
            components[reward.name] = math.fsum(earned for _, earned in value) / len(value) if value else None
            steps += _step_rewards(reward, value, completion, tokenizer)
        elif isinstance(value, Invalid) or value is None:
            components[reward.name] = None
        else:
            components[reward.name] = value
            terms.append(reward.weight * value)
    reason = "; ".join(broken) or ("" if terms else "no reward applies")
    return RewardOutcome(math.nan if reason else math.fsum(terms), components, reason, steps)


def _step_rewards(
    reward: WeightedReward,
    pairs: Sequence[tuple[int, float]],
    completion: Completion,
    tokenizer: PreTrainedTokenizerBase | None,
) -> tuple[StepReward, ...]:
    if tokenizer is None:
        raise ValueError(f"reward {reward.name} gives steps: the tokenizer is needed to find their last tokens")
    places = last_tokens(completion.token_ids, [end for end, _ in pairs], tokenizer)
    return tuple(StepReward(place, reward.weight * value) for place, (_, value) in zip(places, pairs, strict=True))
