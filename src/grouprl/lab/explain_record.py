"""A recorded group with all that its numbers depend on: its step, its run's settings, and the learner's tensors."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
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
from grouprl.config.algorithm import options
from grouprl.lab.explain_stages import Material
from grouprl.lab.runs import Runs
from grouprl.record.layout import RunDirectory
from grouprl.record.read import RecordedGroup, earned_reward, read_rewards, recorded_group
from grouprl.record.rows import parsed
from grouprl.report.recorded import missing_problem, recorded, reward_weights, run_algorithm
from grouprl.scoring.functions import SOFT_OVERLONG
from grouprl.types import StopReason, UserError

_COMPONENTS, _LOGPROBS = ("components",), ("logprobs", "reference_logprobs")


@dataclass(frozen=True)
class Peer:
    """A completion of the step, as far as the numbers of another group depend on it."""

    group: int  # its index in the step
    reward: float  # NaN = invalid
    length: int  # tokens
    cut: bool  # at the limit
    earned: float | None  # the reward before the length penalty; None = invalid or not recorded
    kept: bool | None  # whether its group was learned from; None = not recorded
    # Of another group's, where nothing asks for them, empty and 0:
    components: Mapping[str, float | None]
    taken: float  # off the reward, by a KL that is in it

    @property
    def judged(self) -> float:
        """The reward before the length penalty; NaN = invalid."""
        return earned_reward(self.reward, self.earned, self.components.get(SOFT_OVERLONG) or 0.0)


@dataclass(frozen=True)
class Recorded:
    """One group of one step of a run."""

    algorithm: Algorithm
    max_tokens: int  # of a completion
    reward_weights: Mapping[str, float]  # what each counts in the total
    process_rewards: tuple[str, ...] | None  # names; None = not recorded
    metrics: Mapping[str, Any]  # of the step
    step: int
    place: int  # of the group in the step
    group: RecordedGroup
    own: tuple[Peer, ...]  # its completions
    peers: tuple[tuple[Peer, ...], ...]  # those of each group of the step, this one's too
    kept: tuple[bool, ...]  # which of the groups were learned from

    @property
    def kl_coef(self) -> float:
        """Of the step: it moves where the algorithm has a target."""
        return _kl_coef(self.metrics, self.algorithm)

    @property
    def batch(self) -> list[tuple[Peer, ...]]:
        """The groups that were learned from."""
        return [group for group, kept in zip(self.peers, self.kept, strict=True) if kept]

    @property
    def others(self) -> list[tuple[Peer, ...]]:
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
    path, kl_coef = RunDirectory(folder).rollouts, _kl_coef(metrics, algorithm)
    with recorded(folder) as database:
        found = _peers(database, path, step, None, _asked(algorithm), algorithm, kl_coef)
        peers = tuple(tuple(members) for _, members in groupby(found, key=lambda peer: peer.group))
        if not place < len(peers):
            said = f"{len(peers)} groups in it" if peers else "no such step"
            raise UserError(f"step {step}, group {place}: expected a recorded group, found {said}: choose another")
        index = peers[place][0].group
        own = tuple(_peers(database, path, step, index, (*_COMPONENTS, *_LOGPROBS), algorithm, kl_coef))
        group = _whole_group(database, path, step, index)
    recorded_kept = [members[0].kept for members in peers if members[0].kept is not None]
    if len(recorded_kept) < len(peers):  # an older version's
        recorded_kept = algorithm.groups.kept([[peer.judged for peer in members] for members in peers])
    process = read_rewards(folder).process
    return Recorded(
        algorithm=algorithm,
        max_tokens=max_tokens,
        reward_weights=weights,
        process_rewards=None if process is None else tuple(process),
        metrics=metrics,
        step=step,
        place=place,
        group=group,
        own=own,
        peers=peers,
        kept=tuple(recorded_kept),
    )


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
    return (*(_COMPONENTS if mixed or algorithm.groups.overlong_buffer else ()), *(_LOGPROBS if taken else ()))


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
            earned=row["earned"],
            kept=None if row["kept"] is None else bool(row["kept"]),
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
        torch.from_numpy(np.frombuffer(row[name], "<f4").astype("f8")) for name in ("logprobs", "reference_logprobs")
    )
    return float(kl_estimate(policy_T, reference_T, kind=kl.kl_estimator).sum())


def _in_reward(algorithm: Algorithm) -> Kl | None:
    return algorithm.kl if algorithm.kl is not None and algorithm.kl.kl_in == "reward" else None


def _kl_coef(metrics: Mapping[str, Any], algorithm: Algorithm) -> float:
    found = metrics.get("kl_coef")
    return algorithm.kl_coef if found is None else float(found)


def material_of(recorded: Recorded) -> Material:
    """The learner's tensors of the group. What the learner did not read has the sampler's log-probs."""
    group, a = recorded.group, recorded.algorithm
    completions, traces = group.group.completions, group.traces
    mask_GT = _mask([len(completion) for completion in completions])
    reference = [trace.reference for trace in traces]
    learner = [trace.logprobs or completion.logprobs for trace, completion in zip(traces, completions, strict=True)]
    weights_GT = torch.zeros(mask_GT.shape)
    if recorded.kept[recorded.place]:
        members = [peer for group in recorded.batch for peer in group]
        trained_NT = _trained([one.length for one in members], [one.cut for one in members], a.groups.mask_overlong)
        weights_NT = a.objective.weights(trained_NT, max_tokens=recorded.max_tokens)
        before = zip(recorded.peers[: recorded.place], recorded.kept, strict=False)
        first = sum(len(group) for group, kept in before if kept)
        weights_GT = weights_NT[first : first + len(completions), : mask_GT.shape[1]]
    return Material(
        algorithm=a,
        kl_coef=recorded.kl_coef,
        mask_GT=mask_GT,
        trained_GT=_trained(
            [one.length for one in recorded.own], [one.cut for one in recorded.own], a.groups.mask_overlong
        ),
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
    if type(found) is not int or found < 1:
        raise UserError(
            f"config.yaml: expected rollout.max_tokens, a number of tokens, got {found!r}: restore the file, or "
            "look at the run with the version that made it"
        )
    return found


def _mask(lengths: Sequence[int]) -> Tensor:
    return torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]


def _trained(lengths: Sequence[int], cut: Sequence[bool], mask_overlong: bool) -> Tensor:
    return _mask(lengths) & ~torch.tensor([mask_overlong and one for one in cut])[:, None]


def _padded(rows: Sequence[Any], mask_GT: Tensor) -> Tensor:
    grid = torch.zeros(mask_GT.shape, dtype=torch.float64)
    grid[mask_GT] = torch.tensor([value for row in rows for value in row], dtype=torch.float64)
    return grid
