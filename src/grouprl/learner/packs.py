"""Packs a batch into micro-batches by a token budget, each prompt once beside its completions; models read packs.

The metrics of packs become those of an update, and these those of a pass.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

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
    """One micro-batch: packed tokens, and the row and column in [N, T] of its C completion tokens.

    The S packed tokens exclude each completion's last token, which predicts nothing, unless a model scores it.
    """

    rows: tuple[int, ...]  # rows of the batch, in packed order
    input_ids_S: Tensor
    layout: TreeLayout
    predictors_C: Tensor  # index in S of the token whose hidden state predicts each completion token
    token_ids_C: Tensor  # the completion tokens
    row_C: Tensor  # index into `rows` of each completion token
    column_C: Tensor  # index in T of each completion token
    lengths: tuple[int, ...]  # tokens of each row
    context: Context | None = None  # for a repetition penalty or a structure

    @property
    def width(self) -> int:
        """The length of the longest completion, in tokens."""
        return max(self.lengths)

    @property
    def tokens(self) -> int:
        """The number of packed tokens, S."""
        return len(self.input_ids_S)


def minibatches(batch: Batch, count: int, seed: int) -> list[list[int]]:
    """Splits the rows of the batch into `count` parts of whole groups, in another order for every pass."""
    groups = list(range(len(batch.prompts)))
    if count > 1:
        random.Random(f"minibatches/{seed}").shuffle(groups)
    parts = [set(groups[first::count]) for first in range(min(count, len(groups)))]
    return [[row for row, group in enumerate(batch.group_of_N) if group in part] for part in parts]


def make_packs(
    batch: Batch, rows: Sequence[int], budget: int, device: torch.device, *, read_last: bool = False, shared: int = 0
) -> list[Pack]:
    """Packs rows of a batch with at most `budget` tokens per pack; `grouprl.forward.packing` divides them.

    Args:
        batch: the step's batch.
        rows: the rows of the batch to pack; those without tokens are in no pack.
        budget: packed tokens per pack, 0 = by device and groups; one completion with its prompt may exceed it.
        device: the device of the packs' tensors.
        read_last: whether packs include the completions' last tokens, for a model that scores them.
        shared: tokens that begin all prompts and are read outside of the packs (`grouprl.forward.prefix`).
    """
    segments = {row: row_segments(batch, row, read_last=read_last) for row in rows if batch.mask_NT[row].any()}
    rows_by_group: dict[int, list[int]] = {}
    for row in segments:
        rows_by_group.setdefault(batch.group_of_N[row], []).append(row)

    # Branches of the groups, and their sizes in packed tokens.
    branches, sizes = list[_PackBranch](), list[GroupSize]()
    for group, group_rows in rows_by_group.items():
        prompt_length = len(batch.prompts[group]) - shared
        group_branches = [_PackBranch(group_rows, 0)]
        if any(row in batch.observations for row in group_rows):
            first_ids = {row: tuple(segments[row][0].packed_R.tolist()) for row in group_rows}
            _, group_branches = _branches(first_ids, prompt_length)
        for branch in group_branches:
            lengths = [sum(segment.size(shared) for segment in segments[row]) - branch.common for row in branch.rows]
            sizes.append(GroupSize(prompt_length + branch.common, tuple(lengths)))
        branches += group_branches

    # A branch that exceeds the budget is divided between packs.
    packs: list[Pack] = []
    for parts in pack_groups(sizes, budget, device.type):
        pack_branches = []
        for part in parts:
            branch = branches[part.group]
            pack_branches.append(_PackBranch([branch.rows[index] for index in part.completions], branch.common))
        packs.append(_pack(batch, pack_branches, segments, device, shared))
    if device.type == "cpu":
        return packs
    # All packs in one copy, because the host waits for each.
    columns = [
        part
        for pack in packs
        for part in (pack.input_ids_S, pack.predictors_C, pack.token_ids_C, pack.row_C, pack.column_C)
    ]
    moved = iter(torch.split(torch.cat(columns).to(device), list(map(len, columns))) if columns else ())
    return [
        replace(
            pack,
            input_ids_S=next(moved),
            predictors_C=next(moved),
            token_ids_C=next(moved),
            row_C=next(moved),
            column_C=next(moved),
        )
        for pack in packs
    ]


@dataclass(frozen=True)
class _PackBranch:
    """Completions of a group that begin with common tokens, which are packed once, as a part of their prompt."""

    rows: list[int]
    common: int  # tokens


@dataclass(frozen=True)
class Segment:
    """Tokens of a completion that the policy read after one beginning; without forks a completion has one segment."""

    beginning: Tensor | None  # what a fork reads before the segment, prompt included; None = its group's prompt
    token_ids_R: Tensor  # the policy's tokens with the observations between them
    positions_T: Tensor  # index in R of each of the policy's tokens
    read: int  # number of the R tokens that are packed

    @property
    def packed_R(self) -> Tensor:
        """The tokens that are packed."""
        return self.token_ids_R[: self.read]

    def size(self, shared: int) -> int:
        """Packed tokens beside the group's prompt, where the first `shared` tokens are outside of the packs."""
        return self.read + (0 if self.beginning is None else len(self.beginning) - shared)


