"""The completions that are being decoded. Rows 0 .. count-1 are live; the last rows fill the gaps of finished ones."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

from grouprl.forward.compiled import kernels
from grouprl.forward.devices import traits_of
from grouprl.rollout.sampler import draw, uniforms
from grouprl.types import Sampling, StopReason

_END, _FULL = 1, 2
_VERSIONS = itertools.count()  # of all `Rows`, so that a forward pass can serve one after the other


class Rows:
    """The state of at most R rows of at most T tokens each."""

    def __init__(self, rows: int, sampling: Sampling, end_ids: Sequence[int], device: torch.device) -> None:
        self.count = 0  # live rows
        self.written: list[int] = []  # tokens of each live row behind its prompt; counts on for rows that ended unread
        self.version = next(_VERSIONS)  # another one whenever rows are added or removed
        self._sampling, self._ends = sampling, torch.tensor(end_ids, device=device)
        self.key, self.place, self.prompt, self.history, self._most, self.length, self.newest = torch.zeros(
            7, rows, dtype=torch.long, device=device
        )  # of random numbers; group slot * members + member; tokens of prompt, before, at most, so far; the last
        self._reason, self._state = torch.zeros(2, rows, dtype=torch.long, device=device)
        self.tokens = torch.zeros(rows, sampling.max_tokens, dtype=torch.long, device=device)
        self.logprobs = torch.zeros(2, rows, sampling.max_tokens, device=device)  # sampled, plain
        self._seen = torch.empty(rows, 0, dtype=torch.bool, device=device)  # [R, V] with a repetition penalty
        # Stop strings must be searched after every token.
        self._read_every = 1 if sampling.stop else traits_of(device.type).read_every
        self._since = 0  # decode steps since the last read
        self._on_cpu = device.type == "cpu"

    def add(
        self,
        columns: Sequence[tuple[int, int, int, int]],
        seen_nV: Tensor | None = None,
        most: Sequence[int] | None = None,
    ) -> None:
        """Appends rows.

        Args:
            columns: key, place, prompt tokens, and tokens between prompt and turn, of each row.
            seen_nV: for a repetition penalty, which tokens stand before the completion.
            most: tokens that each row may have, at least 1; None = those of the sampling.
        """
        new = slice(self.count, self.count + len(columns))
        limits = most or [self._sampling.max_tokens] * len(columns)
        rows = [(*column, limit) for column, limit in zip(columns, limits, strict=True)]
        values = torch.tensor(rows, dtype=torch.long).T.to(self.key.device)
        for tensor, column in zip((self.key, self.place, self.prompt, self.history, self._most), values, strict=True):
            tensor[new] = column
        self.length[new] = self._reason[new] = self._state[new] = 0
        if seen_nV is not None:
            if not self._seen.shape[1]:
                self._seen = self._seen.new_zeros(len(self._seen), seen_nV.shape[1])
            self._seen[new] = seen_nV
        self.count += len(columns)
        self.written += (history for *_, history in columns)
        self.version = next(_VERSIONS)

    def begin(self, prefills: Sequence[Sequence[int]]) -> None:
        """Gives the rows added last the tokens that their completions begin with; the log-probs of these are NaN."""
        for row, ids in enumerate(prefills, self.count - len(prefills)):
            ids_T = torch.tensor(ids, device=self.tokens.device)
            self.tokens[row, : len(ids)], self.length[row], self.newest[row] = ids_T, len(ids), ids[-1]
            self.logprobs[:, row, : len(ids)] = torch.nan
            self.written[row] += len(ids)
            structure = self._sampling.structure
            if structure is not None:
                for token_1 in ids_T[:, None]:
                    self._state[[row]] = structure.after(self._state[[row]], token_1)

    def draw(self, logits_nV: Tensor, first: int = 0) -> dict[int, StopReason]:
        """Draws a token for each of the last n rows, from `first` on; returns the stop reasons of finished rows."""
        rows, logits_nV = slice(first, self.count), logits_nV.to(self.key.device)
        self.written[first:] = [count + 1 for count in self.written[first:]]
        key_n, length_n = self.key[rows], self.length[rows]
        compiled = kernels() if self._on_cpu else None
        if compiled is not None and not compiled.has_draw(logits_nV.shape[1], logits_nV.dtype):
            compiled = None
        if compiled is None or not self._sampling.only_scales:
            seen_nV, state_n = self._seen[rows], self._state[rows]
            drawn = draw(logits_nV, uniforms(key_n, length_n), self._sampling, seen_nV, state_n)
            if self._sampling.penalizes:
                seen_nV.scatter_(1, drawn[0][:, None], True)
            if self._sampling.structure is not None:
                self._state[rows] = self._sampling.structure.after(state_n, drawn[0])
        else:
            drawn = compiled.draw(logits_nV, key_n, length_n, self._sampling.temperature)
        if compiled is None:
            tokens_n = drawn[0]
            going_n = self._reason[rows] == 0
            at_n1 = self.length[rows][:, None].clamp(max=self.tokens.shape[1] - 1)
            for target, values_n in zip((self.tokens, *self.logprobs), drawn, strict=True):
                old_n1 = target[rows].gather(1, at_n1)
                target[rows].scatter_(1, at_n1, torch.where(going_n[:, None], values_n[:, None], old_n1))
            self.newest[rows] = tokens_n
            self.length[rows] += going_n
            full_n = (self.length[rows] == self._most[rows]) * _FULL
            reason_n = torch.where(torch.isin(tokens_n, self._ends), _END, full_n)
            self._reason[rows] = torch.where(going_n, reason_n, self._reason[rows])
            self._since = (self._since + 1) % self._read_every
            over = self._since == 0
        else:
            written = (self.newest, self.length, self.tokens, *self.logprobs, self._most)
            columns = [tensor[rows] for tensor in written]
            over = compiled.append(drawn, columns, self._ends, self._reason[rows])
        if not over:
            return {}
        reasons = self._reason[rows].tolist()
        names = {_END: StopReason.END, _FULL: StopReason.LENGTH}
        return {row: names[reason] for row, reason in enumerate(reasons, first) if reason}

    def read(self, rows: Sequence[int]) -> list[tuple[tuple[int, ...], tuple[float, ...], tuple[float, ...]]]:
        """The tokens of rows and their log-probs, sampled and plain; in one copy from the device."""
        index = torch.tensor(rows, device=self.key.device)
        logprobs_n2T = self.logprobs[:, index].transpose(0, 1).contiguous()
        columns = (self.length[index, None], self.tokens[index], logprobs_n2T.view(torch.int32).flatten(1))
        numbers_nX, most = torch.cat(columns, 1).cpu(), self.tokens.shape[1]
        logprobs_n2T = numbers_nX[:, 1 + most :].int().view(torch.float32).view(-1, 2, most)
        texts = zip(numbers_nX[:, : 1 + most].tolist(), logprobs_n2T.tolist(), strict=True)
        return [
            (tuple(ids[:length]), tuple(sampled[:length]), tuple(plain[:length]))
            for (length, *ids), (sampled, plain) in texts
        ]

    def keep(self, moves: Sequence[tuple[int, int]], count: int) -> None:
        """Copies rows (from, to) into the gaps that others left; `count` rows stay."""
        if moves:
            source, target = (torch.tensor(rows, device=self.key.device) for rows in zip(*moves, strict=True))
            columns = (self.key, self.place, self.prompt, self.history, self._most, self.length, self.newest)
            for tensor in (*columns, self._reason, self._state, self._seen, self.tokens, *self.logprobs):
                tensor[target] = tensor[source]
            for source_row, target_row in moves:
                self.written[target_row] = self.written[source_row]
        self.count = count
        del self.written[count:]
        self.version = next(_VERSIONS)

    def change_slots(self, moves: Sequence[tuple[int, int]], members: int) -> None:
        """Updates the places of rows after group slots moved (from, to)."""
        slots = self.place[: self.count] // members
        for source, target in moves:
            self.place[: self.count][slots == source] += (target - source) * members
