"""Attention over groups: a prompt is stored once, and each of its completions attends to it and to itself.

Any Hugging Face decoder runs on packed tokens. Its modules compute all per-token operations on [1, S]; the attention
implementation "grouprl", registered here, decides which tokens each token attends to. The caller passes a `Layout` to
each attention module as a keyword argument of the model's forward.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from grouprl.forward.compiled import kernels
from grouprl.forward.experts import noted_in_order
from grouprl.forward.products import equal_rows, padded_rows, product_sizes
from grouprl.forward.unpacked import unpacked_hidden_states
from grouprl.types import UserError

NAME, _NOTES = "grouprl", "grouprl_notes"
_BLOCK = 64  # keys


@dataclass(frozen=True, eq=False)
class Rule:
    """What a layer computes from queries, keys and values: softmax of scaled scores over the past, or a variant."""

    scaling: float  # multiplies the scores
    window: int | None = None  # a token sees this many tokens, itself included; None = all before it
    softcap: float | None = None  # scores become softcap * tanh(score / softcap): Gemma 2, arXiv:2408.00118, section 2
    sinks: Tensor | None = None  # [heads] scores of a key without a value: GPT-OSS, arXiv:2508.10925, section 2.2

    @property
    def plain(self) -> bool:
        """Whether nothing but the scaling is asked for."""
        return self.window is None and self.softcap is None and self.sinks is None


class Layout(Protocol):
    """The rule by which the packed tokens of one forward pass attend to each other."""

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence."""
        ...

    @property
    def size(self) -> int:
        """S; packed tokens after these are padding, which is not attended to and gets zeros."""
        ...

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, rule: Rule) -> Tensor:
        """Attention of one layer.

        Args:
            layer: index of the layer, for layouts that cache keys and values.
            query: [S, heads, d]; key, value: [S, kv_heads, d], with positions applied.
            rule: of the layer; a window is shorter than `longest`.

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
        UserError: no layout was given, or dropout was asked for.
    """
    if layout is None:
        raise UserError("expected a token layout for this forward pass, got none: call grouprl.models.hidden_states")
    if dropout:
        raise UserError(f"expected attention without dropout, got dropout={dropout}: put the model into eval mode")
    size = layout.size
    window = sliding_window if sliding_window is not None and sliding_window < layout.longest else None
    parts = query[0].transpose(0, 1)[:size], key[0].transpose(0, 1)[:size], value[0].transpose(0, 1)[:size]
    attended = layout.attend(
        module.layer_idx,  # type: ignore[arg-type]
        *parts,
        Rule(scaling, window, softcap, s_aux),
    )
    return F.pad(attended, (0, 0, 0, 0, 0, query.shape[2] - len(attended))).unsqueeze(0), None


AttentionInterface.register(NAME, _grouprl_attention)


def is_packed(model: Any) -> bool:
    """Whether the model's layers attend by layouts; if not, each sequence is a row of its own, see `unpacked`."""
    return model.get_decoder().config._attn_implementation == NAME  # type: ignore[no-any-return]


def hidden_states(model: PreTrainedModel, input_ids_S: Tensor, position_ids_S: Tensor, layout: Layout) -> Tensor:
    """Last hidden states [S, H] of packed tokens under a layout; of a model that is not packed, under a tree."""
    decoder: Any = model.get_decoder()
    if not is_packed(model):
        return unpacked_hidden_states(decoder, input_ids_S, layout)
    compiled = kernels()
    if compiled is not None and compiled.reads(decoder):
        return compiled.hidden_states(decoder, input_ids_S, position_ids_S, layout)
    return packed_states(decoder, decoder, input_ids_S, position_ids_S, layout)


