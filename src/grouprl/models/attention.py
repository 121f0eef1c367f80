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
        query: [P, G, T, kv_heads, r, d], already scaled; r query heads share a key/value head.
        prompt_key, prompt_value: [P, L, kv_heads, d].
        own_key, own_value: [P, G, K, kv_heads, d].
        bias: added to the scores [P, G, T, L + K] (broadcast over heads): 0 for visible keys, -inf for masked ones.

    Returns:
        [P, G, T, kv_heads, r, d].
    """
    P, G, T, heads, r, d = query.shape
    L, K = prompt_key.shape[1], own_key.shape[2]
    by_prompt = query.permute(0, 3, 1, 2, 4, 5).reshape(P, heads, G * T * r, d)
    by_row = query.permute(0, 1, 3, 2, 4, 5).reshape(P, G, heads, T * r, d)
    seen_prompt = by_prompt @ prompt_key.permute(0, 2, 3, 1)  # [P, heads, GTr, L]
    seen_own = by_row @ own_key.permute(0, 1, 3, 4, 2)  # [P, G, heads, Tr, K]
    scores = torch.cat(
        [
            seen_prompt.view(P, heads, G, T, r, L),
            seen_own.permute(0, 2, 1, 3, 4).reshape(P, heads, G, T, r, K),
        ],
        dim=-1,
    )
    weights = torch.softmax(scores + bias[:, None, :, :, None], dim=-1)
    prompt_weights, own_weights = weights[..., :L], weights[..., L:]
    from_prompt = prompt_weights.reshape(P, heads, G * T * r, L) @ prompt_value.transpose(1, 2)
    from_own = own_weights.permute(0, 2, 1, 3, 4, 5).reshape(P, G, heads, T * r, K) @ own_value.transpose(2, 3)
    return from_prompt.view(P, heads, G, T, r, d).permute(0, 2, 3, 1, 4, 5) + from_own.view(
        P, G, heads, T, r, d
    ).permute(0, 1, 3, 2, 4, 5)
