"""The tokens that begin every prompt of a step, such as worked examples or a system prompt, read once for all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from grouprl.models.attention import Layout, Rule
from grouprl.models.layouts import Prefix, TreeLayout

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
    first, last = min(different), max(different)  # in this order what these two share, all share
    most = min(map(len, different)) - 1
    same = next((place for place in range(most) if first[place] != last[place]), most)
    return same // _TILE * _TILE


def read_prefix(read: Read, token_ids: Sequence[int], device: torch.device) -> Prefix:
    """Reads the tokens of a prefix; with gradients the keys and values belong to the graph of this forward pass."""
    ids_S = torch.tensor(token_ids, device=device)
    layout = KeepingLayout(TreeLayout((len(ids_S),), ((),), device))
    read(ids_S, layout.tree.position_ids_S, layout)
    pairs = [layout.kept[layer] for layer in sorted(layout.kept)]
    least = torch.float32  # as the kernels read
    return Prefix(
        *([one.to(torch.promote_types(one.dtype, least)) for one in part] for part in zip(*pairs, strict=True))
    )


class LearnedPrefix:
    """A prefix whose keys and values have a graph. Packs read leaves with the same numbers and add gradients to these.

    `read`: of the packs; `leaves`: those of its tensors that take a gradient.
    """

    def __init__(self, whole: Prefix) -> None:
        own = [*whole.keys, *whole.values]
        cut = [one.detach().requires_grad_(one.requires_grad) for one in own]
        self.read = Prefix(cut[: len(whole.keys)], cut[len(whole.keys) :])
        self._pairs = [(one, leaf) for one, leaf in zip(own, cut, strict=True) if leaf.requires_grad]
        self.leaves = [leaf for _, leaf in self._pairs]

    def backward(self) -> None:
        """Adds to the gradients of the weights what those of the leaves give, in one backward pass."""
        used = [(one, leaf.grad) for one, leaf in self._pairs if leaf.grad is not None]
        if used:
            torch.autograd.backward([one for one, _ in used], [gradient for _, gradient in used])


class KeepingLayout:
    """The layout of one prompt, which keeps the keys and values of each layer."""

    def __init__(self, tree: TreeLayout) -> None:
        self.tree, self.longest = tree, tree.longest
        self.kept: dict[int, tuple[Tensor, Tensor]] = {}

    def keep(self, layer: int, key: Tensor, value: Tensor) -> None:
        """Keeps keys, with positions applied, and values."""
        self.kept.setdefault(layer, (key, value))  # layers that are recomputed come again

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, rule: Rule) -> Tensor:
        """See `Layout.attend`."""
        self.keep(layer, key, value)
        return self.tree.attend(layer, query, key, value, rule)
