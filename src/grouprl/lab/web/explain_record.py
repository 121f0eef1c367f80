"""A recorded group with all that its numbers depend on: its step, its run's settings, and the learner's tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from grouprl.algorithm import Algorithm
from grouprl.algorithms import kept_groups, kl_estimate, token_weights
from grouprl.lab.rollouts import RecordedGroup, read_rollouts
from grouprl.lab.web.explain_stages import Material
from grouprl.lab.web.recorded import reward_weights, run_algorithm
from grouprl.lab.web.runs import Runs, read_config
from grouprl.lab.web.worked import judged_reward
from grouprl.types import RewardOutcome, StopReason, UserError

_OVERLONG = "soft_overlong"  # what `algorithm.overlong_buffer` adds to the reward after groups were chosen


@dataclass(frozen=True)
class Recorded:
    """One group of one step of a run."""

    algorithm: Algorithm
    max_tokens: int  # of a completion
    reward_weights: Mapping[str, float]  # what each counts in the total
    metrics: Mapping[str, Any]  # of the step
    step: int
    place: int  # of the group in the step
    groups: tuple[RecordedGroup, ...]  # of the step
    kept: tuple[bool, ...]  # which of them were learned from

    @property
    def group(self) -> RecordedGroup:
        """The one that is looked at."""
        return self.groups[self.place]

    @property
    def kl_coef(self) -> float:
        """Of the step: it moves where the algorithm has a target."""
        found = self.metrics.get("kl_coef")
        return self.algorithm.kl_coef if found is None else float(found)

    @property
    def batch(self) -> list[RecordedGroup]:
        """The groups that were learned from."""
        return [group for group, kept in zip(self.groups, self.kept, strict=True) if kept]

    @property
    def others(self) -> list[RecordedGroup]:
        """Those of the batch without this one."""
        return [group for place, group in enumerate(self.groups) if self.kept[place] and place != self.place]


def read_recorded(runs: Runs, run: str, step: int, place: int) -> Recorded:
    """A group by the run's id, its step from 1 and its place in the step from 0.

    Raises:
        UserError: no such run, step or group, or settings of another version.
    """
    folder = runs.folder(run)
    groups = read_rollouts(folder, step)
    if not place < len(groups):
        found = f"{len(groups)} groups in it" if groups else "no such step"
        raise UserError(f"step {step}, group {place}: expected a recorded group, found {found}: choose another")
    config = read_config(folder)
    algorithm, max_tokens, weights = run_algorithm(config), _max_tokens(config), reward_weights(folder, config)
    metrics = next((row for row in runs.metrics(folder) if row["step"] == step), {})
    kept = kept_groups([[_judged(one) for one in group.outcomes] for group in groups], **algorithm.filters)
    return Recorded(algorithm, max_tokens, weights, metrics, step, place, groups, tuple(kept))


def rewards_of(group: RecordedGroup) -> list[float]:
    """Total rewards of a group; NaN = invalid."""
    return [outcome.total for outcome in group.outcomes]


def penalties(recorded: Recorded, group: RecordedGroup) -> list[float]:
    """What the KL takes off the reward of each completion of a group; 0 where the KL is in the loss."""
    a = recorded.algorithm
    rows = []
    for completion, trace in zip(group.group.completions, group.traces, strict=True):
        if a.kl_in != "reward" or trace.reference is None:
            rows.append(0.0)
            continue
        pair = torch.tensor([completion.logprobs, trace.reference], dtype=torch.float64)
        rows.append(recorded.kl_coef * float(kl_estimate(pair[0], pair[1], kind=a.kl).sum()))
    return rows


def material_of(recorded: Recorded) -> Material:
    """The learner's tensors of the group. What the learner did not read has the sampler's log-probs."""
    group, a = recorded.group, recorded.algorithm
    completions, traces = group.group.completions, group.traces
    mask_GT = _mask([len(completion) for completion in completions])
    reference = [trace.reference for trace in traces]
    learner = [trace.logprobs or completion.logprobs for trace, completion in zip(traces, completions, strict=True)]
    weights_GT = torch.zeros(mask_GT.shape)
    if recorded.kept[recorded.place]:
        trained_NT = _trained([one for member in recorded.batch for one in member.group.completions], a.mask_overlong)
        weights_NT = token_weights(trained_NT, aggregate=a.aggregate, constant_length=recorded.max_tokens)
        before = zip(recorded.groups[: recorded.place], recorded.kept, strict=False)
        first = sum(len(member.group.completions) for member, kept in before if kept)
        weights_GT = weights_NT[first : first + len(completions), : mask_GT.shape[1]]
    return Material(
        algorithm=a,
        kl_coef=recorded.kl_coef,
        mask_GT=mask_GT,
        trained_GT=_trained(completions, a.mask_overlong),
        max_tokens=recorded.max_tokens,
        weights_GT=weights_GT.double(),
        logprobs_GT=_padded(learner, mask_GT),
        old_GT=_padded([completion.logprobs for completion in completions], mask_GT),
        reference_GT=None if None in reference else _padded(reference, mask_GT),
        advantages_GT=_padded(group.token_advantages, mask_GT),
    )


def _max_tokens(config: Mapping[str, Any]) -> int:
    section = config.get("rollout")
    found = section.get("max_tokens") if isinstance(section, Mapping) else None
    if not isinstance(found, int):
        raise UserError(
            f"config.yaml: expected rollout.max_tokens, a number of tokens, got {found!r}: restore the file, or "
            "look at the run with the version that made it"
        )
    return found


def _judged(outcome: RewardOutcome) -> float:
    return judged_reward(outcome.total, outcome.components.get(_OVERLONG) or 0.0)


def _mask(lengths: Sequence[int]) -> Tensor:
    return torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]


def _trained(completions: Sequence[Any], mask_overlong: bool) -> Tensor:
    mask_NT = _mask([len(completion) for completion in completions])
    cut = [mask_overlong and completion.stop_reason is StopReason.LENGTH for completion in completions]
    return mask_NT & ~torch.tensor(cut)[:, None]


def _padded(rows: Sequence[Any], mask_GT: Tensor) -> Tensor:
    grid = torch.zeros(mask_GT.shape, dtype=torch.float64)
    grid[mask_GT] = torch.tensor([value for row in rows for value in row], dtype=torch.float64)
    return grid
