"""Packs a batch into micro-batches by a token budget, each prompt once beside its completions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from grouprl.models import TreeLayout
from grouprl.models.packing import GroupSize, pack_groups
from grouprl.types import Batch


@dataclass(frozen=True)
class Pack:
    """One micro-batch: packed tokens, and the places of its completions' log-probs in [N, T].

    The S packed tokens exclude each completion's last token, which predicts nothing, unless a model scores it.
    """

    rows: tuple[int, ...]  # rows of the batch, in packed order
    input_ids_S: Tensor
    layout: TreeLayout
    predictors_C: Tensor  # index in S of the token whose hidden state predicts each completion token
    row_C: Tensor  # index into `rows` of each completion token
    column_C: Tensor  # index in T of each completion token

    @cached_property
    def width(self) -> int:
        """The length of the longest completion, in tokens."""
        return int(self.column_C.max()) + 1


def make_packs(
    batch: Batch, rows: Sequence[int], budget: int, device: torch.device, *, read_last: bool = False
) -> list[Pack]:
    """Packs the given rows of a batch, with at most `budget` tokens per pack; `models.packing` divides them.

    Args:
        batch: the step's batch.
        rows: the rows of the batch to pack.
        budget: packed tokens per pack, 0 = by device and groups; one completion with its prompt may exceed it.
        device: the device of the packs' tensors.
        read_last: whether packs include the completions' last tokens, for a model that scores them.
    """
    lengths = batch.mask_NT.sum(1) if read_last else batch.mask_NT.sum(1) - 1
    read = lengths.tolist()
    groups = _by_group(batch, rows)
    sizes = [
        GroupSize(len(batch.prompts[batch.group_of_N[group[0]]]), tuple(read[row] for row in group)) for group in groups
    ]
    packs = pack_groups(sizes, budget, device.type)
    return [
        _pack(batch, [[groups[unit.group][place] for place in unit.completions] for unit in pack], read, device)
        for pack in packs
    ]


def _by_group(batch: Batch, rows: Sequence[int]) -> list[list[int]]:
    groups: dict[int, list[int]] = {}
    for row in rows:
        groups.setdefault(batch.group_of_N[row], []).append(row)
    return list(groups.values())


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
    """Returns [C] token ids of the pack's completion tokens, in packed order."""
    rows_C = torch.tensor(pack.rows)[pack.row_C.cpu()]
    return batch.token_ids_NT[rows_C, pack.column_C.cpu()].to(pack.input_ids_S.device)


def to_grid(pack: Pack, values_C: Tensor) -> Tensor:
    """Scatters [C] values in packed order to [n, width], one row per completion, 0 where a row has no token."""
    grid = values_C.new_zeros(len(pack.rows) * pack.width)
    return grid.index_copy(0, pack.row_C * pack.width + pack.column_C, values_C).view(len(pack.rows), pack.width)
