"""Direct preference optimization trains a policy on preference pairs, without sampling (arXiv:2305.18290)."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from grouprl.algorithms import dpo_loss
from grouprl.config.supervised import DpoConfig
from grouprl.learner.packs import Pack, pack_forward, to_grid
from grouprl.models import frozen_copy, load_model
from grouprl.supervised.training import PackMetrics, learn_preferences, share_of
from grouprl.types import Batch


def dpo(config: DpoConfig) -> Path:
    """Trains a policy to prefer the chosen completions by more than its frozen start model does.

    Returns and errors: see `grouprl.supervised.training.learn_preferences`.
    """

    def begin(_: PreTrainedTokenizerBase, device: torch.device) -> tuple[PreTrainedModel, PackMetrics]:
        policy = load_model(config.model.path, device=device)
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
        return {name: share_of(pack, batch) * value for name, value in means.items()}

    return metrics


def sequence_logprobs(model: PreTrainedModel, batch: Batch, pack: Pack) -> tuple[Tensor, Tensor]:
    """Log-probs of whole completions in a pack of pairs: [n] of the chosen ones, [n] of the rejected ones."""
    logprobs_C = pack_forward(model, pack, batch.sampling).logprobs_C
    chosen_n, rejected_n = to_grid(pack, logprobs_C).sum(1).view(-1, 2).unbind(1)
    return chosen_n, rejected_n
