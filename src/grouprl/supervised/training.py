"""The training loop of SFT, DPO and reward models: updates over the pairs, held-out evaluation, the model folder."""

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
from grouprl.record.files import atomic_directory
from grouprl.record.layout import RunDirectory
from grouprl.record.write import RunRecord
from grouprl.report.terminal import Terminal
from grouprl.supervised.preferences import load_preferences, refuse_longer, split_preferences, write_preferences
from grouprl.types import Batch, Group, Sampling, StepRecord, UserError

PackMetrics = Callable[[Batch, Pack], Mapping[str, Tensor]]
"""A pack's part of the batch's metrics, which add up over packs; only "loss" has a gradient."""

Begin = Callable[[PreTrainedTokenizerBase, torch.device], tuple[PreTrainedModel, PackMetrics]]
"""Loads the model to train, given its tokenizer, and gives its loss."""


def model_folder(config: SupervisedConfig) -> Path:
    """The folder of the trained model.

    Raises:
        UserError: the folder has other content than a model.
    """
    out = Path(config.out) if config.out else RunDirectory(Path(config.runs_dir) / config.name).model
    model = any((out / name).is_file() for name in ("config.json", "adapter_config.json"))
    if out.exists() and not model and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"out: expected a new or empty folder, or a model to replace, got {out}: choose another one")
    return out


@dataclass(frozen=True)
class SupervisedLoss:
    """The loss of groups with given completions; it does not depend on the division into packs."""

    pack_metrics: PackMetrics
    config: SupervisedConfig

    def metrics(self, groups: Sequence[Group], *, gradient: bool = False) -> dict[str, float]:
        """The metrics of the groups; `gradient` also adds the gradient of the loss to the gradients of the model."""
        batch = make_batch(groups, Sampling())
        device = resolve_device(self.config.model.device)
        # The completions of a pair are compared, so a pack never divides a group.
        largest = max(len(group.prompt_ids) + sum(map(len, group.completions)) for group in groups)
        budget = max(largest, pack_tokens(self.config.learner.micro_batch_tokens, device.type))
        totals: defaultdict[str, float] = defaultdict(float)
        for pack in make_packs(batch, range(len(batch.group_of_N)), budget, device, read_last=True):
            with torch.set_grad_enabled(gradient), autocast(device, self.config.model.dtype):
                metrics = self.pack_metrics(batch, pack)
            if gradient:
                metrics["loss"].backward()  # type: ignore[no-untyped-call]
            for name, value in metrics.items():
                totals[name] += float(value.detach())
        return dict(totals)


def share_of(pack: Pack, batch: Batch) -> float:
    """The share of a batch's completions that a pack holds."""
    return len(pack.rows) / len(batch.group_of_N)


def fit(
    what: str,
    model: PreTrainedModel,
    groups: Sequence[Group],
    loss: SupervisedLoss,
    record: RunRecord,
    terminal: Terminal,
) -> int:
    """Makes one update for each batch of each epoch; the order depends only on seed and epoch.

    Args:
        what: label of the progress bar.
        model: the model to train, in place.
        groups: the training data.
        loss: the loss; its configuration sets epochs, batches and the learning rate, which decays to 0.
        record: gets the metrics of each update.
        terminal: shows the progress.

    Returns:
        The number of updates.
    """
    if loss.config.learner.recompute:
        recompute_activations(model)
    config = loss.config
    orders = [order for epoch in range(config.epochs) for order in _batches(len(groups), config, epoch)]
    optimizer = Optimizer(model, config.learner, total_updates=len(orders))
    smooth = 0.0
    with terminal.progress(what, len(orders)) as advance:
        for step, order in enumerate(orders, 1):
            rate = optimizer.learning_rate
            metrics = loss.metrics([groups[index] for index in order], gradient=True)
            metrics |= {"grad_norm": optimizer.step(), "learning_rate": rate}
            smooth = metrics["loss"] if step == 1 else 0.98 * smooth + 0.02 * metrics["loss"]
            record.step(StepRecord(step, metrics, [], [], []))
            advance(1, f"{what}, loss {smooth:.3f}")
    return len(orders)


def _batches(count: int, config: SupervisedConfig, epoch: int) -> list[list[int]]:
    order = list(range(count))
    random.Random(f"{config.seed}/{epoch}").shuffle(order)
    return [order[at : at + config.batch_pairs] for at in range(0, count, config.batch_pairs)]


def learn_preferences(what: str, config: PreferenceLearningConfig, begin: Begin) -> Path:
    """Trains on preference pairs, evaluates held-out pairs before and after, writes a run directory and a model.

    Args:
        what: label of the training method.
        config: the run.
        begin: loads the model.

    Returns:
        The folder of the model, in Hugging Face layout.

    Raises:
        UserError: pairs cannot be read or do not fit the model, or the run directory is in use. Then it writes nothing.
    """
    out = model_folder(config)
    tokenizer = load_tokenizer(config.model.path)
    preferences = load_preferences(config.preferences, tokenizer)
    train, test = split_preferences(preferences, config.eval_share)
    torch.set_num_threads(config.model.threads or torch.get_num_threads())
    model, pack_metrics = begin(tokenizer, resolve_device(config.model.device))
    refuse_longer(preferences, context_length(model))
    learned, held_out = [pair.group for pair in train], [pair.group for pair in test]
    loss, terminal = SupervisedLoss(pack_metrics, config), Terminal()
    with RunRecord.create(Path(config.runs_dir) / config.name, dump_config(config)) as record:
        write_preferences(RunDirectory(record.directory).pairs, preferences)
        before, started = _evaluate(loss, held_out), time.perf_counter()
        steps = fit(what, model, learned, loss, record, terminal)
        seconds, after = time.perf_counter() - started, _evaluate(loss, held_out)
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


def _evaluate(loss: SupervisedLoss, held_out: Sequence[Group]) -> dict[str, float | tuple[float, float]]:
    metrics = loss.metrics(held_out)
    hits = round(metrics["accuracy"] * len(held_out))
    return {**metrics, "accuracy_interval": wilson_interval(hits, len(held_out))}
