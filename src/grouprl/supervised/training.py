"""The training loop of SFT, DPO and reward models: updates over the pairs, and the folder of the model."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel

from grouprl.forward.attention import hidden_states, is_packed
from grouprl.forward.devices import resolve_device
from grouprl.forward.packing import pack_tokens
from grouprl.forward.precision import autocast
from grouprl.forward.prefix import LearnedPrefix, read_prefix, shared_tokens
from grouprl.forward.progress import PROGRESS
from grouprl.forward.recompute import recompute_activations, recomputes
from grouprl.learner import Optimizer, make_batch
from grouprl.learner.packs import Pack, Stats, beginnings, make_packs, read_metrics, with_prefix
from grouprl.record.layout import RunDirectory
from grouprl.record.write import RunRecord, refuse_run
from grouprl.supervised.settings import SupervisedConfig
from grouprl.trainer.terminal import Terminal
from grouprl.types import Batch, Group, Sampling, StepRecord, UserError

PackMetrics = Callable[[Batch, Pack], Mapping[str, Tensor]]
"""A pack's part of the batch's metrics, which add up over packs; only "loss" has a gradient."""


def model_folder(config: SupervisedConfig) -> Path:
    """The folder of the trained model.

    Raises:
        UserError: the folder has other content than a model, or the run's directory holds a run.
    """
    directory = Path(config.runs_dir) / config.name
    refuse_run(directory)
    out = Path(config.out) if config.out else RunDirectory(directory).model
    model = any((out / name).is_file() for name in ("config.json", "adapter_config.json"))
    if out.exists() and not model and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"out: expected a new or empty folder, or a model to replace, got {out}: choose another one")
    return out


@dataclass(frozen=True)
class SupervisedLoss:
    """The loss of groups with given completions; it does not depend on the division into packs."""

    pack_metrics: PackMetrics
    config: SupervisedConfig
    network: PreTrainedModel | None = None  # the only reader of the packs: what all prompts begin with is read once

    def metrics(self, groups: Sequence[Group], *, gradient: bool = False) -> dict[str, float]:
        """The metrics of the groups; `gradient` also adds the gradient of the loss to the gradients of the model."""
        batch = make_batch(groups, Sampling())
        device = resolve_device(self.config.model.device)
        # The completions of a pair are compared, so a pack never divides a group.
        largest = max(len(group.prompt_ids) + sum(map(len, group.completions)) for group in groups)
        budget = max(largest, pack_tokens(self.config.learner.micro_batch_tokens, device.type))
        totals, stats = defaultdict[str, float](float), list[Stats]()
        # What all prompts begin with is read once, before the packs.
        network, shared, prefix = self.network, 0, None
        if network is not None and is_packed(network):
            shared = shared_tokens(beginnings(batch))
        if network is not None and shared:
            with torch.set_grad_enabled(gradient), autocast(device, self.config.model.dtype):
                prefix = LearnedPrefix(read_prefix(partial(hidden_states, network), batch.prompts[0][:shared], device))
        for pack in make_packs(batch, range(len(batch.group_of_N)), budget, device, read_last=True, shared=shared):
            pack = pack if prefix is None else with_prefix(prefix.read, pack)
            with torch.set_grad_enabled(gradient), autocast(device, self.config.model.dtype):
                metrics = self.pack_metrics(batch, pack)
            if gradient:
                metrics["loss"].backward()  # type: ignore[no-untyped-call]
            PROGRESS.mark()
            stats.append({name: (value.detach(), 1) for name, value in metrics.items()})
        if prefix is not None:
            prefix.backward()
        for pack_metrics in read_metrics(stats):
            for name, (value, _) in pack_metrics.items():
                totals[name] += value
        return dict(totals)


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
        loss: the loss; its configuration sets epochs, batches and the learning rate.
        record: gets the metrics of each update.
        terminal: shows the progress.

    Returns:
        The number of updates.
    """
    if recomputes(loss.config.learner.recompute, model.get_input_embeddings().weight.device.type):
        recompute_activations(model)
    config = loss.config
    orders = []
    for epoch in range(config.epochs):
        order = list(range(len(groups)))
        random.Random(f"{config.seed}/{epoch}").shuffle(order)
        orders += [order[at : at + config.batch_pairs] for at in range(0, len(order), config.batch_pairs)]
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
