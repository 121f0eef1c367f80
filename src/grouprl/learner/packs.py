"""Packs a batch into micro-batches by a token budget, each prompt once beside its completions; models read packs.

The metrics of packs become those of an update, and these those of a pass.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from grouprl.models.attention import hidden_states
from grouprl.models.head import output_head
from grouprl.models.layouts import Prefix, TreeLayout
from grouprl.models.logprobs import Context, token_logprobs
from grouprl.models.packing import GroupSize, pack_groups
from grouprl.models.prefix import same_tokens
from grouprl.types import Batch, ObservedTokens, Sampling


@dataclass(frozen=True)
class Pack:
    """One micro-batch: packed tokens, and the places of its C completion tokens in [N, T].

    The S packed tokens exclude each completion's last token, which predicts nothing, unless a model scores it.
    """

    rows: tuple[int, ...]  # rows of the batch, in packed order
    input_ids_S: Tensor
    layout: TreeLayout
    predictors_C: Tensor  # index in S of the token whose hidden state predicts each completion token
    token_ids_C: Tensor  # the completion tokens
    row_C: Tensor  # index into `rows` of each completion token
    column_C: Tensor  # index in T of each completion token
    context: Context | None = None  # for a repetition penalty or a structure

    @cached_property
    def width(self) -> int:
        """The length of the longest completion, in tokens."""
        return int(self.column_C.max()) + 1

    @property
    def tokens(self) -> int:
        """The number of packed tokens, S."""
        return len(self.input_ids_S)


def minibatches(batch: Batch, count: int, seed: int) -> list[list[int]]:
    """Splits the rows of the batch into `count` parts of whole groups, in another order for every pass."""
    groups = list(range(len(batch.prompts)))
    if count > 1:
        random.Random(f"minibatches/{seed}").shuffle(groups)
    parts = [set(groups[place::count]) for place in range(min(count, len(groups)))]
    return [[row for row, group in enumerate(batch.group_of_N) if group in part] for part in parts]


def make_packs(
    batch: Batch, rows: Sequence[int], budget: int, device: torch.device, *, read_last: bool = False, shared: int = 0
) -> list[Pack]:
    """Packs the given rows of a batch, with at most `budget` tokens per pack; `models.packing` divides them.

    Args:
        batch: the step's batch.
        rows: the rows of the batch to pack; those without tokens are in no pack.
        budget: packed tokens per pack, 0 = by device and groups; one completion with its prompt may exceed it.
        device: the device of the packs' tensors.
        read_last: whether packs include the completions' last tokens, for a model that scores them.
        shared: tokens that begin all prompts and are read outside of the packs, see `models.prefix`.
    """
    lengths = batch.mask_NT.sum(1).tolist()
    read = [length - (0 if read_last else 1) for length in lengths]
    for row, observations in batch.observations.items():
        read[row] += sum(len(one.token_ids) for one in observations)
    by_group: dict[int, list[int]] = {}
    for row in rows:
        if lengths[row]:
            by_group.setdefault(batch.group_of_N[row], []).append(row)
    branches, sizes = list[_Branch](), list[GroupSize]()
    for index, group in by_group.items():
        prompt, begun = len(batch.prompts[index]) - shared, [(group, 0)]
        if any(row in batch.observations for row in group):
            _, begun = _branches({row: _read_ids(batch, row)[: read[row]] for row in group}, prompt)
        branches += begun
        sizes += (GroupSize(prompt + same, tuple(read[row] - same for row in rows)) for rows, same in begun)
    packs = ([(*branches[one.group], one) for one in pack] for pack in pack_groups(sizes, budget, device.type))
    parts = ([([rows[at] for at in one.completions], same) for rows, same, one in pack] for pack in packs)
    return [_pack(batch, pack, read, device, shared) for pack in parts]


_Branch = tuple[list[int], int]
"""Rows of a group, and how many tokens that all of them begin with are read once, as a part of their prompt."""


def _read_ids(batch: Batch, row: int) -> tuple[int, ...]:
    ids_T, _ = with_observations(batch.token_ids_NT[row, batch.mask_NT[row]], batch.observations.get(row, ()))
    return tuple(ids_T.tolist())


def _branches(read_ids: Mapping[int, tuple[int, ...]], prompt: int) -> tuple[int, list[_Branch]]:
    """Divides rows behind a prompt of so many tokens so that the fewest are read; also gives their number.

    Rows that begin alike become a branch of their own where what they share is more than the prompt, read once more.
    """
    same = same_tokens(read_ids.values())
    parts: dict[int | None, list[int]] = {}
    for row, ids in read_ids.items():
        parts.setdefault(ids[same] if len(ids) > same else None, []).append(row)
    tokens, made, others = 0, list[_Branch](), list[int]()
    for rows in parts.values():
        left = sum(len(read_ids[row]) - same for row in rows)
        own, inner = _branches({row: read_ids[row] for row in rows}, prompt) if len(parts) > 1 else (left, [])
        if own < left:
            tokens, made = tokens + own, made + inner
        else:
            tokens, others = tokens + left, others + rows
    return (tokens + prompt + same, [*made, (others, same)]) if others else (tokens, made)


def _pack(batch: Batch, groups: list[_Branch], read: list[int], device: torch.device, shared: int) -> Pack:
    whole_prompts = [batch.prompts[batch.group_of_N[group[0]]] for group, _ in groups]
    prompts = [prompt[shared:] for prompt in whole_prompts]
    rows = [row for group, _ in groups for row in group]
    mask_nT = batch.mask_NT[rows]
    lengths = dict(zip(rows, mask_nT.sum(1).tolist(), strict=True))
    spans, predictors, at = [], [], 0
    for prompt, (group, same) in zip(prompts, groups, strict=True):
        spans.append(torch.tensor((*prompt, *(_read_ids(batch, group[0])[:same] if same else ()))))
        last = at + len(prompt) - 1
        at += len(prompt) + same
        for row in group:
            ids_T, places_T = with_observations(
                batch.token_ids_NT[row, : lengths[row]], batch.observations.get(row, ())
            )
            spans.append(ids_T[same : read[row]])
            # The token before a completion's token predicts it; before the first one it is the prompt's last token.
            predictors.append(torch.where(places_T > same, at + places_T - same - 1, last + places_T))
            at += read[row] - same
    row_C, column_C = mask_nT.nonzero(as_tuple=True)
    context = None
    if batch.sampling.penalizes or batch.sampling.structure is not None:
        own = [torch.tensor(prompt) for prompt, (group, _) in zip(whole_prompts, groups, strict=True) for _ in group]
        written = [with_observations(batch.token_ids_NT[row], batch.observations.get(row, ())) for row in rows]
        whole = [torch.cat([prompt, ids_T]) for prompt, (ids_T, _) in zip(own, written, strict=True)]
        before_C = (
            torch.tensor([*map(len, own)])[row_C] + pad_sequence([at_T for _, at_T in written], True)[row_C, column_C]
        )
        states_C = batch.states_NT[rows][mask_nT]
        context = Context(*(part.to(device) for part in (pad_sequence(whole, True), row_C, before_C, states_C)))
    return Pack(
        rows=tuple(rows),
        input_ids_S=torch.cat(spans).to(device),
        layout=TreeLayout(
            tuple(len(prompt) + same for prompt, (_, same) in zip(prompts, groups, strict=True)),
            tuple(tuple(read[row] - same for row in group) for group, same in groups),
            device,
            shared,
        ),
        predictors_C=torch.cat(predictors).to(device),
        token_ids_C=batch.token_ids_NT[rows][mask_nT].to(device),
        row_C=row_C.to(device),
        column_C=column_C.to(device),
        context=context,
    )


def with_observations(token_ids_T: Tensor, observations: Sequence[ObservedTokens]) -> tuple[Tensor, Tensor]:
    """The tokens that the policy read of a completion: its own with the observations between them.

    Returns:
        All tokens, and the place among them of each own token.
    """
    places_T, parts, begun = torch.arange(len(token_ids_T)), [], 0
    for one in observations:
        parts += [token_ids_T[begun : one.after], torch.tensor(one.token_ids)]
        places_T[one.after :] += len(one.token_ids)
        begun = one.after
    return torch.cat([*parts, token_ids_T[begun:]]), places_T


def to_grid(pack: Pack, values_C: Tensor) -> Tensor:
    """Scatters [C] values in packed order to [n, width], one row per completion, 0 where a row has no token."""
    grid = values_C.new_zeros(len(pack.rows) * pack.width)
    return grid.index_copy(0, pack.row_C * pack.width + pack.column_C, values_C).view(len(pack.rows), pack.width)


def cut(pack: Pack, whole_NT: Tensor) -> Tensor:
    """[n, width]: the part of an [N, T] tensor that a pack holds, on its device."""
    return whole_NT[list(pack.rows), : pack.width].to(pack.row_C.device)


@dataclass(frozen=True)
class PackOutput:
    """The output of a model for a pack's C completion tokens, in packed order."""

    logprobs_C: Tensor
    entropies_C: Tensor
    hidden_CH: Tensor  # hidden states that predict the tokens


