"""The prefix tree of token ids: keys and values of all that the episodes of a call have read, each token once.

A sequence shares the longest path that it begins with, whoever read it: its own earlier turns, its group's prompt, or
another episode that wrote and was shown the same tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, count
from operator import itemgetter
from threading import Lock

import torch
from torch import Tensor

from grouprl.forward.layouts import Prefix, TreeLayout
from grouprl.forward.prefix import KeepingLayout, Read, same_tokens

Ids = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class CachedPrefix:
    """The beginning of a sequence in the tree: [layers, 2, T, kv_heads, d] keys, positions applied, and values."""

    parts: tuple[Tensor, ...]
    last_H: Tensor | None  # hidden state of the sequence's last token; None = there is more to read

    @property
    def size(self) -> int:
        """The number of tokens."""
        return sum(part.shape[2] for part in self.parts)

    @property
    def prefix(self) -> Prefix | None:
        """The prefix behind which later tokens are read."""
        return Prefix(_Layers(self, 0), _Layers(self, 1)) if self.size else None

    def span(self, begin: int, end: int) -> Tensor:
        """Keys and values [layers, 2, end - begin, kv_heads, d] of the tokens from `begin` to `end`."""
        return torch.cat(self.parts, 2)[:, :, begin:end]


@dataclass(frozen=True, eq=False)
class _Layers(Sequence[Tensor]):
    """The keys (0) or values (1) of each layer in float32; one layer at a time is copied."""

    cached: CachedPrefix
    which: int

    def __len__(self) -> int:
        return len(self.cached.parts[0])

    def __getitem__(self, layer: int) -> Tensor:  # type: ignore[override]
        return torch.cat([part[layer, self.which] for part in self.cached.parts]).float()


@dataclass(eq=False)
class _Node:
    """Tokens that follow those of the parent."""

    parent: _Node | None
    token_ids: Ids
    pairs: Tensor
    last_H: Tensor | None = None
    children: list[_Node] = field(default_factory=list)
    used: int = 0


class PrefixTree:
    """Keeps at most `limit` tokens behind the prefix of all prompts; those used longest ago go and are read again.

    Several decodings on threads of their own use it.
    """

    def __init__(self, prefix_ids: Ids, prefix: Prefix | None, limit: int, dtype: torch.dtype) -> None:
        """`prefix` of the tokens that begin every prompt, None = there are none; `dtype` of keys and values."""
        self.computed, self.kept = len(prefix_ids), 0  # tokens that were read; tokens in the tree, without the prefix
        self._limit, self._dtype = limit, dtype
        self._root = _Node(None, (), torch.empty(0))
        self._nodes: set[_Node] = set()  # that may be evicted
        self._clock, self._lock = count(1), Lock()
        if prefix is not None:
            pairs = torch.stack([torch.stack(pair) for pair in zip(prefix.keys, prefix.values, strict=True)])
            self._root.children.append(_Node(self._root, prefix_ids, pairs))

    def read(self, read: Read, sequences: Sequence[Ids], device: torch.device) -> list[CachedPrefix]:
        """Keys and values of whole sequences; reads the tokens that are not in the tree, all in one forward pass."""
        cached = {ids: self._find(ids) for ids in sequences}
        missing = {ids: path for ids, path in cached.items() if path.last_H is None}
        if missing:
            cached |= self._compute(read, missing, device)
        return [cached[ids] for ids in sequences]

    def add(self, ids: Ids, pairs: Tensor, last_H: Tensor | None = None) -> None:
        """Keeps keys and values of the last tokens of a sequence, unless those before them were evicted."""
        with self._lock:
            at, node = 0, self._root
            for child, same in self._walk(ids):
                if same < len(child.token_ids):
                    break  # a node of its own, although it begins like this one
                at, node = at + same, child
            begin = len(ids) - pairs.shape[2]
            if at == len(ids):
                node.last_H = last_H if node.last_H is None else node.last_H
            elif at >= begin:
                new_pairs = pairs[:, :, at - begin :].to(self._dtype, copy=True)  # frees the tensor it is a part of
                leaf = _Node(node, ids[at:], new_pairs, last_H, used=next(self._clock))
                node.children.append(leaf)
                self._nodes.add(leaf)
                self.kept += len(leaf.token_ids)
            while self.kept > self._limit:
                leaf = min((node for node in self._nodes if not node.children), key=lambda node: node.used)
                self._nodes.remove(leaf)
                leaf.parent.children.remove(leaf)  # type: ignore[union-attr]
                self.kept -= len(leaf.token_ids)

    def _walk(self, ids: Ids) -> Iterator[tuple[_Node, int]]:
        """The nodes of the longest path that a sequence begins with, each with the number of its tokens that match."""
        node, at, same = self._root, 0, 0
        while same == len(node.token_ids) and at < len(ids):
            alike = [
                (same_tokens((child.token_ids, ids[at : at + len(child.token_ids)])), child)
                for child in node.children
                if child.token_ids[0] == ids[at]
            ]
            if not alike:
                return
            same, node = max(alike, key=itemgetter(0))
            yield node, same
            at += same

    def _find(self, ids: Ids) -> CachedPrefix:
        """The longest path that a sequence begins with; without the last token, if its hidden state is unknown."""
        with self._lock:
            steps = [*self._walk(ids)]
            for node, _ in steps:
                node.used = next(self._clock)
            is_complete = sum(same for _, same in steps) == len(ids)
            last_H = steps[-1][0].last_H if is_complete and steps[-1][1] == len(steps[-1][0].token_ids) else None
            parts = [node.pairs[:, :, :same] for node, same in steps]
            if is_complete and last_H is None:
                parts[-1] = parts[-1][:, :, :-1]
            return CachedPrefix(tuple(parts), last_H)

    def _compute(
        self, read: Read, missing: Mapping[Ids, CachedPrefix], device: torch.device
    ) -> Iterator[tuple[Ids, CachedPrefix]]:
        """Reads the tokens of sequences that are not in the tree, and adds them."""
        ids_S = torch.tensor([token for ids, path in missing.items() for token in ids[path.size :]], device=device)
        trees = [
            TreeLayout((len(ids) - path.size,), ((),), device, path.size, path.prefix) for ids, path in missing.items()
        ]
        layout = KeepingLayout(trees, exact=True)
        hidden_SH = read(ids_S, layout.position_ids_S, layout)
        all_pairs = layout.pairs(self._dtype)
        ends = accumulate(tree.size for tree in trees)
        for (ids, path), end in zip(missing.items(), ends, strict=True):
            pairs, last_H = all_pairs[:, :, end - len(ids) + path.size : end], hidden_SH[end - 1].clone()
            self.add(ids, torch.cat([*path.parts[-1:], pairs], 2), last_H)  # the last part may be some tokens of a node
            yield ids, CachedPrefix((*path.parts, pairs), last_H)
        with self._lock:
            self.computed += len(ids_S)
