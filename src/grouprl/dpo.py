"""Direct preference optimisation: a policy learns from preference pairs, without sampling (arXiv:2305.18290)."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel

from grouprl.algorithms import dpo_loss
from grouprl.config_supervised import DpoConfig
from grouprl.lab.terminal import Terminal
from grouprl.learner.forward import pack_logprobs
from grouprl.learner.packs import Pack, targets, to_grid
from grouprl.models import context_length, frozen_copy, load_model, load_tokenizer, resolve_device
from grouprl.preferences import load_preferences, refuse_longer
from grouprl.supervised import learn_preferences, model_folder, share_of
from grouprl.types import Batch


def dpo(config: DpoConfig) -> Path:
    """Trains a policy to prefer the chosen completions more than the frozen model that it starts from does.

    Returns:
        The folder of the trained policy, in Hugging Face layout.

    Raises:
        UserError: pairs that cannot be read or do not fit the model, or a run directory that is in use; nothing is
            written then.
    """
    model_folder(config)
    tokenizer = load_tokenizer(config.model.path)
    preferences = load_preferences(config.preferences, tokenizer)
    torch.set_num_threads(config.threads or torch.get_num_threads())
    policy = load_model(config.model.path, device=resolve_device(config.model.device))
    refuse_longer(preferences, context_length(policy))
    reference = frozen_copy(policy)

    def figures(batch: Batch, pack: Pack) -> dict[str, Tensor]:
        chosen_n, rejected_n = sequence_logprobs(policy, batch, pack)
        with torch.no_grad():
            ref_chosen_n, ref_rejected_n = sequence_logprobs(reference, batch, pack)
        loss, stats = dpo_loss(chosen_n, rejected_n, ref_chosen_n, ref_rejected_n, beta=config.beta)
        # The reference itself has no margin and orders no pair: this tells before from after.
        likelier = (chosen_n > rejected_n).float().mean()
        means = {"loss": loss, **stats, "chosen_likelier": likelier}
        return {name: share_of(pack, batch) * value for name, value in means.items()}

    return learn_preferences("dpo", policy, tokenizer, preferences, figures, config, Terminal())


def sequence_logprobs(model: PreTrainedModel, batch: Batch, pack: Pack) -> tuple[Tensor, Tensor]:
    """Log-probs of whole completions, [n] of the chosen and [n] of the rejected ones of a pack of pairs."""
    logprobs_C, _ = pack_logprobs(model, pack, targets(batch, pack), batch.sampling)
    chosen_n, rejected_n = to_grid(pack, logprobs_C).sum(1).view(-1, 2).unbind(1)
    return chosen_n, rejected_n
