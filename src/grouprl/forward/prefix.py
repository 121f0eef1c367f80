"""The tokens that begin every prompt of a step, such as worked examples or a system prompt, read once for all."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

import torch
from torch import Tensor

from grouprl.forward.attention import Layout, Rule
from grouprl.forward.layouts import Prefix, TreeLayout

# The prefix ends where a tile of the kernels' keys ends, of 16 tokens at most. 16 of 67 tokens save 6 % of a step of 8
# groups (SmolLM2-135M, whose template begins with a system message).
_TILE = 16

Read = Callable[[Tensor, Tensor, Layout], Tensor]
"""Computes the hidden states of token ids [S] at positions [S] under a layout."""


def shared_tokens(prompts: Iterable[tuple[int, ...]]) -> int:
    """How many tokens all prompts begin with; 0 = too few to read them once, or there is only one prompt.

    At least one token of each prompt stays, which predicts the first token of a completion.
    """
    different = set(prompts)
    if len(different) < 2:
        return 0
    return min(same_tokens(different), min(map(len, different)) - 1) // _TILE * _TILE


def same_tokens(sequences: Collection[tuple[int, ...]]) -> int:
    """How many tokens all sequences begin with."""
    first, last = min(sequences), max(sequences)  # in this order what these two share, all share
    pairs = enumerate(zip(first, last, strict=False))
    return next((index for index, (low, high) in pairs if low != high), min(len(first), len(last)))


def read_prefix(read: Read, token_ids: Sequence[int], device: torch.device) -> Prefix:
    """Reads the tokens of a prefix; with gradients the keys and values belong to the graph of this forward pass."""
    ids_S = torch.tensor(token_ids, device=device)
    layout = KeepingLayout([TreeLayout((len(ids_S),), ((),), device)])
    read(ids_S, layout.position_ids_S, layout)
    least = torch.float32  # as the kernels read
    parts = zip(*layout.kept.values(), strict=True)
    return Prefix(*([tensor.to(torch.promote_types(tensor.dtype, least)) for tensor in part] for part in parts))


class LearnedPrefix:
    """A prefix whose keys and values have a graph. Packs read leaves with the same numbers and add gradients to these.

    `read`: of the packs; `leaves`: those of its tensors that take a gradient.
    """

    def __init__(self, prefix: Prefix) -> None:
        tensors = [*prefix.keys, *prefix.values]
        cut = [tensor.detach().requires_grad_(tensor.requires_grad) for tensor in tensors]
        self.read = Prefix(cut[: len(prefix.keys)], cut[len(prefix.keys) :])
        self._pairs = [(tensor, leaf) for tensor, leaf in zip(tensors, cut, strict=True) if leaf.requires_grad]
        self.leaves = [leaf for _, leaf in self._pairs]

    def backward(self) -> None:
        """Adds to the gradients of the weights what those of the leaves give, in one backward pass."""
        used = [(tensor, leaf.grad) for tensor, leaf in self._pairs if leaf.grad is not None]
        if used:
            torch.autograd.backward([tensor for tensor, _ in used], [gradient for _, gradient in used])


class KeepingLayout:
    """The layout of prompts, each in a tree of its own, which keeps the keys and values of each layer."""

    def __init__(self, trees: Sequence[TreeLayout], *, exact: bool = False) -> None:
        """`exact`: on a CPU, tokens have the same bits however their sequence is divided into what is read at once."""
        self.exact = exact
        self._trees, self._sizes = trees, [tree.size for tree in trees]
        self.size, self.longest = sum(self._sizes), max(tree.longest for tree in trees)
        self.kept: dict[int, tuple[Tensor, Tensor]] = {}

    @property
    def position_ids_S(self) -> Tensor:
        """Position of each token."""
        return torch.cat([tree.position_ids_S for tree in self._trees])

    def keep(self, layer: int, key: Tensor, value: Tensor) -> None:
        """Keeps keys, with positions applied, and values."""
        self.kept.setdefault(layer, (key, value))  # layers that are recomputed come again

    def pairs(self, dtype: torch.dtype) -> Tensor:
        """All that was kept, [layers, 2, S, kv_heads, d]."""
        return torch.stack([torch.stack([part.to(dtype) for part in pair]) for pair in self.kept.values()])

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, rule: Rule) -> Tensor:
        """Attention of a layer, by each tree for its part of the packed tokens."""
        self.keep(layer, key, value)
        if self.exact and query.device.type == "cpu":
            return self.by_tree(lambda tree, *part: tree.attend_exactly(layer, *part, rule), query, key, value)
        return self.by_tree(lambda tree, *part: tree.attend(layer, *part, rule), query, key, value)

    def by_tree(self, attend: Callable[..., Tensor], *packed: Tensor) -> Tensor:
        """Calls `attend` with each tree and its part of the packed tensors [S, ...], tree after tree."""
        parts = zip(*(torch.split(tensor[: self.size], self._sizes) for tensor in packed), strict=True)
        return torch.cat([attend(tree, *part) for tree, part in zip(self._trees, parts, strict=True)])
