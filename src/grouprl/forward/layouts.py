"""The tree layout: packed groups, each a prompt followed by completions that attend to it and to themselves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from grouprl.forward.attention import Rule, exact_attention, merged_attention
from grouprl.forward.devices import traits_of

_Block = tuple[Tensor, Tensor] | None
"""Keys and values of the prefix in one layer, [F, kv_heads, d]; None = there is no prefix."""


@dataclass(frozen=True, eq=False)
class Prefix:
    """What attention reads of the tokens that begin every prompt, for each layer; `models.prefix` computes it once."""

    keys: Sequence[Tensor]  # of each layer: [F, kv_heads, d] float32, positions applied
    values: Sequence[Tensor]


@dataclass(frozen=True)
class TreeLayout:
    """Packed groups in the order prompt, completion 0, completion 1, ... (positions restart after the prompt).

    Worked example: one group with a prompt of 2 tokens and completions of 2 and 1 is packed into S = 5 tokens with
    positions 0 1 2 3 2. Token 4 (the second completion) attends to tokens 0, 1 and 4.

    Of prompts that begin with the same F tokens these may be outside of the pack: positions then start at F, and all
    tokens attend to the keys and values of the prefix.
    """

    prompt_lengths: tuple[int, ...]  # tokens of each of P prompts, without the prefix
    completion_lengths: tuple[tuple[int, ...], ...]  # tokens of each group's completions; () = only the prompt
    device: torch.device
    before: int = 0  # F, tokens of the prefix
    prefix: Prefix | None = None  # needed to attend where there is one

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt with its longest completion, and of the prefix."""
        return self.before + max(
            prompt + max(lengths, default=0)
            for prompt, lengths in zip(self.prompt_lengths, self.completion_lengths, strict=True)
        )

    @property
    def size(self) -> int:
        """S, the number of packed tokens."""
        return sum(self.prompt_lengths) + sum(map(sum, self.completion_lengths))

    @cached_property
    def tree(self) -> tuple[Tensor, Tensor]:
        """[P, 1 + G] starts in S and lengths of each group's prompt and completions; length 0 = none, on the CPU."""
        widest = max(map(len, self.completion_lengths))
        pairs = zip(self.prompt_lengths, self.completion_lengths, strict=True)
        lengths = torch.tensor([[prompt, *parts, *[0] * (widest - len(parts))] for prompt, parts in pairs])
        return lengths.flatten().cumsum(0).view_as(lengths) - lengths, lengths

    @cached_property
    def _tokens(self) -> tuple[Tensor, Tensor, Tensor]:
        """Group, branch (0 = prompt, 1 = first completion) and place in its branch of each packed token, [S] each."""
        starts, lengths = (grid.flatten() for grid in self.tree)
        span_S = torch.arange(len(lengths)).repeat_interleave(lengths)
        place_S, branches = torch.arange(len(span_S)) - starts[span_S], self.tree[1].shape[1]
        return span_S // branches, span_S % branches, place_S

    @cached_property
    def position_ids_S(self) -> Tensor:
        """Position of each token: prompts continue the prefix, completions their prompt."""
        group_S, branch_S, place_S = self._tokens
        return (self.before + place_S + torch.where(branch_S > 0, self.tree[1][group_S, 0], 0)).to(self.device)

    @cached_property
    def prompt_index_PL(self) -> Tensor:
        """Index in S of each prompt token; padding is 0."""
        starts, lengths = self.tree
        return _index_grid(starts[:, 0], lengths[:, 0]).to(self.device)

    @cached_property
    def completion_index_PGT(self) -> Tensor:
        """Index in S of each completion token; padding is 0."""
        starts, lengths = self.tree
        return _index_grid(starts[:, 1:], lengths[:, 1:]).to(self.device)

    @cached_property
    def _slot_S(self) -> Tensor:
        """Index of each packed token in the flattened [P, L] prompts followed by the [P, G, T] completions."""
        group_S, branch_S, place_S = self._tokens
        P, L = self.prompt_index_PL.shape
        _, G, T = self.completion_index_PGT.shape
        row_S = P * L + (group_S * G + branch_S - 1) * T
        return (place_S + torch.where(branch_S == 0, group_S * L, row_S)).to(self.device)

    @cached_property
    def _biases(self) -> dict[int | None, Tensor]:
        return {}  # of each window

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, rule: Rule) -> Tensor:
        """Attention of a layer: the packed queries [S, heads, d] to the keys that each token may see."""
        before = None
        if self.prefix is not None:
            before = self.prefix.keys[layer].to(key.dtype), self.prefix.values[layer].to(value.dtype)
        if traits_of(query.device.type).has_flex and (any(self.completion_lengths) or before is not None):
            return self._flex(query, key, value, rule, before)
        attended = self._attend_prompts(query, key, value, rule, before).flatten(0, 1)
        if any(self.completion_lengths):
            completions = self._attend_completions(query, key, value, rule, before)
            attended = torch.cat([attended, completions.flatten(0, 2)])
        return _take(attended, self._slot_S)

    def attend_exactly(self, layer: int, query: Tensor, key: Tensor, value: Tensor, rule: Rule) -> Tensor:
        """The same for a single prompt, by `exact_attention`; keys and values are rounded as a cache keeps them."""
        cache_dtype = torch.bfloat16 if torch.is_autocast_enabled("cpu") else key.dtype
        key = key.to(cache_dtype).to(torch.promote_types(key.dtype, torch.float32))
        value = value.to(cache_dtype).to(torch.promote_types(value.dtype, torch.float32))
        if self.prefix is not None:
            key, value = torch.cat([self.prefix.keys[layer], key]), torch.cat([self.prefix.values[layer], value])
        last_1T = torch.arange(self.before, self.before + self.size)[None]
        return exact_attention(query.float()[None], key[None], value[None], last_1T, rule)[0].to(query.dtype)

    def _attend_prompts(self, query: Tensor, key: Tensor, value: Tensor, rule: Rule, before: _Block) -> Tensor:
        # Padding is right of the prompt, where the causal mask hides it.
        q, k, v = (_take(tensor, self.prompt_index_PL).transpose(1, 2) for tensor in (query, key, value))
        if rule.plain and before is None:
            gqa = q.shape[1] != k.shape[1]
            return F.scaled_dot_product_attention(
                q, k, v, is_causal=True, scale=rule.scaling, enable_gqa=gqa
            ).transpose(1, 2)
        P, L = self.prompt_index_PL.shape  # each as the only completion of the prefix, or of no prompt
        keys, values = (
            self._beside(prefix, part[:, :, :0]) for prefix, part in zip(before or (None, None), (k, v), strict=True)
        )
        bias = _bias_of(_past(L, rule.window, self.device, self.before)).to(query.dtype)
        grouped = (q * rule.scaling).reshape(P, k.shape[1], -1, L, q.shape[3]).transpose(2, 3)[:, None]
        attended = merged_attention(grouped, keys, values, k[:, None], v[:, None], bias[None, None], rule)
        return attended[:, 0].permute(0, 2, 1, 3, 4).reshape(P, L, *query.shape[1:])

    @staticmethod
    def _beside(prefix: Tensor | None, prompts: Tensor) -> Tensor:
        """[P, kv_heads, F + L, d]: keys or values of the prefix, [F, kv_heads, d], before those of each prompt."""
        if prefix is None:
            return prompts
        return torch.cat([prefix.transpose(0, 1).expand(len(prompts), -1, -1, -1), prompts], dim=2)

    def _attend_completions(self, query: Tensor, key: Tensor, value: Tensor, rule: Rule, before: _Block) -> Tensor:
        index, (_, heads, d), kv_heads = self.completion_index_PGT, query.shape, key.shape[1]
        first = before or (None, None)
        if rule.window not in self._biases:  # to prefix, unpadded tokens of the prompt, and the completion's past
            L, T = self.before + self.prompt_index_PL.shape[1], self.completion_index_PGT.shape[2]
            lengths_P = self.before + torch.tensor(self.prompt_lengths, device=self.device)
            prompt_PTL = (torch.arange(L, device=self.device) < lengths_P[:, None])[:, None].expand(-1, T, -1)
            if rule.window is not None:
                prompt_PTL = prompt_PTL & (_ages(T, L, self.device) + lengths_P[:, None, None] < rule.window)
            seen = torch.cat([prompt_PTL, _past(T, rule.window, self.device).expand(len(lengths_P), -1, -1)], dim=-1)
            self._biases[rule.window] = _bias_of(seen)[:, None]
        attended = merged_attention(
            (_take(query, index) * rule.scaling).view(*index.shape, kv_heads, heads // kv_heads, d).transpose(2, 3),
            self._beside(first[0], _take(key, self.prompt_index_PL).transpose(1, 2)),
            self._beside(first[1], _take(value, self.prompt_index_PL).transpose(1, 2)),
            _take(key, index).transpose(2, 3),
            _take(value, index).transpose(2, 3),
            self._biases[rule.window].to(query.dtype),
            rule,
        )
        return attended.transpose(2, 3).reshape(*index.shape, heads, d)

    def sees(self, window: int | None) -> Callable[[Any, Any, Tensor, Tensor], Tensor]:
        """The tree mask for flex_attention, (batch, head, query, key) -> bool: whether token query attends to key.

        Keys 0 to F - 1 are those of the prefix.
        """
        group_S, branch_S, _ = (column.to(self.device) for column in self._tokens)
        position_S, before = self.position_ids_S, self.before

        def mask(_batch: Any, _head: Any, query: Tensor, key: Tensor) -> Tensor:
            index = (key - before).clamp(min=0) if before else key
            related = (branch_S[index] == 0) | (branch_S[index] == branch_S[query])
            seen = (group_S[index] == group_S[query]) & related & (index <= query)
            if before:
                seen = seen | (key < before)
            if window is None:
                return seen
            position = torch.where(key < before, key, position_S[index]) if before else position_S[index]
            return seen & (position_S[query] - position < window)

        return mask

    @cached_property
    def _block_masks(self) -> dict[int | None, Any]:
        return {}  # of each window

    def _flex(self, query: Tensor, key: Tensor, value: Tensor, rule: Rule, before: _Block = None) -> Tensor:
        from torch.nn.attention.flex_attention import AuxRequest, create_block_mask

        if before is not None:
            key, value = torch.cat([before[0], key]), torch.cat([before[1], value])
        # Under autocast rotations leave queries and keys in float32; flex_attention takes one dtype.
        q, k, v = (tensor.to(value.dtype).transpose(0, 1)[None] for tensor in (query, key, value))
        score_mod = None if rule.softcap is None else _cap(rule.softcap, q.device)
        if rule.window not in self._block_masks:
            self._block_masks[rule.window] = create_block_mask(
                self.sees(rule.window), None, None, self.size, self.before + self.size, device=self.device
            )
        mask, flex = self._block_masks[rule.window], _compiled_flex()
        named = {"score_mod": score_mod, "block_mask": mask, "scale": rule.scaling, "enable_gqa": True}
        if rule.sinks is None:
            return flex(q, k, v, **named)[0].transpose(0, 1)  # type: ignore[no-any-return]
        attended, aux = flex(q, k, v, **named, return_aux=AuxRequest(lse=True))
        # A sink leaves this share of the weights for the values: exp(lse) / (exp(lse) + exp(sink)).
        share = torch.sigmoid(aux.lse - rule.sinks[:, None]).to(attended.dtype)
        return (attended * share[..., None])[0].transpose(0, 1)  # type: ignore[no-any-return]


@cache
def _cap(softcap: float, device: torch.device) -> Callable[..., Tensor]:
    """The soft-cap for flex_attention; one function of each cap, because it compiles each function anew.

    The cap is a tensor: a number that a function holds becomes a symbol when it is traced for all sizes, and the
    backward pass fails on its missing gradient (torch 2.13).
    """
    limit = torch.tensor(softcap, device=device)

    def cap(score: Tensor, _batch: Any, _head: Any, _query: Any, _key: Any) -> Tensor:
        return limit * torch.tanh(score / limit)

    return cap


def _ages(queries: int, keys: int, device: torch.device) -> Tensor:
    """[queries, keys] places of queries minus those of keys."""
    return torch.arange(queries, device=device)[:, None] - torch.arange(keys, device=device)


def _past(tokens: int, window: int | None, device: torch.device, before: int = 0) -> Tensor:
    """[tokens, before + tokens]: whether each of the last tokens of a sequence sees another one of it."""
    ages = _ages(tokens, before + tokens, device) + before
    return (ages >= 0) & (ages < (before + tokens if window is None else window))


def _bias_of(seen: Tensor) -> Tensor:
    return torch.zeros(seen.shape, device=seen.device).masked_fill(~seen, -torch.inf)


@cache
def _compiled_flex() -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=True)


def _take(tensor: Tensor, index: Tensor) -> Tensor:
    # Forward and backward take less than half the time of tensor[index] on a CPU.
    return tensor.index_select(0, index.flatten()).view(*index.shape, *tensor.shape[1:])


def _index_grid(starts: Tensor, lengths: Tensor) -> Tensor:
    """[..., longest] indices start + 0, 1, ...; padding is 0."""
    offsets = torch.arange(int(lengths.max()) if lengths.numel() else 0)
    return torch.where(offsets < lengths[..., None], starts[..., None] + offsets, 0)
