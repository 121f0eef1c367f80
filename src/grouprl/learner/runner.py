"""Runs networks over the packs of a batch; each of several ranks computes some of the packs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TypeVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from grouprl.forward.attention import hidden_states
from grouprl.forward.layouts import Prefix
from grouprl.forward.precision import autocast
from grouprl.forward.prefix import LearnedPrefix, read_prefix, shared_tokens
from grouprl.forward.progress import PROGRESS
from grouprl.forward.workers import side_by_side, worker_count
from grouprl.learner.gradients import Loss, add_gradients
from grouprl.learner.packs import Pack, beginnings, make_packs, to_grid, with_prefix
from grouprl.ranks import Ranks
from grouprl.types import Batch

Result = TypeVar("Result")


@dataclass(frozen=True)
class PackRunner:
    """Divides a batch into packs and computes them, in the dtype and on the device of the learner."""

    policy: PreTrainedModel  # its size decides how many packs run side by side
    device: torch.device
    dtype: str
    micro_batch_tokens: int
    ranks: Ranks
    reads_prefix_once: bool  # whether the tokens that begin all prompts may be read outside of the packs

    def packs(self, batch: Batch, rows: Sequence[int], prefix_length: int = 0) -> list[Pack]:
        """The packs of some rows; their prompts lack the first `prefix_length` tokens."""
        return make_packs(batch, rows, self.micro_batch_tokens, self.device, shared=prefix_length)

    def learned_packs(
        self, network: PreTrainedModel, batch: Batch, rows: Sequence[int]
    ) -> tuple[list[Pack], LearnedPrefix | None]:
        """The packs of some rows, and the prefix that they share, whose gradient is added once."""
        packs = self.packs(batch, rows, self._prefix_length(batch))
        prefix = self.prefix(network, batch, learned=True) if packs else None
        if prefix is None:
            return packs, None
        learned = LearnedPrefix(prefix)
        return [with_prefix(learned.read, pack) for pack in packs], learned

    def prefix(self, network: PreTrainedModel, batch: Batch, *, learned: bool = False) -> Prefix | None:
        """Keys and values of the tokens that begin all prompts, or None; on one thread where each pack is on one."""
        length = self._prefix_length(batch)
        if not length:
            return None
        job = partial(read_prefix, partial(hidden_states, network), batch.prompts[0][:length], self.device)
        with torch.set_grad_enabled(learned), autocast(self.device, self.dtype):
            (prefix,) = side_by_side([job], worker_count(self.policy, 1))
        return prefix

    def _prefix_length(self, batch: Batch) -> int:
        return shared_tokens(beginnings(batch)) if self.reads_prefix_once else 0

    def columns(
        self, network: PreTrainedModel, batch: Batch, compute: Callable[[Pack], dict[str, Tensor]]
    ) -> dict[str, Tensor]:
        """Scatters the [C] columns that a function computes for each pack to [N, T] tensors, without a gradient."""
        prefix = self.prefix(network, batch)
        packs = self.packs(batch, range(len(batch.group_of_N)), self._prefix_length(batch))
        grids: dict[str, Tensor] = defaultdict(lambda: torch.zeros(batch.mask_NT.shape, device=self.device))
        for pack, columns in self.own(packs, lambda pack: compute(with_prefix(prefix, pack))):
            for name, values_C in columns.items():
                grids[name][list(pack.rows), : pack.width] = to_grid(pack, values_C)
        names = chain.from_iterable(self.ranks.gather(list(grids), "evaluations"))
        return {name: self.ranks.combine(grids[name], "evaluations") for name in dict.fromkeys(names)}

    def own(self, packs: Sequence[Pack], compute: Callable[[Pack], Result]) -> list[tuple[Pack, Result]]:
        """The packs of this rank, each with the result of a function, without a gradient."""
        tokens = [pack.tokens for pack in packs]
        passes = [packs[index] for index in self.ranks.passes(tokens)]
        return self.each(passes, compute)[: len(self.ranks.own(tokens))]

    def each(self, packs: Sequence[Pack], compute: Callable[[Pack], Result]) -> list[tuple[Pack, Result]]:
        """All packs, each with the result of a function, without a gradient."""

        @torch.no_grad()
        def evaluate(pack: Pack) -> Result:
            PROGRESS.mark()
            with autocast(self.device, self.dtype):
                return compute(pack)

        results = side_by_side([partial(evaluate, pack) for pack in packs], worker_count(self.policy, len(packs)))
        return list(zip(packs, results, strict=True))

    def add_gradients(
        self,
        losses: Sequence[Loss[Result]],
        packs: Sequence[Pack],
        networks: Sequence[nn.Module],
        prefix: LearnedPrefix | None,
    ) -> dict[int, Result]:
        """Adds the gradients of the packs' losses; returns the second results of this rank's, by index of the pack."""
        tokens = [pack.tokens for pack in packs]
        workers = worker_count(networks[0], len(self.ranks.own(tokens)))
        return add_gradients(losses, networks, workers, costs=tokens, ranks=self.ranks, prefix=prefix)
