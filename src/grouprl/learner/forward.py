"""Forward passes over a pack: log-probs and entropies of the policy, values of a critic."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn
from transformers import PreTrainedModel

from grouprl.learner.packs import Pack
from grouprl.models import hidden_states, token_logprobs
from grouprl.types import Sampling


@dataclass(frozen=True)
class Forward:
    """The output of a model for a pack's C completion tokens, in packed order."""

    logprobs_C: Tensor
    entropies_C: Tensor
    hidden_CH: Tensor  # hidden states that predict the tokens


def pack_forward(
    model: PreTrainedModel, pack: Pack, token_ids_C: Tensor, sampling: Sampling, *, entropy_gradient: bool = False
) -> Forward:
    """Computes log-probs and entropies of the pack's completion tokens under `sampling`."""
    hidden_CH = pack_hidden(model, pack)
    head: nn.Module = model.get_output_embeddings()
    logprobs_C, entropies_C = token_logprobs(head, hidden_CH, token_ids_C, sampling, entropy_gradient=entropy_gradient)
    return Forward(logprobs_C, entropies_C, hidden_CH)


def pack_logprobs(model: PreTrainedModel, pack: Pack, token_ids_C: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """Returns ([C] log-probs, [C] entropies) of the completion tokens of a pack, in packed order."""
    forward = pack_forward(model, pack, token_ids_C, sampling)
    return forward.logprobs_C, forward.entropies_C


def pack_hidden(model: PreTrainedModel, pack: Pack) -> Tensor:
    """Returns the [C, H] hidden states that predict the pack's completion tokens."""
    hidden_SH = hidden_states(model, pack.input_ids_S, pack.layout.position_ids_S, pack.layout)
    return hidden_SH.index_select(0, pack.predictors_C)