def packed_states(
    decoder: Any, read: Callable[..., Any], input_ids_S: Tensor, position_ids_S: Tensor, layout: Layout
) -> Tensor:
    """Last hidden states [S, H] of a decoder that attends by layouts; on a CPU its products have enough rows.

    `read`: the decoder, or with copies of its weights.
    """
    count, padding = len(input_ids_S), 0
    if input_ids_S.device.type == "cpu":
        plain = decoder.get_input_embeddings().weight.dtype
        dtype = torch.bfloat16 if torch.is_autocast_enabled("cpu") else plain
        padding = padded_rows(count, dtype, product_sizes(decoder), decoding=count < 64) - count
    with noted_in_order(torch.arange(count, device=input_ids_S.device)):
        hidden: Tensor = read(
            input_ids=F.pad(input_ids_S, (0, padding))[None],
            position_ids=F.pad(position_ids_S, (0, padding))[None],
            use_cache=False,  # with a cache transformers misreads restarting positions (logit error 1.19)
            layout=layout,
        ).last_hidden_state[0, :count]
    return hidden


class AttentionLayer(NamedTuple):
    """What a layer passes to its attention, whatever the configuration calls it."""

    kv_heads: int
    key_size: int
    value_size: int
    window: int | None  # what the layer asks of its attention function
    masked: float | None  # window of the mask in the model's own forward pass; inf = none, None = not known


def _note_layer(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    notes: dict[int, AttentionLayer],
    sliding_window: int | None = None,
    **unused: Any,
) -> tuple[Tensor, None]:
    """Notes what a layer passes instead of attending."""
    masked = (0.0 if attention_mask is None else float(attention_mask.flatten()[0])) or None
    layer = AttentionLayer(key.shape[1], key.shape[3], value.shape[3], sliding_window, masked)
    notes[module.layer_idx] = layer  # type: ignore[index]
    return query.new_zeros(1, 1, query.shape[1], value.shape[3]), None


def _note_mask(
    q_length: int, kv_length: int, mask_function: Any, local_size: int | None = None, **unused: Any
) -> Tensor:
    """In place of a mask the tokens that its last row sees: the window; inf = all, 0 = another rule than a window."""
    seen = float("inf")
    if local_size is not None:
        newest, oldest = torch.tensor(local_size), torch.tensor(1)
        is_window = mask_function(0, 0, newest, oldest) and not mask_function(0, 0, newest, oldest - 1)
        seen = float(local_size) if is_window else 0.0
    return torch.full((1, 1, q_length, kv_length), seen)


AttentionInterface.register(_NOTES, _note_layer)
AttentionMaskInterface.register(_NOTES, _note_mask)


@torch.no_grad()
def attention_layers(model: PreTrainedModel) -> list[AttentionLayer]:
    """The attention layers of a packed model, by one forward pass of one token."""
    decoder: Any = model.get_decoder()
    if not hasattr(decoder, "_grouprl_layers"):  # asked first when the model is loaded
        notes: dict[int, AttentionLayer] = {}
        token = torch.zeros(1, 1, dtype=torch.long, device=model.get_input_embeddings().weight.device)
        model.set_attn_implementation(_NOTES)
        try:
            decoder(input_ids=token, position_ids=token, use_cache=False, notes=notes)
        finally:
            model.set_attn_implementation(NAME)
        decoder._grouprl_layers = [notes[layer] for layer in sorted(notes)]
    return decoder._grouprl_layers  # type: ignore[no-any-return]


def merged_attention(
    query: Tensor,
    prompt_key: Tensor,
    prompt_value: Tensor,
    own_key: Tensor,
    own_value: Tensor,
    bias: Tensor,
    rule: Rule,
) -> Tensor:
    """Softmax attention over two blocks of keys: the prompt's, shared by its group, and each completion's own.

    Args:
        query: [P, G, kv_heads, T, r, d], already scaled; r query heads share a key/value head.
        prompt_key, prompt_value: [P, kv_heads, L, d].
        own_key, own_value: [P, G, kv_heads, K, d].
        bias: added to the scores [P, G, T, L + K] (broadcast over heads): 0 for visible keys, -inf for masked ones.
        rule: its soft-cap and sinks are applied here; its window is in the bias.

    Returns:
        [P, G, kv_heads, T, r, d].
    """
    P, G, heads, T, r, d = query.shape
    L, K = prompt_key.shape[2], own_key.shape[3]
    on_prompt = query.transpose(1, 2).reshape(P, heads, G * T * r, d) @ prompt_key.mT
    on_own = query.reshape(P, G, heads, T * r, d) @ own_key.mT
    on_own = on_own.view(P, G, heads, T, r, K).transpose(1, 2)
    scores = capped(torch.cat([on_prompt.view(P, heads, G, T, r, L), on_own], dim=-1), rule.softcap)
    sinks = None if rule.sinks is None else rule.sinks.view(heads, 1, 1, r, 1)
    weights = softmax_beside(scores + bias[:, None, :, :, None], sinks)
    from_prompt = weights[..., :L].reshape(P, heads, G * T * r, L) @ prompt_value
    from_own = weights[..., L:].transpose(1, 2).reshape(P, G, heads, T * r, K) @ own_value
    return from_prompt.view(P, heads, G, T, r, d).transpose(1, 2) + from_own.view(query.shape)


