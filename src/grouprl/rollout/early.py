"""Replaces dropped groups while others are still sampled or scored, so that the samplers of a cluster are not idle.

Every group that is known to be dropped is one more group of the next round, and the problems of a smaller round begin
those of a larger one: what is begun early is always used, in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Event, Thread

from grouprl.rollout.engine import EarlyEngine, Engine, Request
from grouprl.tasks.curriculum import Visit
from grouprl.types import Sampling

_TICK = 0.02  # seconds until a dropped group is noticed


@contextmanager
def refilling(
    engine: Engine,
    sampling: Sampling,
    known: Callable[[], Sequence[Sequence[float]]],
    kept: Callable[[Sequence[Sequence[float]]], Sequence[bool]],
    further: Callable[[int], Sequence[Visit]] | None,
    requests: Callable[[Sequence[Visit]], list[Request]],
) -> Iterator[None]:
    """Begins groups of the next round during the block; only for an engine that samples elsewhere.

    Args:
        engine: samples the groups.
        sampling: its sampling parameters.
        known: gives the rewards of the groups that are scored by now.
        kept: decides for each group, from its rewards alone, whether it enters the loss.
        further: gives the first visits of the next round for a number of dropped groups; None = there is no next one.
        requests: makes their requests.
    """
    if not isinstance(engine, EarlyEngine) or further is None:
        yield
        return
    over = Event()

    def watch() -> None:
        begun = 0
        while not over.wait(_TICK):
            if (dropped := [*kept(known())].count(False)) > begun:
                engine.begin(requests(further(dropped)), sampling, now=True)
                begun = dropped

    watching = Thread(target=watch, name="refills", daemon=True)
    watching.start()
    try:
        yield
    finally:
        over.set()
        watching.join()
