"""The decoding of one engine call: finished rows leave and make room for waiting groups."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any, cast

import torch
from transformers import PreTrainedTokenizerBase

from grouprl.forward.devices import traits_of
from grouprl.forward.progress import PROGRESS
from grouprl.models.prompts import completion_texts
from grouprl.rollout.forward import Forward, ModuleForward
from grouprl.rollout.rows import Rows
from grouprl.rollout.tree import PrefixTree
from grouprl.types import Completion, Sampling, StopReason

# A prefill of few prompts costs nearly as much as one of many, so it waits until this share of the rows is free.
_REFILL_SHARE = 0.25


@dataclass(frozen=True, eq=False)
class Unit:
    """Completions of one request that are decoded together and share a prompt in the cache."""

    request: int
    prompt_ids: tuple[int, ...]
    keys: tuple[int, ...]  # keys of the random numbers, one per completion
    first: int  # index of the first completion within its request
    written: tuple[int, ...] = ()  # tokens between the prompt and this turn, of a single episode
    most: int | None = None  # tokens of this turn; None = those of the sampling

    @property
    def read_ids(self) -> tuple[int, ...]:
        """All tokens before the turn."""
        return (*self.prompt_ids, *self.written)


Finished = list[tuple[int, Completion]]
"""Finished completions, each with the index of its request."""


class UnitQueue:
    """The units that no decoding has admitted yet; several decodings on threads of their own take from it."""

    def __init__(self, units: Sequence[Unit]) -> None:
        self.members = max(len(unit.keys) for unit in units)  # most rows of a group
        self._units, self._lock = deque(units), Lock()

    def __bool__(self) -> bool:
        return bool(self._units)

    def take(self, rows: int, slots: int) -> list[Unit]:
        """Removes the next units that fit into this many rows and group slots."""
        taken: list[Unit] = []
        with self._lock:
            while self._units and len(taken) < slots and len(self._units[0].keys) <= rows:
                taken.append(self._units.popleft())
                rows -= len(taken[-1].keys)
        return taken

    def ended(self, finished: Finished) -> Finished:
        """Takes completions whose turn ended; returns those that are finished, here all of them."""
        return finished

    def wait(self) -> None:
        """Waits for units; this queue gets no new ones."""


class Decoding:
    """Schedules rows and group slots. Rows 0..n-1 and slots 0..g-1 are live; the last ones fill gaps."""

    def __init__(
        self,
        forward: Forward,
        tokenizer: PreTrainedTokenizerBase,
        waiting: UnitQueue,
        sampling: Sampling,
        end_ids: Sequence[int],
        device: torch.device,
        version: int,
        tree: PrefixTree | None = None,
    ) -> None:
        """`version` of the weights; `tree` of the tokens that episodes read, None = each turn reads all tokens."""
        self._forward, self._tokenizer, self._sampling, self._version = forward, tokenizer, sampling, version
        self._waiting, self._members = waiting, waiting.members
        self._live: list[tuple[Unit, int]] = []  # unit of each live row, and the row's index in the unit
        self._slots: list[tuple[int, int, int]] = []  # of the live group slots, see `_slot_of`
        self._tree, self._device = tree, device
        draws_there = traits_of(device.type).has_float64
        self._rows = Rows(forward.shape.rows, sampling, end_ids, device if draws_there else torch.device("cpu"))

    @property
    def going(self) -> bool:
        """Whether completions are live or waiting."""
        return bool(self._live or self._waiting)

    def advance(self) -> Finished:
        """Admits waiting groups, then draws one token for every live row; returns the completions that finished."""
        PROGRESS.mark()
        finished = self._admit()
        if not self._live and not finished:
            self._waiting.wait()
        if self._live:  # not all admitted rows ended at their first token
            prompts = [prompt for _, _, prompt in self._slots]
            finished += self._retire(self._rows.draw(self._forward.decode_step(self._rows, self._members, prompts)))
        return self._waiting.ended(finished)

    def _admit(self) -> Finished:
        shape = self._forward.shape
        free = shape.rows - len(self._live)
        if not self._waiting or (self._live and free < _REFILL_SHARE * shape.rows):
            return []
        first_row, first_slot = len(self._live), len(self._slots)
        units = self._waiting.take(free, shape.groups - first_slot if self._tree is None else free)
        if not units:
            return []
        self._slots += dict.fromkeys(slot for slot in map(self._slot_of, units) if slot not in self._slots)
        self._live += ((unit, row) for unit in units for row in range(len(unit.keys)))
        if self._tree is None:
            logits_PV = self._forward.prefill([unit.read_ids for unit in units], first_slot)
        else:
            next_row = first_row
            forward, before = cast(ModuleForward, self._forward), self._forward.shape.before
            paths = self._tree.read(forward.read, [unit.read_ids for unit in units], self._device)
            for unit, path in zip(units, paths, strict=True):
                prompt, slot = len(unit.prompt_ids), self._slots.index(self._slot_of(unit))
                if slot >= first_slot:
                    forward.cache.load_prompt(slot, path.span(before, prompt))
                if unit.written:
                    forward.cache.load_row(next_row, path.span(prompt, path.size))
                next_row += len(unit.keys)
            # What the tree lacked was read; slots and rows are filled from it.
            logits_PV = forward.output(torch.stack([path.last_H for path in paths]))  # type: ignore[misc]
        logits_PV = logits_PV.to(self._rows.key.device)
        unit_n = torch.tensor([at for at, unit in enumerate(units) for _ in unit.keys], device=logits_PV.device)
        seen_nV = None
        if self._sampling.penalizes:
            seen_PV = torch.zeros_like(logits_PV, dtype=torch.bool)
            for row, unit in enumerate(units):
                seen_PV[row, list(unit.read_ids)] = True
            seen_nV = seen_PV.index_select(0, unit_n)
        columns = []
        for unit in units:
            slot = self._slots.index(self._slot_of(unit))
            prompt, member = self._slots[slot][2], unit.first % self._members
            first_place, written = slot * self._members + member, len(unit.read_ids) - prompt
            columns += [(key, first_place + index, prompt, written) for index, key in enumerate(unit.keys)]
        most = [unit.most or self._sampling.max_tokens for unit in units for _ in unit.keys]
        self._rows.add(columns, seen_nV, most)
        return self._retire(self._rows.draw(logits_PV.index_select(0, unit_n), first_row))

    def _slot_of(self, unit: Unit) -> tuple[int, int, int]:
        """The slot of a unit and of the later turns of its episodes: request, part of the group, prompt tokens."""
        if self._tree is None and unit.written:
            return unit.request, -1 - unit.first, len(unit.read_ids)  # alone with its past
        return unit.request, unit.first // self._members, len(unit.prompt_ids)

    def _retire(self, ended: dict[int, StopReason]) -> Finished:
        """Removes rows that ended or hold a stop string, and fills their gaps; returns their completions."""
        reasons = dict(ended)
        stops = self._sampling.stop
        if stops:
            # A token is at least one byte, so this many tokens hold the longest stop string and the token before it.
            tail = max(len(stop.encode()) for stop in stops) + 1
            texts = torch.cat([self._rows.length[:, None], self._rows.tokens], 1)[: len(self._live)].tolist()
            tails = [row[max(0, n - tail) : n] for n, *row in texts]
            for row, text in enumerate(completion_texts(tails, self._tokenizer)):
                if any(stop in text for stop in stops) and ended.get(row) is not StopReason.END:
                    reasons[row] = StopReason.STOP_STRING
        if not reasons:
            return []
        indices = {row: self._live[row][0].first + self._live[row][1] for row in reasons}
        # With a tree, equal tokens have the bits of the first episode, whatever row it is in.
        stopped = list(reasons) if self._tree is None else sorted(reasons, key=indices.__getitem__)
        finished = []
        for row, (token_ids, sampled, plain) in zip(stopped, self._rows.read(stopped), strict=True):
            unit, _ = self._live[row]
            (completion_text,) = completion_texts([token_ids], self._tokenizer)
            if self._tree is not None and len(token_ids) > 1:  # the last token was not read
                begin = len(unit.written)
                pairs = cast(ModuleForward, self._forward).cache.read_row(row, begin, begin + len(token_ids) - 1)
                self._tree.add((*unit.read_ids, *token_ids[:-1]), pairs)
            completion = Completion(
                indices[row], token_ids, sampled, plain, completion_text, reasons[row], self._version
            )
            finished.append((unit.request, completion))
        used = max(self._rows.written)
        moves = _fill_gaps(self._live, sorted(reasons))
        if moves:
            self._forward.move_rows(moves, used)
        self._rows.keep(moves, len(self._live))
        live_slots = {self._slot_of(unit) for unit, _ in self._live}
        moves = _fill_gaps(self._slots, [index for index, slot in enumerate(self._slots) if slot not in live_slots])
        if moves:
            self._forward.move_groups(moves)
            self._rows.change_slots(moves, self._members)
        return finished


def _fill_gaps(items: list[Any], gone: Sequence[int]) -> list[tuple[int, int]]:
    """Removes the items that are gone, in place; returns the moves (from, to) of the last ones into the gaps."""
    end = len(items) - len(gone)
    survivors = sorted(set(range(end, len(items))) - set(gone))
    moves = list(zip(survivors, (gap for gap in gone if gap < end), strict=True))
    for source, target in moves:
        items[target] = items[source]
    del items[end:]
    return moves