def row_segments(batch: Batch, row: int, *, read_last: bool = False) -> list[Segment]:
    """A completion as the policy read it; the last token of a segment predicts nothing, unless a model scores it.

    An observation with `kept` ends a segment: the next one begins with so many of the tokens read before, and the
    observation's own.
    """
    policy_ids_T, observations = batch.token_ids_NT[row][batch.mask_NT[row]], batch.observations.get(row, ())
    segments: list[Segment] = []
    beginning: Tensor | None = None
    start, observed = 0, list[ObservedTokens]()
    for observation in (*observations, None):
        if observation is not None and observation.kept is None:
            observed.append(observation)
            continue
        end = len(policy_ids_T) if observation is None else observation.after
        ids_R, positions_T = with_observations(policy_ids_T[start:end], observed, start)
        segments.append(Segment(beginning, ids_R, positions_T, len(ids_R) - (0 if read_last else 1)))
        if observation is not None:
            before = torch.tensor(batch.prompts[batch.group_of_N[row]]) if beginning is None else beginning
            context = torch.cat([before, ids_R])[: observation.kept]
            beginning = torch.cat([context, torch.tensor(observation.token_ids, dtype=context.dtype)])
            start, observed = end, []
    return segments


def beginnings(batch: Batch) -> list[tuple[int, ...]]:
    """The prompts, and what the forks of episodes read: a prefix that is read once begins all of them."""
    segments = [segment for row in batch.observations for segment in row_segments(batch, row)]
    forks = [segment.beginning for segment in segments if segment.beginning is not None]
    return [*batch.prompts, *(tuple(beginning.tolist()) for beginning in forks)]


def _branches(ids_by_row: Mapping[int, tuple[int, ...]], prompt_length: int) -> tuple[int, list[_PackBranch]]:
    """Divides rows behind a prompt so that fewer tokens are packed; also returns the number of these.

    Rows that begin alike become a branch where their common tokens are more than the prompt, which it repeats.
    """
    common = same_tokens(ids_by_row.values())
    rows_by_next_id: dict[int | None, list[int]] = {}
    for row, ids in ids_by_row.items():
        rows_by_next_id.setdefault(ids[common] if len(ids) > common else None, []).append(row)
    tokens, branches, rest = 0, list[_PackBranch](), list[int]()
    for rows in rows_by_next_id.values():
        joined_tokens = sum(len(ids_by_row[row]) - common for row in rows)
        if len(rows_by_next_id) > 1:
            branch_tokens, inner = _branches({row: ids_by_row[row] for row in rows}, prompt_length)
            if branch_tokens < joined_tokens:
                tokens += branch_tokens
                branches += inner
                continue
        tokens += joined_tokens
        rest += rows
    if rest:
        tokens += prompt_length + common
        branches.append(_PackBranch(rest, common))
    return tokens, branches


def _pack(
    batch: Batch,
    branches: Sequence[_PackBranch],
    segments: Mapping[int, list[Segment]],
    device: torch.device,
    shared: int,
) -> Pack:
    rows = [row for branch in branches for row in branch.rows]
    spans: list[Tensor] = []
    predictors: dict[int, list[Tensor]] = {row: [] for row in rows}
    prompt_lengths, segment_lengths = list[int](), list[tuple[int, ...]]()
    at = 0
    for beginning, node_segments, common in _nodes(batch, branches, segments):
        spans.append(beginning[shared:])
        at += len(beginning) - shared
        last = at - common - 1  # the beginning's last token before the common ones
        prompt_lengths.append(len(beginning) - shared)
        segment_lengths.append(tuple(segment.read - common for _, segment in node_segments))
        for row, segment in node_segments:
            # The token before a completion's token predicts it; before the first one it is the beginning's last token.
            positions_T = segment.positions_T
            behind_T = at + positions_T - common - 1
            predictors[row].append(torch.where(positions_T > common, behind_T, last + positions_T))
            spans.append(segment.packed_R[common:])
            at += segment.read - common

    mask_nT = batch.mask_NT[rows]
    row_C, column_C = mask_nT.nonzero(as_tuple=True)
    context = None
    if batch.sampling.penalizes or batch.sampling.structure is not None:
        context = _context(batch, [(row, segment) for row in rows for segment in segments[row]], mask_nT, device)
    return Pack(
        rows=tuple(rows),
        input_ids_S=torch.cat(spans),
        layout=TreeLayout(tuple(prompt_lengths), tuple(segment_lengths), device, shared),
        predictors_C=torch.cat([part for row in rows for part in predictors[row]]),
        token_ids_C=batch.token_ids_NT[rows][mask_nT],
        row_C=row_C,
        column_C=column_C,
        lengths=tuple(mask_nT.sum(1).tolist()),
        context=context,
    )


