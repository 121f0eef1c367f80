"""Makes the rewards of a run from its configuration, and checks them before it starts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from reprlib import repr as shown
from typing import Any, cast

from grouprl.config.run import OWNED, RewardConfig, RunConfig, ScoringConfig
from grouprl.forward.devices import resolve_device
from grouprl.forward.packing import pack_tokens
from grouprl.ranks import Ranks
from grouprl.rewards.calls import OUTSIDE, Invalid, RewardCall, TrainingState, call_keywords, gather
from grouprl.rewards.functions import FromFile, WeightedReward
from grouprl.rewards.learned import learned_reward
from grouprl.rewards.outcomes import NO_PENALTY, LengthPenalty, refuse_name_of_penalty
from grouprl.rewards.resolve import built_in, resolve_rewards, verifier_of
from grouprl.rewards.rules import environment
from grouprl.rewards.scorer import Scorer, signature_of
from grouprl.rewards.workers.frames import ParcelError, pack
from grouprl.rewards.workers.pool import OpenWorkers, RewardPool, cores
from grouprl.rewards.workers.zygote import Source
from grouprl.tasks import Task
from grouprl.tasks.base import converses
from grouprl.tasks.mixture import PartReward
from grouprl.types import Completion, Group, Problem, RewardOutcome, StopReason, UserError

_IN_A_CALL = 32  # problems; a gold answer is read in at most 0.1 s, and a call may take seconds
_NAMED = 3
_NOTHING = Completion(0, (), (), (), "", StopReason.END, 0)


def configured_rewards(config: RunConfig, task: Task) -> tuple[WeightedReward, ...]:
    """Returns the rewards that a configuration names, or the task's default rewards."""
    if config.rewards:
        return resolve_rewards(
            [replace(_resolved(reward, config, task), scope=reward.scope) for reward in config.rewards]
        )
    steps = task.default_step_rewards if config.algorithm.advantage.credit == "step" else {}
    if task.default_rewards:
        return resolve_rewards({**task.default_rewards, **steps}, task.own_rewards)
    verifier = verifier_of(task.verifier, (), task.own_rewards)
    if verifier is None and (task.name == OWNED or config.environment.given or converses(task)):
        return ()  # the environment's own, see `beside_environment`
    if verifier is None:
        raise UserError(
            f"rewards: expected at least one, but the task {task.name} has no default (not every problem has an "
            "answer, and there is no verifier): add --reward FILE.py:FUNCTION, or set "
            "task.arguments.answer_column=NAME"
        )
    return (verifier,)


def beside_environment(
    config: RunConfig, task: Task, rewards: Sequence[WeightedReward], gives_reward: bool | None
) -> tuple[WeightedReward, ...]:
    """The rewards of a run with what its environment gives, which is one more reward of weight 1, as in TRL.

    Args:
        config: the run. Where it names no rewards, the environment's takes the place of the task's.
        task: gives the problems.
        rewards: those of the configuration.
        gives_reward: whether the environment gives one; None = there is no environment.

    Raises:
        UserError: a reward or the task asks for an environment, and there is none, or it gives no reward.
    """
    named = [reward.name for reward in rewards if reward.function is environment]
    if gives_reward is None and task.name == OWNED:
        raise UserError(
            f"task.name: expected an environment with {OWNED}, got none: set environment.factory=FILE.py:CLASS"
        )
    if named and not gives_reward:
        got = "none" if gives_reward is None else "one without `get_reward`"
        raise UserError(
            f"reward {named[0]}: expected an environment that gives a reward, got {got}: remove the reward, or set "
            "environment.factory=FILE.py:CLASS, with a method `get_reward`"
        )
    if named or not gives_reward:
        return tuple(rewards)
    configured = tuple(rewards) if config.rewards else ()
    taken = {reward.name for reward in configured}
    name = next(name for name in ("environment", "get_reward", "environment.get_reward") if name not in taken)
    return (*configured, built_in("environment", name=name))


def beside_recorded(
    config: RunConfig, task: Task, rewards: Sequence[WeightedReward], groups: Sequence[Group]
) -> tuple[WeightedReward, ...]:
    """The same for groups of a record, whose episodes have what their environments gave."""
    episodes = [completion.episode for group in groups for completion in group.completions]
    gave = any(episode and episode.reward is not None for episode in episodes)
    return beside_environment(config, task, rewards, True) if gave or not rewards else tuple(rewards)


def _resolved(reward: RewardConfig, config: RunConfig, task: Task) -> WeightedReward:
    function = reward.function or reward.name
    if reward.path is None:
        return built_in(
            function, name=reward.name, weight=reward.weight, arguments=reward.arguments, own=task.own_rewards
        )
    if reward.path.endswith(".py"):
        return WeightedReward(reward.name, FromFile(reward.path, function, reward.arguments), reward.weight)
    device = resolve_device(config.model.device)
    learned = learned_reward(
        reward.path,
        policy=config.model.path,
        device=device,
        dtype=config.model.dtype,
        micro_batch_tokens=pack_tokens(config.learner.micro_batch_tokens, device.type),
    )
    return WeightedReward(reward.name, learned, reward.weight)


