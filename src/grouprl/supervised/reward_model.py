"""Reward-model training: the score of a chosen completion learns to exceed that of the rejected one."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from grouprl.algorithms import bradley_terry_loss
from grouprl.config.supervised import RewardModelConfig
from grouprl.learner.packs import Pack
from grouprl.models.reward_model import completion_scores, new_reward_model
from grouprl.supervised.training import PackMetrics, learn_preferences, share_of
from grouprl.types import Batch


def train_reward_model(config: RewardModelConfig) -> Path:
    """Trains the decoder of a model, with a new score on top, to order the completions of preference pairs.

    Returns and errors: see `grouprl.supervised.training.learn_preferences`. AutoModelForSequenceClassification of
    transformers loads the folder.
    """

    def begin(tokenizer: PreTrainedTokenizerBase, device: torch.device) -> tuple[PreTrainedModel, PackMetrics]:
        model = new_reward_model(config.model.path, tokenizer, seed=config.seed, device=device)
        return model, reward_metrics(model)

    return learn_preferences("reward model", config, begin)


def reward_metrics(model: PreTrainedModel) -> PackMetrics:
    """The loss and the metrics of `bradley_terry_loss` for a pack of pairs."""

    def metrics(batch: Batch, pack: Pack) -> dict[str, Tensor]:
        chosen_n, rejected_n = completion_scores(model, pack.input_ids_S, pack.layout).view(-1, 2).unbind(1)
        loss, stats = bradley_terry_loss(chosen_n, rejected_n)
        return {name: share_of(pack, batch) * value for name, value in {"loss": loss, **stats}.items()}

    return metrics
