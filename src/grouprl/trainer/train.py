"""Trains a configuration, shows it in a terminal, and gives the finished run."""

from __future__ import annotations

from collections.abc import Sequence

from grouprl.config.run import RunConfig
from grouprl.rewards.functions import WeightedReward
from grouprl.run.train import Callback, run_to_end
from grouprl.tasks import Task
from grouprl.trainer.finished import Run
from grouprl.trainer.terminal import Terminal


def train(
    config: RunConfig,
    task: Task,
    rewards: Sequence[WeightedReward],
    *,
    resume: bool = False,
    step: int | None = None,
    trust_code: Sequence[str] = (),
    terminal: Terminal | None = None,
    callback: Callback | None = None,
) -> Run:
    """Runs a configuration to its end, or until the user stops it: see `grouprl.run.train.run_to_end`.

    Raises:
        UserError: model, data or run directory do not fit the configuration; nothing is overwritten.
    """
    end = run_to_end(
        config,
        task,
        rewards,
        display=terminal or Terminal(),
        resume=resume,
        step=step,
        trust_code=trust_code,
        callback=callback,
    )
    return Run(end.directory, end.summary, end.finished)
