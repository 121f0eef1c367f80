"""Log-probs and entropies of each token, kept for the record; nothing here affects the update."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress

import torch
from torch import Tensor

from grouprl.learner.forward import Forward
from grouprl.learner.packs import Pack, to_grid
from grouprl.learner.policy_evaluation import PolicyEvaluation
from grouprl.types import Batch, Group, TokenTrace


@dataclass(frozen=True)
class TokenPass:
    """Log-probs and entropies of a pack's tokens from one forward pass."""

    pack: Pack
    logprobs_nT: Tensor
    entropies_nT: Tensor

    @staticmethod
    def of(pack: Pack, forward: Forward) -> TokenPass:
        """Detaches the numbers from the graph, which would keep all activations."""
        return TokenPass(pack, to_grid(pack, forward.logprobs_C.detach()), to_grid(pack, forward.entropies_C.detach()))


@dataclass(frozen=True)
class Trace:
    """[N, T] float32 tensors on the CPU; rows without a forward pass are NaN; None = no forward pass at all."""

    logprobs_NT: Tensor  # log-probs of the policy in the last pass, before its update
    entropies_NT: Tensor
    reference_NT: Tensor | None
    updated_NT: Tensor  # log-probs of the policy after the last update, of one watched group

    def rows(self, batch: Batch) -> list[TokenTrace]:
        """Returns the trace of each completion of the batch."""
        grids = (self.logprobs_NT, self.entropies_NT, self.reference_NT, self.updated_NT)
        columns = [[None] * len(batch.mask_NT) if grid is None else _read(grid, batch) for grid in grids]
        return [TokenTrace(*row) for row in zip(*columns, strict=True)]


def make_trace(
    batch: Batch, before: PolicyEvaluation, last_pass: Sequence[TokenPass], again: Sequence[TokenPass]
) -> Trace:
    """Puts the packs of the last pass, and of the pass after the last update, back into [N, T]."""
    return Trace(
        logprobs_NT=_whole(batch, [(part.pack, part.logprobs_nT) for part in last_pass]),
        entropies_NT=_whole(batch, [(part.pack, part.entropies_nT) for part in last_pass]),
        reference_NT=None if before.reference_NT is None else before.reference_NT.cpu(),
        updated_NT=_whole(batch, [(part.pack, part.logprobs_nT) for part in again]),
    )


def watched_group(batch: Batch, advantages_NT: Tensor) -> list[int]:
    """Returns the rows of the first group with signal; empty when no group has one."""
    moved_N = (advantages_NT != 0).any(1).tolist()
    group = next(compress(batch.group_of_N, moved_N), None)
    return [row for row, one in enumerate(batch.group_of_N) if one == group]


def watches(step: int) -> bool:
    """Whether one group is evaluated again after a step's update; that takes 0.9 % of a step of the demo."""
    return step % 10 == 1


def token_record(
    groups: Sequence[Group], kept: Sequence[bool], tokens: Sequence[tuple[list[float], TokenTrace]]
) -> tuple[list[list[list[float]]], list[list[TokenTrace]]]:
    """Puts the rows of the batch back in their groups; returns [P][G] advantages and traces.

    Groups that the filter dropped get advantages of 0 and empty traces.
    """
    rows = iter(tokens)
    pairs = [
        [next(rows) if keep else ([0.0] * len(completion), TokenTrace()) for completion in group.completions]
        for group, keep in zip(groups, kept, strict=True)
    ]
    return [[advantages for advantages, _ in group] for group in pairs], [
        [trace for _, trace in group] for group in pairs
    ]


def _whole(batch: Batch, parts: Sequence[tuple[Pack, Tensor]]) -> Tensor:
    whole_NT = torch.full(batch.mask_NT.shape, torch.nan)
    for pack, grid_nT in parts:
        whole_NT[list(pack.rows), : pack.width] = grid_nT.cpu()
    return whole_NT


def _read(grid_NT: Tensor, batch: Batch) -> list[tuple[float, ...] | None]:
    lengths = batch.mask_NT.sum(1).tolist()
    rows = zip(grid_NT.tolist(), grid_NT[:, 0].isnan().tolist(), lengths, strict=True)
    return [None if missing else tuple(row[:length]) for row, missing, length in rows]