def exact_attention(query: Tensor, key: Tensor, value: Tensor, last_nT: Tensor, rule: Rule) -> Tensor:
    """Attention of sequences, whose bits depend on nothing but the tokens that each query sees: for CPUs.

    Products have one size, that of a block of keys, and enough rows; sums go from block to block.

    Args:
        query: [n, T, heads, d] float32, not scaled.
        key, value: [n, K, kv_heads, d] float32.
        last_nT: the key that is each query's own token, the last one that it sees.
        rule: of the layer; a window is shorter than the sequence.

    Returns:
        [n, T, heads, d].
    """
    (n, T, heads, d), kv = query.shape, key.shape[2]
    blocks = -(-key.shape[1] // _BLOCK)
    padding = (0, 0, 0, 0, 0, blocks * _BLOCK - key.shape[1])
    key = F.pad(key, padding).view(n, blocks, _BLOCK, kv, -1).permute(0, 3, 1, 2, 4)
    value = F.pad(value, padding).view(n, blocks, _BLOCK, kv, -1).permute(0, 3, 1, 2, 4)
    r = heads // kv
    enough = equal_rows(frozenset({(d, _BLOCK, 2), (_BLOCK, value.shape[-1], 2)}), query.dtype)
    rows = -(-max(T * r, enough.fewest) // enough.multiple) * enough.multiple
    query = (query * rule.scaling).view(n, T, kv, r, d).transpose(1, 2).reshape(n, kv, 1, T * r, d)
    query = F.pad(query, (0, 0, 0, rows - T * r))
    scores = (query @ key.contiguous().mT).transpose(2, 3).reshape(n, kv, rows, -1)[:, :, : T * r]
    place_K = torch.arange(scores.shape[-1])
    seen = place_K <= last_nT[..., None]
    if rule.window is not None:
        seen = seen & (place_K > last_nT[..., None] - rule.window)
    bias = torch.zeros(seen.shape).masked_fill_(~seen, -torch.inf)[:, None, :, None]
    scores = (capped(scores, rule.softcap).view(n, kv, T, r, -1) + bias).view(n, kv, T * r, -1)
    if rule.sinks is not None:  # first, where they meet the same keys whatever the padding is
        sinks = rule.sinks.to(scores.dtype).view(kv, 1, r).expand(n, kv, T, r).reshape(n, kv, -1, 1)
        scores = torch.cat([sinks, scores], -1)
    weights = torch.softmax(scores, -1)[..., -place_K.numel() :]
    weights = F.pad(weights, (0, 0, 0, rows - T * r)).view(n, kv, rows, blocks, _BLOCK).transpose(2, 3)
    parts = (weights.contiguous() @ value.mT.contiguous().mT)[..., : T * r, :].unbind(2)
    attended = parts[0]
    for part in parts[1:]:
        attended = attended + part
    return attended.view(n, kv, T, r, -1).transpose(1, 2).reshape(n, T, heads, -1)


def capped(scores: Tensor, softcap: float | None) -> Tensor:
    """Scores or logits of any shape under a soft-cap; None = as they are."""
    return scores if softcap is None else softcap * torch.tanh(scores / softcap)


def softmax_beside(scores: Tensor, sinks: Tensor | None) -> Tensor:
    """Attention weights [..., K] of scores [..., K] beside sinks [..., 1], which take weight but have no value."""
    if sinks is None:
        return torch.softmax(scores, dim=-1)
    beside = sinks.to(scores.dtype).expand(*scores.shape[:-1], 1)
    return torch.softmax(torch.cat([scores, beside], dim=-1), dim=-1)[..., :-1]
