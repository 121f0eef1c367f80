"""From the values of reward functions to the outcome of each completion: steps, failures, length penalty."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from itertools import accumulate
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from grouprl.algorithms import overlong_penalty
from grouprl.config.run import RunConfig
from grouprl.models.prompts import completion_texts
from grouprl.rewards.calls import CallValues, Invalid, Value
from grouprl.rewards.functions import WeightedReward
from grouprl.types import SOFT_OVERLONG, Completion, Episode, Group, RewardOutcome, StepReward, UserError

Row = Mapping[str, Value]  # the values of one completion by reward name
Metrics = Sequence[tuple[str, float]]  # what rewards logged
Scored = tuple[Sequence[RewardOutcome], Sequence[str], Metrics]  # with the reasons why completions are invalid

Number = TypeVar("Number", float, float | None)
_WINDOW = 200  # completions over which invalid ones are counted, if a step has fewer
_FEW = 50  # the share is computed over at least so many completions


def rows_of(calls: Mapping[str, CallValues], group: Group) -> list[Row]:
    """The values of each completion of a group; reasoning steps end in its own text, without what the prompt begins."""
    prefill = len(group.problem.prefill)

    def shifted(value: Value) -> Value:
        if not isinstance(value, tuple) or not prefill:
            return value
        return tuple((end - prefill, reward) for end, reward in value if end > prefill)

    return [{name: shifted(called.values[n]) for name, called in calls.items()} for n in range(len(group.completions))]


def extras_of(calls: Mapping[str, CallValues], group: Group) -> list[dict[str, Any]]:
    """What the rewards recorded beside each completion of a group, by REWARD/COLUMN."""
    columns = [(f"{name}/{column}", values) for name, call in calls.items() for column, values in call.extra.items()]
    return [{name: values[index] for name, values in columns} for index in range(len(group.completions))]


def failure(reward: WeightedReward | None, row: Row) -> str:
    """Why a reward failed for a completion; '' = it did not."""
    if reward is None or not isinstance(value := row.get(reward.name), Invalid):
        return ""
    return f"{reward.name} {value.reason}"


def is_correct(value: Value) -> bool | None:
    """What a verifier's value says; None = it failed, or does not apply."""
    return value >= 1.0 if isinstance(value, float | int) else None


def shared_out(called: CallValues, groups: Sequence[Group]) -> list[CallValues]:
    """Shares out one call for the completions of several groups; the metrics stay with the first group."""
    ends = list(accumulate(len(group.completions) for group in groups))
    parts = [slice(end - len(group.completions), end) for group, end in zip(groups, ends, strict=True)]
    return [
        CallValues(
            called.values[part],
            {column: extra[part] for column, extra in called.extra.items()},
            () if index else called.metrics,
        )
        for index, part in enumerate(parts)
    ]


def written(scored: Scored) -> tuple[list[dict[str, Any]], Sequence[str], Metrics]:
    """A group's outcomes as JSON."""
    outcomes, reasons, logged = scored
    return [asdict(replace(outcome, components=dict(outcome.components))) for outcome in outcomes], reasons, logged


def read(rows: Sequence[Any]) -> Scored:
    """The reverse of `written`."""
    outcomes, reasons, logged = rows
    plain = ({**row, "steps": tuple(StepReward(**step) for step in row["steps"])} for row in outcomes)
    return [RewardOutcome(**row) for row in plain], reasons, [(name, value) for name, value in logged]


class InvalidCount:
    """Counts the invalid completions of a step, and stops the run as soon as there are too many."""

    def __init__(self, share: float, window: deque[tuple[int, int]], completions: int) -> None:
        self._share, self._window, self._completions = share, window, completions
        self._reasons: Counter[str] = Counter()
        while window and completions + sum(count for count, _ in window) - window[0][0] >= _WINDOW:
            window.popleft()

    def add(self, reasons: Sequence[str]) -> None:
        """Adds the reasons of a group's completions, '' for valid ones. Raises UserError beyond the allowed share."""
        self._reasons.update(filter(None, reasons))
        invalid = self._reasons.total() + sum(bad for _, bad in self._window)
        total = self._completions + sum(completions for completions, _ in self._window)
        if invalid > self._share * max(total, _FEW):
            self._stop(invalid, total)

    def _stop(self, invalid: int, total: int) -> None:
        reasons = "; ".join(f"{reason} ({times} times)" for reason, times in self._reasons.most_common(3))
        raise UserError(
            f"rewards: expected valid rewards for all but {self._share:.0%} of the completions "
            f"(rollout.scoring.max_invalid), got {invalid} invalid of the last {total}: {reasons}. Fix the reward"
        )

    def close(self) -> None:
        """Ends the step. Raises UserError when it had no valid completion."""
        if self._share < 1 and 0 < self._completions == self._reasons.total():
            self._stop(self._completions, self._completions)
        self._window.append((self._completions, self._reasons.total()))


