"""A TRL script's arguments as a run's configuration, task and rewards, and the sentences about those that cannot be."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, PreTrainedModel, TrainerCallback

from grouprl.config.run import RunConfig
from grouprl.forward.devices import resolve_device
from grouprl.models.adapters import has_adapter, is_peft_model
from grouprl.models.load import load_tokenizer
from grouprl.record.layout import RunDirectory
from grouprl.rewards.functions import WeightedReward
from grouprl.rewards.learned import learned_reward
from grouprl.rewards.resolve import REWARDS, resolve_rewards
from grouprl.tasks.rows import ListTask, first_rows, is_stream, problems_from_rows
from grouprl.tools.imported.keys import BITS, LORA, TRL
from grouprl.tools.imported.read import Foreign
from grouprl.tools.imported.recipe import import_foreign, nested
from grouprl.tools.imported.table import Given
from grouprl.tools.imported.trl_rules import all_updates, batches_of, whole
from grouprl.trl.config import GRPOConfig
from grouprl.types import Problem, UserError

_EVENTS = (
    *("on_init_end", "on_train_begin", "on_train_end", "on_epoch_begin", "on_epoch_end", "on_step_begin"),
    *("on_step_end", "on_log", "on_save", "on_evaluate"),
)
"""The events of a TrainerCallback that a run has."""
_OF_DISPLAYS = {"on_prediction_step", "on_predict"}  # of an evaluation's batches: TRL's progress bars wait for them
_OF_CHECKPOINT = ("base_model_name_or_path", "revision", "inference_mode", "auto_mapping", "peft_version", "peft_type")
_READ_HERE = {
    *("output_dir", "logging_steps", "logging_first_step", "logging_strategy", "num_train_epochs", "disable_tqdm"),
    *("num_generations_eval", "hub_model_id", "hub_private_repo", "reward_weights"),
    "max_tool_calling_iterations",
}
# Limits that TRL's episodes do not have: as large as they may be; no tool takes an hour.
_UNLIMITED = {"calls": 10_000, "result_characters": 10**7, "tool_seconds": 3600.0, "episode_seconds": 86_400.0}
_STREAMED = 100  # rows that an evaluation takes from a stream
_REMEDY = "Remove or replace them in the script; docs/coming_from.md has the settings of a run here."


@dataclass(frozen=True)
class Plan:
    """A script's training as a run, in TRL's counts."""

    config: RunConfig
    notes: tuple[str, ...]  # the keys that the script names and that mean something else here, or nothing
    updates: int  # of a step here
    updates_per_epoch: int
    max_steps: int  # updates of the training
    samples: float  # of the training, as transformers counts them: completions, or where epochs are given rows
    eval_rows: int


def refused_arguments(args: GRPOConfig, arguments: Mapping[str, Any], callbacks: Sequence[Any]) -> list[str]:
    """A sentence for each of TRL's arguments without a counterpart; nothing is loaded."""
    model, peft_config = arguments["model"], arguments["peft_config"]
    refused, folder = [], Path(args.output_dir)
    if not RunDirectory(folder).exists and (others := sorted(path.name for path in folder.glob("checkpoint-*"))):
        refused.append(f"output_dir: expected a new folder, got {folder} with {others[0]} of another run: name another")
    if arguments["rollout_func"] is not None:
        refused.append("rollout_func: GroupRL samples by itself: write tools or an environment_factory instead")
    if arguments["optimizers"] != (None, None):
        refused.append("optimizers: the optimizer is AdamW: set optim, learning_rate and lr_scheduler_type in args")
    if is_peft_model(model):
        learned = any(bool(weight.any()) for name, weight in model.named_parameters() if "lora_B" in name)
        if args.beta and learned:
            refused.append("beta: expected 0 with a trained adapter, whose reference is the plain model here: set 0")
    elif not isinstance(model, str | PreTrainedModel) or has_adapter(model):
        refused.append(
            f"model: expected a name, or a model of transformers or peft, got {type(model).__name__}: give one of them"
        )
    if hasattr(arguments["processing_class"], "image_processor"):
        refused.append("processing_class: expected a tokenizer, got a processor of images: GroupRL trains on text")
    for name in ("train_dataset", "eval_dataset"):
        rows = arguments[name]
        if isinstance(rows, Mapping):
            refused.append(f"{name}: expected one data set, got several by name: give one of them")
        elif rows is not None and _has_images(rows):
            refused.append(f"{name}: expected text, got rows with images: GroupRL trains on text; remove the images")
    for callback in callbacks:
        if missing := _other_events(callback) - _OF_DISPLAYS:
            refused.append(
                f"callbacks: {type(callback).__name__} waits for {', '.join(sorted(missing))}, which a run does not "
                f"have: use {', '.join(_EVENTS)}"
            )
    if peft_config is not None:
        is_lora, settings = type(peft_config).__name__ == "LoraConfig", peft_config.to_dict()
        usual = type(peft_config)().to_dict() if is_lora else settings
        odd = [key for key, value in settings.items() if key not in (*LORA, *_OF_CHECKPOINT) and value != usual[key]]
        if not is_lora or odd:
            refused.append(
                f"peft_config: expected a plain LoraConfig, got {type(peft_config).__name__} with "
                f"{', '.join(odd) or 'other weights'}: the adapter is LoRA on linear layers; remove it"
            )
    if os.environ.get("ACCELERATE_USE_DEEPSPEED", "false").lower() == "true":
        refused.append("accelerate: expected no DeepSpeed plugin, got one: start the script with torchrun instead")
    return refused


