"""Attention over groups: a prompt is stored once, and each of its completions attends to it and to itself.

Any Hugging Face decoder runs on packed tokens. Its modules compute all per-token operations on [1, S]; the attention
implementation "grouprl", registered here, decides which tokens each token attends to. The caller passes a `Layout` to
each attention module as a keyword argument of the model's forward.
"""

from __future__ import annotations

from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel

from grouprl.models.llama_form import RotatingLayout, has_llama_form, llama_hidden_states
from grouprl.types import UserError

NAME = "grouprl"


class Layout(Protocol):
    """The rule by which the packed tokens of one forward pass attend to each other."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """Attention of one layer.

        Args:
            layer: index of the layer, for layouts that cache keys and values.
            query: [S, heads, d]; key, value: [S, kv_heads, d], with positions applied.
            scaling: multiplies the scores.

        Returns:
            [S, heads, d].
        """
        ...


def _grouprl_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    layout: Layout | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **unused: Any,
) -> tuple[Tensor, None]:
    """The attention function in Hugging Face's form: query [1, heads, S, d] -> [1, S, heads, d].

    Raises:
        UserError: no layout was given, or the model needs attention that layouts do not support.
    """
    if layout is None:
        raise UserError("expected a token layout for this forward pass, got none: call grouprl.models.hidden_states")
    unsupported = {"dropout": dropout or None, "softcap": softcap, "attention sinks": s_aux}
    asked = [name for name, value in unsupported.items() if value is not None]
    if sliding_window is not None and sliding_window < getattr(layout, "longest", sliding_window):
        asked.append(f"sliding window of {sliding_window} tokens, shorter than the longest sequence")
    if asked:
        raise UserError(
            f"expected plain causal attention, got a model with {', '.join(asked)}: choose another model, "
            "or shorter prompts and completions where the window is the reason"
        )
    attended = layout.attend(
        module.layer_idx,  # type: ignore[arg-type]
        query[0].transpose(0, 1),
        key[0].transpose(0, 1),
        value[0].transpose(0, 1),
        scaling,
    )
    return attended.unsqueeze(0), None


AttentionInterface.register(NAME, _grouprl_attention)


def hidden_states(model: PreTrainedModel, input_ids_S: Tensor, position_ids_S: Tensor, layout: Layout) -> Tensor:
    """Last hidden states [S, H] of packed tokens under a layout."""
    decoder = model.get_decoder()
    if has_llama_form(decoder):
        return llama_hidden_states(decoder, input_ids_S, position_ids_S, cast(RotatingLayout, layout))
    hidden: Tensor = decoder(
        input_ids=input_ids_S[None],
        position_ids=position_ids_S[None],
        use_cache=False,  # with a cache transformers misreads restarting positions (logit error 1.19)
        layout=layout,
    ).last_hidden_state[0]
    return hidden


def merged_attention(
    query: Tensor, prompt_key: Tensor, prompt_value: Tensor, own_key: Tensor, own_value: Tensor, bias: Tensor
) -> Tensor:
    """Softmax attention over two blocks of keys: the prompt's, shared by its group, and each completion's own.

    Args:
        query: [P, G, kv_heads, T, r, d], already scaled; r query heads share a key/value head.
        prompt_key, prompt_value: [P, kv_heads, L, d].
        own_key, own_value: [P, G, kv_heads, K, d].
        bias: added to the scores [P, G, T, L + K] (broadcast over heads): 0 for visible keys, -inf for masked ones.

    Returns:
        [P, G, kv_heads, T, r, d].
    """
    P, G, heads, T, r, d = query.shape
    L, K = prompt_key.shape[2], own_key.shape[3]
    on_prompt = query.transpose(1, 2).reshape(P, heads, G * T * r, d) @ prompt_key.mT
    on_own = query.reshape(P, G, heads, T * r, d) @ own_key.mT
    on_own = on_own.view(P, G, heads, T, r, K).transpose(1, 2)
    scores = torch.cat([on_prompt.view(P, heads, G, T, r, L), on_own], dim=-1)
    weights = torch.softmax(scores + bias[:, None, :, :, None], dim=-1)
    from_prompt = weights[..., :L].reshape(P, heads, G * T * r, L) @ prompt_value
    from_own = weights[..., L:].transpose(1, 2).reshape(P, G, heads, T * r, K) @ own_value
    return from_prompt.view(P, heads, G, T, r, d).transpose(1, 2) + from_own.view(query.shape)
