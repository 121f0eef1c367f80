"""Runs every check on the user's model and settings, and a short run of them that is killed and resumed."""

from __future__ import annotations

import io
import math
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from subprocess import TimeoutExpired
from tempfile import TemporaryDirectory

import torch
from rich.console import Console
from safetensors.torch import load_file

from grouprl.config.run import RolloutConfig, RunConfig, dump_config
from grouprl.record.layout import RunDirectory
from grouprl.record.read import read_rollouts
from grouprl.run.assemble import make_learner
from grouprl.run.machine import with_dtype
from grouprl.run.opened import OpenedRun
from grouprl.run.process import start_run
from grouprl.run.train import run_to_end
from grouprl.tools.proof.checks import Check, exact_gradient, numeric_checks
from grouprl.trainer.terminal import Terminal
from grouprl.types import UserError

_PROBLEMS, _COMPLETIONS, _TOKENS = 3, 4, 32  # sampled for the checks
_STEPS = 6  # of the run that is killed
_RUN_SECONDS = 900.0  # longest time of one of its processes


def selftest(config: RunConfig) -> Iterator[Check]:
    """Yields the checks of a configuration as they are made; they use temporary folders alone.

    Raises:
        UserError: the model or the data cannot be loaded, or the weights are rounded.
    """
    config = with_dtype(config)
    if config.model.weights != "float32":
        raise UserError(
            f"model.weights: expected float32, with which the checks compute exactly, got {config.model.weights}: "
            "leave it out here"
        )
    yield exact_gradient(config.algorithm)
    still = config.learner.model_copy(update={"learning_rate": 0.0, "critic_learning_rate": None, "warmup_steps": 0})
    run = OpenedRun(config.model_copy(update={"learner": still, "rollout": _short(config)}))
    learner = make_learner(run.config, run.model, None)
    visits = [(problem, "selftest") for problem in run.task.problems("train")[:_PROBLEMS]]
    groups = run.engine(learner.policy).generate(run.requests(visits, _COMPLETIONS), run.sampling)
    yield from numeric_checks(config, learner, run.tokenizer, groups, run.sampling)
    yield _killed_and_resumed(config)


def _short(config: RunConfig) -> RolloutConfig:
    rollout = config.rollout
    return rollout.model_copy(
        update={
            "problems_per_step": min(2, rollout.problems_per_step),
            "group_size": min(_COMPLETIONS, rollout.group_size),
            "max_tokens": min(_TOKENS, rollout.max_tokens),
        }
    )


# A run that is killed


def _killed_and_resumed(config: RunConfig) -> Check:
    """Counts the steps and weights of a killed and resumed run that differ from an uninterrupted one's."""
    name = "killed and resumed = uninterrupted"
    with TemporaryDirectory() as folder:
        root = Path(folder)
        settings = root / "short_run.yaml"
        changes = {
            "steps": _STEPS,
            "rollout": _short(config),
            "evaluation": config.evaluation.model_copy(update={"problems": 1, "samples": 0, "every": 0}),
            "checkpoint": config.checkpoint.model_copy(update={"every": 1, "keep": _STEPS}),
        }
        short = config.model_copy(update=changes)
        settings.write_text(dump_config(short), encoding="utf-8")
        uninterrupted, resumed = RunDirectory(root / "whole"), RunDirectory(root / "broken")
        killed = start_run(resumed, [str(settings)], root / "log")
        try:
            until = time.monotonic() + _RUN_SECONDS
            while not resumed.checkpoint(2).state.is_file():
                if killed.poll() is not None or time.monotonic() > until:
                    raise TimeoutExpired(str(root / "log"), _RUN_SECONDS)
                time.sleep(0.002)
            os.kill(killed.pid, signal.SIGKILL)
            killed.wait(_RUN_SECONDS)
            at = resumed.checkpoints()[-1].step
            if at == _STEPS:
                raise UserError(f"selftest: expected to kill the run before step {_STEPS}, got its end: try again")
            killed = start_run(resumed, [str(settings)], root / "log", resume=True)
            run = OpenedRun(short.model_copy(update={"name": "whole", "runs_dir": folder}))
            run_to_end(run.config, run.task, run.rewards, display=Terminal(Console(file=io.StringIO())))
            if killed.wait(_RUN_SECONDS) != 0:
                return Check(name, math.nan, 0, f"the run failed: {_last_line(root / 'log')}")
        except TimeoutExpired:
            return Check(name, math.nan, 0, f"no end within {_RUN_SECONDS:g} s: {_last_line(root / 'log')}")
        finally:
            killed.kill()
            killed.wait(_RUN_SECONDS)
        return Check(name, _different(uninterrupted, resumed), 0, f"killed after step {at} of {_STEPS}")


def _different(run: RunDirectory, other: RunDirectory) -> int:
    steps = [read_rollouts(run.path, n) != read_rollouts(other.path, n) for n in range(1, _STEPS + 1)]
    x = []
    for each in (run, other):
        files = each.checkpoint(_STEPS).path.rglob("*.safetensors")
        x.append({f"{file.stem}/{name}": value for file in files for name, value in load_file(file).items()})
    ours, theirs = x
    weights = [
        name not in ours or name not in theirs or not torch.equal(ours[name], theirs[name])
        for name in ours.keys() | theirs.keys()
    ]
    return sum(steps) + sum(weights)


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1] if lines else "no output"
