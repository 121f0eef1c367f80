"""The tree layout: packed groups, each a prompt followed by completions that attend to it and to themselves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import chain
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from grouprl.models.attention import merged_attention
from grouprl.models.kernels import tree_attention


@dataclass(frozen=True)
class TreeLayout:
    """Packed groups in the order prompt, completion 0, completion 1, ... (positions restart after the prompt).

    Worked example: one group with a prompt of 2 tokens and completions of 2 and 1 is packed into S = 5 tokens with
    positions 0 1 2 3 2. Token 4 (the second completion) attends to tokens 0, 1 and 4.
    """

    prompt_lengths: tuple[int, ...]  # tokens of each of P prompts
    completion_lengths: tuple[tuple[int, ...], ...]  # tokens of each group's completions; () = only the prompt
    device: torch.device

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt with its longest completion."""
        return max(
            prompt + max(own, default=0)
            for prompt, own in zip(self.prompt_lengths, self.completion_lengths, strict=True)
        )

    @property
    def size(self) -> int:
        """S, the number of packed tokens."""
        return sum(self.prompt_lengths) + sum(map(sum, self.completion_lengths))

    @cached_property
    def position_ids_S(self) -> Tensor:
        """Position of each token: completions continue their prompt."""
        spans = []
        for prompt, own in zip(self.prompt_lengths, self.completion_lengths, strict=True):
            spans.append(torch.arange(prompt))
            spans.extend(torch.arange(prompt, prompt + length) for length in own)
        return torch.cat(spans).to(self.device)

    @cached_property
    def _starts(self) -> tuple[list[int], list[list[int]]]:
        prompts, completions, at = [], [], 0
        for prompt, own in zip(self.prompt_lengths, self.completion_lengths, strict=True):
            prompts.append(at)
            at += prompt
            starts = []
            for length in own:
                starts.append(at)
                at += length
            completions.append(starts)
        return prompts, completions

    @cached_property
    def prompt_index_PL(self) -> Tensor:
        """Index in S of each prompt token; padding is 0."""
        return _index_grid(self._starts[0], self.prompt_lengths).to(self.device)

    @cached_property
    def completion_index_PGT(self) -> Tensor:
        """Index in S of each completion token; padding is 0."""
        widest = max(map(len, self.completion_lengths))
        starts = [[*row, *[0] * (widest - len(row))] for row in self._starts[1]]
        lengths = [[*row, *[0] * (widest - len(row))] for row in self.completion_lengths]
        flat = _index_grid(list(chain(*starts)), list(chain(*lengths)))
        return flat.view(len(self.prompt_lengths), widest, -1).to(self.device)

    @cached_property
    def _slot_S(self) -> Tensor:
        """Index of each packed token in the flattened [P, L] prompts followed by the [P, G, T] completions."""
        P, L = self.prompt_index_PL.shape
        _, G, T = self.completion_index_PGT.shape
        spans = []
        for group, (prompt, own) in enumerate(zip(self.prompt_lengths, self.completion_lengths, strict=True)):
            spans.append(torch.arange(prompt) + group * L)
            spans.extend(torch.arange(length) + P * L + (group * G + row) * T for row, length in enumerate(own))
        return torch.cat(spans).to(self.device)

    @cached_property
    def _bias(self) -> Tensor:
        """[P, 1, T, L + T]: completions attend to the unpadded tokens of their prompt, and to their own past."""
        L, T = self.prompt_index_PL.shape[1], self.completion_index_PGT.shape[2]
        lengths_P = torch.tensor(self.prompt_lengths, device=self.device)
        prompt_PTL = (torch.arange(L, device=self.device) < lengths_P[:, None])[:, None].expand(-1, T, -1)
        own_TT = torch.ones(T, T, dtype=torch.bool, device=self.device).tril()
        seen = torch.cat([prompt_PTL, own_TT.expand(len(lengths_P), -1, -1)], dim=-1)
        return torch.zeros(seen.shape, device=self.device).masked_fill(~seen, -torch.inf)[:, None]

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """See `Layout.attend`."""
        if query.is_cuda and any(self.completion_lengths):
            return self._flex(query, key, value, scaling)
        prompts = self._attend_prompts(query, key, value, scaling)
        if not any(self.completion_lengths):
            return _take(prompts.flatten(0, 1), self._prompt_slot_S)
        completions = self._attend_completions(query, key, value, scaling)
        return _take(torch.cat([prompts.flatten(0, 1), completions.flatten(0, 2)]), self._slot_S)

    def attend_rotated(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, cosine: Tensor, sine: Tensor, scaling: float
    ) -> Tensor:
        """See `RotatingLayout.attend_rotated`."""
        return tree_attention(query, key, value, cosine, sine, self.tree, scaling)

    @cached_property
    def tree(self) -> tuple[Tensor, Tensor]:
        """[P, 1 + G] starts in S and lengths of each group's prompt and completions; 0 for a missing completion."""
        widest = max(map(len, self.completion_lengths))
        pairs = zip(*self._starts, strict=True), zip(self.prompt_lengths, self.completion_lengths, strict=True)
        rows = [[[one, *several, *[0] * (widest - len(several))] for one, several in pair] for pair in pairs]
        starts, lengths = (torch.tensor(grid, dtype=torch.long) for grid in rows)
        return starts, lengths

    @cached_property
    def _prompt_slot_S(self) -> Tensor:
        L = max(self.prompt_lengths)
        return torch.cat([torch.arange(n) + p * L for p, n in enumerate(self.prompt_lengths)]).to(self.device)

    def _attend_prompts(self, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        # Padding is right of the prompt, where the causal mask hides it.
        q, k, v = (_take(tensor, self.prompt_index_PL).transpose(1, 2) for tensor in (query, key, value))
        gqa = q.shape[1] != k.shape[1]
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scaling, enable_gqa=gqa).transpose(1, 2)

    def _attend_completions(self, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        _, heads, d = query.shape
        kv_heads = key.shape[1]
        index = self.completion_index_PGT
        attended = merged_attention(
            (_take(query, index) * scaling).view(*index.shape, kv_heads, heads // kv_heads, d),
            _take(key, self.prompt_index_PL),
            _take(value, self.prompt_index_PL),
            _take(key, index),
            _take(value, index),
            self._bias.to(query.dtype),
        )
        return attended.reshape(*index.shape, heads, d)

    @cached_property
    def _branches_S(self) -> tuple[Tensor, Tensor]:
        groups, branches = [], []
        for group, (prompt, own) in enumerate(zip(self.prompt_lengths, self.completion_lengths, strict=True)):
            for branch, length in enumerate((prompt, *own)):
                groups.append(torch.full((length,), group))
                branches.append(torch.full((length,), branch))
        return torch.cat(groups).to(self.device), torch.cat(branches).to(self.device)

    @cached_property
    def sees(self) -> Callable[[Any, Any, Tensor, Tensor], Tensor]:
        """The tree mask for flex_attention, (batch, head, query, key) -> bool: whether token query attends to key.

        Not a method: flex_attention counts `self` among the arguments and misreads a function of five.
        """
        group_S, branch_S = self._branches_S

        def mask(_batch: Any, _head: Any, query: Tensor, key: Tensor) -> Tensor:
            related = (branch_S[key] == 0) | (branch_S[key] == branch_S[query])
            return (group_S[key] == group_S[query]) & related & (key <= query)

        return mask

    @cached_property
    def _block_mask(self) -> Any:
        from torch.nn.attention.flex_attention import create_block_mask

        return create_block_mask(self.sees, None, None, self.size, self.size, device=self.device)

    def _flex(self, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        q, k, v = (tensor.transpose(0, 1)[None] for tensor in (query, key, value))
        attended = _compiled_flex()(q, k, v, block_mask=self._block_mask, scale=scaling, enable_gqa=True)
        return attended[0].transpose(0, 1)  # type: ignore[no-any-return]


@cache
def _compiled_flex() -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=True)


def _take(tensor: Tensor, index: Tensor) -> Tensor:
    # Forward and backward take less than half the time of tensor[index] on a CPU (benchmarks/attention_forms.py).
    return tensor.index_select(0, index.flatten()).view(*index.shape, *tensor.shape[1:])


def _index_grid(starts: Sequence[int], lengths: Sequence[int]) -> Tensor:
    """[rows, longest] indices start + 0, 1, ...; padding is 0."""
    offsets = torch.arange(max(lengths, default=0))
    grid = torch.tensor(starts, dtype=torch.long)[:, None] + offsets
    return torch.where(offsets < torch.tensor(lengths)[:, None], grid, 0)
