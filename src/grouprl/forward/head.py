"""The output head: the output embedding, and what a model does to its logits after it."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from grouprl.forward.attention import capped


class _ChangedLogits(nn.Module):
    """Logits softcap * tanh(factor * W h / softcap); without a soft-cap factor * W h."""

    def __init__(self, embedding: nn.Module, factor: float, softcap: float | None) -> None:
        super().__init__()
        self.embedding, self._factor, self._softcap = embedding, factor, softcap

    @property
    def weight(self) -> Tensor:
        """[V, H]."""
        return self.embedding.weight  # type: ignore[return-value]

    def forward(self, hidden: Tensor) -> Tensor:
        """Logits [..., V] of hidden states [..., H]."""
        return capped(self.embedding(hidden) * self._factor, self._softcap)


def output_head(model: PreTrainedModel) -> nn.Module:
    """Maps hidden states [..., H] to the model's logits [..., V]; it has the `weight` of the output embedding."""
    embedding: nn.Module = model.get_output_embeddings()
    config: Any = model.config.get_text_config()
    # Cohere multiplies logits, Granite divides them, Falcon-H1 has a muP multiplier, Gemma 2 and 3n cap them.
    factor = (getattr(config, "logit_scale", None) or 1.0) * (getattr(config, "lm_head_multiplier", None) or 1.0)
    factor /= getattr(config, "logits_scaling", None) or 1.0
    softcap = getattr(config, "final_logit_softcapping", None)
    return embedding if factor == 1.0 and softcap is None else _ChangedLogits(embedding, factor, softcap)
