"""What the learner saw of each token, kept for the record: nothing here moves the policy."""

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
    """A forward pass over a pack: what it said of each token."""

    pack: Pack
    logprobs_nT: Tensor
    entropies_nT: Tensor

    @staticmethod
    def of(pack: Pack, forward: Forward) -> TokenPass:
        """Without the graph behind it, which would keep all activations."""
        return TokenPass(pack, to_grid(pack, forward.logprobs_C.detach()), to_grid(pack, forward.entropies_C.detach()))


@dataclass(frozen=True)
class Trace:
    """[N, T] float32 tensors on the CPU; rows that were not read are NaN. None = nothing was looked at."""

    logprobs_NT: Tensor  # of the policy in the last pass, before the update it was read for
    entropies_NT: Tensor
    reference_NT: Tensor | None
    updated_NT: Tensor  # log-probs of the policy after the last update, of one watched group

    def rows(self, batch: Batch) -> list[TokenTrace]:
        """Of each completion of the batch."""
        grids = (self.logprobs_NT, self.entropies_NT, self.reference_NT, self.updated_NT)
        columns = [[None] * len(batch.mask_NT) if grid is None else _read(grid, batch) for grid in grids]
        return [TokenTrace(*row) for row in zip(*columns, strict=True)]


def make_trace(
    batch: Batch, before: PolicyEvaluation, last_pass: Sequence[TokenPass], again: Sequence[TokenPass]
) -> Trace:
    """Puts the packs of the last pass, and of the look after the last update, back into [N, T]."""
    return Trace(
        logprobs_NT=_whole(batch, [(part.pack, part.logprobs_nT) for part in last_pass]),
        entropies_NT=_whole(batch, [(part.pack, part.entropies_nT) for part in last_pass]),
        reference_NT=None if before.reference_NT is None else before.reference_NT.cpu(),
        updated_NT=_whole(batch, [(part.pack, part.logprobs_nT) for part in again]),
    )


def watched_group(batch: Batch, advantages_NT: Tensor) -> list[int]:
    """The rows of the first group that has a signal; empty when none has."""
    moved_N = (advantages_NT != 0).any(1).tolist()
    group = next(compress(batch.group_of_N, moved_N), None)
    return [row for row, one in enumerate(batch.group_of_N) if one == group]


def watches(step: int) -> bool:
    """Whether a step's update is looked at afterwards: of one group in 16, that is 0.9 % of a step of the demo."""
    return step % 10 == 1


def token_record(
    groups: Sequence[Group], kept: Sequence[bool], tokens: Sequence[tuple[list[float], TokenTrace]]
) -> tuple[list[list[list[float]]], list[list[TokenTrace]]]:
    """[P][G] advantages and traces: the rows of the batch back in their groups.

    Groups that were dropped from it have advantages of 0, and were not read.
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
