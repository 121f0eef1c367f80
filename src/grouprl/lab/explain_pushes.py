"""What five algorithms make of the recorded tokens of a step; `tools.proof.replay` has the same numbers of a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import compress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from grouprl.algorithms.losses import TokenGrid
from grouprl.algorithms.named import NAMED
from grouprl.algorithms.spec import Algorithm, Updates
from grouprl.lab.report.recorded import read_config
from grouprl.learner.batch import PolicyEvaluation, ScoredGroups, assign_credit, make_batch
from grouprl.record.read import read_rewards, read_rollouts
from grouprl.types import Sampling, UserError

# One update over the batch, by the rewards that the run recorded, without a KL.
SIDE_BY_SIDE = {
    name: replace(NAMED[name], kl=None, updates=Updates()) for name in ("grpo", "dr_grpo", "dapo", "gspo", "cispo")
}


def token_pushes(folder: Path, step: int, group_index: int) -> dict[str, Any]:
    """How far the loss of each algorithm moves the log-prob of each token of a group.

    Returns:
        `first` and `again`, each by algorithm: `pushes` [G][T], minus the derivative of the loss by the token's
        log-prob; `shares` [G][T] of the step's whole push, the sum of their absolute values, because the optimizer
        takes the scale of a loss out again; and the `sums` [G] of the shares of each completion. In `first` every ratio
        is 1. `again` is a second update on the same tokens, after the run's own; the other groups keep a ratio of 1
        there. It is null for a group that the run did not read again after its update.

    Raises:
        UserError: the group is not recorded, or a file is damaged.
    """
    recorded = read_rollouts(folder, step)
    if not 0 <= group_index < len(recorded):
        raise UserError(f"step {step}, group {group_index}: expected a group of {folder.name}, found none: choose one")
    max_tokens = read_config(folder).get("rollout", {}).get("max_tokens", Sampling().max_tokens)
    if type(max_tokens) is not int or max_tokens < 1:
        raise UserError(f"config.yaml: rollout.max_tokens: expected a length, got {max_tokens!r:.60}: restore it")
    scored = ScoredGroups(
        step,
        [group.group for group in recorded],
        [group.outcomes for group in recorded],
        [],
        read_rewards(folder).weights,
        Sampling(max_tokens=max_tokens),
    )
    zeros = [torch.zeros(len(completion)) for completion in scored.groups[group_index].completions]
    changes = [
        torch.tensor(trace.updated) - torch.tensor(trace.logprobs)
        for trace in recorded[group_index].traces
        if trace.updated is not None and trace.logprobs is not None
    ]
    log_ratios = {"first": zeros, "again": changes if len(changes) == len(zeros) else None}
    return {
        name: None
        if each is None
        else {which: _pushes(algorithm, scored, group_index, each) for which, algorithm in SIDE_BY_SIDE.items()}
        for name, each in log_ratios.items()
    }


def _pushes(
    algorithm: Algorithm, scored: ScoredGroups, group_index: int, log_ratios: Sequence[Tensor]
) -> dict[str, Any]:
    """What the algorithm pushes where the group's tokens have these log-ratios, and those of other groups 0."""
    kept = algorithm.group_filter.kept([[outcome.earned for outcome in group] for group in scored.outcomes])
    if not kept[group_index]:
        zeros = [[0.0] * len(change_T) for change_T in log_ratios]
        return {"pushes": zeros, "shares": zeros, "sums": [0.0] * len(zeros)}
    batch = make_batch(list(compress(scored.groups, kept)), scored.sampling)
    outcomes_N = [outcome for group in compress(scored.outcomes, kept) for outcome in group]
    credit = assign_credit(outcomes_N, scored.weights, batch, PolicyEvaluation(), algorithm, kl_coef=0.0)
    first_row = sum(len(group) for group in compress(scored.outcomes[:group_index], kept))
    logprobs_NT = batch.old_logprobs_NT.clone()
    for row, change_T in enumerate(log_ratios, first_row):
        logprobs_NT[row, : len(change_T)] += change_T
    weights_NT = algorithm.objective.weights(batch.trained_NT, max_tokens=scored.sampling.max_tokens)
    tokens = TokenGrid(
        logprobs_NT.requires_grad_(), batch.old_logprobs_NT, credit.advantages_NT, weights_NT, batch.mask_NT
    )
    loss, _ = algorithm.objective.loss(tokens)
    pushes_NT = -torch.autograd.grad(loss, logprobs_NT)[0].double()
    pushes = [pushes_NT[row, : len(change_T)] for row, change_T in enumerate(log_ratios, first_row)]
    shares = [pushes_T / (pushes_NT.abs().sum() or 1.0) for pushes_T in pushes]
    return {
        "pushes": [pushes_T.tolist() for pushes_T in pushes],
        "shares": [shares_T.tolist() for shares_T in shares],
        "sums": [float(shares_T.sum()) for shares_T in shares],
    }
