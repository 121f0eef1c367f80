"""A group with all that its numbers depend on: its step, its run's settings, and the learner's tensors."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from grouprl.algorithms import kl_estimate
from grouprl.algorithms.kl import Kl
from grouprl.algorithms.spec import Algorithm
from grouprl.algorithms.values import CopiedCritic, SharedCritic
from grouprl.config.algorithm import options
from grouprl.lab.report.recorded import missing_problem, recorded, reward_weights, run_algorithm
from grouprl.lab.runs import Runs
from grouprl.learner.trace import is_watched
from grouprl.record.layout import RunDirectory
from grouprl.record.read import RecordedGroup, read_rewards, recorded_group
from grouprl.record.rows import parsed, truth
from grouprl.types import StopReason, UserError

_COMPONENTS, _LOGPROBS = ("components",), ("logprobs", "reference_logprobs", "old_logprobs")
_NEAR = 40  # steps on either side in which groups are looked for that were read again after their update


@dataclass(frozen=True)
class Peer:
    """A completion of the step, as far as the numbers of another group depend on it."""

    group: int  # its index in the step
    reward: float  # NaN = invalid
    length: int  # tokens
    cut: bool  # at the limit
    earned: float  # the reward before the length penalty; NaN = invalid
    kept: bool | None  # whether its group was learned from; None = not recorded
    # Of another group's, where the numbers do not depend on them, empty and 0:
    components: Mapping[str, float | None]
    taken: float  # off the reward, by a KL that is in it


@dataclass(frozen=True)
class Recorded:
    """One group of one step of a run."""

    algorithm: Algorithm
    kl_coef: float  # of the step: it moves where the algorithm has a target
    max_tokens: int  # of a completion
    reward_weights: Mapping[str, float]  # what each counts in the total
    process_rewards: Collection[str] | None  # names; None = not recorded
    metrics: Mapping[str, Any]  # of the step
    step: int
    place: int  # of the group in the step
    group: RecordedGroup
    peers: Sequence[Sequence[Peer]]  # the completions of each group of the step, this one's too
    kept: Sequence[bool]  # which of the groups were learned from
    watched: Sequence[tuple[int, int]] = ()  # (step, group) of what was read again after its update, near the step

    @property
    def own(self) -> Sequence[Peer]:
        """The group's own completions."""
        return self.peers[self.place]

    @property
    def batch(self) -> list[Sequence[Peer]]:
        """The groups that were learned from."""
        return [group for group, kept in zip(self.peers, self.kept, strict=True) if kept]

    @property
    def others(self) -> list[Sequence[Peer]]:
        """Those of the batch without this one; none where each group is compared within itself."""
        if not self.algorithm.advantage.of_batch:
            return []
        return [group for place, group in enumerate(self.peers) if self.kept[place] and place != self.place]


def read_recorded(runs: Runs, run: str, step: int, place: int) -> Recorded:
    """A group by the run's id, its step from 1 and its place in the step from 0.

    Raises:
        UserError: no such run, step or group, settings of another version, or a damaged file.
    """
    folder = runs.folder(run)
    config = runs.config(folder)
    algorithm, max_tokens, weights = run_algorithm(config), _max_tokens(config), reward_weights(folder, config)
    metrics = next((row for row in runs.metrics(folder) if row["step"] == step), {})
    path, kl_coef = RunDirectory(folder).rollouts, metrics.get("kl_coef")
    kl_coef = algorithm.kl_coef if kl_coef is None else float(kl_coef)
    with recorded(folder) as database:
        found = _peers(database, path, step, None, _asked(algorithm), algorithm, kl_coef)
        peers = [list(members) for _, members in groupby(found, key=lambda peer: peer.group)]
        if not place < len(peers):
            said = f"{len(peers)} groups in it" if peers else "no such step"
            raise UserError(f"step {step}, group {place}: expected a recorded group, found {said}: choose another")
        index = peers[place][0].group
        peers[place] = list(_peers(database, path, step, index, (*_COMPONENTS, *_LOGPROBS), algorithm, kl_coef))
        group, watched = _whole_group(database, path, step, index), _watched(database, step)
    kept = [members[0].kept for members in peers if members[0].kept is not None]
    if len(kept) < len(peers):  # a record without it
        kept = algorithm.groups.kept([[peer.earned for peer in members] for members in peers])
    by_step = read_rewards(folder).process
    return Recorded(algorithm, kl_coef, max_tokens, weights, by_step, metrics, step, place, group, peers, kept, watched)


def _whole_group(database: sqlite3.Connection, path: Path, step: int, index: int) -> RecordedGroup:
    rows = database.execute(
        "SELECT * FROM completions JOIN problems USING (problem_id) WHERE step = ? AND group_index = ? "
        "ORDER BY completion_index",
        (step, index),
    ).fetchall()
    if not rows:
        raise missing_problem(path, step, index)
    return recorded_group(path, rows)


