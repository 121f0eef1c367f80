"""Sends what a run records to its trackers, from one thread each: the run never waits for a tracker but at its end.

Metrics have TRL's names where the meaning is the same.

A library's error, a full queue and a tracker that hangs are said once; from then on the tracker is left out.
"""

from __future__ import annotations

import math
import queue
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import fmean
from threading import Event, Thread
from typing import Any, Self

from grouprl.config.run import RunConfig
from grouprl.files import is_number, read_json
from grouprl.record.files import atomic_write_text, json_text
from grouprl.record.layout import RunDirectory
from grouprl.record.metrics import metric_of
from grouprl.tools.trackers.libraries import TRACKERS, About, Shown, Table, Tracker
from grouprl.types import StepRecord, import_extra


def tracked(metrics: Mapping[str, Any], prefix: str) -> dict[str, float]:
    """Renames the finite numbers among some metrics; a name that two would have goes to the one that TRL has.

    >>> tracked({"clip_low_fraction": 0.1, "rss_mib": 9.0, "value_explained_variance": None}, "train/")
    {'train/clip_ratio/low_mean': 0.1, 'train/rss_mib': 9.0}
    """
    finite = {name: value for name, value in metrics.items() if is_number(value)}
    # Only a reward chooses its names: what it logs as `loss` stays reward_logs/loss.
    renamed_names = {tracked_name(name) for name in finite if not name.startswith(_LOGS)}
    return {
        prefix + (name if name.startswith(_LOGS) and renamed in renamed_names else renamed): float(value)
        for name, value in finite.items()
        for renamed in (tracked_name(name),)
    }


_LOGS = "reward_logs/"


def tracked_name(name: str) -> str:
    """TRL's name of a metric if the meaning is the same, or its own: `reward_logs/hits` is `hits`."""
    metric = metric_of(name)
    if metric is None or not metric.trl:
        return name
    before, _, after = metric.name.partition("NAME")
    return metric.trl.replace("NAME", name[len(before) : len(name) - len(after)])


