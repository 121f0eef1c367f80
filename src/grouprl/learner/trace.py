"""The numbers of each token that a run records: computed after the updates, which nothing here affects."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import compress

import torch
from torch import Tensor

from grouprl.algorithms import policy_ratios
from grouprl.algorithms.losses import TokenGrid
from grouprl.algorithms.spec import Algorithm
from grouprl.algorithms.stages import cut_sides, group_stages
from grouprl.algorithms.surrogates import left_out
from grouprl.learner.batch import UpdateInputs
from grouprl.learner.packs import Pack, PackOutput
from grouprl.ranks import Ranks
from grouprl.types import Batch, Group, TokenTrace


@dataclass(frozen=True)
class TokenPass:
    """Log-probs and entropies of a pack's C tokens from one forward pass, in packed order."""

    pack: Pack
    logprobs_C: Tensor
    entropies_C: Tensor

    @staticmethod
    def of(pack: Pack, forward: PackOutput) -> TokenPass:
        """Detaches the numbers from the graph, which would keep all activations."""
        return TokenPass(pack, forward.logprobs_C.detach(), forward.entropies_C.detach())


def all_passes(packs: Sequence[Pack], pass_by_index: Mapping[int, TokenPass], ranks: Ranks) -> list[TokenPass]:
    """The forward passes of all packs, of which this rank made some (by index)."""
    if ranks.world == 1 or not packs:
        return list(pass_by_index.values())
    lengths = [len(pack.row_C) for pack in packs]
    numbers_2C = torch.zeros(2, sum(lengths), device=packs[0].row_C.device)
    columns = torch.split(numbers_2C, lengths, dim=1)
    for index, token_pass in pass_by_index.items():
        columns[index].copy_(torch.stack([token_pass.logprobs_C, token_pass.entropies_C]))
    ranks.combine(numbers_2C, "log-probs")
    return [TokenPass(pack, *column) for pack, column in zip(packs, columns, strict=True)]


@dataclass(frozen=True)
class UpdatePass:
    """One update: its metrics, and the forward passes of its packs."""

    metrics: dict[str, float]
    passes: Sequence[TokenPass]


@dataclass(frozen=True)
class BatchUpdates:
    """What the updates of a batch computed; the record of it is made from this value alone."""

    metrics: dict[str, float]
    inputs: UpdateInputs | None = None  # None = no group entered the loss, and there was no update
    updates: Sequence[UpdatePass] = ()  # of the last pass over the batch
    watched: Sequence[int] = ()  # rows of the group that was evaluated again, see `watched_group`
    again: Sequence[TokenPass] = ()  # their forward passes after the last update
    critic_only: bool = False  # the updates moved the critic alone

    @property
    def last_pass(self) -> list[TokenPass]:
        """The forward passes of the last pass over the batch."""
        return [token_pass for update in self.updates for token_pass in update.passes]


@dataclass(frozen=True)
class LearnTrace:
    """Numbers of a batch's tokens, for the record."""

    unused: Mapping[str, Tensor]  # [N, T] bool: tokens without a gradient, by category of `evaluation.ledger`
    tokens: list[tuple[list[float], TokenTrace]]  # [N] advantages and trace of the completion's tokens
    stages: Mapping[str, Mapping[str, object]]  # see `_watched_stages`


