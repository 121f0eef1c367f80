"""The key/value cache of groups: one copy of a prompt's keys per group, and each completion's own keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from grouprl.forward.attention import Rule, capped, exact_attention, softmax_beside
from grouprl.forward.layouts import Prefix, TreeLayout


@dataclass(frozen=True)
class CacheShape:
    """The capacity of a cache."""

    layers: int
    kv_heads: int
    head_size: int
    groups: int  # prompts in the cache at once
    rows: int  # completions decoded at once
    prompt_tokens: int  # tokens of the longest prompt behind the prefix
    own_tokens: int  # tokens of the longest completion, or episode
    before: int = 0  # tokens of the prefix that begins every prompt


class GroupCache:
    """Preallocated keys and values. Active groups and rows are kept at the front, so that slices need no copy.

    The cache holds the prefix once; a prompt's slot holds the tokens after the prefix.
    """

    def __init__(self, shape: CacheShape, device: torch.device, dtype: torch.dtype) -> None:
        s = shape
        before = (2, s.layers, s.kv_heads, s.before, s.head_size)
        prompt = (2, s.layers, s.groups, s.kv_heads, s.prompt_tokens, s.head_size)
        row = (2, s.layers, s.rows, s.kv_heads, s.own_tokens, s.head_size)
        self.shape = shape
        # Zeros instead of uninitialized memory: the weight of a masked key is 0, but 0 * NaN of its value is NaN.
        self.prompt_keys, self.prompt_values = torch.zeros(prompt, device=device, dtype=dtype)
        self.own_keys, self.own_values = torch.zeros(row, device=device, dtype=dtype)
        self.prefix_keys, self.prefix_values = torch.zeros(before, device=device, dtype=dtype)

    def keep_prefix(self, prefix: Prefix) -> None:
        """Copies the keys and values of the prefix."""
        self.prefix_keys.copy_(torch.stack([*prefix.keys]).transpose(1, 2))
        self.prefix_values.copy_(torch.stack([*prefix.values]).transpose(1, 2))

    def load_prompt(self, slot: int, pairs: Tensor) -> None:
        """Fills a group slot with keys and values, [layers, 2, tokens, kv_heads, d]."""
        length = pairs.shape[2]
        self.prompt_keys[:, slot, :, :length] = pairs[:, 0].transpose(1, 2)
        self.prompt_values[:, slot, :, :length] = pairs[:, 1].transpose(1, 2)

    def load_row(self, row: int, pairs: Tensor) -> None:
        """Fills the first own tokens of a row; those of the rows before it stay."""
        length = pairs.shape[2]
        self.own_keys[:, row, :, :length] = pairs[:, 0].transpose(1, 2)
        self.own_values[:, row, :, :length] = pairs[:, 1].transpose(1, 2)

    def read_row(self, row: int, begin: int, end: int) -> Tensor:
        """Copies some own tokens of a row."""
        keys, values = self.own_keys[:, row, :, begin:end], self.own_values[:, row, :, begin:end]
        return torch.stack([keys, values], 1).transpose(2, 3)

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


def pack_prompts(
    prompts: Sequence[tuple[int, ...]], device: torch.device, before: int = 0, prefix: Prefix | None = None
) -> tuple[Tensor, TreeLayout, Tensor]:
    """Token ids [S] of packed prompts behind a prefix, their layout, and the index [P] in S of each last token."""
    lengths = tuple(len(prompt) - before for prompt in prompts)
    ids_S = torch.tensor([token for prompt in prompts for token in prompt[before:]], device=device)
    tree = TreeLayout(lengths, ((),) * len(prompts), device, before, prefix)
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

    @property
    def size(self) -> int:
        """Tokens of all prompts."""
        return self.tree.size

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, rule: Rule) -> Tensor:
        """Writes the prompts' keys and values into their slots, then attends as `TreeLayout.attend`."""
        index_PL = self.tree.prompt_index_PL
        slots = slice(self.first, self.first + index_PL.shape[0])
        for cached, new in ((self.cache.prompt_keys, key), (self.cache.prompt_values, value)):
            cached[layer, slots, :, : index_PL.shape[1]] = new[index_PL].transpose(1, 2).to(cached.dtype)
        return self.tree.attend(layer, query, key, value, rule)


@dataclass(frozen=True)
class StepSize:
    """The numbers that determine all shapes within a decode step."""

    rows: int
    groups: int  # group slots
    members: int  # most rows of a group
    prompt_tokens: int  # behind the prefix
    own_tokens: int
    longest: int  # tokens of the longest prompt with its completion


