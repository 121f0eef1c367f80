"""The forward passes of decoding: the prefill of prompts, and decode steps of one token for every live row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from grouprl.models import hidden_states
from grouprl.rollout.cache import CacheShape, DecodeLayout, GroupCache, PrefillLayout, pack_prompts
from grouprl.rollout.rows import Rows


class Forward(Protocol):
    """A model with a cache of keys and values: group slots 0, 1, ... hold prompts, rows 0, 1, ... own tokens."""

    @property
    def shape(self) -> CacheShape:
        """The capacity of the cache."""
        ...

    def prefill(self, prompts: Sequence[tuple[int, ...]], first: int) -> Tensor:
        """Reads prompts into the slots first, first + 1, ...; gives the logits [P, V] after each prompt."""
        ...

    def decode_step(self, rows: Rows, members: int, prompts: Sequence[int]) -> Tensor:
        """Reads the newest token of every live row; gives the logits [n, V] after each of them.

        Args:
            rows: the live rows.
            members: most rows of a group.
            prompts: the number of prompt tokens in each live group slot.
        """
        ...

    def changed(self) -> None:
        """Invalidates cached data about rows, after rows were added or removed."""
        ...

    def move_groups(self, moves: Sequence[tuple[int, int]]) -> None:
        """Copies the prompts of group slots (from, to)."""
        ...

    def move_rows(self, moves: Sequence[tuple[int, int]], used: int) -> None:
        """Copies the first `used` own tokens of rows (from, to)."""
        ...


class ModuleForward:
    """A `Forward` that runs the model's own modules: any architecture, any device."""

    def __init__(self, model: PreTrainedModel, shape: CacheShape, dtype: torch.dtype) -> None:
        self._model = model
        self._device: torch.device = model.get_input_embeddings().weight.device
        self._head: nn.Module = model.get_output_embeddings()
        self._cache = GroupCache(shape, self._device, dtype)

    @property
    def shape(self) -> CacheShape:
        """See `Forward.shape`."""
        return self._cache.shape

    def prefill(self, prompts: Sequence[tuple[int, ...]], first: int) -> Tensor:
        """See `Forward.prefill`."""
        ids_S, tree, last_P = pack_prompts(prompts, self._device)
        hidden_SH = hidden_states(self._model, ids_S, tree.position_ids_S, PrefillLayout(tree, self._cache, first))
        logits_PV: Tensor = self._head(hidden_SH[last_P])
        return logits_PV

    def decode_step(self, rows: Rows, members: int, prompts: Sequence[int]) -> Tensor:
        """See `Forward.decode_step`."""
        live = slice(0, rows.count)
        position_n, prompt_n = rows.length[live] - 1, rows.prompt[live]
        prompt_tokens, own_tokens = max(prompts), int(position_n.max()) + 1
        seen = torch.cat(
            [
                torch.arange(prompt_tokens, device=self._device) < prompt_n[:, None],
                torch.arange(own_tokens, device=self._device) <= position_n[:, None],
            ],
            dim=1,
        )
        layout = DecodeLayout(
            cache=self._cache,
            groups=len(prompts),
            members=members,
            prompt_tokens=prompt_tokens,
            own_tokens=own_tokens,
            place_n=rows.place[live],
            position_n=position_n,
            bias=torch.zeros(seen.shape, device=self._device).masked_fill_(~seen, -torch.inf)[:, None, None],
            longest=prompt_tokens + own_tokens,
        )
        logits_nV: Tensor = self._head(hidden_states(self._model, rows.newest[live], prompt_n + position_n, layout))
        return logits_nV

    def changed(self) -> None:
        """See `Forward.changed`."""

    def move_groups(self, moves: Sequence[tuple[int, int]]) -> None:
        """See `Forward.move_groups`."""
        self._cache.move_groups(moves)

    def move_rows(self, moves: Sequence[tuple[int, int]], used: int) -> None:
        """See `Forward.move_rows`."""
        self._cache.move_rows(moves, used)
