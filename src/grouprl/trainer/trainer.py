"""The Python interface: a model, a task, rewards and an algorithm in one object."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, count
from pathlib import Path
from typing import Any, cast, get_args

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from grouprl.algorithms.spec import Algorithm
from grouprl.config.run import OWNED, PolicyConfig, RewardConfig, RunConfig, TaskConfig
from grouprl.evaluation.evaluate import Metrics
from grouprl.leaves import leaf
from grouprl.models.names import is_gguf
from grouprl.models.save import folder_of
from grouprl.ranks import show_errors_once
from grouprl.record.layout import model_at
from grouprl.record.write import held_files
from grouprl.rewards import resolve_rewards
from grouprl.rewards.configured import configured_rewards
from grouprl.rewards.functions import RewardFunction, WeightedReward
from grouprl.run.checkpoint import copy_model
from grouprl.run.opened import OpenedRun
from grouprl.run.resume import newest_good, resumes, with_run_dtype
from grouprl.run.train import Callback, run_to_end
from grouprl.tasks import Task, load_task, task_from_list
from grouprl.tasks.base import Split, converses, with_environment
from grouprl.tasks.examples import with_examples
from grouprl.tasks.held_out import evaluated_on, trained_on_the_rest
from grouprl.tasks.rows import first_rows, is_stream, problems_from_rows
from grouprl.trainer.finished import Run
from grouprl.trainer.terminal import Terminal, in_notebook
from grouprl.trainer.trial import SampledGroup, evaluate_model, sample_group, with_newest
from grouprl.types import Problem, UserError


@dataclass(frozen=True)
class Trainer:
    """A run that is ready to start; `config` decides the arguments that are None.

    Args:
        model: built-in name, folder in Hugging Face layout, hub id, or a model of transformers. A model object is
            written to `runs_dir/models` and does not change: the run trains a copy, in float32 where `model.weights`
            does not say otherwise. Of a model of peft the run trains the adapter, over the base model of its name.
        task: a task's name, a data file or `hub:owner/name`, a `Task`, or rows with a `prompt` and any columns (TRL's
            form): a list, a generator, a data set or its splits, a data frame of pandas or polars; of a
            `datasets.IterableDataset` as many of the first rows as the steps and evaluations need.
        rewards: names, functions in TRL's form, or `WeightedReward`s, or one of these; None = the task's own.
        algorithm: a name of `grouprl.algorithms.named`, `FILE.py:NAME`, or an `Algorithm`.
        config: all other settings.
        tokenizer: of a model object; None = the one of the place that it was loaded from.
        eval_task: what the policy is evaluated on, in any form of `task`: rows as they are, or the held-out problems
            of a task. The verifier is the task's. None = the held-out problems of `task`.
        tools: functions that the policy may call, with type hints and a Google docstring (TRL's form).
        environment_factory: makes the environment of an episode, whose methods are tools; or a dict of several, of
            which a problem's column `environment` names its own (TRL's form).
        callback: called with the frozen `StepRecord` of each step; an exception in it stops the run.
    """

    model: str | Path | PreTrainedModel | None = None
    task: Any = None
    rewards: Sequence[RewardFunction | WeightedReward | str] | RewardFunction | WeightedReward | str | None = None
    algorithm: str | Algorithm | None = None
    config: RunConfig = field(default_factory=RunConfig)
    tokenizer: PreTrainedTokenizerBase | None = None
    eval_task: Any = None
    tools: Sequence[Any] = ()
    environment_factory: Any = None
    callback: Callback | None = None

    def __post_init__(self) -> None:
        show_errors_once()
        if not isinstance(self.config, RunConfig):
            raise UserError(
                f"config: expected a RunConfig, got {type(self.config).__name__}: write RunConfig(steps=100); "
                "`grouprl import-config` makes one from TRL's or verl's"
            )
        if self.callback is not None and not callable(self.callback):
            raise UserError(
                f"callback: expected a function of a StepRecord, got {type(self.callback).__name__}: write "
                "def follow(record): ..."
            )

    def train(self, *, resume: bool = False, step: int | None = None) -> Run:
        """Trains: see `grouprl.run.train.run_to_end`.

        In a notebook a cell is run again and again: a name that holds a run becomes the next free one (`run-2`).
        """
        terminal, resume = Terminal(), resumes(self.directory, asked=resume)
        if in_notebook() and not resume:
            wanted = Path(self.config.runs_dir) / self.config.name
            further = (wanted.with_name(f"{wanted.name}-{number}") for number in count(2))
            free = next(path for path in chain([wanted], further) if not held_files(path))
            if free != wanted:
                terminal.say(f"{wanted} holds a run, so this run is {free}. train(resume=True) continues {wanted}.")
            self.__dict__["directory"] = free  # of this object's evaluate and sample too
        config, task, rewards = self._prepared(resume=resume)
        config = config.model_copy(update={"name": self.directory.name})
        end = run_to_end(config, task, rewards, display=terminal, resume=resume, step=step, callback=self.callback)
        return Run(end.directory, end.summary, end.finished)

    def evaluate(self) -> Metrics:
        """Evaluates the newest checkpoint of the run, or the model where there is none, on the held-out problems.

        Returns:
            The metrics: see `grouprl.evaluation.evaluate.evaluate`.
        """
        config, task, rewards = self._prepared()
        return evaluate_model(OpenedRun(with_newest(config, self.directory), task), rewards).metrics

    def sample(self, prompt: str | Problem | None = None) -> SampledGroup:
        """Samples a group of completions from the newest checkpoint of the run, or from the model where there is none.

        Args:
            prompt: a text, whose completions get no rewards; or a problem; None = the first held-out problem.

        Raises:
            UserError: `prompt` is something else, or too long for the model.
        """
        if not isinstance(prompt, str | Problem | None):
            raise UserError(
                f"prompt: expected a text or a Problem, got {type(prompt).__name__}: put messages into Problem(id, ...)"
            )
        config, task, rewards = self._prepared()
        run = OpenedRun(with_newest(config, self.directory), task)
        problem = run.task.problems(config.evaluation.split)[0] if prompt is None else prompt
        return sample_group(run, problem, () if isinstance(problem, str) else rewards)

    def save(self, folder: str | Path) -> Path:
        """Writes the model of the run's newest checkpoint into a new folder, in Hugging Face layout.

        Raises:
            UserError: the run has no checkpoint, or the folder has files.
        """
        newest = newest_good(self.directory)
        if newest is None:
            raise UserError(f"{self.directory}: expected a run with a checkpoint, got none: call train() first")
        return copy_model(newest[0], Path(folder).expanduser())

    @cached_property
    def directory(self) -> Path:
        """The run directory."""
        return Path(self.config.runs_dir) / self.config.name

    def _prepared(self, *, resume: bool = False) -> tuple[RunConfig, Task, tuple[WeightedReward, ...]]:
        task = self._task
        changes: dict[str, Any] = {"task": self._task_config(task), "model": self._model_config}
        changes["algorithm"] = self._algorithm
        config = with_run_dtype(RunConfig(**{**dict(self.config), **changes}), resume=resume)
        if self.rewards is None:
            rewards = configured_rewards(config, task)
        else:
            single = callable(self.rewards) or isinstance(self.rewards, WeightedReward | str)
            rewards = resolve_rewards([self.rewards] if single else self.rewards, task.own_rewards)  # type: ignore[list-item, arg-type]
        if self.rewards is not None or not (config.rewards or config.environment.given or converses(task)):
            named = tuple(
                RewardConfig(name=reward.name, weight=reward.weight, scope=reward.scope) for reward in rewards
            )
            config = RunConfig(**{**dict(config), "rewards": named})
        return config, task, rewards

    @property
    def _algorithm(self) -> Algorithm:
        if isinstance(self.algorithm, str):
            return RunConfig(algorithm=self.algorithm).algorithm  # type: ignore[arg-type]
        return self.config.algorithm if self.algorithm is None else self.algorithm

    @cached_property
    def _model_config(self) -> PolicyConfig:
        if self.tokenizer is not None and (self.model is None or isinstance(self.model, str | Path)):
            raise UserError(
                f"tokenizer: expected a model object beside it, got {self.model!r}: save the tokenizer into the "
                "model's folder, or load the model and give both"
            )
        path = self.model
        if path is not None and not isinstance(path, str | Path):
            path = folder_of(path, self.tokenizer, Path(self.config.runs_dir) / "models")
        folder = model_at(str(path or self.config.model.path))
        return self.config.model.model_copy(update={"path": leaf("gguf")(folder) if is_gguf(folder) else folder})

    def _task_config(self, task: Task | None = None) -> TaskConfig:
        """The settings of the task; for a task that a program defined, its name."""
        name = self.task if task is None or isinstance(self.task, str) else task.name
        if name is None and self.environment_factory is not None and "name" not in self.config.task.model_fields_set:
            name = OWNED
        return TaskConfig(**self.config.task.model_dump(exclude_unset=True) | ({} if name is None else {"name": name}))

    @cached_property
    def _task(self) -> Task:
        if self.task is not None and not isinstance(self.task, str):
            rows = self._with_an_end(self.task)
            task = rows if hasattr(rows, "problems") else task_from_list(rows, prompts=self._has_prompts)
            task = with_examples(self._evaluated_on(cast(Task, task)), self.config.task.examples)
        elif self.eval_task is None or self._task_config().name == "mixture":  # whose parts have their own examples
            task = self._evaluated_on(load_task(**self._task_config().model_dump()))
        else:
            task = load_task(**self._task_config().model_dump() | {"examples": 0})
            task = with_examples(self._evaluated_on(task), self.config.task.examples)  # in the evaluated prompts, too
        return with_environment(task, self.tools, self.environment_factory)

    def _evaluated_on(self, task: Task) -> Task:
        if self.eval_task is None:
            return task
        if isinstance(self.eval_task, str) or hasattr(self.eval_task, "problems"):
            named = isinstance(self.eval_task, str)
            other = load_task(**TaskConfig(name=self.eval_task).model_dump()) if named else cast(Task, self.eval_task)
            if named and TaskConfig(name=self.eval_task).name == "jsonl":  # a file of its rows, as they are
                rows = trained_on_the_rest(other, None).problems("train")
                return evaluated_on(task, dict.fromkeys(("validation", "test"), rows))
            return evaluated_on(task, {split: other.problems(split) for split in get_args(Split) if split != "train"})
        rows = problems_from_rows(self._with_an_end(self.eval_task), "eval", prompts=self._has_prompts)
        return evaluated_on(task, dict.fromkeys(("validation", "test"), rows))

    def _with_an_end(self, rows: Any) -> Any:
        """Of a stream, enough rows for the steps and the evaluations, which get a tenth of them."""
        if not is_stream(rows):
            return rows
        if self.config.epochs is not None:
            raise UserError("epochs: expected null with a stream of rows, which may have no end: set steps instead")
        visits = self.config.steps * self.config.rollout.problems_per_step * (1 + self._algorithm.group_filter.refills)
        return first_rows(rows, 2 * visits + 10 * self.config.evaluation.problems)

    @property
    def _has_prompts(self) -> bool:
        """Whether rows need a prompt; else an environment may give it."""
        return self.environment_factory is None and not self.config.environment.owns_data
