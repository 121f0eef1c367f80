"""Packs a batch into micro-batches by a token budget, each prompt once beside its completions; models read packs.

The metrics of packs become those of an update, and these those of a pass.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from grouprl.forward.attention import hidden_states
from grouprl.forward.head import output_head
from grouprl.forward.layouts import Prefix, TreeLayout
from grouprl.forward.logprobs import Context, token_logprobs
from grouprl.forward.packing import GroupSize, pack_groups
from grouprl.forward.prefix import same_tokens
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
    read = {row: stretches(batch, row, read_last=read_last) for row in rows if batch.mask_NT[row].any()}
    by_group: dict[int, list[int]] = {}
    for row in read:
        by_group.setdefault(batch.group_of_N[row], []).append(row)
    branches, sizes = list[_Branch](), list[GroupSize]()
    for index, group in by_group.items():
        prompt, begun = len(batch.prompts[index]) - shared, [(group, 0)]
        if any(row in batch.observations for row in group):
            _, begun = _branches({row: tuple(read[row][0].packed_R.tolist()) for row in group}, prompt)
        branches += begun
        sizes += (
            GroupSize(prompt + same, tuple(sum(one.size(shared) for one in read[row]) - same for row in rows))
            for rows, same in begun
        )
    packs = ([(*branches[one.group], one) for one in pack] for pack in pack_groups(sizes, budget, device.type))
    parts = ([([rows[at] for at in one.completions], same) for rows, same, one in pack] for pack in packs)
    return [_pack(batch, pack, read, device, shared) for pack in parts]


_Branch = tuple[list[int], int]
"""Rows of a group, and how many tokens that all of them begin with are read once, as a part of their prompt."""


@dataclass(frozen=True)
class Stretch:
    """Tokens of a completion that the policy read after one beginning; without forks a completion has one."""

    beginning: Tensor | None  # what a fork reads before the stretch, prompt included; None = its group's prompt
    token_ids_R: Tensor  # own tokens with the observations between them
    places_T: Tensor  # index in R of each own token
    read: int  # of the R tokens those that are packed

    @property
    def packed_R(self) -> Tensor:
        """The tokens that are packed."""
        return self.token_ids_R[: self.read]

    def size(self, shared: int) -> int:
        """Packed tokens beside the group's prompt, where the first `shared` tokens are outside of the packs."""
        return self.read + (0 if self.beginning is None else len(self.beginning) - shared)


def stretches(batch: Batch, row: int, *, read_last: bool = False) -> list[Stretch]:
    """A completion as the policy read it; the last token of a stretch predicts nothing, unless a model scores it."""
    own_T, found, beginning = batch.token_ids_NT[row][batch.mask_NT[row]], [], None
    observations, begun = batch.observations.get(row, ()), 0
    forks = [place for place, one in enumerate(observations) if one.kept is not None]
    for first, last in zip([0, *(place + 1 for place in forks)], [*forks, len(observations)], strict=True):
        end = len(own_T) if last == len(observations) else observations[last].after
        ids_R, places_T = with_observations(own_T[begun:end], observations[first:last], begun)
        found.append(Stretch(beginning, ids_R, places_T, len(ids_R) - (0 if read_last else 1)))
        if last < len(observations):
            before = torch.tensor(batch.prompts[batch.group_of_N[row]]) if beginning is None else beginning
            whole, fork, begun = torch.cat([before, ids_R]), observations[last], end
            beginning = torch.cat([whole[: fork.kept], torch.tensor(fork.token_ids, dtype=whole.dtype)])
    return found


def beginnings(batch: Batch) -> list[tuple[int, ...]]:
    """The prompts, and what the forks of episodes read: a prefix that is read once begins all of them."""
    forks = [one.beginning for row in batch.observations for one in stretches(batch, row)]
    return [*batch.prompts, *(tuple(one.tolist()) for one in forks if one is not None)]


