"""Decoding with the caches and states of transformers, for models whose layers do not attend by layouts.

A group's prompt is read once, and its state is copied for each completion. Rows of a group are equally long, so no
padding comes into a state; groups are decoded one after the other, which is slow.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from grouprl.models.head import output_head
from grouprl.models.unpacked import picked_rows, read_on
from grouprl.rollout.cache import CacheShape
from grouprl.rollout.rows import Rows


class UnpackedForward:
    """A `Forward` that keeps one state of transformers for each group."""

    def __init__(self, model: PreTrainedModel, shape: CacheShape) -> None:
        """Only the rows and groups of `shape` matter."""
        self.shape = shape
        self._decoder: Any = model.get_decoder()
        self._head = output_head(model)
        self._device: torch.device = model.get_input_embeddings().weight.device
        self._groups: dict[int, tuple[Any, Tensor | None]] = {}  # state, and members of its rows; None = the prompt

    def prefill(self, prompts: Sequence[tuple[int, ...]], first: int) -> Tensor:
        """See `Forward.prefill`."""
        logits = []
        for slot, prompt in enumerate(prompts, first):
            found, state = self._read(torch.tensor([prompt], device=self._device), None)
            self._groups[slot] = (state, None)
            logits.append(found)
        return torch.cat(logits)

    def decode_step(self, rows: Rows, members: int, prompts: Sequence[int]) -> Tensor:
        """See `Forward.decode_step`."""
        place_n, newest_n = rows.place[: rows.count], rows.newest[: rows.count]
        parts, order = [], []
        for slot in range(len(prompts)):
            live = (place_n // members == slot).nonzero()[:, 0]
            live = live[place_n[live].argsort()]
            state = self._of(slot, place_n[live] % members)
            found, state = self._read(newest_n[live][:, None], state)
            self._groups[slot] = (state, place_n[live] % members)
            parts.append(found)
            order.append(live)
        return torch.cat(parts)[torch.cat(order).argsort()]

    def move_groups(self, moves: Sequence[tuple[int, int]]) -> None:
        """See `Forward.move_groups`."""
        self._groups |= {target: self._groups[source] for source, target in moves}

    def move_rows(self, moves: Sequence[tuple[int, int]], used: int) -> None:
        """See `Forward.move_rows`: states belong to groups, and their rows stay."""

    def _of(self, slot: int, member_r: Tensor) -> Any:
        """The state of a group for these members, which are sorted."""
        state, held = self._groups[slot]
        if held is not None and len(held) == len(member_r):
            return state
        index = torch.zeros_like(member_r) if held is None else torch.searchsorted(held, member_r)
        return picked_rows(state, index)

    def _read(self, ids_NT: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Logits [N, V] after the last tokens, and the state after them."""
        hidden_NH, state = read_on(self._decoder, ids_NT, state)
        return self._head(hidden_NH), state