def trace_updates(algorithm: Algorithm, result: BatchUpdates) -> LearnTrace:
    """Computes the recorded numbers of a batch's tokens from its updates."""
    if result.inputs is None:
        return LearnTrace({}, [], {})
    inputs, objective = result.inputs, algorithm.objective
    passes = _on_host([*result.last_pass, *result.again])
    last_pass, again = passes[: len(result.last_pass)], passes[len(result.last_pass) :]
    batch, advantages_NT, reference_NT = inputs.batch, inputs.advantages_NT, inputs.before.reference_NT
    own_denominator = inputs.ratio_denominator_NT is None
    old_NT = batch.old_logprobs_NT if inputs.ratio_denominator_NT is None else inputs.ratio_denominator_NT
    logprobs_NT = _grid(old_NT, last_pass)
    below_NT = logprobs_NT if own_denominator else old_NT

    # Tokens without a gradient in the updates of the last pass, by category of `evaluation.ledger`.
    broken_N = torch.zeros(len(batch.mask_NT), 1, dtype=torch.bool)
    for update in result.updates:
        for part in update.passes:
            broken_N[list(part.pack.rows)] = not math.isfinite(update.metrics["grad_norm"])
    # The tokens whose gradient the clip, the dual clip or `left_out` removes.
    ratios_NT = policy_ratios(logprobs_NT, below_NT, batch.mask_NT, ratio=objective.ratio)
    limits = objective.off_policy_delta, objective.divergence_tv, objective.divergence_kl
    clipped_NT = left_out(logprobs_NT, batch.old_logprobs_NT, advantages_NT, batch.mask_NT, *limits)
    for side_NT in cut_sides(objective, ratios_NT, advantages_NT).values():
        clipped_NT = clipped_NT | side_NT
    unused = dict(inputs.masked) | {
        "truncated": ~batch.trained_NT,
        "no_signal": (inputs.credit.advantages_NT == 0) & ~inputs.has_teacher_N[:, None],
        "critic_only": torch.full_like(broken_N, result.critic_only),
        "not_finite": broken_N,
        "clipped": clipped_NT,
    }

    # The loss of the watched rows in stages, as if the whole batch were one update.
    stages: dict[str, Mapping[str, object]] = {}
    rows = list(result.watched)
    if rows:
        group_ids_N, length = torch.tensor(batch.group_of_N), batch.sampling.max_tokens
        tokens = TokenGrid(
            logprobs_NT[rows],
            below_NT[rows],
            advantages_NT[rows],
            objective.weights_of_groups(batch.trained_NT, group_ids_N, max_tokens=length)[rows],
            batch.mask_NT[rows],
            sampler_logprobs_NT=batch.old_logprobs_NT[rows],
            reference_NT=None if reference_NT is None else reference_NT.cpu()[rows],
        )
        updated_GT = _grid(logprobs_NT, again)[rows]
        stages |= group_stages(algorithm, tokens, updated_GT, kl_coef=result.metrics.get("kl_coef", 0.0))
        batch_size = {"groups": len(batch.prompts), "completions": len(batch.group_of_N)}
        stages["loss"] = {**stages["loss"], "batch": batch_size}

    count, sampled = len(batch.mask_NT), old_NT is batch.old_logprobs_NT and not own_denominator
    logprobs = _rows(count, [(part.pack, part.logprobs_C) for part in last_pass])
    traces = zip(
        logprobs,
        _rows(count, [(part.pack, part.entropies_C) for part in last_pass]),
        [None] * count if reference_NT is None else map(tuple, token_rows(reference_NT.cpu(), batch)),
        _rows(count, [(part.pack, part.logprobs_C) for part in again]),
        logprobs if own_denominator else [None] * count if sampled else map(tuple, token_rows(old_NT, batch)),
        strict=True,
    )
    recorded_NT = inputs.credit.advantages_NT.nan_to_num(0.0, 0.0, 0.0)  # the record has no place for other values
    token_traces = [TokenTrace(*row) for row in traces]
    return LearnTrace(unused, list(zip(token_rows(recorded_NT, batch), token_traces, strict=True)), stages)


def token_rows(values_NT: Tensor, batch: Batch) -> list[list[float]]:
    """The values of each completion's tokens, without padding."""
    return [row[mask].tolist() for row, mask in zip(values_NT, batch.mask_NT, strict=True)]


def watched_group(batch: Batch, advantages_NT: Tensor, step: int) -> list[int]:
    """Returns the rows of the first group with signal, which steps 1, 11, 21, ... evaluate again after their update.

    That takes 0.9 % of a step of the demo. Empty in other steps, and when no group has a signal.
    """
    if step % 10 != 1:
        return []
    moved_N = (advantages_NT != 0).any(1).tolist()
    group = next(compress(batch.group_of_N, moved_N), None)
    return [row for row, row_group in enumerate(batch.group_of_N) if row_group == group]


def _on_host(passes: Sequence[TokenPass]) -> list[TokenPass]:
    """The passes with their numbers on the CPU, in one copy."""
    if not passes:
        return []
    numbers_2C = torch.cat([torch.stack([part.logprobs_C, part.entropies_C]) for part in passes], 1).cpu()
    columns = torch.split(numbers_2C, [len(part.logprobs_C) for part in passes], 1)
    return [TokenPass(part.pack, *column) for part, column in zip(passes, columns, strict=True)]


def _grid(start_NT: Tensor, parts: Sequence[TokenPass]) -> Tensor:
    """[N, T] log-probs of the passes; where there is none, those to start from."""
    logprobs_NT = start_NT.clone()
    for part in parts:
        rows, lengths_n1 = list(part.pack.rows), torch.tensor(part.pack.lengths)[:, None]
        is_token_nT = torch.arange(start_NT.shape[1]) < lengths_n1
        logprobs_NT[rows] = logprobs_NT[rows].masked_scatter(is_token_nT, part.logprobs_C.float())
    return logprobs_NT


def token_record(
    groups: Sequence[Group], is_kept_P: Sequence[bool], tokens: Sequence[tuple[list[float], TokenTrace]]
) -> tuple[list[list[list[float]]], list[list[TokenTrace]]]:
    """Puts the rows of the batch back in their groups; returns [P][G] advantages and traces.

    Groups that the filter dropped get advantages of 0 and empty traces.
    """
    rows = iter(tokens)
    pairs = [
        [next(rows) if keep else ([0.0] * len(completion), TokenTrace()) for completion in group.completions]
        for group, keep in zip(groups, is_kept_P, strict=True)
    ]
    return [[advantages for advantages, _ in group] for group in pairs], [
        [trace for _, trace in group] for group in pairs
    ]


def _rows(count: int, parts: Sequence[tuple[Pack, Tensor]]) -> list[tuple[float, ...] | None]:
    """Returns the values of each row's tokens; None for a row without a forward pass."""
    rows: list[tuple[float, ...] | None] = [None] * count
    for pack, values_C in parts:
        for row, values in zip(pack.rows, torch.split(values_C, list(pack.lengths)), strict=True):
            rows[row] = tuple(values.tolist())
    return rows
