"""Packs a batch into micro-batches by a token budget, each prompt once beside its completions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from grouprl.models import TreeLayout
from grouprl.types import Batch

# 512 to 16,384 tokens are as fast as one another on a CPU, whose caches hold none of them, and memory grows with them.
# A GPU wants enough tokens to fill it. A group is worth more than that: divided, its prompt is read again.
_TOKENS = {"cpu": 1024, "cuda": 16384}
_TOKENS_FOR_A_GROUP = 16384


def pack_tokens(setting: int, device: torch.device, *, largest: int = 0) -> int:
    """The tokens of a pack: the setting, or for 0 what suits the device and the largest group of the batch."""
    return setting or max(_TOKENS[device.type], min(largest, _TOKENS_FOR_A_GROUP))


@dataclass(frozen=True)
class Pack:
    """One micro-batch: packed tokens, and where the log-probs of its completions belong in [N, T].

    The last token of a completion is among the S packed ones only if it is asked for: it is predicted, and predicts
    nothing.
    """

    rows: tuple[int, ...]  # of N, in packed order
    input_ids_S: Tensor
    layout: TreeLayout
    predictors_C: Tensor  # index in S of the token whose hidden state predicts each completion token
    row_C: Tensor  # index into `rows` of each completion token
    column_C: Tensor  # its index in T

    @cached_property
    def width(self) -> int:
        """Tokens of the longest completion."""
        return int(self.column_C.max()) + 1


def make_packs(
    batch: Batch, rows: Sequence[int], budget: int, device: torch.device, *, read_last: bool = False
) -> list[Pack]:
    """The given rows of a batch as packs of at most `budget` tokens to read.

    Groups stay whole where they fit; one that does not is divided, and its prompt read again. Groups of similar
    length are packed together, longest first, so that padding inside attention stays small and memory peaks early.

    Args:
        batch: the step's batch.
        rows: indices of N to learn from.
        budget: packed tokens per pack, see `pack_tokens`; a single completion may exceed it with its prompt.
        device: where the packs are computed.
        read_last: whether the completions' last tokens are read as well, for a model that scores them.
    """
    lengths = batch.mask_NT.sum(1) if read_last else batch.mask_NT.sum(1) - 1
    read = lengths.tolist()
    groups = _by_group(batch, rows)
    sizes = (len(batch.prompts[batch.group_of_N[group[0]]]) + sum(read[row] for row in group) for group in groups)
    budget = pack_tokens(budget, device, largest=max(sizes, default=0))
    units = [unit for group in groups for unit in _divided(batch, group, read, budget)]
    units.sort(key=lambda unit: max(read[row] for row in unit), reverse=True)
    packs: list[list[list[int]]] = []
    room = 0
    for unit in units:
        cost = len(batch.prompts[batch.group_of_N[unit[0]]]) + sum(read[row] for row in unit)
        if not packs or cost > room:
            packs.append([])
            room = budget
        packs[-1].append(unit)
        room -= cost
    return [_pack(batch, pack, read, device) for pack in packs]


def _by_group(batch: Batch, rows: Sequence[int]) -> list[list[int]]:
    groups: dict[int, list[int]] = {}
    for row in rows:
        groups.setdefault(batch.group_of_N[row], []).append(row)
    return list(groups.values())


def _divided(batch: Batch, group: list[int], lengths: list[int], budget: int) -> Iterator[list[int]]:
    prompt = len(batch.prompts[batch.group_of_N[group[0]]])
    part: list[int] = []
    used = prompt
    for row in group:
        if part and used + lengths[row] > budget:
            yield part
            part, used = [], prompt
        part.append(row)
        used += lengths[row]
    yield part


def _pack(batch: Batch, groups: list[list[int]], read: list[int], device: torch.device) -> Pack:
    prompts = [batch.prompts[batch.group_of_N[group[0]]] for group in groups]
    rows = [row for group in groups for row in group]
    lengths = dict(zip(rows, batch.mask_NT[rows].sum(1).tolist(), strict=True))
    spans, predictors, at = [], [], 0
    for prompt, group in zip(prompts, groups, strict=True):
        spans.append(torch.tensor(prompt))
        last = at + len(prompt) - 1
        at += len(prompt)
        for row in group:
            spans.append(batch.token_ids_NT[row, : read[row]])
            # The prompt's last token predicts the first token of every completion.
            predictors.append(torch.cat([torch.tensor([last]), torch.arange(at, at + lengths[row] - 1)]))
            at += read[row]
    layout = TreeLayout(tuple(map(len, prompts)), tuple(tuple(read[row] for row in group) for group in groups), device)
    return Pack(
        rows=tuple(rows),
        input_ids_S=torch.cat(spans).to(device),
        layout=layout,
        predictors_C=torch.cat(predictors).to(device),
        row_C=torch.cat([torch.full((lengths[row],), place) for place, row in enumerate(rows)]).to(device),
        column_C=torch.cat([torch.arange(lengths[row]) for row in rows]).to(device),
    )


def targets(batch: Batch, pack: Pack) -> Tensor:
    """[C] token ids of the pack's completion tokens, in packed order."""
    rows_C = torch.tensor(pack.rows)[pack.row_C.cpu()]
    return batch.token_ids_NT[rows_C, pack.column_C.cpu()].to(pack.input_ids_S.device)


def to_grid(pack: Pack, values_C: Tensor) -> Tensor:
    """[n, width] of the pack's rows from [C] in packed order, 0 where a row has no token."""
    grid = values_C.new_zeros(len(pack.rows) * pack.width)
    return grid.index_copy(0, pack.row_C * pack.width + pack.column_C, values_C).view(len(pack.rows), pack.width)