def _asked(algorithm: Algorithm) -> tuple[str, ...]:
    """What has to be known of the other groups; without their texts and tokens a step takes a tenth of the time."""
    whole = algorithm.advantage.of_batch
    mixed = whole and options(algorithm).get("reward_mix") == "normalise_then_sum"
    taken = whole and algorithm.advantage.credit == "completion" and _in_reward(algorithm) is not None
    return (*(_COMPONENTS if mixed else ()), *(_LOGPROBS if taken else ()))


def _peers(
    database: sqlite3.Connection,
    path: Path,
    step: int,
    group: int | None,
    asked: Sequence[str],
    algorithm: Algorithm,
    kl_coef: float,
) -> Iterator[Peer]:
    """The completions of a step, or of one group of it, in their order."""
    # Not the column: a length that no blob has would be reserved in memory.
    columns = ", ".join(
        ("group_index", "reward", "earned", "kept", "length(token_ids) / 4 AS length", "stop_reason", *asked)
    )
    query = f"SELECT {columns} FROM completions WHERE step = ? {'' if group is None else 'AND group_index = ?'} "
    place = (step,) if group is None else (step, group)
    for row in database.execute(f"{query} ORDER BY group_index, completion_index", place):
        yield Peer(
            group=row["group_index"],
            reward=math.nan if row["reward"] is None else row["reward"],
            earned=math.nan if row["earned"] is None else row["earned"],
            kept=truth(row["kept"]),
            length=row["length"],
            cut=row["stop_reason"] == StopReason.LENGTH,
            components=parsed(path, row, "components") if "components" in asked else {},
            taken=kl_coef * _kl_sum(row, algorithm) if "logprobs" in asked else 0.0,
        )


def _kl_sum(row: sqlite3.Row, algorithm: Algorithm) -> float:
    kl = _in_reward(algorithm)
    if kl is None or row["reference_logprobs"] is None:
        return 0.0
    policy_T, reference_T = (
        torch.from_numpy(np.frombuffer(blob, "<f4").astype("f8"))
        for blob in (row["old_logprobs"] or row["logprobs"], row["reference_logprobs"])
    )
    return float(kl_estimate(policy_T, reference_T, kind=kl.kl_estimator).sum())


def _in_reward(algorithm: Algorithm) -> Kl | None:
    return algorithm.kl if algorithm.kl is not None and algorithm.kl.kl_in == "reward" else None


def _watched(database: sqlite3.Connection, step: int) -> list[tuple[int, int]]:
    near = range(max(step - _NEAR, 0), step + _NEAR + 1)
    steps = ", ".join(str(one) for one in near if is_watched(one) or one == step)
    rows = database.execute(
        f"SELECT step, MIN(group_index) AS group_index FROM completions WHERE step IN ({steps}) "
        "AND updated_logprobs IS NOT NULL GROUP BY step ORDER BY step"
    )
    return [(row["step"], row["group_index"]) for row in rows]


def _max_tokens(config: Mapping[str, Any]) -> int:
    section = config.get("rollout")
    found = section.get("max_tokens") if isinstance(section, Mapping) else None
    if type(found) is not int or found < 1:
        raise UserError(
            f"config.yaml: expected rollout.max_tokens, a number of tokens, got {found!r}: restore the file, or "
            "open the run with the version that made it"
        )
    return found


# Words about the group


def notes(recorded: Recorded) -> list[str]:
    """What the numbers of the walk-through skip."""
    a, notes = recorded.algorithm, []
    if not recorded.kept[recorded.place]:
        notes.append("This group was dropped: it is not in the loss, and its advantages are 0.")
    updates = a.updates.passes * a.updates.minibatches
    if updates > 1:
        notes.append(
            f"The run makes {updates} updates per batch. The numbers here are from the last pass, and "
            "the loss is averaged as if the batch were one update."
        )
    if a.correction is not None:
        notes.append("The run corrects its advantages for differences between sampler and learner; this page does not.")
    if a.spread.entropy_share < 1:
        notes.append("In the run only the tokens of highest entropy have advantages; here every token has one.")
    if a.spread.bonus:
        notes.append("Loss and gradient here exclude the run's entropy bonus.")
    if isinstance(a.critic, SharedCritic):
        notes.append("The loss here excludes the loss of the critic, which shares the policy's trunk.")
    return notes


def ratio_reasons(recorded: Recorded) -> list[str | None]:
    """Of each completion why its ratio is 1, where it is."""
    a = recorded.algorithm
    once = "one update per batch: the policy is still the behavior policy, and the ratio is 1"
    unread = "the learner did not read this completion, because nothing in it could move the policy: the ratio is 1"
    if isinstance(a.critic, CopiedCritic) and a.critic.critic_warmup >= recorded.step:
        unread = "the critic alone learned in this step: the ratio is 1"
    return [
        unread if trace.logprobs is None else once if trace.old == trace.logprobs else None
        for trace in recorded.group.traces
    ]


