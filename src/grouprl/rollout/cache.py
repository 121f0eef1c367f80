"""The key/value cache of groups: a prompt's keys once per group, a completion's own keys per row."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from grouprl.models import TreeLayout


@dataclass(frozen=True)
class CacheShape:
    """How much a cache holds."""

    layers: int
    kv_heads: int
    head_size: int
    groups: int  # prompts held at once
    rows: int  # completions decoded at once
    prompt_tokens: int  # of the longest prompt
    own_tokens: int  # of the longest completion


class GroupCache:
    """Preallocated keys and values. Active groups and rows are kept at the front, so that slices need no copy."""

    def __init__(self, shape: CacheShape, device: torch.device, dtype: torch.dtype) -> None:
        s = shape
        prompt = (2, s.layers, s.groups, s.kv_heads, s.prompt_tokens, s.head_size)
        own = (2, s.layers, s.rows, s.kv_heads, s.own_tokens, s.head_size)
        self.shape = shape
        # Zeros, not garbage, in the prompts: a padded key is masked by -inf, but 0 * NaN of its value would stay.
        self.prompt_keys, self.prompt_values = torch.zeros(prompt, device=device, dtype=dtype)
        self.own_keys, self.own_values = torch.zeros(own, device=device, dtype=dtype)


@dataclass(frozen=True)
class PrefillLayout:
    """Prompts alone, whose keys and values are kept in group slots first, first + 1, ..."""

    tree: TreeLayout
    cache: GroupCache
    first: int

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt."""
        return self.tree.longest

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """See `Layout.attend`."""
        index_PL = self.tree.prompt_index_PL
        slots = slice(self.first, self.first + index_PL.shape[0])
        for kept, new in ((self.cache.prompt_keys, key), (self.cache.prompt_values, value)):
            kept[layer, slots, :, : index_PL.shape[1]] = new[index_PL].transpose(1, 2).to(kept.dtype)
        return self.tree.attend(layer, query, key, value, scaling)


@dataclass(frozen=True)
class DecodeLayout:
    """One new token for each of n rows; each sees its group's prompt, its own past and itself."""

    cache: GroupCache
    groups: int  # active group slots
    members: int  # most rows a group can have
    prompt_tokens: int  # of the longest active prompt
    own_tokens: int  # of the longest active completion, the new token included
    place_n: Tensor  # group slot * members + member, of each row
    position_n: Tensor  # of the new token within its completion
    bias: Tensor  # [n, 1, 1, prompt_tokens + own_tokens]: 0 where seen, -inf where not
    longest: int  # tokens of the longest prompt with its completion

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """See `Layout.attend`."""
        cache, (n, heads, d), kv = self.cache, query.shape, key.shape[1]
        rows, L, K = torch.arange(n, device=query.device), self.prompt_tokens, self.own_tokens
        cache.own_keys[layer, rows, :, self.position_n] = key.to(cache.own_keys.dtype)
        cache.own_values[layer, rows, :, self.position_n] = value.to(cache.own_values.dtype)
        query = (query * scaling).view(n, kv, heads // kv, d)
        scores = torch.cat(
            [
                self._with_prompts(query, cache.prompt_keys[layer, : self.groups, :, :L].transpose(-1, -2)),
                query @ cache.own_keys[layer, :n, :, :K].transpose(-1, -2),
            ],
            dim=-1,
        )
        weights = F.softmax(scores + self.bias, dim=-1)
        prompt_weights, own_weights = weights[..., :L], weights[..., L:]
        attended: Tensor = own_weights @ cache.own_values[layer, :n, :, :K]
        attended = attended + self._with_prompts(prompt_weights, cache.prompt_values[layer, : self.groups, :, :L])
        return attended.reshape(n, heads, d)

    def _with_prompts(self, left: Tensor, right: Tensor) -> Tensor:
        """Product of every row's [r, a] with its group's [a, b]; rows meet at their group, so its prompt is read once.

        left: [n, kv_heads, r, a]; right: [groups, kv_heads, a, b]; result: [n, kv_heads, r, b].
        """
        _, kv, r, a = left.shape
        grid = left.new_zeros(self.groups * self.members, kv, r, a)
        grid[self.place_n] = left
        by_group = grid.view(self.groups, self.members, kv, r, a).transpose(1, 2).reshape(self.groups, kv, -1, a)
        product = (by_group @ right).view(self.groups, kv, self.members, r, -1).transpose(1, 2)
        return product.reshape(self.groups * self.members, kv, r, -1)[self.place_n]
