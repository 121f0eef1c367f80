"""Learns from preference pairs: direct preference optimization (arXiv:2305.18290), and reward models."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from grouprl.algorithms import bradley_terry_loss, dpo_loss
from grouprl.config.run import dump_config
from grouprl.evaluation import wilson_interval
from grouprl.forward.devices import resolve_device
from grouprl.learner.packs import Pack, pack_forward, to_grid
from grouprl.models.load import context_length, frozen_copy, load_model, load_tokenizer
from grouprl.models.reward_model import completion_scores, new_reward_model
from grouprl.models.save import save_model
from grouprl.record.files import atomic_directory
from grouprl.record.layout import RunDirectory
from grouprl.record.write import RunRecord
from grouprl.run.machine import with_dtype
from grouprl.supervised.preferences import load_preferences, refuse_longer, split_preferences, write_preferences
from grouprl.supervised.settings import DpoConfig, PreferenceLearningConfig, RewardModelConfig
from grouprl.supervised.training import PackMetrics, SupervisedLoss, fit, model_folder
from grouprl.trainer.terminal import Terminal
from grouprl.types import Batch, Group, counted

Begin = Callable[[PreTrainedTokenizerBase, torch.device], tuple[PreTrainedModel, PackMetrics]]
"""Loads the model to train, given its tokenizer, and gives its loss."""


def dpo(config: DpoConfig) -> Path:
    """Trains a policy to prefer the chosen completions by more than its frozen start model does.

    Returns and errors: see `learn_preferences`.
    """

    def begin(_: PreTrainedTokenizerBase, device: torch.device) -> tuple[PreTrainedModel, PackMetrics]:
        policy = load_model(config.model, device=device)
        return policy, dpo_metrics(policy, frozen_copy(policy), beta=config.beta)

    return learn_preferences("dpo", config, begin)


def dpo_metrics(policy: PreTrainedModel, reference: PreTrainedModel, *, beta: float) -> PackMetrics:
    """Loss and metrics of `dpo_loss` for a pack, and the share of pairs whose chosen completion is more likely."""

    def metrics(batch: Batch, pack: Pack) -> dict[str, Tensor]:
        chosen_n, rejected_n = sequence_logprobs(policy, batch, pack)
        with torch.no_grad():
            ref_chosen_n, ref_rejected_n = sequence_logprobs(reference, batch, pack)
        loss, stats = dpo_loss(chosen_n, rejected_n, ref_chosen_n, ref_rejected_n, beta=beta)
        # The start model has no margin against itself, so only this metric can be compared before and after training.
        likelier = (chosen_n > rejected_n).float().mean()
        means = {"loss": loss, **stats, "chosen_likelier": likelier}
        return {name: _share(pack, batch) * value for name, value in means.items()}

    return metrics


def sequence_logprobs(model: PreTrainedModel, batch: Batch, pack: Pack) -> tuple[Tensor, Tensor]:
    """Log-probs of whole completions in a pack of pairs: [n] of the chosen ones, [n] of the rejected ones."""
    logprobs_C = pack_forward(model, pack, batch.sampling).logprobs_C
    chosen_n, rejected_n = to_grid(pack, logprobs_C).sum(1).view(-1, 2).unbind(1)
    return chosen_n, rejected_n


def train_reward_model(config: RewardModelConfig) -> Path:
    """Trains the decoder of a model, with a new score on top, to order the completions of preference pairs.

    Returns and errors: see `learn_preferences`. AutoModelForSequenceClassification of transformers loads the folder.
    """

    def begin(tokenizer: PreTrainedTokenizerBase, device: torch.device) -> tuple[PreTrainedModel, PackMetrics]:
        model = new_reward_model(config.model, tokenizer, seed=config.seed, device=device)
        return model, reward_metrics(model)

    return learn_preferences("reward model", config, begin)


def reward_metrics(model: PreTrainedModel) -> PackMetrics:
    """The loss and the metrics of `bradley_terry_loss` for a pack of pairs."""

    def metrics(batch: Batch, pack: Pack) -> dict[str, Tensor]:
        chosen_n, rejected_n = completion_scores(model, pack.input_ids_S, pack.layout).view(-1, 2).unbind(1)
        loss, stats = bradley_terry_loss(chosen_n, rejected_n)
        return {name: _share(pack, batch) * value for name, value in {"loss": loss, **stats}.items()}

    return metrics


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
    config, out = with_dtype(config), model_folder(config)
    tokenizer = load_tokenizer(config.model)
    preferences = load_preferences(config.preferences, tokenizer)
    train, test = split_preferences(preferences, config.eval_share)
    torch.set_num_threads(config.model.threads or torch.get_num_threads())
    model, pack_metrics = begin(tokenizer, resolve_device(config.model.device, config.model.dtype))
    learned, held_out = [pair.group for pair in train], [pair.group for pair in test]
    refuse_longer([*learned, *held_out], context_length(model))
    loss, terminal = SupervisedLoss(pack_metrics, config), Terminal()
    with RunRecord.create(Path(config.runs_dir) / config.name, dump_config(config)) as record:
        write_preferences(RunDirectory(record.directory).pairs, preferences)
        with terminal.status("evaluate before"):
            before = _evaluate(loss, held_out)
        started = time.perf_counter()
        steps = fit(what, model, learned, loss, record, terminal)
        seconds = time.perf_counter() - started
        with terminal.status("evaluate after"):
            after = _evaluate(loss, held_out)
        summary = {"before": before, "after": after, "pairs": len(train), "held_out_pairs": len(test)}
        facts = {"steps": steps, "train_seconds": seconds, "seed": config.seed, "model": config.model.path}
        record.summary(summary | facts)
        with atomic_directory(out) as folder:
            save_model(model, tokenizer, folder)
    terminal.say(
        f"{counted(steps, 'update')} from {counted(len(train), 'pair')} in {seconds:.0f} s. "
        f"{counted(len(test), 'held-out pair')}: {after['accuracy']:.1%} in the right order, "
        f"loss {before['loss']:.3f} → {after['loss']:.3f}."
    )
    return out


def _evaluate(loss: SupervisedLoss, held_out: Sequence[Group]) -> dict[str, float | tuple[float, float]]:
    metrics = loss.metrics(held_out)
    hits = round(metrics["accuracy"] * len(held_out))
    return {**metrics, "accuracy_interval": wilson_interval(hits, len(held_out))}


def _share(pack: Pack, batch: Batch) -> float:
    """The share of a batch's completions that a pack holds."""
    return len(pack.rows) / len(batch.group_of_N)
