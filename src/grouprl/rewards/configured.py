"""Makes the rewards and the scorer of a run from its configuration."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

from grouprl.config.run import RewardConfig, RunConfig
from grouprl.models.packing import pack_tokens
from grouprl.models.precision import resolve_device
from grouprl.ranks import Ranks
from grouprl.rewards.functions import FromFile, WeightedReward
from grouprl.rewards.learned import learned_reward
from grouprl.rewards.overlong import Overlong
from grouprl.rewards.resolve import built_in, resolve_rewards, verifier_of
from grouprl.rewards.reward_logs import TrainingState
from grouprl.rewards.scorer import Scorer, open_scorer
from grouprl.rewards.workers.pool import OpenWorkers
from grouprl.tasks import Task
from grouprl.types import UserError


def configured_rewards(config: RunConfig, task: Task) -> tuple[WeightedReward, ...]:
    """Returns the rewards that a configuration names, or the task's default rewards."""
    if config.rewards:
        return resolve_rewards([_configured(reward, config, task) for reward in config.rewards])
    steps = task.default_step_rewards if config.algorithm.advantage.credit == "step" else {}
    if task.default_rewards:
        return resolve_rewards({**task.default_rewards, **steps}, task.own_rewards)
    verifier = verifier_of(task.verifier, (), task.own_rewards)
    if verifier is None:
        raise UserError(
            f"rewards: expected at least one, but the task {task.name} has no default (not every problem has an "
            "answer, and there is no verifier): add --reward FILE.py:FUNCTION, or set "
            "task.arguments.answer_column=NAME"
        )
    return (verifier,)


def _configured(reward: RewardConfig, config: RunConfig, task: Task) -> WeightedReward:
    return replace(_found(reward, config, task), scope=reward.scope)


def _found(reward: RewardConfig, config: RunConfig, task: Task) -> WeightedReward:
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
    state: TrainingState | None = None,
) -> AbstractContextManager[Scorer]:
    """Opens the scorer of a run with its worker processes and the algorithm's length penalty: see `open_scorer`.

    `max_invalid` replaces the configuration's share of invalid completions that stops the run. `verified` runs the
    task's verifier in any case, see `measured_verifier`. `state` is that before
    the first step (`state_before`); None = without epochs.
    """
    whole = verifier_of(task.verifier, rewards, task.own_rewards)
    buffer, scoring = config.algorithm.groups.overlong_buffer, config.rollout.scoring
    return open_scorer(
        rewards,
        verifier=whole if verified else measured_verifier(config, task, rewards),
        limits=scoring if max_invalid is None else scoring.model_copy(update={"max_invalid": max_invalid}),
        overlong=Overlong(buffer, config.rollout.max_tokens) if buffer else None,
        ranks=ranks,
        elsewhere=elsewhere,
        state=state or TrainingState(0, config.steps),
    )


def measured_verifier(config: RunConfig, task: Task, rewards: Sequence[WeightedReward]) -> WeightedReward | None:
    """The task's verifier, where it is one of the run's rewards or the user asked for it; else nothing is correct.

    The user asks by naming the verifier (`task.arguments.verifier`, `task_from_list`), by a task of their own, or by
    the order `edge`, which needs pass rates.
    """
    found = verifier_of(task.verifier, rewards, task.own_rewards)
    if found is None:
        return None
    asked = "verifier" in config.task.arguments or config.rollout.curriculum.order == "edge"
    theirs = not type(task).__module__.startswith("grouprl.")
    if not asked and not getattr(task, "verifier_given", theirs):
        return next((reward for reward in rewards if _same(reward, found)), None)
    return next((reward for reward in rewards if _same(reward, found)), found)


def _same(reward: WeightedReward, other: WeightedReward) -> bool:
    ours, theirs = reward.function, other.function
    if isinstance(ours, FromFile) and isinstance(theirs, FromFile):
        return (Path(ours.path).resolve(), ours.function) == (Path(theirs.path).resolve(), theirs.function)
    return ours is theirs or bool(ours == theirs)


def is_measured_by(verifier: WeightedReward | None, rewards: Sequence[WeightedReward]) -> bool:
    """Whether accuracy measures a run: its verifier is one of the rewards that raise the total."""
    return any(verifier == reward and reward.weight > 0 for reward in rewards)


def state_before(config: RunConfig, task: Task) -> TrainingState:
    """What rewards get as `trainer_state` in the first step of a run."""
    return TrainingState(0, config.steps, len(task.problems("train")) / config.rollout.problems_per_step)


def check_rewards(config: RunConfig, rewards: Sequence[WeightedReward]) -> None:
    """Checks that the rewards fit the algorithm's credit assignment.

    Process supervision needs the ends of reasoning steps, which only process rewards give.

    Raises:
        UserError: they do not fit.
    """
    per_step = [reward.name for reward in rewards if reward.per_step]
    credit = config.algorithm.advantage.credit
    if credit == "step" and not per_step:
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
