"""Reward-model training: a score that tells the chosen from the rejected completion of a pair."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from grouprl.algorithms import bradley_terry_loss
from grouprl.config_supervised import RewardModelConfig
from grouprl.lab.terminal import Terminal
from grouprl.learner.packs import Pack
from grouprl.models import context_length, load_tokenizer, resolve_device
from grouprl.models.reward_model import completion_scores, new_reward_model
from grouprl.preferences import load_preferences, refuse_longer
from grouprl.supervised import learn_preferences, model_folder, share_of
from grouprl.types import Batch


def train_reward_model(config: RewardModelConfig) -> Path:
    """Trains the decoder of a model, with a new score on top, to order the completions of preference pairs.

    Returns:
        The folder of the reward model, which transformers' AutoModelForSequenceClassification loads.

    Raises:
        UserError: pairs that cannot be read or do not fit the model, or a run directory that is in use; nothing is
            written then.
    """
    model_folder(config)
    tokenizer = load_tokenizer(config.model.path)
    preferences = load_preferences(config.preferences, tokenizer)
    torch.set_num_threads(config.threads or torch.get_num_threads())
    device = resolve_device(config.model.device)
    model = new_reward_model(config.model.path, tokenizer, seed=config.seed, device=device)
    refuse_longer(preferences, context_length(model))

    def figures(batch: Batch, pack: Pack) -> dict[str, Tensor]:
        scores_n = completion_scores(model, pack.input_ids_S, pack.layout)
        chosen_n, rejected_n = scores_n.view(-1, 2).unbind(1)
        loss, stats = bradley_terry_loss(chosen_n, rejected_n)
        return {name: share_of(pack, batch) * value for name, value in {"loss": loss, **stats}.items()}

    return learn_preferences("reward model", model, tokenizer, preferences, figures, config, Terminal())