def configured_scorer(
    config: RunConfig,
    task: Task,
    rewards: Sequence[WeightedReward],
    *,
    max_invalid: float | None = None,
    verified: bool = False,
    ranks: Ranks | None = None,
    elsewhere: OpenWorkers | None = None,
) -> AbstractContextManager[Scorer]:
    """Opens the scorer of a run with its worker processes and the algorithm's length penalty: see `open_scorer`.

    `max_invalid` replaces the configuration's share of invalid completions that stops the run. `verified` runs the
    task's verifier in any case, see `measured_verifier`.
    """
    scoring = config.rollout.scoring
    return open_scorer(
        rewards,
        verifier=measured_verifier(config, task, rewards, always=verified),
        limits=scoring if max_invalid is None else scoring.model_copy(update={"max_invalid": max_invalid}),
        penalty=LengthPenalty.of(config),
        ranks=ranks,
        elsewhere=elsewhere,
        state=TrainingState(0, config.steps, len(task.problems("train")) / config.rollout.problems_per_step),
    )


def scored_under(
    config: RunConfig,
    groups: Sequence[Group],
    outcomes: Sequence[Sequence[RewardOutcome]],
    weights: Mapping[str, float],
) -> tuple[list[tuple[RewardOutcome, ...]], dict[str, float]]:
    """Replaces what the algorithm adds to recorded rewards, by that of another configuration; also in their weights."""
    added = LengthPenalty.of(config)
    return [added.penalized(*pair) for pair in zip(groups, outcomes, strict=True)], added.weights(weights)


