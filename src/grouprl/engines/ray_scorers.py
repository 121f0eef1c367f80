"""Reward calls in the actors of a Ray cluster: each actor has worker processes of its own, with the same limits."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Self

from grouprl.config.run import ScoringConfig
from grouprl.engines.ray_actors import ActorPool
from grouprl.engines.ray_cluster import Cluster
from grouprl.rewards.calls import CallValues, PendingValues, RewardCall, Signature, gather
from grouprl.rewards.workers.pool import RewardPool
from grouprl.rewards.workers.zygote import Source


class RemoteRewards:
    """Does what `RewardPool` does, with scorer actors in the place of this process."""

    def __init__(self, cluster: Cluster, functions: Mapping[str, Source], limits: ScoringConfig) -> None:
        settings = cluster.settings
        at_once = limits.workers or settings.cpus
        limits = limits.model_copy(update={"workers": at_once})
        self._pool = ActorPool[RewardCall | None, Any](
            cluster,
            "scorer",
            partial(_ScorerActor, dict(functions), limits),
            count=settings.scorers,
            at_once=at_once,
            seconds=settings.seconds,
        )
        self._signatures: Mapping[str, Signature] | None = None

    def signatures(self) -> Mapping[str, Signature]:
        """The signature of each function."""
        if self._signatures is None:
            self._signatures = self._pool.submit(None).result()
        return self._signatures

    def submit(self, call: RewardCall) -> PendingValues:
        """Begins a call in an actor's workers; `gather` waits for its values."""
        return self._pool.submit(call)

    @property
    def processes(self) -> list[tuple[int, str]]:
        """Process id and host of each actor that has started."""
        return self._pool.processes

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._pool.close()


class _ScorerActor:
    """In an actor: a pool of workers, which ends with the actor's process."""

    def __init__(self, functions: Mapping[str, Source], limits: ScoringConfig) -> None:
        self._pool = RewardPool(functions, limits)

    def __call__(self, call: RewardCall | None) -> Mapping[str, Signature] | CallValues:
        if call is None:
            return self._pool.signatures()
        return gather(self._pool.submit(call))
