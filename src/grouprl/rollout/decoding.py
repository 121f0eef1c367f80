"""The decoding of one call: rows that are drawn token by token, leave when done and make room for waiting groups."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from grouprl.models import TreeLayout, hidden_states
from grouprl.rollout.cache import DecodeLayout, GroupCache, PrefillLayout
from grouprl.rollout.random_numbers import uniforms
from grouprl.rollout.sampler import draw
from grouprl.types import Sampling, StopReason

# A prefill of few prompts costs nearly as much as one of many: wait until this share of the rows is free.
_REFILL_SHARE = 0.25

Item = TypeVar("Item")

_LENGTH, _PROMPT, _PLACE, _KEY = range(4)  # columns of the row state


@dataclass(frozen=True)
class Unit:
    """Completions of one request that are decoded beside each other, sharing a prompt in the cache."""

    request: int
    prompt_ids: tuple[int, ...]
    keys: tuple[int, ...]  # of the random numbers, one per completion
    first: int  # index of the first completion within its request


@dataclass(frozen=True)
class FinishedRow:
    """A completion in token ids."""

    request: int
    index: int
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    plain_logprobs: tuple[float, ...]
    stop_reason: StopReason


class Decoding:
    """Rows 0..n-1 are live, and group slots 0..g-1: whoever leaves is replaced by the last one."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        cache: GroupCache,
        units: Sequence[Unit],
        sampling: Sampling,
        end_ids: Sequence[int],
        device: torch.device,
    ) -> None:
        self._model, self._tokenizer, self._cache = model, tokenizer, cache
        self._sampling, self._device = sampling, device
        self._ends = torch.tensor(end_ids, device=device)
        self._waiting = deque(units)
        self._members = max(len(unit.keys) for unit in units)
        self._live: list[tuple[Unit, int]] = []  # of each live row: its unit, and its place there
        self._slots: list[Unit] = []  # of each live group slot
        self._remaining: dict[Unit, int] = {}  # live rows of each live unit
        rows, longest = cache.shape.rows, sampling.max_tokens
        self._state = torch.zeros(rows, 4, dtype=torch.long, device=device)
        self._tokens = torch.zeros(rows, longest, dtype=torch.long, device=device)
        self._logprobs = torch.zeros(2, rows, longest, device=device)  # sampled, plain
        self._finished: list[FinishedRow] = []

    def advance(self) -> bool:
        """Draws one token for every live row, after letting waiting groups in; False when none is left."""
        self._admit()
        if not self._live:
            return bool(self._waiting)  # all that were let in ended at their first token
        live = slice(0, len(self._live))
        state_n = self._state[live]
        position_n = state_n[:, _LENGTH] - 1
        last_n = self._tokens[live].gather(1, position_n[:, None])[:, 0]
        layout = self._layout(state_n, position_n)
        hidden_nH = hidden_states(self._model, last_n, state_n[:, _PROMPT] + position_n, layout)
        self._append(live, hidden_nH)
        self._retire()
        return True

    def take_finished(self) -> list[FinishedRow]:
        """The rows that ended since this was last called."""
        ended, self._finished = self._finished, []
        return ended

    def _layout(self, state_n: Tensor, position_n: Tensor) -> DecodeLayout:
        prompt_tokens = max(len(unit.prompt_ids) for unit in self._slots)
        own_tokens = int(position_n.max()) + 1
        seen = torch.cat(
            [
                torch.arange(prompt_tokens, device=self._device) < state_n[:, _PROMPT, None],
                torch.arange(own_tokens, device=self._device) <= position_n[:, None],
            ],
            dim=1,
        )
        return DecodeLayout(
            cache=self._cache,
            groups=len(self._slots),
            members=self._members,
            prompt_tokens=prompt_tokens,
            own_tokens=own_tokens,
            place_n=state_n[:, _PLACE],
            position_n=position_n,
            bias=torch.zeros(seen.shape, device=self._device).masked_fill_(~seen, -torch.inf)[:, None, None],
            longest=prompt_tokens + own_tokens,
        )

    def _append(self, rows: slice, hidden_nH: Tensor) -> None:
        head: nn.Module = self._model.get_output_embeddings()
        length_n = self._state[rows, _LENGTH].clone()
        drawn = draw(head(hidden_nH), uniforms(self._state[rows, _KEY], length_n), self._sampling)
        for target, values in zip((self._tokens, *self._logprobs), drawn, strict=True):
            target[rows].scatter_(1, length_n[:, None], values[:, None])
        self._state[rows, _LENGTH] += 1

    def _admit(self) -> None:
        free = self._cache.shape.rows - len(self._live)
        if self._live and free < _REFILL_SHARE * self._cache.shape.rows:
            return
        first_row, first_slot = len(self._live), len(self._slots)
        while self._waiting and len(self._slots) < self._cache.shape.groups and len(self._waiting[0].keys) <= free:
            unit = self._waiting.popleft()
            free -= len(unit.keys)
            self._slots.append(unit)
            self._remaining[unit] = len(unit.keys)
            self._live.extend((unit, place) for place in range(len(unit.keys)))
        if len(self._live) > first_row:
            self._prefill(first_row, first_slot)
            self._retire()

    def _prefill(self, first_row: int, first_slot: int) -> None:
        units = self._slots[first_slot:]
        rows = slice(first_row, len(self._live))
        self._state[rows] = torch.tensor(
            [
                (0, len(unit.prompt_ids), slot * self._members + place, key)
                for slot, unit in enumerate(units, first_slot)
                for place, key in enumerate(unit.keys)
            ],
            device=self._device,
        )
        tree = TreeLayout(tuple(len(unit.prompt_ids) for unit in units), ((),) * len(units), self._device)
        ids_S = torch.tensor([token for unit in units for token in unit.prompt_ids], device=self._device)
        hidden_SH = hidden_states(self._model, ids_S, tree.position_ids_S, PrefillLayout(tree, self._cache, first_slot))
        last_P = torch.tensor(tree.prompt_lengths).cumsum(0) - 1
        counts_P = torch.tensor([len(unit.keys) for unit in units])
        self._append(rows, hidden_SH[last_P.repeat_interleave(counts_P).to(self._device)])

    def _retire(self) -> None:
        count = len(self._live)
        length_n = self._state[:count, _LENGTH]
        last_n = self._tokens[:count].gather(1, length_n[:, None] - 1)[:, 0]
        reasons: dict[int, StopReason] = {}
        for row in (length_n == self._sampling.max_tokens).nonzero()[:, 0].tolist():
            reasons[row] = StopReason.LENGTH
        for row in self._stopped_rows():
            reasons[row] = StopReason.STOP_STRING
        for row in torch.isin(last_n, self._ends).nonzero()[:, 0].tolist():
            reasons[row] = StopReason.END
        if reasons:
            self._collect(reasons)
            self._close_gaps(sorted(reasons))

    def _stopped_rows(self) -> list[int]:
        stops = self._sampling.stop
        if not stops:
            return []
        # A token is at least one byte, so this many tokens hold the longest stop string and the token before it.
        tail = max(len(stop.encode()) for stop in stops) + 1
        lengths = self._state[: len(self._live), _LENGTH].tolist()
        tails = [row[max(0, n - tail) : n] for row, n in zip(self._tokens.tolist(), lengths, strict=False)]
        texts = self._tokenizer.batch_decode(tails, skip_special_tokens=True)
        return [row for row, text in enumerate(texts) if any(stop in text for stop in stops)]

    def _collect(self, reasons: dict[int, StopReason]) -> None:
        rows = torch.tensor(list(reasons), device=self._device)
        lengths = self._state[rows, _LENGTH].tolist()
        tokens = self._tokens[rows].tolist()
        sampled, plain = self._logprobs[:, rows].tolist()
        for at, (row, reason) in enumerate(reasons.items()):
            unit, place = self._live[row]
            n = lengths[at]
            self._finished.append(
                FinishedRow(
                    unit.request,
                    unit.first + place,
                    tuple(tokens[at][:n]),
                    tuple(sampled[at][:n]),
                    tuple(plain[at][:n]),
                    reason,
                )
            )

    def _close_gaps(self, gone: Sequence[int]) -> None:
        for row in gone:
            self._remaining[self._live[row][0]] -= 1
        moves = _moves(len(self._live), gone)
        if moves:
            source, target = (torch.tensor(rows, device=self._device) for rows in zip(*moves, strict=True))
            self._cache.move_rows(source, target, int(self._state[: len(self._live), _LENGTH].max()))
            for tensor in (self._state, self._tokens, *self._logprobs):
                tensor[target] = tensor[source]
        self._live = _moved(self._live, gone, moves)
        empty = [slot for slot, unit in enumerate(self._slots) if not self._remaining[unit]]
        if empty:
            self._close_slots(empty)

    def _close_slots(self, empty: Sequence[int]) -> None:
        moves = _moves(len(self._slots), empty)
        if moves:
            source, target = (torch.tensor(slots, device=self._device) for slots in zip(*moves, strict=True))
            self._cache.move_groups(source, target)
            slot_now = torch.arange(len(self._slots), device=self._device)
            slot_now[source] = target
            place_n = self._state[: len(self._live), _PLACE]
            place_n.copy_(slot_now[place_n // self._members] * self._members + place_n % self._members)
        self._slots = _moved(self._slots, empty, moves)


def _moves(count: int, gone: Sequence[int]) -> list[tuple[int, int]]:
    """(from, to) pairs that fill the gaps below the new end with the survivors above it."""
    end = count - len(gone)
    lost = set(gone)
    survivors = (place for place in range(end, count) if place not in lost)
    return [(next(survivors), gap) for gap in gone if gap < end]


def _moved(items: list[Item], gone: Sequence[int], moves: Sequence[tuple[int, int]]) -> list[Item]:
    items = list(items)
    for source, target in moves:
        items[target] = items[source]
    return items[: len(items) - len(gone)]