@contextmanager
def open_scorer(
    rewards: Sequence[WeightedReward],
    *,
    verifier: WeightedReward | None = None,
    limits: ScoringConfig | None = None,
    penalty: LengthPenalty = NO_PENALTY,
    ranks: Ranks | None = None,
    elsewhere: OpenWorkers | None = None,
    state: TrainingState = OUTSIDE,
) -> Iterator[Scorer]:
    """Opens a scorer with its worker processes, which load the functions in the background and end with the block.

    Args:
        rewards: the rewards that score the completions.
        verifier: a completion is correct when this reward is 1.0 or more.
        limits: limits of one call in a worker, and the share of invalid completions beyond which the run stops.
        penalty: that for the length of each completion.
        ranks: those that score together; None = a single process. The ranks of a machine share its cores.
        elsewhere: opens workers on other machines; None = this machine runs them.
        state: before the first step, for rewards that ask for `trainer_state`.

    Raises:
        UserError: a function cannot be sent to a worker, or may need longer than `limits` for one completion; or one
            with `scope="batch"` would see only the part of a rank.
    """
    limits, ranks = limits or ScoringConfig(), ranks or Ranks()
    for reward in (*rewards, *filter(None, [verifier])):
        if reward.scope == "batch" and ranks.world > 1:
            raise UserError(
                f"reward {reward.name}: expected a single process with scope=batch, got {ranks.world} ranks, and each "
                "has only a part of the batch: start one process, or set scope=group"
            )
    by_name = {reward.name: reward for reward in rewards}
    refuse_name_of_penalty(by_name)
    if verifier is not None:
        if verifier.name in by_name and by_name[verifier.name].function != verifier.function:
            verifier = replace(verifier, name=f"{verifier.name} (verifier)")  # the user's reward has the name
        by_name.setdefault(verifier.name, verifier)
    for reward in by_name.values():
        needed = getattr(reward.function, "longest_call_seconds", 0.0)  # set by rewards with a time limit of their own
        if needed > limits.seconds:
            raise UserError(
                f"reward {reward.name}: expected rollout.scoring.seconds of {needed:g} or more for its own limit, "
                f"got {limits.seconds:g}: raise it, or lower the reward's"
            )
    sources: dict[str, Source] = {}
    for name, reward in by_name.items():
        function = reward.function
        if reward.in_process:
            continue
        if isinstance(function, FromFile):
            sources[name] = function.path, function.function, dict(function.arguments), dict(function.code)
            continue
        try:
            sources[name] = pack(function)
        except ParcelError as error:
            raise UserError(
                f"reward {reward.name}: expected a function that can be sent to another process, got {error}: put it, "
                "and the values it uses, into a file such as my_rewards.py"
            ) from error
    if elsewhere is None:
        workers = limits.workers or max(1, cores() // ranks.on_machine)
        limits = limits.model_copy(update={"workers": workers})
    # Rewards of this process need no workers, whose start takes 0.2 s of a processor.
    with (elsewhere or RewardPool)(sources, limits) if sources else nullcontext(cast(Any, None)) as pool:
        yield Scorer(tuple(rewards), verifier, pool, limits.max_invalid, penalty, ranks, state)


def measured_verifier(
    config: RunConfig, task: Task, rewards: Sequence[WeightedReward], *, always: bool = False
) -> WeightedReward | None:
    """The task's verifier, where it is one of the run's rewards or the user asked for it; else nothing is correct.

    The user asks by naming the verifier (`task.arguments.verifier`, `task_from_list`), by a task of their own, or by
    the order `edge`, which needs pass rates.
    """
    verifier = verifier_of(task.verifier, rewards, task.own_rewards)
    if verifier is None or always:
        return verifier
    is_requested = "verifier" in config.task.arguments or config.rollout.curriculum.order == "edge"
    theirs = not type(task).__module__.startswith("grouprl.")
    unless_rewarded = verifier if is_requested or getattr(task, "verifier_given", theirs) else None
    for reward in rewards:
        function, expected = reward.function, verifier.function
        if isinstance(function, FromFile) and isinstance(expected, FromFile):
            same_file = Path(function.path).resolve() == Path(expected.path).resolve()
            is_same = same_file and function.function == expected.function
        else:
            is_same = function is expected or bool(function == expected)
        if is_same:
            return reward
    return unless_rewarded


def check_rewards(config: RunConfig, task: Task, rewards: Sequence[WeightedReward]) -> None:
    """Checks that the rewards fit the algorithm's credit assignment.

    Process supervision needs the ends of reasoning steps, which process rewards give, and an environment for its turns.

    Raises:
        UserError: they do not fit.
    """
    if not rewards:
        raise UserError(
            f"rewards: expected at least one, but the task {task.name} has no default, and its environment gives none: "
            "write the method `get_reward`, or add --reward FILE.py:FUNCTION"
        )
    per_step = [reward.name for reward in rewards if reward.per_step]
    credit = config.algorithm.advantage.credit
    if credit == "step" and not per_step and not config.environment.given and not converses(task):
        raise UserError(
            "algorithm.credit: 'step' needs process rewards, got rewards "
            f"{', '.join(reward.name for reward in rewards)}: add a process reward, such as equation_steps"
        )
    if credit != "step" and per_step:
        raise UserError(
            f"rewards: expected no process reward with algorithm.credit={credit!r}, which would ignore its steps, got "
            f"{per_step[0]}: set credit=step, or remove the reward"
        )
    if len(per_step) == len(rewards):
        raise UserError(
            f"rewards: expected a reward for whole completions besides the process reward {per_step[0]}, got none: "
            "right steps alone need not lead to an answer; add one, such as correct_answer"
        )


def check_golds(scorer: Scorer, parts: Iterable[Sequence[Problem]]) -> None:
    """Scores an empty completion of each problem that has an answer; GroupRL's own rewards alone are called.

    Args:
        scorer: its workers read the answers, with their limits.
        parts: sequences of problems; problems that are made on access are not looked at.

    Raises:
        UserError: rewards cannot read some answers; it names their files and lines.
    """
    read = (problem for part in parts for problem in in_memory(part))
    problems = [problem for problem in read if problem.place and problem.columns.get("answer") is not None]
    readers = [reward for reward in scorer.called if problems and _reads_answers(reward, scorer)]
    pending = [
        (
            reward,
            part,
            scorer.pool.submit(
                RewardCall(reward.name, call_keywords([Group(problem, (), (_NOTHING,)) for problem in part]))
            ),
        )
        for reward in readers
        for part in (problems[at : at + _IN_A_CALL] for at in range(0, len(problems), _IN_A_CALL))
    ]
    for reward in readers:
        unread = [
            (problem, value.reason)
            for caller, part, values in pending
            if caller is reward
            for problem, value in zip(part, gather(values).values, strict=True)
            if isinstance(value, Invalid)
        ]
        if unread:
            named = ", ".join(f"{problem.place} ({shown(problem.columns['answer'])})" for problem, _ in unread[:_NAMED])
            more = f" and {len(unread) - _NAMED} more" if len(unread) > _NAMED else ""
            raise UserError(
                f"reward {reward.name}: expected an answer that it reads in each of {len(problems)} problems, got "
                f"{len(unread)} that it does not, in {named}{more} ({unread[0][1]}): correct or remove these rows, or "
                "take another reward"
            )


def in_memory(part: Sequence[Problem]) -> Sequence[Problem]:
    """The problems of a sequence that exist already."""
    return part if isinstance(part, list | tuple) else getattr(part, "in_memory", ())


def _reads_answers(reward: WeightedReward, scorer: Scorer) -> bool:
    function = reward.function
    parts = function.functions.values() if isinstance(function, PartReward) else [function]
    modules = [getattr(part, "__module__", None) or type(part).__module__ for part in parts]
    is_built_in = all(module.startswith("grouprl.") for module in modules)
    if not is_built_in or reward.in_process or isinstance(function, FromFile):
        return False
    return isinstance(function, PartReward) or "answer" in signature_of(reward, scorer.pool).required
