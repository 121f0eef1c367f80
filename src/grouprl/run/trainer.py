"""The Python interface: a model, a task, rewards and an algorithm in one object."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from grouprl.algorithms.named import NAMED
from grouprl.algorithms.spec import Algorithm
from grouprl.config.run import RewardConfig, RunConfig, TaskConfig
from grouprl.distributed import show_errors_once
from grouprl.rewards import resolve_rewards
from grouprl.rewards.configured import configured_rewards
from grouprl.run.resume import resumes, with_run_dtype
from grouprl.run.train import Callback, Run, train
from grouprl.scoring.functions import RewardFunction, WeightedReward
from grouprl.tasks import Task, load_task, task_from_list
from grouprl.types import unknown_name


@dataclass(frozen=True)
class Trainer:
    """A run that is ready to start; `config` decides the arguments that are None.

    Args:
        model: built-in name, folder in Hugging Face layout, or hub id.
        task: a task's name, a data file or `hub:owner/name`, a `Task`, or rows with a `prompt` and any columns (TRL's
            form): a list, a generator, a data set or its splits, a data frame of pandas or polars.
        rewards: names, functions in TRL's form, or `WeightedReward`s; None = the task's own.
        algorithm: a name of `grouprl.algorithms.named`, or an `Algorithm`.
        config: all other settings.
        callback: called with the frozen `StepRecord` of each step; an exception in it stops the run.
    """

    model: str | Path | None = None
    task: Any = None
    rewards: Sequence[RewardFunction | WeightedReward | str] | None = None
    algorithm: str | Algorithm | None = None
    config: RunConfig = field(default_factory=RunConfig)
    callback: Callback | None = None

    def train(self, *, resume: bool = False, step: int | None = None) -> Run:
        """Trains: see `grouprl.run.train.train`."""
        show_errors_once()
        resume = resumes(Path(self.config.runs_dir) / self.config.name, asked=resume)
        task = self._task()
        changes: dict[str, Any] = {"task": self._task_config(task)}
        if self.model is not None:
            changes["model"] = self.config.model.model_copy(update={"path": str(self.model)})
        if isinstance(self.algorithm, str) and self.algorithm not in NAMED:
            raise unknown_name("algorithm", self.algorithm, NAMED)
        if self.algorithm is not None:
            changes["algorithm"] = NAMED[self.algorithm] if isinstance(self.algorithm, str) else self.algorithm
        config = with_run_dtype(RunConfig(**{**dict(self.config), **changes}), resume=resume)
        if self.rewards is None:
            rewards = configured_rewards(config, task)
        else:
            rewards = resolve_rewards(self.rewards, task.own_rewards)
        if self.rewards is not None or not config.rewards:
            named = tuple(RewardConfig(name=reward.name, weight=reward.weight) for reward in rewards)
            config = RunConfig(**{**dict(config), "rewards": named})
        return train(config, task, rewards, resume=resume, step=step, callback=self.callback)

    def _task_config(self, made: Task | None = None) -> TaskConfig:
        """The settings of the task; of one that a program made, its name."""
        name = self.task if made is None or isinstance(self.task, str) else made.name
        return TaskConfig(**self.config.task.model_dump(exclude_unset=True) | ({} if name is None else {"name": name}))

    def _task(self) -> Task:
        if self.task is None or isinstance(self.task, str):
            return load_task(**self._task_config().model_dump())
        if hasattr(self.task, "problems"):
            return cast(Task, self.task)
        return task_from_list(self.task)
