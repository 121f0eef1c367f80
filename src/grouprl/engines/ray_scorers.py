"""Reward calls in the actors of a Ray cluster: each actor has worker processes of its own, with the same limits."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

from grouprl.config.run import ScoringConfig
from grouprl.engines.ray_actors import ActorPool
from grouprl.engines.ray_cluster import Cluster
from grouprl.rewards.calls import OUTSIDE, CallValues, PendingValues, Signature, TrainingState, gather
from grouprl.rewards.workers.pool import Keywords, RewardPool
from grouprl.rewards.workers.zygote import Source


@dataclass(frozen=True)
class _RemoteCall:
    """A call of a reward."""

    name: str
    keywords: Keywords
    per_step: bool
    about: str  # the problem, for messages
    state: TrainingState
    whole: bool


class RemoteRewards:
    """Does what `RewardPool` does, with scorer actors in the place of this process."""

    def __init__(self, cluster: Cluster, functions: Mapping[str, Source], limits: ScoringConfig) -> None:
        settings = cluster.settings
        at_once = limits.workers or settings.cpus
        limits = limits.model_copy(update={"workers": at_once})
        self._pool = ActorPool[_RemoteCall | None, Any](
            cluster,
            "scorer",
            partial(_ScorerActor, dict(functions), limits),
            count=settings.scorers,
            at_once=at_once,
            seconds=settings.seconds,
        )
        self._signatures: Mapping[str, Signature] | None = None

    def signatures(self) -> Mapping[str, Signature]:
        """See `RewardPool.signatures`."""
        if self._signatures is None:
            self._signatures = self._pool.submit(None).result()
        return self._signatures

    def submit(
        self,
        name: str,
        keywords: Keywords,
        *,
        per_step: bool = False,
        about: str = "",
        state: TrainingState = OUTSIDE,
        whole: bool = False,
    ) -> PendingValues:
        """See `RewardPool.submit`."""
        return self._pool.submit(_RemoteCall(name, keywords, per_step, about, state, whole))

    @property
    def processes(self) -> list[tuple[int, str]]:
        """See `ActorPool.processes`."""
        return self._pool.processes

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._pool.close()


class _ScorerActor:
    """In an actor: a pool of workers, which ends with the actor's process."""

    def __init__(self, functions: Mapping[str, Source], limits: ScoringConfig) -> None:
        self._pool = RewardPool(functions, limits)

    def __call__(self, call: _RemoteCall | None) -> Mapping[str, Signature] | CallValues:
        if call is None:
            return self._pool.signatures()
        pending: Future[Any] = self._pool.submit(
            call.name, call.keywords, per_step=call.per_step, about=call.about, state=call.state, whole=call.whole
        )
        return gather(pending)