def _nodes(
    batch: Batch, branches: Sequence[_PackBranch], segments: Mapping[int, list[Segment]]
) -> list[tuple[Tensor, list[tuple[int, Segment]], int]]:
    """The nodes of a pack's layout: tokens, the segments that read them, and how many of them the segments repeat.

    A branch's prompt with its common tokens is read by the first segments of its completions; the beginning of each
    later segment by that one alone.
    """
    nodes: list[tuple[Tensor, list[tuple[int, Segment]], int]] = []
    for branch in branches:
        prompt = torch.tensor(batch.prompts[batch.group_of_N[branch.rows[0]]])
        firsts = [(row, segments[row][0]) for row in branch.rows]
        nodes.append((torch.cat([prompt, firsts[0][1].packed_R[: branch.common]]), firsts, branch.common))
        for row in branch.rows:
            for segment in segments[row]:
                if segment.beginning is not None:
                    nodes.append((segment.beginning, [(row, segment)], 0))
    return nodes


def _context(batch: Batch, segments: Sequence[tuple[int, Segment]], mask_nT: Tensor, device: torch.device) -> Context:
    """What a repetition penalty or a structure reads: all tokens of each segment, and where each token stands."""
    texts, positions = list[Tensor](), list[Tensor]()
    for row, segment in segments:
        prompt = torch.tensor(batch.prompts[batch.group_of_N[row]])
        beginning = prompt if segment.beginning is None else segment.beginning
        texts.append(torch.cat([beginning, segment.token_ids_R]))
        positions.append(len(beginning) + segment.positions_T)
    row_C = torch.arange(len(segments)).repeat_interleave(torch.tensor([*map(len, positions)]))
    rows = list(dict.fromkeys(row for row, _ in segments))
    parts = (pad_sequence(texts, True), row_C, torch.cat(positions), batch.states_NT[rows][mask_nT])
    return Context(*(part.to(device) for part in parts))


def with_observations(
    token_ids_T: Tensor, observations: Sequence[ObservedTokens], first: int = 0
) -> tuple[Tensor, Tensor]:
    """The tokens that the policy read of a completion: its own, from `first` on, with the observations between them.

    Returns:
        All tokens, and the index among them of each of the policy's.
    """
    positions_T, parts, start = torch.arange(len(token_ids_T)), list[Tensor](), 0
    for observation in observations:
        end = observation.after - first
        parts += [token_ids_T[start:end], torch.tensor(observation.token_ids)]
        positions_T[end:] += len(observation.token_ids)
        start = end
    return torch.cat([*parts, token_ids_T[start:]]), positions_T


def to_grid(pack: Pack, values_C: Tensor) -> Tensor:
    """Scatters [C] values in packed order to [n, width], one row per completion, 0 where a row has no token."""
    grid = values_C.new_zeros(len(pack.rows) * pack.width)
    return grid.index_copy(0, pack.row_C * pack.width + pack.column_C, values_C).view(len(pack.rows), pack.width)


def cut(pack: Pack, values_NT: Tensor) -> Tensor:
    """[n, width]: the rows of an [N, T] tensor that are in a pack, on its device."""
    return values_NT[list(pack.rows), : pack.width].to(pack.row_C.device)


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


Stats = dict[str, tuple[Tensor, int]]
"""Value of each metric of a pack, and the number of tokens that it describes."""
PackMetrics = dict[str, tuple[float, float]]
"""The same as numbers."""


def read_metrics(stats: Sequence[Stats]) -> list[PackMetrics]:
    """The metrics of packs as numbers: the host waits once for all of them."""
    values = [value.detach() for pack in stats for value, _ in pack.values()]
    numbers = iter(torch.stack(values).tolist() if values else ())
    return [{name: (next(numbers), count) for name, (_, count) in pack.items()} for pack in stats]


def combined(metrics: Sequence[PackMetrics]) -> dict[str, float]:
    """Combines the packs' metrics: sums of losses, maxima of maxima, token-weighted means of the others.

    A metric that describes no token of any pack is absent.
    """
    combined: dict[str, float] = {}
    for name in metrics[0] if metrics else ():
        described = [pack[name] for pack in metrics if pack[name][1]]
        if not described:
            continue
        if name in ("loss", "value_loss", "router_aux_loss"):
            combined[name] = sum(value for value, _ in described)
        elif name in ("sampler_learner_gap", "ratio_max"):
            combined[name] = max(value for value, _ in described)
        else:
            combined[name] = sum(value * count for value, count in described) / sum(count for _, count in described)
    return combined


def averaged(updates: Sequence[dict[str, float]]) -> dict[str, float]:
    """Averages the metrics of a pass over its updates; `ratio_max` is the largest."""
    names = dict.fromkeys(name for update in updates for name in update)
    columns = {name: [update[name] for update in updates if name in update] for name in names}
    return {name: max(values) if name == "ratio_max" else sum(values) / len(values) for name, values in columns.items()}
