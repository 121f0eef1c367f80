"""Recomputes a recorded step without sampling: as the run made it, bit for bit, and under another algorithm or reward.

The weights before the step come from the nearest earlier checkpoint, or the start model, and the recorded groups of the
steps in between. Learning from them is deterministic, so they end in the weights that the run had.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from grouprl.config.algorithm import refuse_missing_parts
from grouprl.config.run import RunConfig
from grouprl.evaluation.metrics import Clock
from grouprl.files import read_json
from grouprl.learner import Learner, Optimizer, ScoredGroups, TokenGrid, token_record, trace_updates
from grouprl.learner.terms import PolicyTerm
from grouprl.leaves import leaf
from grouprl.models.load import fingerprint
from grouprl.record.layout import RunDirectory
from grouprl.record.read import RecordedGroup, read_rewards, read_rollouts, read_run
from grouprl.rewards.configured import beside_recorded, check_rewards, scored_under
from grouprl.run.assemble import loss_terms, make_learner
from grouprl.run.code import refuse_changes
from grouprl.run.machine import machine_facts
from grouprl.run.opened import OpenedRun
from grouprl.run.resume import differences, newest_good
from grouprl.step import update_policy
from grouprl.types import RewardOutcome, Sampling, TokenTrace, UserError

# Settings that may differ from the run's: with any other, the run would have sampled other completions.
_FREE = ("algorithm", "rewards", "rollout.scoring", "learner.micro_batch_tokens")
_TRACED = {
    "log-probs": "logprobs",
    "entropies": "entropies",
    "reference log-probs": "reference",
    "log-probs after the update": "updated",
    "old log-probs": "old",
}


@dataclass(frozen=True)
class ReplayDifference:
    """How recomputed values differ from the recorded ones."""

    name: str
    values: int
    differing: int  # values that are not equal to the last bit
    largest: float  # largest absolute difference


@dataclass(frozen=True)
class Update:
    """A step's update, computed from recorded groups; token values are [P][G][tokens], also of dropped groups."""

    scored: ScoredGroups
    metrics: Mapping[str, float]  # of the learner; empty when no group was kept, or the gradient is not finite
    advantages: Sequence[Sequence[Sequence[float]]]
    traces: Sequence[Sequence[TokenTrace]]
    pushes: Sequence[Sequence[Sequence[float]]]  # how far the loss moves each token's log-prob: minus its derivative
    gradient: Mapping[str, Tensor]  # of the policy's weights before clipping, summed over the step's updates
    error: str = ""  # why the update failed


@dataclass(frozen=True)
class Replay:
    """A recorded step, recomputed."""

    run: Path
    step: int
    start: int  # the step of the checkpoint that it began from; 0 = the start model
    recorded: Sequence[RecordedGroup]
    update: Update
    differences: Sequence[ReplayDifference]  # from the record
    first_difference: int | None  # the first step, among those learned again, whose metrics differ from the record
    machines: Mapping[str, tuple[Any, Any]]  # facts of the machine that differ: in the record, here
    other: Update | None = None  # under the changed settings

    @property
    def is_identical(self) -> bool:
        """Whether every recomputed value equals the record to the last bit."""
        return bool(self.differences) and not any(difference.differing for difference in self.differences)


def replay(run: Path, step: int, config: RunConfig, changed: RunConfig | None = None) -> Replay:
    """Recomputes a recorded step; writes nothing.

    Args:
        run: the run directory.
        step: 1, 2, ...
        config: the configuration of the run.
        changed: the same with another algorithm or other rewards, under which the step is computed too; None = only
            as it was.

    Raises:
        UserError: the step is not recorded, its weights cannot be computed again, or another setting was changed.
    """
    refused = [] if changed is None else differences(config, changed, _FREE)
    if refused:
        raise UserError(
            f"replay: expected changes of {', '.join(_FREE)} alone, got {'; '.join(refused)}: the run would have "
            "sampled other completions; start a new run for that"
        )
    opened = OpenedRun(config)
    learner, start, first_difference = learner_before(run, opened, step)
    scored, recorded = recorded_groups(run, step, opened.sampling), recorded_step(run, step)
    rows = {row["step"]: row for row in read_run(run).metrics}
    other = None if changed is None else _changed_learner(learner, config, changed)
    update = make_update(learner, scored)
    facts = read_run(run).summary.get("machine") or {}
    here = machine_facts(learner.device)
    return Replay(
        run,
        step,
        start,
        recorded,
        update,
        () if update.error else _differences(recorded, rows.get(step, {}), update),
        first_difference,
        {name: (value, here.get(name)) for name, value in facts.items() if value != here.get(name)},
        None if other is None or changed is None else make_update(other, _rescored(scored, config, changed)),
    )


