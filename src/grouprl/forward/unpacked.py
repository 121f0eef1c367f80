"""Models whose layers do not attend by layouts: each completion with its prompt is a row, in transformers' own hands.

Layers that keep a state between tokens (Mamba, linear attention), or have an attention of their own, run as they are.
Slow: the learner reads the prompt again for every completion. Right: padding stands after a row's tokens, where a
causal model does not see it.
"""

from __future__ import annotations

import inspect
from typing import Any, cast

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

from grouprl.forward.experts import noted_in_order

_STATES = ("past_key_values", "cache_params", "state")  # names of the argument for what was read


def unpacked_hidden_states(decoder: Any, input_ids_S: Tensor, layout: Any) -> Tensor:
    """Last hidden states [S, H] of the packed tokens of a `TreeLayout`.

    A prompt's states are those of its first row.
    """
    starts, lengths = layout.tree
    rows = []
    for group_starts, group_lengths in zip(starts.tolist(), lengths.tolist(), strict=True):
        prompt, *completions = zip(group_starts, group_lengths, strict=True)
        pairs = [[prompt, span] for span in completions if span[1]]
        for spans in pairs or [[prompt]]:  # a group may be a prompt alone
            rows.append(torch.cat([torch.arange(start, start + tokens) for start, tokens in spans]))
    width = max(map(len, rows))
    index_NT = torch.stack([torch.cat([row, row.new_full((width - len(row),), -1)]) for row in rows])
    ids_NT = input_ids_S[index_NT.clamp(min=0).to(input_ids_S.device)]
    # Where each packed token first stands in the rows.
    index = index_NT.flatten()
    is_token = index >= 0
    unset_S = torch.full((len(input_ids_S),), len(index))
    first_S = unset_S.scatter_reduce(0, index[is_token], torch.arange(len(index))[is_token], "amin").to(ids_NT.device)
    with noted_in_order(first_S):
        hidden_NTH = decoder(input_ids=ids_NT, use_cache=False).last_hidden_state
    return cast(Tensor, hidden_NTH.flatten(0, 1).index_select(0, first_S))


class _AllTokens(DynamicLayer):  # type: ignore[misc]
    is_sliding = True  # by which masks find the layer


def read_on(decoder: Any, ids_NT: Tensor, state: Any = None) -> tuple[Tensor, Any]:
    """Last hidden states [N, H] after more tokens of each row, and the state after them; None = nothing was read yet.

    A state may change in place. It keeps all tokens, and the model's masks choose among them: transformers would drop
    those outside of `sliding_window`, which many architectures ignore in a full forward pass.
    """
    parameters = inspect.signature(decoder.forward).parameters
    name = next(name for name in _STATES if name in parameters)
    if (
        state is None
        and {"sliding_window", "attention_chunk_size"} & vars(decoder.config).keys()
        and name == _STATES[0]
    ):
        state = DynamicCache(config=decoder.config)
        state.layers = [_AllTokens() if type(layer) is DynamicSlidingWindowLayer else layer for layer in state.layers]
    output = decoder(input_ids=ids_NT, use_cache=True, **{name: state})
    return output.last_hidden_state[:, -1], getattr(output, name)


def picked_rows(state: Any, index_N: Tensor) -> Any:
    """The state of these rows, each any number of times."""
    if isinstance(state, list):  # RWKV's
        return [part.index_select(0, index_N) for part in state]
    state.reorder_cache(index_N)
    return state
