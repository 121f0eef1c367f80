"""The tree layout: packed groups, each a prompt followed by completions that attend to it and to themselves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from grouprl.models.attention import merged_attention
from grouprl.models.kernels.calibration import Contest, Form, grid, uses_kernel, with_gradient
from grouprl.models.kernels.functions import tree_attention


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
    def tree(self) -> tuple[Tensor, Tensor]:
        """[P, 1 + G] starts in S and lengths of each group's prompt and completions; length 0 = none, on the CPU."""
        widest = max(map(len, self.completion_lengths))
        pairs = zip(self.prompt_lengths, self.completion_lengths, strict=True)
        lengths = torch.tensor([[prompt, *own, *[0] * (widest - len(own))] for prompt, own in pairs])
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
        """Position of each token: completions continue their prompt."""
        group_S, branch_S, place_S = self._tokens
        return (place_S + torch.where(branch_S > 0, self.tree[1][group_S, 0], 0)).to(self.device)

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
        attended = self._attend_prompts(query, key, value, scaling).flatten(0, 1)
        if any(self.completion_lengths):
            completions = self._attend_completions(query, key, value, scaling)
            attended = torch.cat([attended, completions.flatten(0, 2)])
        return _take(attended, self._slot_S)

    def attend_rotated(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, cosine: Tensor, sine: Tensor, scaling: float
    ) -> Tensor:
        """See `RotatingLayout.attend_rotated`."""
        if uses_kernel(TREE_ATTENTION, query.shape[-1], query.dtype):
            return tree_attention(query, key, value, cosine, sine, self.tree, scaling)
        attended = self.attend(layer, _rotate(query, cosine, sine), _rotate(key, cosine, sine), value, scaling)
        return F.pad(attended, (0, 0, 0, 0, 0, len(query) - self.size))  # the padding of a pack sees nothing

    def _attend_prompts(self, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        # Padding is right of the prompt, where the causal mask hides it.
        q, k, v = (_take(tensor, self.prompt_index_PL).transpose(1, 2) for tensor in (query, key, value))
        gqa = q.shape[1] != k.shape[1]
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scaling, enable_gqa=gqa).transpose(1, 2)

    def _attend_completions(self, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        index, (_, heads, d), kv_heads = self.completion_index_PGT, query.shape, key.shape[1]
        attended = merged_attention(
            (_take(query, index) * scaling).view(*index.shape, kv_heads, heads // kv_heads, d).transpose(2, 3),
            _take(key, self.prompt_index_PL).transpose(1, 2),
            _take(value, self.prompt_index_PL).transpose(1, 2),
            _take(key, index).transpose(2, 3),
            _take(value, index).transpose(2, 3),
            self._bias.to(query.dtype),
        )
        return attended.transpose(2, 3).reshape(*index.shape, heads, d)

    @cached_property
    def sees(self) -> Callable[[Any, Any, Tensor, Tensor], Tensor]:
        """The tree mask for flex_attention, (batch, head, query, key) -> bool: whether token query attends to key.

        Not a method: flex_attention counts `self` among the arguments and misreads a function of five.
        """
        group_S, branch_S, _ = (column.to(self.device) for column in self._tokens)

        def mask(_batch: Any, _head: Any, query: Tensor, key: Tensor) -> Tensor:
            related = (branch_S[key] == 0) | (branch_S[key] == branch_S[query])
            return (group_S[key] == group_S[query]) & related & (key <= query)

        return mask

    @cached_property
    def _block_mask(self) -> Any:
        from torch.nn.attention.flex_attention import create_block_mask

        return create_block_mask(self.sees, None, None, self.size, self.size, device=self.device)

    def _flex(self, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        # Under autocast rotations leave queries and keys in float32; flex_attention takes one dtype.
        q, k, v = (tensor.to(value.dtype).transpose(0, 1)[None] for tensor in (query, key, value))
        attended = _compiled_flex()(q, k, v, block_mask=self._block_mask, scale=scaling, enable_gqa=True)
        return attended[0].transpose(0, 1)  # type: ignore[no-any-return]


def _rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Applies rotary positions (RoPE, arXiv:2104.09864) with halves of a head as pairs."""
    first, second = x.chunk(2, -1)
    return (x * cosine[:, None] + torch.cat([-second, first], -1) * sine[:, None]).to(x.dtype)


def _attention_forms(width: int, dtype: torch.dtype) -> tuple[Form, Form]:
    layout = TreeLayout((48, 32), ((24, 16, 32, 20), (12, 32, 8)), torch.device("cpu"))
    inputs = [grid(layout.size, heads, width, dtype=dtype) for heads in (4, 2, 2)]
    rotation = [grid(layout.size, width).detach() for _ in range(2)]

    def in_torch(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return layout.attend(0, _rotate(query, *rotation), _rotate(key, *rotation), value, 0.1)

    return with_gradient(tree_attention, *inputs, *rotation, layout.tree, 0.1), with_gradient(in_torch, *inputs)


TREE_ATTENTION = Contest("attention", "head size", (32, 64, 128), _attention_forms)


@cache
def _compiled_flex() -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=True)


def _take(tensor: Tensor, index: Tensor) -> Tensor:
    # Forward and backward take less than half the time of tensor[index] on a CPU (benchmarks/attention_forms.py).
    return tensor.index_select(0, index.flatten()).view(*index.shape, *tensor.shape[1:])


def _index_grid(starts: Tensor, lengths: Tensor) -> Tensor:
    """[..., longest] indices start + 0, 1, ...; padding is 0."""
    offsets = torch.arange(int(lengths.max()) if lengths.numel() else 0)
    return torch.where(offsets < lengths[..., None], starts[..., None] + offsets, 0)
