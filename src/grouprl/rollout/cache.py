"""The key/value cache of groups: one copy of a prompt's keys per group, and each completion's own keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from grouprl.models import TreeLayout


@dataclass(frozen=True)
class CacheShape:
    """The capacity of a cache."""

    layers: int
    kv_heads: int
    head_size: int
    groups: int  # prompts in the cache at once
    rows: int  # completions decoded at once
    prompt_tokens: int  # tokens of the longest prompt
    own_tokens: int  # tokens of the longest completion


class GroupCache:
    """Preallocated keys and values. Active groups and rows are kept at the front, so that slices need no copy."""

    def __init__(self, shape: CacheShape, device: torch.device, dtype: torch.dtype) -> None:
        s = shape
        prompt = (2, s.layers, s.groups, s.kv_heads, s.prompt_tokens, s.head_size)
        own = (2, s.layers, s.rows, s.kv_heads, s.own_tokens, s.head_size)
        self.shape = shape
        # Zeros instead of uninitialized memory: the weight of a masked key is 0, but 0 * NaN of its value is NaN.
        self.prompt_keys, self.prompt_values = torch.zeros(prompt, device=device, dtype=dtype)
        self.own_keys, self.own_values = torch.zeros(own, device=device, dtype=dtype)

    def move_groups(self, moves: Sequence[tuple[int, int]]) -> None:
        """Copies the prompts of group slots (from, to)."""
        source, target = torch.tensor(moves, device=self.prompt_keys.device).T
        for tensor in (self.prompt_keys, self.prompt_values):
            tensor[:, target] = tensor[:, source]

    def move_rows(self, moves: Sequence[tuple[int, int]], used: int) -> None:
        """Copies the first `used` own tokens of rows (from, to)."""
        source, target = torch.tensor(moves, device=self.own_keys.device).T
        for tensor in (self.own_keys, self.own_values):
            tensor[:, target, :, :used] = tensor[:, source, :, :used]


def pack_prompts(prompts: Sequence[tuple[int, ...]], device: torch.device) -> tuple[Tensor, TreeLayout, Tensor]:
    """Token ids [S] of packed prompts, their layout, and the index [P] in S of each prompt's last token."""
    lengths = tuple(map(len, prompts))
    ids_S = torch.tensor([token for prompt in prompts for token in prompt], device=device)
    tree = TreeLayout(lengths, ((),) * len(prompts), device)
    return ids_S, tree, (torch.tensor(lengths).cumsum(0) - 1).to(device)


@dataclass(frozen=True)
class PrefillLayout:
    """The layout of prompts, whose keys and values go to group slots first, first + 1, ..."""

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
    """One new token for each of n rows; each attends to its group's prompt, its own past and itself."""

    cache: GroupCache
    groups: int  # active group slots
    members: int  # most rows of a group
    prompt_tokens: int  # tokens of the longest active prompt
    own_tokens: int  # tokens of the longest active completion, including the new one
    place_n: Tensor  # group slot * members + member, of each row
    position_n: Tensor  # position of the new token within its completion
    bias: Tensor  # [n, 1, 1, prompt_tokens + own_tokens]: 0 for visible tokens, -inf for masked ones
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
        """Multiplies every row's [r, a] by its group's [a, b], group by group, so that each prompt is read once.

        left: [n, kv_heads, r, a]; right: [groups, kv_heads, a, b]; result: [n, kv_heads, r, b].
        """
        _, kv, r, a = left.shape
        grid = left.new_zeros(self.groups * self.members, kv, r, a)
        grid[self.place_n] = left
        by_group = grid.view(self.groups, self.members, kv, r, a).transpose(1, 2).reshape(self.groups, kv, -1, a)
        product = (by_group @ right).view(self.groups, kv, self.members, r, -1).transpose(1, 2)
        return product.reshape(self.groups * self.members, kv, r, -1)[self.place_n]