if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def turn_rewards(episode: Episode | None) -> tuple[StepReward, ...]:
    """What an environment gave for the turns of an episode, for algorithms that give credit to steps."""
    if episode is None:
        return ()
    pairs = zip(episode.ends, episode.turn_rewards, strict=True)
    return tuple(StepReward(end, reward) for end, reward in pairs if reward is not None)


def step_rewards(
    reward: WeightedReward,
    pairs: Sequence[tuple[int, float]],
    completion: Completion,
    tokenizer: PreTrainedTokenizerBase | None,
) -> tuple[StepReward, ...]:
    """Makes the rewards of a completion's reasoning steps from (end in characters, value) of each."""
    if tokenizer is None:
        raise ValueError(f"reward {reward.name} gives steps: the tokenizer is needed to find their last tokens")
    # Of an episode a reward reads the last turn.
    first = 0 if completion.episode is None else (-1, *completion.episode.ends)[-2] + 1
    indices = last_tokens(completion.token_ids[first:], [end for end, _ in pairs], tokenizer)
    return tuple(
        StepReward(first + index, reward.weight * value) for index, (_, value) in zip(indices, pairs, strict=True)
    )


def last_tokens(token_ids: Sequence[int], ends: Sequence[int], tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Returns, for each end in characters of a completion's text, the index of the token that completes it.

    Process rewards read text alone, so their steps end at a character.
    """

    @cache
    def written(count: int) -> int:
        return len(completion_texts([token_ids[:count]], tokenizer)[0])

    # Tokens decoded alone need not add up to the text (half a character, a joining space): use them as a first guess.
    alone = completion_texts([[token] for token in token_ids], tokenizer)
    guesses = list(accumulate(map(len, alone)))
    indices = []
    for end in ends:
        index = min(bisect_left(guesses, end), len(token_ids) - 1)
        while index > 0 and written(index) >= end:
            index -= 1
        while index < len(token_ids) - 1 and written(index + 1) < end:
            index += 1
        indices.append(index)
    return indices


@dataclass(frozen=True)
class LengthPenalty:
    """The length penalty of an algorithm: DAPO's soft overlong punishment, see `algorithms.overlong_penalty`."""

    buffer: float = 0.0  # share of max_tokens over which the penalty goes from 0 to -1; 0 = there is none
    max_tokens: int = 1

    @classmethod
    def of(cls, config: RunConfig) -> LengthPenalty:
        """The penalty of a configured run."""
        return cls(config.algorithm.group_filter.overlong_buffer, config.rollout.max_tokens)

    def penalized(self, group: Group, outcomes: Sequence[RewardOutcome]) -> tuple[RewardOutcome, ...]:
        """Makes the penalty a component of the outcomes [G] of a group, in the place of one that they have."""
        lengths_G = torch.tensor([len(completion) for completion in group.completions])
        penalties_G = overlong_penalty(lengths_G, max_tokens=self.max_tokens, buffer=self.buffer).tolist()
        return tuple(
            replace(outcome, components=_others(outcome.components) | ({SOFT_OVERLONG: penalty} if self.buffer else {}))
            for outcome, penalty in zip(outcomes, penalties_G, strict=True)
        )

    def weights(self, others: Mapping[str, float]) -> dict[str, float]:
        """The weight of each component of the total, by name, from those of the reward functions."""
        return ({SOFT_OVERLONG: 1.0} if self.buffer else {}) | _others(others)


def _others(values: Mapping[str, Number]) -> dict[str, Number]:
    return {name: value for name, value in values.items() if name != SOFT_OVERLONG}


NO_PENALTY = LengthPenalty()


def refuse_name_of_penalty(names: Collection[str]) -> None:
    """Raises UserError where a reward has the name under which the penalty is recorded."""
    if SOFT_OVERLONG in names:
        raise UserError(
            f"rewards: expected names other than {SOFT_OVERLONG!r}, which is the penalty of algorithm.overlong_buffer: "
            "rename the reward"
        )