def _branches(read_ids: Mapping[int, tuple[int, ...]], prompt: int) -> tuple[int, list[_Branch]]:
    """Divides rows behind a prompt of so many tokens so that fewer are read; also gives their number.

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


def _pack(
    batch: Batch, groups: list[_Branch], read: Mapping[int, list[Stretch]], device: torch.device, shared: int
) -> Pack:
    rows = [row for group, _ in groups for row in group]
    nodes = list(_nodes(batch, groups, read))
    spans: list[Tensor] = []
    predictors: dict[int, list[Tensor]] = {row: [] for row in rows}
    at = 0
    for beginning, branches, same in nodes:
        spans.append(beginning[shared:])
        at += len(spans[-1])
        last = at - same - 1
        for row, one in branches:
            spans.append(one.packed_R[same:])
            # The token before a completion's token predicts it; before the first one it is the beginning's last token.
            predictors[row].append(torch.where(one.places_T > same, at + one.places_T - same - 1, last + one.places_T))
            at += len(spans[-1])
    mask_nT = batch.mask_NT[rows]
    row_C, column_C = mask_nT.nonzero(as_tuple=True)
    return Pack(
        rows=tuple(rows),
        input_ids_S=torch.cat(spans).to(device),
        layout=TreeLayout(
            tuple(len(beginning) - shared for beginning, _, _ in nodes),
            tuple(tuple(one.read - same for _, one in branches) for _, branches, same in nodes),
            device,
            shared,
        ),
        predictors_C=torch.cat([part for row in rows for part in predictors[row]]).to(device),
        token_ids_C=batch.token_ids_NT[rows][mask_nT].to(device),
        row_C=row_C.to(device),
        column_C=column_C.to(device),
        context=_context(batch, [(row, one) for row in rows for one in read[row]], mask_nT, device),
    )


def _nodes(
    batch: Batch, groups: list[_Branch], read: Mapping[int, list[Stretch]]
) -> Iterator[tuple[Tensor, list[tuple[int, Stretch]], int]]:
    """Each group's prompt, the first stretches of its completions, and how many tokens these share, which stand in the
    prompt; a later stretch stands alone.
    """
    for group, same in groups:
        prompt = torch.tensor(batch.prompts[batch.group_of_N[group[0]]])
        firsts = [(row, read[row][0]) for row in group]
        yield torch.cat([prompt, firsts[0][1].packed_R[:same]]), firsts, same
        for row in group:
            for one in read[row]:
                if one.beginning is not None:
                    yield one.beginning, [(row, one)], 0


def _context(batch: Batch, several: list[tuple[int, Stretch]], mask_nT: Tensor, device: torch.device) -> Context | None:
    if not batch.sampling.penalizes and batch.sampling.structure is None:
        return None
    begun = [
        torch.tensor(batch.prompts[batch.group_of_N[row]]) if one.beginning is None else one.beginning
        for row, one in several
    ]
    whole = [torch.cat([beginning, one.token_ids_R]) for beginning, (_, one) in zip(begun, several, strict=True)]
    before = [len(beginning) + one.places_T for beginning, (_, one) in zip(begun, several, strict=True)]
    row_C = torch.arange(len(several)).repeat_interleave(torch.tensor([*map(len, before)]))
    rows = list(dict.fromkeys(row for row, _ in several))
    parts = (pad_sequence(whole, True), row_C, torch.cat(before), batch.states_NT[rows][mask_nT])
    return Context(*(part.to(device) for part in parts))


def with_observations(
    token_ids_T: Tensor, observations: Sequence[ObservedTokens], first: int = 0
) -> tuple[Tensor, Tensor]:
    """The tokens that the policy read of a completion: its own, from `first` on, with the observations between them.

    Returns:
        All tokens, and the place among them of each own token.
    """
    places_T, parts, begun = torch.arange(len(token_ids_T)), [], 0
    for one in observations:
        parts += [token_ids_T[begun : one.after - first], torch.tensor(one.token_ids)]
        begun = one.after - first
        places_T[begun:] += len(one.token_ids)
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


def with_prefix(prefix: Prefix | None, pack: Pack) -> Pack:
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