def _has_images(rows: Any) -> bool:
    row: Any = next(iter(rows), {})
    prompt = row.get("prompt") if isinstance(row, Mapping) else None
    contents = [message.get("content") for message in prompt or () if isinstance(message, Mapping)]
    parts = [part for content in contents if isinstance(content, list) for part in content]
    return bool({"image", "images"} & {*row}) or any(part.get("type") == "image" for part in parts)


def plan_training(args: GRPOConfig, arguments: Mapping[str, Any], refused: Sequence[str]) -> Plan:
    """Makes the configuration of the run by the importer's table.

    Raises:
        UserError: keys that have no counterpart, together with the sentences in `refused`.
    """
    model, peft_config, bits = (arguments[name] for name in ("model", "peft_config", "quantization_config"))
    train, evaluation = arguments["train_dataset"], arguments["eval_dataset"]
    train_rows = len(train) if hasattr(train, "__len__") else None
    eval_rows = len(evaluation) if hasattr(evaluation, "__len__") else _STREAMED * (evaluation is not None)
    values = {key: value for key, value in args.named.items() if key not in _READ_HERE}
    loading = {key.removeprefix("torch_"): value for key, value in (args.model_init_kwargs or {}).items() if value}
    bits = bits or loading.pop("quantization_config", None)
    if loading.get("dtype") == "auto" and isinstance(model, str):
        loading["dtype"] = AutoConfig.from_pretrained(model).dtype or "float32"
    values |= {"model_init_kwargs": loading}
    if isinstance(model, PreTrainedModel) and model.dtype != torch.float32:
        values["dtype"] = str(model.dtype).removeprefix("torch.")
    if peft_config is not None:
        values["use_peft"] = True
        for theirs, key in LORA.items():
            value = getattr(peft_config, theirs)
            value = sorted(value) if isinstance(value, set) else getattr(value, "value", value)
            values |= {} if value in (None, TRL[key].default) else {key: value}
    if bits is not None:
        values |= {key: getattr(bits, theirs) for theirs, key in BITS.items()}
    settings = Given(values, TRL, args.world_size)
    batches, updates = batches_of(settings), all_updates(settings)
    # TRL drops the rows that fill no generation.
    rows_per_generation = max(1, batches.generation // whole(settings, "num_generations"))
    generations = max(1, (train_rows or 0) // rows_per_generation)
    updates_per_epoch = max(1, math.ceil(generations * batches.generation * args.num_iterations / batches.update))
    max_steps = args.max_steps if args.max_steps > 0 else math.ceil(args.num_train_epochs * updates_per_epoch)
    if train_rows is None and args.max_steps <= 0:
        refused = [*refused, "max_steps: expected a number of updates where train_dataset has no length, got none"]
        max_steps = 1
    samples = max_steps * batches.update if args.max_steps > 0 else args.num_train_epochs * (train_rows or 0)
    if train_rows is None:
        updates_per_epoch = max_steps
    values["max_steps"] = max_steps
    for strategy, steps in (("save_strategy", "save_steps"), ("eval_strategy", "eval_steps")):
        if values.get(strategy) == "epoch":
            values |= {strategy: "steps", steps: updates_per_epoch}
    imported = import_foreign(Foreign("trl", values), world=args.world_size, beside=refused, remedy=_REMEDY)
    tree, folder, evaluates = nested(imported.changes), Path(args.output_dir), args.eval_strategy != "no"
    tree |= {"name": folder.name, "runs_dir": str(folder.parent)}
    tree["evaluation"] = {
        "every": 0,
        **tree.get("evaluation", {}),
        "problems": eval_rows * evaluates,
        "samples": args.num_generations_eval or args.num_generations,
    }
    if arguments["tools"] or arguments["environment_factory"]:
        iterations = args.max_tool_calling_iterations
        turns = 10_000 if iterations is None else iterations + 1
        tree["environment"] = _UNLIMITED | {"turns": turns, "max_tokens": args.max_completion_length}
    lines = [line for line in imported.lines if line.outcome.words and (evaluates or line.key != "eval_steps")]
    notes = [f"{line.key}={line.value}: {line.outcome.words}" for line in lines if line.outcome.verdict == "changed"]
    idle = [line for line in lines if line.outcome.verdict == "not needed" and line.is_named]
    idle = [line for line in idle if "see " not in line.outcome.words]  # another key has its meaning
    notes += [f"{line.key}={line.value} has no effect: {line.outcome.words}" for line in idle]
    if "environment" in tree:
        notes.append("tools: lists and mappings are shown as JSON, None as nothing, exceptions as error: KIND: TEXT")
    for callback in arguments["callbacks"] or ():
        if others := _other_events(callback) & _OF_DISPLAYS:
            notes.append(f"callbacks: {_kind(callback).__name__} is not called for {', '.join(sorted(others))}")
    if args.run_name:
        notes.append(f"run_name={args.run_name} has no effect: a run has the name of output_dir")
    return Plan(RunConfig(**tree), tuple(notes), updates, updates_per_epoch, max_steps, samples, eval_rows)


def _kind(callback: Any) -> type:
    return callback if isinstance(callback, type) else type(callback)


def _other_events(callback: Any) -> set[str]:
    """The events that a TrainerCallback, or a class of them, waits for and a run does not have."""
    events = {name for name in vars(TrainerCallback) if name.startswith("on_")} - {*_EVENTS}
    return {name for name in events if getattr(_kind(callback), name) is not getattr(TrainerCallback, name)}


def task_of(plan: Plan, train_dataset: Any, eval_dataset: Any, *, prompts: bool) -> ListTask | None:
    """The rows as a task without a verifier; None where an environment owns the data."""
    if train_dataset is None:
        return None
    config = plan.config
    if is_stream(train_dataset):
        train_dataset = first_rows(train_dataset, config.steps * config.rollout.problems_per_step)
    held_out: Sequence[Problem] = ()
    if eval_dataset is not None:
        rows = first_rows(eval_dataset, plan.eval_rows)
        held_out = problems_from_rows(rows, "eval_dataset", prompts=prompts)
    train = problems_from_rows(train_dataset, "train_dataset", prompts=prompts)
    splits = {"train": train, "validation": held_out, "test": held_out}
    return ListTask("train_dataset", splits, given=tuple(splits))  # type: ignore[arg-type]


def rewards_of(
    reward_funcs: Any, reward_processing_classes: Any, weights: Sequence[float] | None, config: RunConfig
) -> tuple[WeightedReward, ...] | None:
    """The functions, each called with the whole batch, and reward models; None = the environment has the reward."""
    functions = list(reward_funcs) if isinstance(reward_funcs, list | tuple) else [reward_funcs]
    if not functions or functions == [None]:
        return None
    several = isinstance(reward_processing_classes, list | tuple)
    tokenizers = reward_processing_classes if several else [reward_processing_classes] * len(functions)
    for name, values in (("reward_weights", weights), ("reward_processing_classes", tokenizers)):
        if values is not None and len(values) != len(functions):
            raise UserError(f"{name}: expected {len(functions)}, one for each of reward_funcs, got {len(values)}")
    rewards: list[Any] = []
    for function, tokenizer in zip(functions, tokenizers, strict=True):
        if not isinstance(function, PreTrainedModel | str) or function in REWARDS:
            rewards.append(function)
            continue
        path = function if isinstance(function, str) else function.name_or_path
        with tempfile.TemporaryDirectory() as folder:
            if not isinstance(function, str):
                function.save_pretrained(folder)
                (tokenizer or load_tokenizer(path)).save_pretrained(folder)
            source = path if isinstance(function, str) else folder
            scores = learned_reward(source, policy=source, device=resolve_device(config.model.device))
        rewards.append(WeightedReward(path.rstrip("/").rpartition("/")[2], replace(scores, own_tokens=True)))
    factors = weights or [1.0] * len(rewards)
    resolved = resolve_rewards(rewards)
    return tuple(
        replace(reward, weight=float(factor), scope="batch") for reward, factor in zip(resolved, factors, strict=True)
    )