def _finite(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else value


LINK_SECONDS = 10.0  # longest wait for the links before the first step
END_SECONDS = 10.0  # longest wait at the end of a run, all trackers together
_WAITS = "the run continues, and records that the tracker has not taken by its end are lost"
_WAITING = 256  # records that wait for a tracker; one more is dropped

_Job = Callable[[Tracker], None]


class TrackerThread:
    """One tracker in a thread of its own."""

    def __init__(self, name: str, about: About) -> None:
        self.name, self.failed, self.dropped, self.ready = name, "", 0, Event()
        self.shown: Shown | None = None
        self._jobs: queue.Queue[_Job | None] = queue.Queue(_WAITING)
        # A daemon: a tracker that hangs does not keep the process alive.
        self._thread = Thread(target=self._work, args=[about], name=f"tracker {name}", daemon=True)
        self._thread.start()

    def _work(self, about: About) -> None:
        try:
            tracker = TRACKERS[self.name]()
            self.shown = tracker.begin(about)
            self.ready.set()
            while (job := self._jobs.get()) is not None:
                job(tracker)
        except BaseException as error:  # noqa: BLE001  a library may raise anything, and it must not end the run
            self.failed = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        self.ready.set()

    def send(self, job: _Job | None) -> None:
        """Queues a job, or the end; a job for a queue that is full is dropped."""
        if self._thread.is_alive():
            try:
                self._jobs.put_nowait(job)
            except queue.Full:
                self.dropped += 1

    def join(self, until: float) -> bool:
        """Waits for the end of the thread; False when it does not come."""
        self._thread.join(max(0.0, until - time.monotonic()))
        return not self._thread.is_alive()


class Trackers:
    """The trackers of a run; only the leading rank has any."""

    def __init__(self, config: RunConfig, say: Callable[[str], None], *, leads: bool) -> None:
        """Checks that the libraries are there, and starts nothing.

        Raises:
            UserError: a library is not installed.
        """
        for name in config.trackers.names:
            import_extra(name, name, f"trackers: {name}")
        self._config, self._say = config, say
        self._names = tuple(dict.fromkeys(config.trackers.names)) if leads else ()
        self._run = RunDirectory(Path(config.runs_dir) / config.name)
        self._followers: list[TrackerThread] = []
        self._said: set[tuple[str, str]] = set()

    def begin(self, after: int) -> None:
        """Starts the trackers, or continues after a step; waits a little for their links."""
        if self._followers or not self._names:
            return
        ids = read_json(self._run.tracker_ids)
        for name in self._names:
            about = About(
                name=self._config.name,
                project=self._config.trackers.project,
                settings=self._config.model_dump(mode="json"),
                folder=self._run.trackers,
                runs=Path(self._config.runs_dir),
                id=ids[name] if isinstance(ids.get(name), str) else None,
                after=after,
            )
            self._followers.append(TrackerThread(name, about))
        until = time.monotonic() + LINK_SECONDS
        for follower in self._followers:
            if not follower.ready.wait(max(0.0, until - time.monotonic())):
                self._once(follower, "silent", f"has not answered within {LINK_SECONDS:.0f} s; {_WAITS}")
        self._report()

    def step(self, record: StepRecord) -> None:
        """Sends the metrics of a step and, if it is their turn, its completions."""
        if not self._followers:
            return
        self._log(record.step, tracked(record.metrics, "train/"))
        every, step = self._config.trackers.completions_every, record.step
        if every and step % every == 0:
            outcomes = [outcome for row in record.outcomes for outcome in row]
            names = tuple(dict.fromkeys(name for outcome in outcomes for name in outcome.components))
            rows = []
            for group, scored, advantages in zip(record.groups, record.outcomes, record.token_advantages, strict=True):
                for completion, outcome, by_token in zip(group.completions, scored, advantages, strict=True):
                    components = [_finite(outcome.components.get(name)) for name in names]
                    advantage = fmean(by_token) if len(by_token) else 0.0  # of GRPO, every token has the same
                    texts = (group.problem.prompt_text, completion.text)
                    rows.append([record.step, *texts, *components, _finite(outcome.total), advantage])
            # Made here: a queue of records would hold every token's numbers.
            table = Table(("step", "prompt", "completion", *names, "reward", "advantage"), rows)
            self._send(lambda tracker: tracker.completions(step, table))
        self._report()

    def evaluation(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Sends the results of an evaluation on held-out problems."""
        self._log(step, tracked(metrics, "eval/"))

    def _log(self, step: int, numbers: Mapping[str, float]) -> None:
        self._send(lambda tracker: tracker.log(step, numbers))

    def _send(self, job: _Job) -> None:
        for follower in self._followers:
            follower.send(job)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        """Ends the trackers, and leaves those that do not end in time."""
        for follower in self._followers:
            follower.send(lambda tracker: tracker.end(failed=kind is not None))
            follower.send(None)
        until = time.monotonic() + END_SECONDS
        for follower in self._followers:
            if not follower.join(until) and (follower.ready.is_set() or (follower.name, "silent") not in self._said):
                self._once(follower, "end", f"did not end within {END_SECONDS:.0f} s; its unsent records are lost")
        self._report()

    def _report(self) -> None:
        """Says what is new about the trackers: links, failures, lost records."""
        for follower in self._followers:
            if follower.shown is not None:
                self._once(follower, "link", follower.shown.link)
            if follower.failed:
                self._once(follower, "failed", f"failed ({follower.failed}); the run continues without it")
            if follower.dropped:
                self._once(follower, "slow", "is too slow; some records are not sent to it (the run directory has all)")

    def _once(self, follower: TrackerThread, kind: str, text: str) -> None:
        if (follower.name, kind) in self._said:
            return
        self._said.add((follower.name, kind))
        if kind == "link":
            self._say(f"Tracker {follower.name}: {text}")
            shown = {other.name: other.shown.id for other in self._followers if other.shown is not None}
            self._run.trackers.mkdir(exist_ok=True)
            atomic_write_text(self._run.tracker_ids, json_text({**read_json(self._run.tracker_ids), **shown}) + "\n")
        else:
            self._say(f"Warning: the tracker {follower.name} {text}.")