def learner_before(
    run: Path, opened: OpenedRun, step: int, *, learned: Callable[[int], None] = lambda step: None
) -> tuple[Learner, int, int | None]:
    """Computes the learner as it was before a step, from the nearest checkpoint and the recorded steps after it.

    Args:
        run, step: see `replay`.
        opened: the run as its configuration says.
        learned: called with each step that was learned again.

    Returns:
        The learner; the checkpoint's step, 0 = the start model; and the first step, among those learned again, whose
        metrics differ from the record, None = none.

    Raises:
        UserError: a step is not recorded, or its weights cannot be computed again.
    """
    refuse_missing_parts(opened.config.algorithm)
    rows = {row["step"]: row for row in read_run(run).metrics}
    forked = read_json(RunDirectory(run).forked).get("step") or 0
    saved, newest = newest_good(run, before=step), newest_good(run)
    if saved is None and forked:
        raise UserError(
            f"{run}: expected a checkpoint before step {step}, found none, and steps up to {forked} were made by the "
            f"run that this one was forked from: replay them there, or keep more checkpoints with checkpoint.keep"
        )
    if newest is not None:
        refuse_changes(str(run), {"model": newest[1].start}, {"model": fingerprint(opened.model)})
    learner = make_learner(opened.config, opened.model, saved, teacher=_teacher(opened, opened.model))
    start = 0 if saved is None else saved[0].step
    first_difference = None
    for earlier in range(start + 1, step):
        update = make_update(learner, recorded_groups(run, earlier, opened.sampling))
        row, metrics = rows.get(earlier, {}), update.metrics.items()
        if first_difference is None and any(_difference(n, [v], [row.get(n)]).differing for n, v in metrics):
            first_difference = earlier
        learned(earlier)
    return learner, start, first_difference


def _teacher(opened: OpenedRun, policy: PreTrainedModel) -> Any | None:
    if (part := opened.config.algorithm.distill) is None:
        return None
    task = opened.task if part.reads == "solution" else None
    return leaf("term.distill").make_teacher(opened.config, task, opened.tokenizer, policy)


def recorded_step(run: Path, step: int) -> Sequence[RecordedGroup]:
    """The groups of a step that a run recorded; raises UserError for a step without any."""
    if not (recorded := read_rollouts(run, step)):
        raise UserError(f"{run}: expected the completions of step {step} in rollouts.sqlite, found none: give another")
    return recorded


def recorded_groups(run: Path, step: int, sampling: Sampling) -> ScoredGroups:
    """The recorded groups of a step with their rewards, as the learner reads them.

    Raises:
        UserError: the step is not recorded.
    """
    recorded, weights = recorded_step(run, step), read_rewards(run).weights
    outcomes = [group.outcomes for group in recorded]
    kept = [group.kept for group in recorded]
    return ScoredGroups(step, [group.group for group in recorded], outcomes, kept, weights, sampling)


def _kept(config: RunConfig, outcomes: Sequence[Sequence[RewardOutcome]]) -> list[bool]:
    return config.algorithm.group_filter.kept([[outcome.earned for outcome in group] for group in outcomes])


# One update


