"""Branches of a completion: another token at one position, and the rest sampled at the completion's random numbers.

The completion is read once; a branch reads its other token and what it samples. Where the other token is the
completion's own, a branch is the completion again: the two differ by the token alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from grouprl.forward.attention import hidden_states
from grouprl.forward.head import output_head
from grouprl.forward.layouts import TreeLayout
from grouprl.forward.logprobs import Context, token_logprobs, truncate_logits
from grouprl.forward.precision import autocast
from grouprl.forward.prefix import KeepingLayout
from grouprl.forward.products import padded_call
from grouprl.rollout.decoding import Decoding, Finished, Unit, UnitQueue
from grouprl.rollout.engine import Request
from grouprl.rollout.forward import ModuleForward
from grouprl.rollout.native import NativeEngine
from grouprl.rollout.sampler import allowed, row_key
from grouprl.types import Completion, Sampling, StopReason


@dataclass(frozen=True, eq=False)
class ReadCompletion:
    """A completion of one turn with what its branches need of it."""

    request: Request  # of its group; one of its own problem and stream
    completion: Completion
    sampling: Sampling
    pairs: Tensor  # [layers, 2, P + T - 1, kv_heads, d] keys, positions applied, and values
    hidden_TH: Tensor  # those that predict each token
    context: Context
    vocabulary: int  # V
    entropies: tuple[float, ...]  # in nats, of the distribution that each token was drawn from

    @property
    def tokens(self) -> int:
        """The number of tokens that were read."""
        return self.pairs.shape[2]


class BranchEngine(NativeEngine):
    """The native engine, which also samples branches; only of models that decode with packed tokens."""

    @torch.no_grad()
    def read(self, request: Request, completion: Completion, sampling: Sampling) -> ReadCompletion:
        """Reads a completion of at least one token, in one forward pass; `sampling`: see `likely`."""
        ids, prompt = (*request.prompt_ids, *completion.token_ids), len(request.prompt_ids)
        ids_S, device = torch.tensor(ids, device=self._device), self._device
        layout = KeepingLayout([TreeLayout((len(ids) - 1,), ((),), device)])
        targets_T, count = ids_S[prompt:], len(completion)
        structure, states_T = sampling.structure, torch.zeros_like(targets_T)
        if structure is not None:
            states_T = structure.before(targets_T[None], torch.ones_like(targets_T[None], dtype=torch.bool))[0]
        before_T = prompt + torch.arange(count, device=device)
        context = Context(ids_S[None], torch.zeros_like(targets_T), before_T, states_T)
        with autocast(device, self._dtype):
            hidden_TH = hidden_states(self._model, ids_S[:-1], layout.position_ids_S, layout)[prompt - 1 :]
            head = output_head(self._model)
            _, entropies_T = token_logprobs(head, hidden_TH, targets_T, sampling, context=context)
        pairs, vocabulary = layout.pairs(getattr(torch, self._dtype)), len(head.weight)  # type: ignore[arg-type]
        entropies = tuple(entropies_T.tolist())
        return ReadCompletion(request, completion, sampling, pairs, hidden_TH, context, vocabulary, entropies)

    @torch.no_grad()
    def likely(self, read: ReadCompletion, position: int, most: int, least: float) -> dict[int, float]:
        """Probability of the completion's token at a position, and those of likely other tokens, largest first.

        Args:
            read: the completion; the probabilities are those of its sampling parameters, at a temperature above 0.
            position: below the number of its tokens.
            most: of other tokens.
            least: probability of another token.
        """
        at, sampling = slice(position, position + 1), read.sampling
        with autocast(self._device, self._dtype):
            logits_1V = padded_call(output_head(self._model), read.hidden_TH[at]).float()
        seen_1V = read.context.seen(at, logits_1V.shape[1]) if sampling.penalizes else None
        logits_1V = allowed(logits_1V, sampling, seen_1V, read.context.states_S[at])
        chances_V = truncate_logits(logits_1V, sampling).softmax(-1)[0]
        recorded_token = read.completion.token_ids[position]
        pairs = zip(*(part.tolist() for part in chances_V.topk(min(most + 1, len(chances_V)))), strict=True)
        others = [
            (token, chance) for chance, token in pairs if token != recorded_token and chance >= least and chance > 0
        ]
        return {recorded_token: float(chances_V[recorded_token]), **dict(others[:most])}

    @torch.no_grad()
    def sample(
        self,
        read: ReadCompletion,
        starts: Sequence[tuple[int, int]],
        *,
        on_finished: Callable[[int], None] | None = None,
    ) -> list[Completion]:
        """Samples a branch for each (position, token), in their order; its index says which of them it is.

        The log-probs of the tokens that it began with are NaN.
        """
        request, rows = read.request, min(self._max_rows, len(starts))
        key = row_key(self._seed, request.stream, request.problem.id, read.completion.index)
        token_ids, finished_completions = read.completion.token_ids, list[Completion]()
        beginnings = [(*token_ids[:position], token) for position, token in starts]
        firsts = range(0, len(starts), rows)
        units = [Unit(0, request.prompt_ids, (key,) * len(starts[at : at + rows]), at) for at in firsts]
        (forward,) = self._forwards(units, read.sampling, rows, 1, 0)
        with autocast(self._device, self._dtype):
            decoding = _BranchDecoding(
                *(forward, self._tokenizer, UnitQueue(units), read.sampling, self._ends, self._device, self._version)
            )
            decoding.begin(read, beginnings, self._ends)
            while decoding.going:
                finished_completions += (finished := [completion for _, completion in decoding.advance()])
                if on_finished is not None:
                    on_finished(len(finished))
        return sorted(finished_completions, key=lambda completion: completion.index)


class _BranchDecoding(Decoding):
    """Decodes as many branches at once as there are rows; they share the prompt."""

    def begin(self, read: ReadCompletion, beginnings: Sequence[tuple[int, ...]], ends: Sequence[int]) -> None:
        """Sets the tokens that each branch begins with, of which the last one is not read yet; `ends`: end tokens."""
        self._read, self._beginnings, self._ends = read, beginnings, ends

    def _admit(self) -> Finished:
        if self._live or not self._waiting:
            return []
        (unit,) = self._waiting.take(self._forward.shape.rows, 1)
        starts = self._beginnings[unit.first : unit.first + len(unit.keys)]
        prompt, cache = len(unit.prompt_ids), cast(ModuleForward, self._forward).cache
        self._slots, self._live = [self._slot_of(unit)], [(unit, index) for index in range(len(unit.keys))]
        cache.load_prompt(0, self._read.pairs[:, :, :prompt])
        for row, ids in enumerate(starts):
            if len(ids) > 1:
                cache.load_row(row, self._read.pairs[:, :, prompt : prompt + len(ids) - 1])
        if not self._sampling.penalizes:
            self._rows.add([(key, index, prompt, 0) for index, key in enumerate(unit.keys)], None)
        else:
            seen_nV = torch.zeros(len(starts), self._read.vocabulary, dtype=torch.bool, device=self._device)
            for row, ids in enumerate(starts):
                seen_nV[row, [*self._read.request.prompt_ids, *ids]] = True
            self._rows.add([(key, index, prompt, 0) for index, key in enumerate(unit.keys)], seen_nV)
        self._rows.begin(starts)
        full = {row: StopReason.LENGTH for row, ids in enumerate(starts) if len(ids) == self._sampling.max_tokens}
        return self._retire(full | {row: StopReason.END for row, ids in enumerate(starts) if ids[-1] in self._ends})