class DecodeLayout:
    """One new token for each of n rows, in shapes that depend only on `size`: lengths become masks.

    Each row attends to its group's prompt, its own past and itself. The softmax runs over one float32 array with the
    masked scores of prompt and own tokens: merging two softmaxes by their log-sum-exp would take two more passes.
    """

    def __init__(
        self,
        cache: GroupCache,
        size: StepSize,
        place_n: Tensor,
        prompt_n: Tensor,
        length_n: Tensor,
        *,
        exact: bool = False,
    ) -> None:
        """`place_n`, `prompt_n`, `length_n`: the columns of `Rows`; the lengths include the new token.

        `exact`: attend by `exact_attention`.
        """
        device = place_n.device
        self.longest, self.size, self._exact = size.longest, size.rows, exact
        self._cache, self._size = cache, size
        self._prompt_n, self._length_n = prompt_n, length_n
        self._biases: dict[int | None, Tensor] = {}  # of each window
        self._rows_n, self._position_n = torch.arange(size.rows, device=device), length_n - 1
        self._slot_n = (place_n // size.members).clamp(max=size.groups)  # size.groups = padding
        self._member_n = place_n % size.members

    def _bias(self, window: int | None) -> Tensor:
        """[n, 1, 1, F + L + K]: 0 for tokens of prefix, prompt and row that the new token sees, -inf for others."""
        if window not in self._biases:
            prompt_n1, length_n1, device = self._prompt_n[:, None], self._length_n[:, None], self._prompt_n.device
            place_L = torch.arange(self._cache.shape.before + self._size.prompt_tokens, device=device)
            place_K = torch.arange(self._size.own_tokens, device=device)
            on_prompt, on_own = place_L < prompt_n1, place_K < length_n1
            if window is not None:
                on_prompt = on_prompt & (place_L >= prompt_n1 + length_n1 - window)
                on_own = on_own & (place_K >= length_n1 - window)
            seen = torch.cat([on_prompt, on_own], dim=1)
            self._biases[window] = torch.zeros(seen.shape, device=device).masked_fill_(~seen, -torch.inf)[:, None, None]
        return self._biases[window]

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, rule: Rule) -> Tensor:
        """Appends the new tokens' keys and values to their rows, then attends: [n, heads, d]."""
        cache, (n, heads, d), kv = self._cache, query.shape, key.shape[1]
        F, L, K, groups = cache.shape.before, self._size.prompt_tokens, self._size.own_tokens, self._size.groups
        dtype = cache.own_keys.dtype
        cache.own_keys[layer, self._rows_n, :, self._position_n] = key.to(dtype)
        cache.own_values[layer, self._rows_n, :, self._position_n] = value.to(dtype)
        if self._exact:
            return self._attend_exactly(layer, query, rule)
        query = (query * rule.scaling).to(dtype).view(n, kv, heads // kv, d)
        on_prompt = self._with_prompts(query, cache.prompt_keys[layer, :groups, :, :L].transpose(-1, -2))
        on_own = query @ cache.own_keys[layer, :n, :, :K].transpose(-1, -2)
        parts = [on_prompt, on_own]
        if F:
            on_prefix = query.transpose(0, 1).flatten(1, 2) @ cache.prefix_keys[layer].transpose(-1, -2)
            parts.insert(0, on_prefix.view(kv, n, -1, F).transpose(0, 1))
        scores, bias = torch.empty(n, kv, heads // kv, F + L + K, device=query.device), self._bias(rule.window)
        ends = [0, F, F + L, F + L + K] if F else [0, L, L + K]
        for part, begin, end in zip(parts, ends[:-1], ends[1:], strict=True):
            torch.add(capped(part, rule.softcap), bias[..., begin:end], out=scores[..., begin:end])
        weights = softmax_beside(scores, None if rule.sinks is None else rule.sinks.view(kv, heads // kv, 1))
        attended: Tensor = weights[..., F + L :].to(dtype) @ cache.own_values[layer, :n, :, :K]
        prompt_values = cache.prompt_values[layer, :groups, :, :L]
        attended = attended + self._with_prompts(weights[..., F : F + L].to(dtype), prompt_values)
        if F:
            on_prefix = weights[..., :F].to(dtype).transpose(0, 1).flatten(1, 2) @ cache.prefix_values[layer]
            attended = attended + on_prefix.view(kv, n, heads // kv, d).transpose(0, 1)
        return attended.reshape(n, heads, d)

    def _attend_exactly(self, layer: int, query: Tensor, rule: Rule) -> Tensor:
        cache, n = self._cache, len(query)
        F, L, K = cache.shape.before, self._size.prompt_tokens, self._size.own_tokens
        place_nK = torch.arange(int((self._prompt_n + self._length_n).max())).expand(n, -1)
        own_nK = place_nK - self._prompt_n[:, None]
        index_nK = torch.where(own_nK < 0, place_nK, (F + L + own_nK).clamp(max=F + L + K - 1))
        caches = (
            (cache.prefix_keys, cache.prompt_keys, cache.own_keys),
            (cache.prefix_values, cache.prompt_values, cache.own_values),
        )
        pair = []
        for prefix, prompts, rows in caches:
            prompt = prompts[layer, self._slot_n.clamp(max=self._size.groups - 1), :, :L]
            parts = prefix[layer].expand(n, -1, -1, -1), prompt, rows[layer, :n, :, :K]
            pair.append(torch.cat(parts, 2).transpose(1, 2)[self._rows_n[:, None], index_nK].float())
        last_n1 = (self._prompt_n + self._length_n - 1)[:, None]
        return exact_attention(query.float()[:, None], pair[0], pair[1], last_n1, rule)[:, 0].to(query.dtype)

    def _with_prompts(self, left: Tensor, right: Tensor) -> Tensor:
        """Multiplies every row's [r, a] by its group's [a, b], group by group, so that each prompt is read once.

        left: [n, kv_heads, r, a]; right: [groups, kv_heads, a, b]; result: [n, kv_heads, r, b].
        """
        (_, kv, r, a), (groups, members) = left.shape, (self._size.groups, self._size.members)
        grid = left.new_zeros(groups + 1, kv, members, r, a)  # padding rows go to the last slot
        grid[self._slot_n, :, self._member_n] = left
        product = (grid[:groups].view(groups, kv, members * r, a) @ right).view(groups, kv, members, r, -1)
        return product[self._slot_n.clamp(max=groups - 1), :, self._member_n]
