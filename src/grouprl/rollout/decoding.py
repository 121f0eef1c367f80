"""The decoding of one engine call: finished rows leave and make room for waiting groups."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from grouprl.models.progress import PROGRESS
from grouprl.models.prompts import completion_texts
from grouprl.rollout.forward import Forward
from grouprl.rollout.rows import Rows
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
        """Takes completions that ended; gives those that are over, here all of them."""
        return finished

    def wait(self) -> None:
        """Waits for units; here none can come."""


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
    ) -> None:
        """`version`: of the weights, for the completions."""
        self._forward, self._tokenizer, self._sampling, self._version = forward, tokenizer, sampling, version
        self._waiting, self._members = waiting, waiting.members
        self._live: list[tuple[Unit, int]] = []  # unit of each live row, and the row's place in it
        self._slots: list[Unit] = []  # unit of each live group slot
        self._rows = Rows(forward.shape.rows, sampling, end_ids, device)

    @property
    def going(self) -> bool:
        """Whether completions are live or waiting."""
        return bool(self._live or self._waiting)

    def advance(self) -> Finished:
        """Admits waiting groups, then draws one token for every live row; gives the rows that finished."""
        PROGRESS.mark()
        finished = self._admit()
        if not self._live and not finished:
            self._waiting.wait()
        if self._live:  # not all admitted rows ended at their first token
            prompts = [len(unit.prompt_ids) for unit in self._slots]
            finished += self._retire(self._rows.draw(self._forward.decode_step(self._rows, self._members, prompts)))
        return self._waiting.ended(finished)

    def _admit(self) -> Finished:
        shape = self._forward.shape
        free = shape.rows - len(self._live)
        if not self._waiting or (self._live and free < _REFILL_SHARE * shape.rows):
            return []
        first_row, first_slot = len(self._live), len(self._slots)
        units = self._waiting.take(free, shape.groups - first_slot)
        if not units:
            return []
        self._slots += units
        self._live += ((unit, place) for unit in units for place in range(len(unit.keys)))
        logits_PV = self._forward.prefill([unit.prompt_ids for unit in units], first_slot)
        counts_P = torch.tensor([len(unit.keys) for unit in units], device=logits_PV.device)
        seen_nV = None
        if self._sampling.penalizes:
            seen_PV = torch.zeros_like(logits_PV, dtype=torch.bool)
            for row, unit in enumerate(units):
                seen_PV[row, list(unit.prompt_ids)] = True
            seen_nV = seen_PV.repeat_interleave(counts_P, 0)
        self._rows.add(
            [
                (key, slot * self._members + place, len(unit.prompt_ids))
                for slot, unit in enumerate(units, first_slot)
                for place, key in enumerate(unit.keys)
            ],
            seen_nV,
        )
        return self._retire(self._rows.draw(logits_PV.repeat_interleave(counts_P, 0), first_row))

    def _retire(self, over: dict[int, StopReason]) -> Finished:
        stopped = (row for row in self._stopped_rows() if over.get(row) is not StopReason.END)
        reasons = over | dict.fromkeys(stopped, StopReason.STOP_STRING)
        if not reasons:
            return []
        finished = self._completions(reasons)
        self._close_gaps(sorted(reasons))
        return finished

    def _stopped_rows(self) -> list[int]:
        stops = self._sampling.stop
        if not stops:
            return []
        # A token is at least one byte, so this many tokens hold the longest stop string and the token before it.
        tail = max(len(stop.encode()) for stop in stops) + 1
        lengths = self._rows.length[: len(self._live)].tolist()
        tails = [row[max(0, n - tail) : n] for row, n in zip(self._rows.tokens.tolist(), lengths, strict=False)]
        texts = completion_texts(tails, self._tokenizer)
        return [row for row, text in enumerate(texts) if any(stop in text for stop in stops)]

    def _completions(self, reasons: dict[int, StopReason]) -> Finished:
        rows = torch.tensor(list(reasons), device=self._rows.length.device)
        lengths = self._rows.length[rows].tolist()
        columns = (self._rows.tokens[rows].tolist(), *self._rows.logprobs[:, rows].tolist())
        finished = []
        for (row, reason), n, *several in zip(reasons.items(), lengths, *columns, strict=True):
            unit, place = self._live[row]
            token_ids, sampled, plain = (tuple(values[:n]) for values in several)
            (text,) = completion_texts([token_ids], self._tokenizer)
            index = unit.first + place
            finished.append((unit.request, Completion(index, token_ids, sampled, plain, text, reason, self._version)))
        return finished

    def _close_gaps(self, gone: Sequence[int]) -> None:
        used = int(self._rows.length[: len(self._live)].max())
        moves = _fill_gaps(self._live, gone)
        if moves:
            self._forward.move_rows(moves, used)
        self._rows.keep(moves, len(self._live))
        left = {unit for unit, _ in self._live}
        moves = _fill_gaps(self._slots, [slot for slot, unit in enumerate(self._slots) if unit not in left])
        if moves:
            self._forward.move_groups(moves)
            self._rows.change_slots(moves, self._members)


def _fill_gaps(items: list[Any], gone: Sequence[int]) -> list[tuple[int, int]]:
    """Removes the items that are gone, in place, and gives the moves (from, to) of the last ones into the gaps."""
    end, lost = len(items) - len(gone), set(gone)
    survivors = [place for place in range(end, len(items)) if place not in lost]
    moves = list(zip(survivors, (gap for gap in gone if gap < end), strict=True))
    for source, target in moves:
        items[target] = items[source]
    del items[end:]
    return moves
