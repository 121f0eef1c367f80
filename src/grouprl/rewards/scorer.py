"""Scores groups of completions. Scoring of a group starts as soon as it is sampled, while others are sampled."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from grouprl.forward.progress import PROGRESS
from grouprl.ranks import Ranks
from grouprl.rewards.calls import (
    OBJECTS,
    OUTSIDE,
    CallValues,
    PendingValues,
    RewardCall,
    Signature,
    TrainingState,
    call,
    call_keywords,
    describe,
    gather,
    run_in_thread,
    signature,
)
from grouprl.rewards.functions import WeightedReward, truth_of
from grouprl.rewards.outcomes import (
    NO_PENALTY,
    InvalidCount,
    LengthPenalty,
    Row,
    Scored,
    extras_of,
    failure,
    is_correct,
    read,
    rows_of,
    shared_out,
    step_rewards,
    turn_rewards,
    written,
)
from grouprl.rewards.workers.pool import RewardWorkers
from grouprl.types import Completion, Group, Problem, RewardOutcome, StepReward, UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class PendingGroup:
    """A group and its reward calls in progress."""

    group: Group
    calls: Mapping[str, PendingValues]  # by reward name


class Scoring:
    """The groups of one round of sampling; of several ranks, each scores those that it sampled."""

    def __init__(self, scorer: Scorer, tokenizer: PreTrainedTokenizerBase | None = None) -> None:
        """The tokenizer is needed for process rewards, whose steps end at a token."""
        self._scorer, self._tokenizer = scorer, tokenizer
        self._pending: dict[int, PendingGroup] = {}

    def begin(self, index: int, group: Group) -> None:
        """Starts the calls for a group in the workers; `index` is the group's index in the result."""
        self._pending[index] = self._scorer.begin(group)

    def finish(self) -> list[tuple[RewardOutcome, ...]]:
        """Waits for all started groups: see `Scorer.finish`."""
        indices = sorted(self._pending)
        return self._scorer.finish([self._pending[index] for index in indices], self._tokenizer, places=indices)