def kl_reason(recorded: Recorded) -> str | None:
    """Why there is no KL, or whose log-probs it is made from."""
    if recorded.algorithm.kl is None:
        return "kl_coef is 0: there is no reference"
    if any(trace.reference is None for trace in recorded.group.traces):
        return "the reference did not read this group, because it was dropped"
    if recorded.algorithm.kl.kl_in == "reward":
        return "subtracted from the reward, from the log-probs before the update"
    return None


# The learner's tensors


@dataclass(frozen=True)
class Material:
    """A group as the learner meets it: float64 tensors [G, T], 0 in the padding."""

    algorithm: Algorithm
    kl_coef: float  # of the step
    mask_GT: Tensor  # bool, tokens that exist
    trained_GT: Tensor  # bool, those of them that are learned from
    max_tokens: int
    weights_GT: Tensor  # of the tokens in the batch's loss
    logprobs_GT: Tensor  # of the policy
    old_GT: Tensor  # of the behavior policy
    reference_GT: Tensor | None
    advantages_GT: Tensor

    @property
    def lengths(self) -> list[int]:
        """Tokens of each completion."""
        return [int(length) for length in self.mask_GT.sum(1)]

    def loss(
        self,
        logprobs_GT: Tensor,
        *,
        rows: slice = slice(None),
        weights_GT: Tensor | None = None,
        advantages_GT: Tensor | None = None,
        anchored: bool = True,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The algorithm's loss of some of the completions; `anchored=False` leaves the KL term out."""
        a, reference_GT = self.algorithm, self.reference_GT
        kl = a.kl or Kl()
        anchored = anchored and reference_GT is not None and a.pulls
        return a.objective.loss(
            logprobs_GT[rows],
            self.old_GT[rows],
            (self.advantages_GT if advantages_GT is None else advantages_GT)[rows],
            (self.weights_GT if weights_GT is None else weights_GT)[rows],
            ref_logprobs_NT=None if reference_GT is None else reference_GT[rows],
            kl_coef=self.kl_coef if anchored else 0.0,
            kl=kl.kl_estimator,
            kl_unbiased=kl.kl_unbiased,
            mask_NT=self.mask_GT[rows],
        )

    def gradient(self, *, anchored: bool = True) -> Tensor:
        """[G, T] derivative of the loss by the log-prob of each token."""
        logprobs_GT = self.logprobs_GT.clone().requires_grad_()
        loss, _ = self.loss(logprobs_GT, anchored=anchored)
        return torch.autograd.grad(loss, logprobs_GT)[0]


def material_of(recorded: Recorded) -> Material:
    """The learner's tensors of the group. What the learner did not read has the sampler's log-probs."""
    group, a = recorded.group, recorded.algorithm
    completions, traces = group.group.completions, group.traces
    mask_GT = _mask([len(completion) for completion in completions])
    reference = [trace.reference for trace in traces]
    learner = [trace.logprobs or completion.logprobs for trace, completion in zip(traces, completions, strict=True)]
    old = [trace.old or completion.logprobs for trace, completion in zip(traces, completions, strict=True)]
    weights_GT = torch.zeros(mask_GT.shape)
    if recorded.kept[recorded.place]:
        trained_NT = _trained([peer for group in recorded.batch for peer in group], a)
        weights_NT = a.objective.weights(trained_NT, max_tokens=recorded.max_tokens)
        before = zip(recorded.peers[: recorded.place], recorded.kept, strict=False)
        first = sum(len(group) for group, kept in before if kept)
        weights_GT = weights_NT[first : first + len(completions), : mask_GT.shape[1]]
    return Material(
        algorithm=a,
        kl_coef=recorded.kl_coef,
        mask_GT=mask_GT,
        trained_GT=_trained(recorded.own, a),
        max_tokens=recorded.max_tokens,
        weights_GT=weights_GT.double(),
        logprobs_GT=_padded(learner, mask_GT),
        old_GT=_padded(old, mask_GT),
        reference_GT=None if None in reference else _padded(reference, mask_GT),
        advantages_GT=_padded(group.token_advantages, mask_GT),
    )


def _mask(lengths: Sequence[int]) -> Tensor:
    return torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]


def _trained(peers: Sequence[Peer], algorithm: Algorithm) -> Tensor:
    left_out = torch.tensor([algorithm.groups.mask_overlong and one.cut for one in peers])
    return _mask([one.length for one in peers]) & ~left_out[:, None]


def _padded(rows: Sequence[Any], mask_GT: Tensor) -> Tensor:
    grid = torch.zeros(mask_GT.shape, dtype=torch.float64)
    grid[mask_GT] = torch.tensor([value for row in rows for value in row], dtype=torch.float64)
    return grid
