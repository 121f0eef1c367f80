"""GRPOTrainer: reads a TRL script's arguments, trains, and keeps TRL's log, checkpoints and callbacks."""

from __future__ import annotations

import math
import os
import shutil
import signal
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import CommitInfo
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, TrainerControl, TrainerState, trainer_pt_utils
from transformers.trainer_utils import TrainOutput, speed_metrics

from grouprl.models.adapters import WEIGHTS, is_adapter, is_peft_model
from grouprl.models.load import load_model, load_tokenizer
from grouprl.models.manifest import MANIFEST
from grouprl.record.files import atomic_directory, atomic_write_text
from grouprl.record.layout import Checkpoint, RunDirectory
from grouprl.record.read import read_json_lines, read_run
from grouprl.tools.push import CARD, model_card, push
from grouprl.trainer.trainer import Trainer
from grouprl.trainer.trial import with_newest
from grouprl.trl.arguments import plan_training, refused_arguments, rewards_of, task_of
from grouprl.trl.config import GRPOConfig
from grouprl.trl.history import History
from grouprl.types import StepRecord, UserError

_STATE = "trainer_state.json"


class GRPOTrainer:
    """TRL 1.16's GRPOTrainer over GroupRL; the arguments are TRL's, and `args.output_dir` is the run directory.

    Raises:
        UserError: options and arguments that have no counterpart here, all at once and before a model is loaded.
    """

    def __init__(
        self,
        model: Any,
        reward_funcs: Any = None,
        args: Any = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: Any = None,
        reward_processing_classes: Any = None,
        callbacks: Sequence[Any] | None = None,
        optimizers: tuple[Any, Any] = (None, None),
        quantization_config: Any = None,
        peft_config: Any = None,
        tools: Sequence[Callable[..., Any]] | None = None,
        rollout_func: Any = None,
        environment_factory: Any = None,
    ) -> None:
        arguments = dict(locals())
        if args is None:
            name = model if isinstance(model, str) else model.config._name_or_path
            args = GRPOConfig(f"{name.rstrip('/').rpartition('/')[2]}-GRPO")
        if not isinstance(args, GRPOConfig):
            got = f"{type(args).__module__}.{type(args).__name__}"
            raise UserError(f"args: expected the GRPOConfig of grouprl.trl, got {got}: import it from grouprl.trl")
        self.args, self.accelerator, self.processing_class = args, args.distributed_state, processing_class
        self.callbacks = [callback() if isinstance(callback, type) else callback for callback in callbacks or ()]
        plan = plan_training(args, arguments, refused_arguments(args, arguments, self.callbacks))
        if self.is_world_process_zero() and plan.notes:
            print("\n  ".join(["Of these settings GroupRL says:", *plan.notes]))
        self._plan, config = plan, plan.config
        self._module = None if isinstance(model, str) or peft_config is not None else model
        if isinstance(model, str) and processing_class is not None:
            source = config.model.model_copy(update={"path": model})
            tokenizer = load_tokenizer(source)
            names = ("eos_token_id", "chat_template")
            if processing_class.get_vocab() == tokenizer.get_vocab() and all(
                getattr(processing_class, name) == getattr(tokenizer, name) for name in names
            ):
                processing_class = None
            else:  # a model object is saved with the tokenizer
                model = load_model(source, device=torch.device("cpu"))
        self._trainer = Trainer(
            model=model,
            task=task_of(plan, train_dataset, eval_dataset, prompts=environment_factory is None),
            rewards=rewards_of(reward_funcs, reward_processing_classes, args.reward_weights, config),
            config=config,
            tokenizer=processing_class,
            tools=tools or (),
            environment_factory=environment_factory,
            callback=self._follow,
        )
        path = arguments["model"] if isinstance(arguments["model"], str) else arguments["model"].config._name_or_path
        if self.processing_class is None and path:  # which callbacks and scripts ask for
            self.processing_class = load_tokenizer(config.model.model_copy(update={"path": path}))
        self.hub_model_id = args.hub_model_id or self._run.path.name
        self.history = History(args, plan)
        self.control = TrainerControl()
        self._evaluated: set[int] = set()  # steps whose evaluation is in the log
        self._mirrored: set[str] = set()  # folders checkpoint-N
        self._call("on_init_end")

    @property
    def state(self) -> TrainerState:
        """TRL's state of the training, with `log_history`."""
        return self.history.state

    def train(self, resume_from_checkpoint: bool | str | None = None) -> TrainOutput:
        """Trains to the end. True continues the run in `args.output_dir`, a folder `checkpoint-N` in it from there."""
        step, began = None, time.time()
        if resume_from_checkpoint and not isinstance(resume_from_checkpoint, bool):
            number = Path(resume_from_checkpoint).name.removeprefix("checkpoint-")
            if not number.isdecimal() or int(number) % self.history.updates:
                raise UserError(
                    f"resume_from_checkpoint: expected true or a folder checkpoint-N of {self.args.output_dir}, got "
                    f"{resume_from_checkpoint}: give one of these"
                )
            step = int(number) // self.history.updates
        self._call("on_train_begin")
        run = self._trainer.train(resume=bool(resume_from_checkpoint), step=step)
        if self.is_world_process_zero():
            if not self.state.global_step:  # it had ended before
                self._resume(self._newest().step)
            self._catch_up()
        losses = self.history.losses or [math.nan]
        steps = max(1, len(self.history.losses) * self.history.updates)
        samples = self._plan.samples * steps / self._plan.max_steps
        metrics = speed_metrics("train", began, num_steps=steps, num_samples=samples)
        metrics |= {"total_flos": 0.0, "train_loss": statistics.fmean(losses)}
        logs = self.history.write(metrics)
        self._call("on_log", logs=logs)
        self._call("on_train_end")
        if self._module is not None and run.checkpoint is not None:  # TRL trains the object itself
            if is_peft_model(self._module):
                peft = import_module("peft")
                peft.set_peft_model_state_dict(self._module, load_file(run.checkpoint / WEIGHTS))
            else:
                self._module.load_state_dict(_loaded(run.checkpoint).state_dict())
        return TrainOutput(self.state.global_step, metrics["train_loss"], {**metrics, "epoch": logs["epoch"]})

    def evaluate(self) -> dict[str, Any]:
        """Evaluates the newest checkpoint, or the model before training, on `eval_dataset`; adds it to the log."""
        config, rows = self._trainer.config, self._plan.eval_rows
        if not rows:
            raise UserError("eval_dataset: expected rows to evaluate on, got none: give them to GRPOTrainer")
        evaluation = config.evaluation.model_copy(update={"problems": rows})
        trainer = replace(self._trainer, config=config.model_copy(update={"evaluation": evaluation}))
        metrics = _evaluation_metrics(trainer.evaluate())
        self._call("on_evaluate", metrics=metrics)
        return self.history.write(metrics)

    def save_model(self, output_dir: str | None = None) -> None:
        """Writes the model of the newest checkpoint into a folder in Hugging Face layout; None = `args.output_dir`.

        Raises:
            UserError: there is no checkpoint, or another folder has files.
        """
        folder = Path(output_dir or self.args.output_dir)
        if folder.resolve() != self._run.path.resolve():
            self._trainer.save(folder)
        elif self.is_world_process_zero():
            _copy_model(self._newest(), folder, shutil.copy2)

    def push_to_hub(
        self, commit_message: str = "", blocking: bool = True, dataset_name: Any = None, tags: Any = None
    ) -> CommitInfo:
        """Uploads the newest checkpoint to `hub_model_id`; private unless `args.hub_private_repo` is False.

        Without `args.hub_model_id` it goes to the name of `args.output_dir` in the token's own account. The arguments
        are TRL's and have no effect: the model card says what the run records.

        Raises:
            UserError: there is no checkpoint, no such name, no right to write, or no network.
        """
        done = push(self._newest().path, self.hub_model_id, public=self.args.hub_private_repo is False)
        self.hub_model_id = done.repo_url.repo_id
        return done

    def create_model_card(self, model_name: Any = None, dataset_name: Any = None, tags: Any = None) -> None:
        """Writes README.md into `args.output_dir`, from what the run records; the arguments have no effect."""
        card = model_card(read_run(self._run.path), self._newest().path.name)
        atomic_write_text(self._run.path / CARD, card)

    @property
    def model(self) -> Any:
        """The model that was given, trained in place; else that of the newest checkpoint, or the start without one."""
        if self._module is not None:
            return self._module
        return _loaded(Path(with_newest(self._trainer.config, self._run.path).model.path))

    def add_callback(self, callback: Any) -> None:
        """Adds a TrainerCallback, or a class of one."""
        self.callbacks.append(callback() if isinstance(callback, type) else callback)

    def remove_callback(self, callback: Any) -> None:
        """Removes a callback, or all of a class."""
        kinds = callback if isinstance(callback, type) else ()
        self.callbacks = [other for other in self.callbacks if other is not callback and not isinstance(other, kinds)]

    def is_world_process_zero(self) -> bool:
        """Whether this process writes the run."""
        return self.accelerator.is_main_process

    log_metrics, save_metrics, save_state = (
        trainer_pt_utils.log_metrics,
        trainer_pt_utils.save_metrics,
        trainer_pt_utils.save_state,
    )

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"GRPOTrainer.{name}: GroupRL's trainer has train, evaluate, save_model, push_to_hub, model, state, args; "
            f"remove {name} from the script"
        )

    @property
    def _run(self) -> RunDirectory:
        return RunDirectory(self._trainer.directory)

    def _newest(self) -> Checkpoint:
        saved = self._run.saved_models()
        if not saved:
            raise UserError(f"{self._run.path}: expected a run with a checkpoint, got none: call train() first")
        return saved[-1]

    def _follow(self, record: StepRecord) -> None:
        """Logs a step and tells the callbacks; what the run saved and evaluated before it comes first."""
        if not self.state.global_step and record.step > 1:
            self._resume(record.step - 1)
        history, state = self.history, self.state
        self._catch_up()
        epoch = int(state.epoch or 0)
        if not state.global_step:
            self._call("on_epoch_begin")
        self._call("on_step_begin")
        is_due = history.add(record, self._trainer.config.algorithm)
        self._call("on_step_end")
        if is_due or self.control.should_log:
            self.control.should_log = False
            self._call("on_log", logs=history.write(history.logs()))
        if int(state.epoch or 0) > epoch:
            self._call("on_epoch_end")
            if state.global_step < state.max_steps:
                self._call("on_epoch_begin")
        if self.control.should_training_stop:
            signal.raise_signal(signal.SIGINT)  # the run saves this step and ends

    def _resume(self, step: int) -> None:
        """Reads the state after a step, and removes the folders of later ones, which the run makes again."""
        update = step * self.history.updates
        for path in self._run.path.glob("checkpoint-*"):
            number = int(path.name.removeprefix("checkpoint-"))
            if number == update and (path / _STATE).is_file():
                self.history.state = TrainerState.load_from_json(str(path / _STATE))
            elif number > update:
                shutil.rmtree(path)

    def _catch_up(self) -> None:
        """Takes over evaluations and checkpoints that the run has made since the last step."""
        updates, folder = self.history.updates, self._run.path
        for row in read_json_lines(self._run.evaluations):
            if row["step"] not in self._evaluated:
                self._evaluated.add(row["step"])
                self._call("on_evaluate", metrics=self.history.write(_evaluation_metrics(row), row["step"] * updates))
        saved = {f"checkpoint-{checkpoint.step * updates}": checkpoint for checkpoint in self._run.saved_models()}
        for name, checkpoint in saved.items():
            if not (folder / name).exists():
                with atomic_directory(folder / name) as unfinished:
                    _copy_model(checkpoint, unfinished, os.link)
                    self.state.save_to_json(str(unfinished / _STATE))
                self._mirrored.add(name)
                self._call("on_save")
        for name in self._mirrored - saved.keys():
            shutil.rmtree(folder / name)
        self._mirrored &= saved.keys()

    def _call(self, event: str, **values: Any) -> None:
        for callback in self.callbacks:
            getattr(callback, event)(
                self.args, self.state, self.control, processing_class=self.processing_class, **values
            )


def _loaded(folder: Path) -> Any:
    """A model of transformers or, of an adapter, of peft, with their own attention."""
    if is_adapter(str(folder)):
        return import_module("peft").AutoPeftModelForCausalLM.from_pretrained(folder)
    return AutoModelForCausalLM.from_pretrained(folder)


def _copy_model(checkpoint: Checkpoint, folder: Path, copy: Callable[..., Any]) -> None:
    beside = shutil.ignore_patterns(checkpoint.trainer.name, MANIFEST)
    shutil.copytree(checkpoint.path, folder, ignore=beside, dirs_exist_ok=True, copy_function=copy)


def _evaluation_metrics(metrics: Mapping[str, Any]) -> dict[str, Any]:
    renamed = {"mean_length": "completions/mean_length"}
    return {
        f"eval_{renamed.get(name, name)}": value
        for name, value in metrics.items()
        if name not in ("step", "problems") and not name.endswith("interval")
    }