def after(prefix: Prefix | None, pack: Pack) -> Pack:
    """The pack, whose prompts lack their shared tokens, with what a model read of these."""
    return pack if prefix is None else replace(pack, layout=replace(pack.layout, prefix=prefix))


def pack_forward(
    model: PreTrainedModel, pack: Pack, sampling: Sampling, *, entropy_gradient: bool = False
) -> PackOutput:
    """Computes log-probs and entropies of the pack's completion tokens under `sampling`."""
    hidden_CH = pack_hidden(model, pack)
    logprobs_C, entropies_C = token_logprobs(
        output_head(model),
        hidden_CH,
        pack.token_ids_C,
        sampling,
        entropy_gradient=entropy_gradient,
        context=pack.context,
    )
    return PackOutput(logprobs_C, entropies_C, hidden_CH)


def pack_hidden(model: PreTrainedModel, pack: Pack) -> Tensor:
    """Returns the [C, H] hidden states that predict the pack's completion tokens."""
    hidden_SH = hidden_states(model, pack.input_ids_S, pack.layout.position_ids_S, pack.layout)
    return hidden_SH.index_select(0, pack.predictors_C)


PackMetrics = dict[str, tuple[float, float]]
"""Of each metric its value, and the number of tokens that it describes."""


def pack_metrics(stats: Mapping[str, Tensor], tokens: Mapping[str, int], others: int) -> PackMetrics:
    """The metrics of one pack as plain numbers; `others` counts the tokens of those that `tokens` does not name."""
    return {name: (float(value.detach()), tokens.get(name, others)) for name, value in stats.items()}


def combined(metrics: Sequence[PackMetrics]) -> dict[str, float]:
    """Combines the packs' metrics: sums of losses, maxima of maxima, token-weighted means of the others.

    A metric that describes no token of any pack is absent.
    """
    combined: dict[str, float] = {}
    for name in metrics[0] if metrics else ():
        found = [pack[name] for pack in metrics if pack[name][1]]
        if not found:
            continue
        if name in ("loss", "value_loss", "router_aux_loss"):
            combined[name] = sum(value for value, _ in found)
        elif name in ("sampler_learner_gap", "ratio_max"):
            combined[name] = max(value for value, _ in found)
        else:
            combined[name] = sum(value * count for value, count in found) / sum(count for _, count in found)
    return combined


def averaged(updates: Sequence[dict[str, float]]) -> dict[str, float]:
    """Averages the metrics of a pass over its updates; `ratio_max` is the largest."""
    names = dict.fromkeys(name for update in updates for name in update)
    columns = {name: [update[name] for update in updates if name in update] for name in names}
    return {name: max(values) if name == "ratio_max" else sum(values) / len(values) for name, values in columns.items()}
