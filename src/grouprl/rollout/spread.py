"""Spreads the groups of an engine call over the ranks: each samples its share, and all get all groups."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from typing import Any

from transformers import PreTrainedModel

from grouprl.models.shard import gathered
from grouprl.ranks import Ranks
from grouprl.rollout.engine import Engine, Request
from grouprl.types import Completion, Episode, Group, Sampling, StopReason


class SpreadEngine:
    """An `Engine` whose calls all ranks make together; each of them has an engine with the same weights."""

    def __init__(self, engine: Engine, ranks: Ranks, policy: PreTrainedModel | None) -> None:
        """`policy` is the model that `engine` samples from in memory; None = it samples elsewhere."""
        self._engine, self._ranks, self._policy = engine, ranks, policy

    def load_weights(self, version: int) -> None:
        """Makes this rank's engine sample from the policy's weights after `version` updates."""
        self._engine.load_weights(version)

    def generate(
        self,
        requests: Sequence[Request],
        sampling: Sampling,
        *,
        on_finished: Callable[[int], None] | None = None,
        on_group: Callable[[int, Group], None] | None = None,
    ) -> list[Group]:
        """Samples as `Engine.generate`; `on_group` is called for the groups of this rank alone."""
        # The lengths of completions are not known yet: each counts as the longest.
        costs = [len(request.prompt_ids) + request.completions * sampling.max_tokens for request in requests]
        indices = self._ranks.own(costs)

        def report_group(index: int, group: Group) -> None:
            if on_group is not None:
                on_group(indices[index], group)

        share = [requests[index] for index in indices]
        sharded = self._policy if self._ranks.mesh is not None else None
        with gathered(sharded) if sharded is not None else nullcontext():
            sampled = self._engine.generate(share, sampling, on_finished=on_finished, on_group=report_group)
        completions = self._ranks.merged(
            zip(indices, (group.completions for group in sampled), strict=True),
            "sampled groups",
            write=completion_rows,
            read=completions_of,
        )
        pairs = zip(requests, completions, strict=True)
        groups = [Group(request.problem, request.prompt_ids, group) for request, group in pairs]
        if on_finished is not None:
            on_finished(sum(request.completions for index, request in enumerate(requests) if index not in indices))
        return groups


def completion_rows(completions: Sequence[Completion]) -> list[list[Any]]:
    """Makes JSON of the completions of a group."""
    return [[*asdict(completion).values()] for completion in completions]


def completions_of(rows: Sequence[Sequence[Any]]) -> tuple[Completion, ...]:
    """The completions of which `completion_rows` made JSON."""
    return tuple(
        Completion(
            index,
            tuple(token_ids),
            tuple(logprobs),
            tuple(plain),
            text,
            StopReason(reason),
            version,
            episode=None if episode is None else Episode.of(episode),
        )
        for index, token_ids, logprobs, plain, text, reason, version, episode in rows
    )
