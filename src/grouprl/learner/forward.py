"""Log-probs of a pack's completion tokens under a model."""

from __future__ import annotations

from torch import Tensor, nn
from transformers import PreTrainedModel

from grouprl.learner.packs import Pack
from grouprl.models import hidden_states, token_logprobs
from grouprl.types import Sampling


def pack_logprobs(model: PreTrainedModel, pack: Pack, token_ids_C: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """([C] log-probs, [C] entropies) of the completion tokens of a pack, in packed order."""
    hidden_SH = hidden_states(model, pack.input_ids_S, pack.layout.position_ids_S, pack.layout)
    head: nn.Module = model.get_output_embeddings()
    return token_logprobs(head, hidden_SH.index_select(0, pack.predictors_C), token_ids_C, sampling)