class Scorer:
    """Turns groups into reward outcomes; made by `open_scorer`."""

    def __init__(
        self,
        rewards: tuple[WeightedReward, ...],
        verifier: WeightedReward | None,
        pool: RewardWorkers,
        max_invalid: float,
        penalty: LengthPenalty = NO_PENALTY,
        ranks: Ranks | None = None,
        state: TrainingState = OUTSIDE,
    ) -> None:
        self._ranks = ranks or Ranks()
        self._state, self._logged = state, list[tuple[str, float]]()
        self.rewards, self.verifier, self.pool, self.penalty = rewards, verifier, pool, penalty
        self._max_invalid = max_invalid
        self._window: deque[tuple[int, int]] = deque()  # (completions, invalid ones) of the last steps
        names = [reward.name for reward in rewards]
        self.called = rewards if verifier is None or verifier.name in names else (*rewards, verifier)

    @property
    def weights(self) -> dict[str, float]:
        """The weight of each component of the total, by name."""
        return self.penalty.weights({reward.name: reward.weight for reward in self.rewards if not reward.per_step})

    @property
    def process_weights(self) -> dict[str, float]:
        """The weight of each process reward on its steps, by name."""
        return {reward.name: reward.weight for reward in self.rewards if reward.per_step}

    @property
    def measure(self) -> str:
        """What measures the run: `greedy_accuracy` where its verifier raises the total, else `reward`."""
        by_verifier = any(self.verifier == reward and reward.weight > 0 for reward in self.rewards)
        return "greedy_accuracy" if by_verifier else "reward"

    @property
    def judges(self) -> tuple[WeightedReward, ...]:
        """The rewards that count their requests: each completion may cost money."""
        return tuple(reward for reward in self.called if hasattr(reward.function, "usage"))

    def begin_step(self, step: int) -> None:
        """Sets what rewards get as `trainer_state`; forgets what they logged."""
        self._state, self._logged = replace(self._state, global_step=step - 1), []

    def logged(self) -> dict[str, float]:
        """Returns the mean over the calls since `begin_step` of each number that rewards logged."""
        values: dict[str, list[float]] = {}
        for name, value in self._logged:
            values.setdefault(f"reward_logs/{name}", []).append(value)
        return {name: math.fsum(logged) / len(logged) for name, logged in values.items()}

    def usage(self) -> dict[str, float]:
        """Returns the usage metrics of rewards that count their requests, on all ranks since the run began."""
        used: Counter[str] = Counter()
        for judge in self.judges:
            used.update(judge.function.usage())  # type: ignore[union-attr]
        if self.judges and self._ranks.world > 1:
            used = sum(map(Counter, self._ranks.gather(used, "usage of rewards")), Counter[str]())
        return dict(used)

    def check_columns(self, problems: Sequence[Problem], *, has_objects: bool = False) -> None:
        """Raises UserError for a reward that needs a column that no problem has, such as a misspelled one, or a ground
        truth that some problem lacks, or the objects of environments, where `has_objects` says that there are none."""
        lacking = [problem.place or problem.id for problem in problems if truth_of(problem.columns) is None]
        columns = dict.fromkeys(name for problem in problems for name in problem.columns)
        for reward in self.called:
            needed = signature_of(reward, self.pool)
            if needed.one_of and lacking:
                wanted = " or ".join(map(repr, needed.one_of))
                raise UserError(
                    f"reward {reward.name}: expected problems with the column {wanted}, got "
                    f"{', '.join(columns) or 'none'}, and {len(lacking)} of {len(problems)} without a value, such as "
                    f"{', '.join(lacking[:3])}: correct these rows, or give the function's parameter a default"
                )
            if OBJECTS in needed.required and (reward.in_process or not has_objects):
                got = "a function of the run's own process" if has_objects else "a run without such objects"
                raise UserError(
                    f"reward {reward.name}: expected the objects of environments for its parameter `{OBJECTS}`, got "
                    f"{got}: only the workers of rewards get them, of environment.factory and environment.game"
                )
            for name in needed.required:
                if name not in (*columns, OBJECTS):
                    raise UserError(
                        f"reward {reward.name}: expected problems with the column {name!r}, got "
                        f"{', '.join(columns) or 'none'}: rename the column or the function's parameter"
                    )

    def begin(self, group: Group, rewards: Sequence[WeightedReward] | None = None) -> PendingGroup:
        """Starts the calls for one group in the workers; `rewards` are those to call, None = all."""
        keywords = call_keywords([group])
        by_group = [reward for reward in rewards or self.called if not reward.has_one_call]
        calls = {}
        for reward in by_group:
            call = RewardCall(reward.name, keywords, reward.per_step, group.problem.id, self._state)
            calls[reward.name] = self.pool.submit(call)
        return PendingGroup(group, calls)

    def finish(
        self,
        pending: Sequence[PendingGroup],
        tokenizer: PreTrainedTokenizerBase | None = None,
        *,
        places: Sequence[int] | None = None,
    ) -> list[tuple[RewardOutcome, ...]]:
        """Returns one outcome for each completion of each group, in order, of the groups of all ranks.

        The total is the weighted sum of the rewards that apply, plus the length penalty. A completion is invalid (NaN
        total, with the reason) when no reward applies or a reward failed: a broken verifier must not look like a wrong
        answer.

        Args:
            pending: the groups of a step that this rank scores.
            tokenizer: needed for process rewards, whose steps end at a token.
            places: their places among the groups of all ranks; None = 0, 1, ...

        Raises:
            UserError: too many completions are invalid.
        """

        count, outcomes = self._count(self._window, pending), []
        scored = self._scored(pending, self.called, tokenizer)
        share = enumerate(scored) if places is None else zip(places, scored, strict=True)
        for group_outcomes, reasons, logged in self._ranks.merged(share, "rewards", write=written, read=read):
            count.add(reasons)
            self._logged += logged
            outcomes.append(tuple(group_outcomes))
        count.close()
        return outcomes

    def evaluate(
        self,
        groups: Sequence[Group],
        tokenizer: PreTrainedTokenizerBase | None = None,
        *,
        without: Sequence[WeightedReward] = (),
    ) -> list[tuple[RewardOutcome, ...]]:
        """Scores groups that nothing is learned from; it logs nothing.

        Args:
            groups: of all ranks.
            tokenizer: see `finish`.
            without: rewards that are not called; then no outcome is valid, because it has no total.

        Raises:
            UserError: the verifier failed for too many completions. Other invalid ones stop nothing.
        """
        called = [reward for reward in self.called if reward not in without]
        indices = self._ranks.own([len(group.completions) for group in groups])
        pending = [self.begin(groups[index], called) for index in indices]
        count, outcomes = self._count(deque(), pending), []
        scored = zip(indices, self._scored(pending, called, tokenizer, verdicts_alone=True), strict=True)
        for group_outcomes, reasons, _ in self._ranks.merged(scored, "rewards", write=written, read=read):
            count.add(reasons)
            outcomes.append(tuple(group_outcomes))
        count.close()
        return outcomes

    def _scored(
        self,
        pending: Sequence[PendingGroup],
        called: Sequence[WeightedReward],
        tokenizer: PreTrainedTokenizerBase | None,
        *,
        verdicts_alone: bool = False,  # whether the reasons are those of the verifier alone
    ) -> Iterator[Scored]:
        groups = [waiting.group for waiting in pending]
        together = batch_calls(called, groups, self.pool, self._state) if groups else {}
        for index, waiting in enumerate(pending):
            PROGRESS.mark()
            group, calls = waiting.group, {name: gather(scored) for name, scored in waiting.calls.items()}
            calls |= {name: parts[index] for name, parts in together.items()}
            rows = rows_of(calls, group)
            outcomes = [
                replace(self._outcome(row, completion, tokenizer), extra=extra)
                for row, completion, extra in zip(rows, group.completions, extras_of(calls, group), strict=True)
            ]
            reasons = [
                ("" if verdicts_alone else outcome.reason) or failure(self.verifier, row)
                for outcome, row in zip(outcomes, rows, strict=True)
            ]
            logged = [pair for values in calls.values() for pair in values.metrics]
            yield self.penalty.penalized(group, outcomes), reasons, logged

    def _count(self, window: deque[tuple[int, int]], pending: Sequence[PendingGroup]) -> InvalidCount:
        of_rank = sum(len(waiting.group.completions) for waiting in pending)
        return InvalidCount(self._max_invalid, window, sum(self._ranks.gather(of_rank, "numbers of completions")))

    def verify(self, groups: Sequence[Group]) -> list[tuple[bool | None, ...]]:
        """Checks whether each completion is correct; None where the verifier failed, or there is none.

        Raises:
            UserError: the verifier failed for too many completions.
        """
        others = [reward for reward in self.called if reward != self.verifier]
        return [tuple(outcome.correct for outcome in row) for row in self.evaluate(groups, without=others)]

    def _outcome(self, row: Row, completion: Completion, tokenizer: PreTrainedTokenizerBase | None) -> RewardOutcome:
        """Combines the rewards of one completion. The steps of a process reward do not enter the total."""
        components: dict[str, float | None] = {}
        terms: list[float] = []
        steps: tuple[StepReward, ...] = ()
        for reward in self.rewards:
            value = row.get(reward.name)
            components[reward.name] = None
            if isinstance(value, tuple) and value:
                components[reward.name] = math.fsum(earned for _, earned in value) / len(value)
                steps += step_rewards(reward, value, completion, tokenizer)
            elif isinstance(value, float | int):
                components[reward.name] = value
                terms.append(reward.weight * value)
        failures = "; ".join(filter(None, (failure(reward, row) for reward in self.rewards)))
        uncalled = ", ".join(f"{reward.name} was not called" for reward in self.rewards if reward.name not in row)
        steps += turn_rewards(completion.episode)
        lost = completion.episode.invalid if completion.episode else ""
        reason = lost or failures or uncalled or ("" if terms else "no reward applies")
        correct = is_correct(row.get(self.verifier.name)) if self.verifier else None
        return RewardOutcome(math.nan if reason else math.fsum(terms), components, reason, steps, correct=correct)