class _GradientSum(Optimizer):
    """The same optimizer, which also adds up the gradients of its updates before it clips them."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.__dict__.update(optimizer.__dict__)
        self.gradient: dict[str, Tensor] = {}

    def step(self) -> float:
        """Adds the gradients to their sum, then makes the step."""
        for name, weight in self._named.items():
            if weight.grad is not None:
                self.gradient[name] = self.gradient.get(name, 0.0) + weight.grad.detach().cpu()
        return super().step()


@dataclass(frozen=True)
class _PushTerm(PolicyTerm):
    """The same term, which also adds up minus the derivative of its loss by each token's log-prob, by row."""

    rows: dict[int, list[float]] = field(default_factory=dict)

    def loss(self, tokens: TokenGrid, kl_coef: float) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss and its metrics; adds to the rows what each token of this pack pushes."""
        logprobs_NT = tokens.logprobs_NT.detach().requires_grad_()
        # Apart from the learner's graph, whose bits must not change.
        loss, _ = super().loss(replace(tokens, logprobs_NT=logprobs_NT), kl_coef)
        (derivative_NT,) = torch.autograd.grad(loss, logprobs_NT)
        for row, values, mask in zip(tokens.rows, derivative_NT, tokens.mask_NT, strict=True):
            row_values = [-value for value in values[mask].tolist()]
            before = self.rows.get(row, [0.0] * len(row_values))
            self.rows[row] = [a + b for a, b in zip(before, row_values, strict=True)]
        return super().loss(tokens, kl_coef)


def make_update(learner: Learner, scored: ScoredGroups) -> Update:
    """Makes the update; the learner then has the weights after the step."""
    optimizer = learner.optimizer = _GradientSum(learner.optimizer)
    push = _PushTerm(learner.algorithm)
    learner.terms = (push, *learner.terms[1:])
    result = update_policy(learner, scored, Clock("reference", "learn"))
    skipped = result.metrics.get("skipped_updates")
    error = f"expected a finite gradient, got NaN or infinity in {skipped:g} updates" if skipped else ""
    advantages, traces = token_record(scored.groups, scored.kept, trace_updates(learner.algorithm, result).tokens)
    row = count()  # of the batch, which has the kept groups alone
    pushes = [
        [(kept and push.rows.get(next(row))) or [0.0] * len(completion) for completion in group.completions]
        for group, kept in zip(scored.groups, scored.kept, strict=True)
    ]
    return Update(scored, result.metrics, advantages, traces, pushes, optimizer.gradient, error)


# Beside the record


def _differences(recorded: Sequence[RecordedGroup], row: Mapping[str, Any], update: Update) -> list[ReplayDifference]:
    """Compares each kind of value that was recorded or computed, tokens first."""
    ours, theirs = update.advantages, [group.token_advantages for group in recorded]
    differences = [_difference("advantages", _flat(ours), _flat(theirs), np.float32)]
    for name, attribute in _TRACED.items():
        here, there = (
            [getattr(trace, attribute) for group in traces for trace in group]
            for traces in (update.traces, [group.traces for group in recorded])
        )
        if any(values is not None for values in (*here, *there)):
            differences.append(_difference(name, _tokens(here, there), _tokens(there, here), np.float32))
    return [*differences, *(_difference(name, [value], [row.get(name)]) for name, value in update.metrics.items())]


def _tokens(rows: Sequence[Sequence[float] | None], other: Sequence[Sequence[float] | None]) -> list[float | None]:
    """The values of all rows; None for each token of a row that the other side alone has."""
    pairs = zip(rows, other, strict=True)
    return [value for row, there in pairs for value in (row if row is not None else [None] * len(there or ()))]


def _flat(values: Sequence[Sequence[Sequence[float]]]) -> list[float]:
    return [value for group in values for row in group for value in row]


def _difference(
    name: str, here: Sequence[float | None], there: Sequence[float | None], kind: type[np.floating[Any]] = np.float64
) -> ReplayDifference:
    """Compares values to the last bit in the record's precision. None, NaN and infinity are null in the record."""
    a, b = (np.array([math.nan if v is None else v for v in values], kind) for values in (here, there))
    if len(a) != len(b):
        return ReplayDifference(name, len(a), len(a), math.inf)
    differing = ~((a == b) | (~np.isfinite(a) & ~np.isfinite(b)))
    gaps = np.abs(a.astype(np.float64) - b.astype(np.float64))[differing]
    return ReplayDifference(
        name, len(a), int(differing.sum()), float(np.nan_to_num(gaps, nan=math.inf).max(initial=0.0))
    )


# Under changed settings


def _changed_learner(learner: Learner, config: RunConfig, changed: RunConfig) -> Learner:
    """Returns a copy of the learner, before its update, with another algorithm."""
    old, new = config.algorithm, changed.algorithm
    if new.critic != old.critic:
        raise UserError(
            "replay: expected the critic of the run, got another algorithm.critic: the values of another critic are "
            "not in the record; start a new run for that"
        )
    # The ranks meet in both; they are never copied.
    other = copy.deepcopy(learner, {id(learner.ranks): learner.ranks})
    other.algorithm, other.micro_batch_tokens = new, changed.learner.micro_batch_tokens
    if new.kl != old.kl:  # otherwise the coefficient may have moved since the first step
        other.kl_coef = new.kl_coef
    if new.entropy != old.entropy:
        other.entropy_coefs = (new.entropy_options.entropy_coef,) * 2
    if new.kl is None:
        other.reference = None
    elif other.reference is None and config.model.lora is not None:
        other.reference = other.policy
    elif other.reference is None:
        other.reference = OpenedRun(config).model.requires_grad_(False)
    teacher = _teacher(OpenedRun(changed), other.policy)
    other.use_terms(loss_terms(new, other.policy, other.reference, other.critic, teacher))
    return other


def _rescored(scored: ScoredGroups, config: RunConfig, changed: RunConfig) -> ScoredGroups:
    """Scores the recorded completions again where the rewards changed; applies the changed filter."""
    per_step = "step" in {config.algorithm.advantage.credit, changed.algorithm.advantage.credit}
    if changed.rewards != config.rewards or (per_step and changed.algorithm.advantage != config.algorithm.advantage):
        opened = OpenedRun(changed)
        rewards = beside_recorded(changed, opened.task, opened.rewards, scored.groups)
        check_rewards(changed, opened.task, rewards)
        outcomes, weights = opened.score(scored.groups, rewards, scored.step)
        return replace(scored, outcomes=outcomes, kept=_kept(changed, outcomes), weights=weights)
    outcomes, weights = scored_under(changed, scored.groups, scored.outcomes, scored.weights)
    kept = _kept(changed, outcomes) if changed.algorithm.group_filter != config.algorithm.group_filter else scored.kept
    return replace(scored, outcomes=outcomes, kept=kept, weights=weights)
