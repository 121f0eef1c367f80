"""What all learning from pairs has in common: where the model goes, the updates over the pairs, held-out judgement."""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from grouprl.config.run import dump_config
from grouprl.config.supervised import PreferenceLearningConfig, SupervisedConfig
from grouprl.evaluation import wilson_interval
from grouprl.learner import Optimizer, make_batch
from grouprl.learner.packs import Pack, make_packs
from grouprl.models import context_length, load_tokenizer, resolve_device
from grouprl.models.packing import pack_tokens
from grouprl.models.precision import autocast
from grouprl.models.recompute import recompute_activations
from grouprl.models.save import save_model
from grouprl.record.layout import RunDirectory
from grouprl.record.write import RunRecord, atomic_directory
from grouprl.report.terminal import Terminal
from grouprl.supervised.preferences import load_preferences, refuse_longer, split_preferences, write_preferences
from grouprl.types import Batch, Group, Sampling, StepRecord, UserError

PackFigures = Callable[[Batch, Pack], Mapping[str, Tensor]]
"""A pack's part of the batch's figures, which add up over packs; the gradient flows through "loss" alone."""

Begin = Callable[[PreTrainedTokenizerBase, torch.device], tuple[PreTrainedModel, PackFigures]]
"""Loads the model that learns, given its tokenizer, and says what is learned."""


def model_folder(config: SupervisedConfig) -> Path:
    """Where the finished model goes.

    Raises:
        UserError: it would replace something that is no model.
    """
    out = Path(config.out) if config.out else RunDirectory(Path(config.runs_dir) / config.name).model
    model = any((out / name).is_file() for name in ("config.json", "adapter_config.json"))
    if out.exists() and not model and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"out: expected a new or empty folder, or a model to replace, got {out}: choose another one")
    return out


@dataclass(frozen=True)
class Lesson:
    """What is learned from groups whose completions are given, whichever packs they are computed in."""

    figures: PackFigures
    config: SupervisedConfig

    def learn(self, groups: Sequence[Group]) -> dict[str, float]:
        """Adds the gradient of the groups' loss to that of the model; gives the figures."""
        return self._added_up(groups, gradient=True)

    def judge(self, groups: Sequence[Group]) -> dict[str, float]:
        """The figures alone."""
        return self._added_up(groups, gradient=False)

    def _added_up(self, groups: Sequence[Group], *, gradient: bool) -> dict[str, float]:
        batch = make_batch(groups, Sampling())
        device = resolve_device(self.config.model.device)
        # What is compared with one another must stand in one pack: a group is never divided.
        largest = max(len(group.prompt_ids) + sum(map(len, group.completions)) for group in groups)
        budget = max(largest, pack_tokens(self.config.learner.micro_batch_tokens, device.type))
        totals: defaultdict[str, float] = defaultdict(float)
        for pack in make_packs(batch, range(len(batch.group_of_N)), budget, device, read_last=True):
            with torch.set_grad_enabled(gradient), autocast(device, self.config.model.dtype):
                figures = self.figures(batch, pack)
            if gradient:
                figures["loss"].backward()  # type: ignore[no-untyped-call]
            for name, value in figures.items():
                totals[name] += float(value.detach())
        return dict(totals)


def share_of(pack: Pack, batch: Batch) -> float:
    """The share of a batch's completions that a pack holds."""
    return len(pack.rows) / len(batch.group_of_N)


def fit(
    what: str,
    model: PreTrainedModel,
    groups: Sequence[Group],
    lesson: Lesson,
    record: RunRecord,
    terminal: Terminal,
) -> int:
    """One update for each batch of each epoch, in an order that depends on seed and epoch alone.

    Args:
        what: stands before the progress bar.
        model: is changed.
        groups: what is learned from.
        lesson: how; its configuration says how often and at which rate, which falls to 0.
        record: gets the figures of each update.
        terminal: shows the progress.

    Returns:
        The number of updates.
    """
    if lesson.config.learner.recompute:
        recompute_activations(model)
    config = lesson.config
    orders = [order for epoch in range(config.epochs) for order in _batches(len(groups), config, epoch)]
    optimizer = Optimizer(model, config.learner, total_updates=len(orders))
    smooth = 0.0
    with terminal.progress(what, len(orders)) as advance:
        for step, order in enumerate(orders, 1):
            rate = optimizer.learning_rate
            figures = lesson.learn([groups[index] for index in order])
            figures |= {"grad_norm": optimizer.step(), "learning_rate": rate}
            smooth = figures["loss"] if step == 1 else 0.98 * smooth + 0.02 * figures["loss"]
            record.step(StepRecord(step, figures, [], [], []))
            advance(1, f"{what}, loss {smooth:.3f}")
    return len(orders)


def _batches(count: int, config: SupervisedConfig, epoch: int) -> list[list[int]]:
    order = list(range(count))
    random.Random(f"{config.seed}/{epoch}").shuffle(order)
    return [order[at : at + config.batch_pairs] for at in range(0, count, config.batch_pairs)]


def learn_preferences(what: str, config: PreferenceLearningConfig, begin: Begin) -> Path:
    """Learns from preference pairs, judges held-out ones before and after, leaves a run directory and a model.

    Args:
        what: the way of learning, for people.
        config: the run.
        begin: loads what learns.

    Returns:
        The folder of the model, in Hugging Face layout.

    Raises:
        UserError: pairs that cannot be read or do not fit the model, or a run directory that is in use; nothing is
            written then.
    """
    out = model_folder(config)
    tokenizer = load_tokenizer(config.model.path)
    preferences = load_preferences(config.preferences, tokenizer)
    train, test = split_preferences(preferences, config.eval_share)
    torch.set_num_threads(config.threads or torch.get_num_threads())
    model, figures = begin(tokenizer, resolve_device(config.model.device))
    refuse_longer(preferences, context_length(model))
    learned, held_out = [pair.group for pair in train], [pair.group for pair in test]
    lesson, terminal = Lesson(figures, config), Terminal()
    with RunRecord.create(Path(config.runs_dir) / config.name, dump_config(config)) as record:
        write_preferences(RunDirectory(record.directory).pairs, preferences)
        before, started = _judged(lesson, held_out), time.perf_counter()
        steps = fit(what, model, learned, lesson, record, terminal)
        seconds, after = time.perf_counter() - started, _judged(lesson, held_out)
        summary = {"before": before, "after": after, "pairs": len(train), "held_out_pairs": len(test)}
        facts = {"steps": steps, "train_seconds": seconds, "seed": config.seed, "model": config.model.path}
        record.summary(summary | facts)
        with atomic_directory(out) as folder:
            save_model(model, tokenizer, folder)
    terminal.say(
        f"{steps} updates from {len(train)} pairs in {seconds:.0f} s. {len(test)} held-out pairs: "
        f"{after['accuracy']:.1%} in the right order, loss {before['loss']:.3f} → {after['loss']:.3f}."
    )
    return out


def _judged(lesson: Lesson, held_out: Sequence[Group]) -> dict[str, float | tuple[float, float]]:
    figures = lesson.judge(held_out)
    hits = round(figures["accuracy"] * len(held_out))
    return {**figures, "accuracy_interval": wilson_interval(hits, len(held_out))}
