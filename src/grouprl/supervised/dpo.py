"""Direct preference optimisation: a policy learns from preference pairs, without sampling (arXiv:2305.18290)."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from grouprl.algorithms import dpo_loss
from grouprl.config.supervised import DpoConfig
from grouprl.learner.forward import pack_logprobs
from grouprl.learner.packs import Pack, targets, to_grid
from grouprl.models import frozen_copy, load_model
from grouprl.supervised.training import PackFigures, learn_preferences, share_of
from grouprl.types import Batch


def dpo(config: DpoConfig) -> Path:
    """Trains a policy to prefer the chosen completions by more than the frozen model that it starts from does.

    Returns, raises: see `grouprl.supervised.training.learn_preferences`.
    """

    def begin(_: PreTrainedTokenizerBase, device: torch.device) -> tuple[PreTrainedModel, PackFigures]:
        policy = load_model(config.model.path, device=device)
        return policy, dpo_figures(policy, frozen_copy(policy), beta=config.beta)

    return learn_preferences("dpo", config, begin)


def dpo_figures(policy: PreTrainedModel, reference: PreTrainedModel, *, beta: float) -> PackFigures:
    """What `dpo_loss` says of a pack of pairs, and how often the policy finds the chosen completion likelier."""

    def figures(batch: Batch, pack: Pack) -> dict[str, Tensor]:
        chosen_n, rejected_n = sequence_logprobs(policy, batch, pack)
        with torch.no_grad():
            ref_chosen_n, ref_rejected_n = sequence_logprobs(reference, batch, pack)
        loss, stats = dpo_loss(chosen_n, rejected_n, ref_chosen_n, ref_rejected_n, beta=beta)
        # Against itself the start model has no margin: only this measure tells before from after.
        likelier = (chosen_n > rejected_n).float().mean()
        means = {"loss": loss, **stats, "chosen_likelier": likelier}
        return {name: share_of(pack, batch) * value for name, value in means.items()}

    return figures


def sequence_logprobs(model: PreTrainedModel, batch: Batch, pack: Pack) -> tuple[Tensor, Tensor]:
    """Log-probs of whole completions: [n] of the chosen, [n] of the rejected ones of a pack of pairs."""
    logprobs_C, _ = pack_logprobs(model, pack, targets(batch, pack), batch.sampling)
    chosen_n, rejected_n = to_grid(pack, logprobs_C).sum(1).view(-1, 2).unbind(1)
    return chosen_n, rejected_n