def batch_calls(
    rewards: Sequence[WeightedReward], groups: Sequence[Group], pool: RewardWorkers, state: TrainingState
) -> dict[str, list[CallValues]]:
    """Calls each of the rewards that has one call for all groups; returns what it gave for each group, by name.

    Raises:
        UserError: a reward of this process failed. One that fails in a worker makes all completions invalid.
    """
    batch_rewards = [reward for reward in rewards if reward.has_one_call]
    keywords = call_keywords(groups) if batch_rewards else {}
    pending = {  # the workers run these beside the calls in this process
        reward.name: pool.submit(RewardCall(reward.name, keywords, reward.per_step, state=state, is_batch=True))
        for reward in batch_rewards
        if not reward.in_process
    }
    others = {name: values for name, values in keywords.items() if name != OBJECTS}  # which the run never unpacks
    calls: dict[str, CallValues] = {}
    for reward in batch_rewards:
        if not reward.in_process:
            continue
        function: Any = reward.function
        accepts = signature(function)
        try:
            calls[reward.name] = call(
                function,
                accepts.arguments(others),
                others["completions"],
                provided=accepts.provided,
                state=state,
                per_step=reward.per_step,
                run=run_in_thread,
            )
        except UserError:
            raise
        except Exception as error:
            raise UserError(
                f"reward {reward.name}: expected values, got {describe(error)}: fix the function"
            ) from error
    calls |= {name: gather(values) for name, values in pending.items()}
    return {name: shared_out(called, groups) for name, called in calls.items()}


def signature_of(reward: WeightedReward, pool: RewardWorkers) -> Signature:
    """The signature of a reward of this process or of the workers."""
    if reward.in_process:
        return signature(reward.function)  # type: ignore[arg-type]
    return pool.signatures()[reward.name]
