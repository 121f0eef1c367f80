"""Real runs on a local Ray cluster whose decode steps, rewards and updates also sleep, with a log of their seconds.

Sleeps make a machine with two cores behave as one with a GPU for each sampler: what is measured is how jobs are given
to actors and waited for, not how fast the machine computes.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from events import Cluster, Costs, DecodeRates, Group
from shapes import END, TINY, build, prompts, text, tokenizer

import grouprl.engines.ray_samplers as remote
import grouprl.rollout.decoding as decoding
import grouprl.run.train as loop
from grouprl import Trainer
from grouprl.config.run import RunConfig
from grouprl.engines.ray_samplers import _parts
from grouprl.learner import Learner
from grouprl.record.read import read_rollouts, read_run
from grouprl.rewards.functions import WeightedReward

WARM = 2  # steps at the start of a run that do not count
LOG = "GROUPRL_PACED_LOG"  # the folder of the log, for the actors


@dataclass(frozen=True)
class Pace:
    """Seconds that are slept."""

    decode: float  # a decode step
    row: float  # and each row in it
    learn_token: float
    score: float  # a group
    score_character: float


@dataclass(frozen=True)
class Scenario:
    """A run that is repeated on several layouts."""

    name: str
    pace: Pace
    max_rows: int


SCENARIOS = (
    Scenario("sampling", Pace(0.015, 2e-4, 5e-4, 0.0, 0.0), max_rows=16),
    Scenario("scoring", Pace(0.01, 1e-4, 2e-4, 0.08, 5e-4), max_rows=64),
)


class PacedSampler(remote._SamplerActor):
    """In an actor: logs its jobs, and sleeps in each decode step."""

    def __init__(self, pace: Pace, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._steps: list[tuple[int, int, float]] = []  # rows, prompts, seconds
        self._pulled = 0.0
        advance, steps = decoding.Decoding.advance, self._steps

        def paced(self: decoding.Decoding) -> decoding.Finished:
            began, prompts = time.perf_counter(), len(self._waiting._units)
            finished = advance(self)
            rows = len(self._live) + len(finished)
            time.sleep(pace.decode + pace.row * rows)
            steps.append((rows, prompts - len(self._waiting._units), time.perf_counter() - began))
            return finished

        decoding.Decoding.advance = paced  # type: ignore[method-assign]

    def __call__(self, job: remote.SamplerJob) -> Any:
        began = time.perf_counter()
        self._steps.clear()
        self._pulled = 0.0
        groups = super().__call__(job)
        seconds = time.perf_counter() - began
        row = {"seconds": seconds, "pull": self._pulled, "steps": list(self._steps)}
        with (Path(os.environ[LOG]) / f"{os.getpid()}.jsonl").open("a", encoding="utf-8") as log:
            log.write(json.dumps(row) + "\n")
        return groups

    def _pull(self, weights: remote.ShippedWeights) -> None:
        began = time.perf_counter()
        super()._pull(weights)
        self._pulled = time.perf_counter() - began


def sleeping_reward(pace: Pace) -> Callable[..., list[float]]:
    """A reward that takes a time that depends on the length of a group's texts, and differs between completions."""
    fixed, character = pace.score, pace.score_character

    def reward(prompts: Any, completions: Any, completion_ids: Any, **columns: Any) -> list[float]:
        import time

        time.sleep(fixed + character * sum(map(len, completion_ids)))
        return [len(ids) / 64 for ids in completion_ids]

    return reward


@dataclass(frozen=True)
class Measured:
    """A run: of each step its groups, its seconds, and the metrics; of each job its log."""

    steps: tuple[tuple[Group, ...], ...]
    seconds: tuple[float, ...]  # but of the last one
    publish: tuple[float, ...]
    metrics: tuple[dict[str, float], ...]
    jobs: tuple[dict[str, Any], ...]
    max_rows: int

    @property
    def median(self) -> float:
        """Seconds of a step, without the first ones, in which all parts are new."""
        return float(np.median(self.seconds[WARM:]))


def run(scenario: Scenario, cluster: Cluster, folder: Path, steps: int) -> Measured:
    """Makes a small run."""
    name = f"{scenario.name}-{cluster.samplers}-{cluster.scorers}-{cluster.max_staleness}"
    log = folder / f"{name}.log"
    log.mkdir()
    model = small_model(folder / "model")
    settings: dict[str, Any] = {
        "model": {"threads": 1, "device": "cpu", "dtype": "float32"},
        "algorithm": {"name": "grpo", "correction": "truncate"},
        "rollout": {"problems_per_step": 16, "group_size": 4, "max_tokens": 64, "max_rows": scenario.max_rows},
        "evaluation": {"problems": 1, "samples": 0},
        "checkpoint": {"every": 0},
        "cluster": {
            "backend": "ray",
            "samplers": cluster.samplers,
            "scorers": cluster.scorers,
            "max_staleness": cluster.max_staleness,
        },
    }
    config = RunConfig(name=name, runs_dir=str(folder), steps=steps, **settings)
    os.environ[LOG] = str(log)
    here = str(Path(__file__).parent)
    os.environ["PYTHONPATH"] = os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])])
    clock = Clock(scenario.pace)
    rows = [{"prompt": text(prompt)} for prompt in prompts(replace(TINY, problems=64))]
    rewards = [WeightedReward("sleeps", sleeping_reward(scenario.pace))]
    with clock:
        Trainer(model=model, task=rows, rewards=rewards, config=config).train()
    path = folder / name
    own = range(1, steps + 1)
    jobs = [json.loads(line) for file in sorted(log.iterdir()) for line in file.read_text().splitlines()]
    return Measured(
        steps=tuple(
            tuple(tuple(len(one.token_ids) for one in found.group.completions) for found in read_rollouts(path, step))
            for step in own
        ),
        seconds=tuple(clock.steps),
        publish=tuple(clock.published),
        metrics=tuple(dict(row) for row in read_run(path).metrics),
        jobs=tuple(row for row in jobs if row["steps"][0][1] > 1),  # not those of an evaluation
        max_rows=scenario.max_rows,
    )  # fmt: skip


def small_model(folder: Path) -> Path:
    """A model that computes in no time, and ends a completion at any token with a probability of about 0.04."""
    if not folder.exists():
        model = build(TINY)
        with torch.no_grad():
            model.get_input_embeddings().weight[END] *= math.log(20.0) / math.log(3.0)
        model.save_pretrained(folder)
        tokenizer().save_pretrained(folder)
    return folder


class Clock:
    """Notes when the steps of a run begin, and what publishing takes; lets each update sleep."""

    def __init__(self, pace: Pace) -> None:
        self._pace, self._begins, self.published = pace, list[float](), list[float]()
        self._kept: list[tuple[Any, str, Any]] = []

    @property
    def steps(self) -> list[float]:
        """Seconds from the begin of each step to the begin of the next."""
        return [later - begin for begin, later in zip(self._begins, self._begins[1:], strict=False)]

    def __enter__(self) -> Clock:
        one_step, shipped, learn = loop._RunLoop._one_step, remote.RemoteEngine._shipped, Learner.learn

        def timed_step(run: Any, bars: Any) -> None:
            self._begins.append(time.perf_counter())
            one_step(run, bars)

        def timed_publish(engine: Any) -> Any:
            began = time.perf_counter()
            result = shipped(engine)
            self.published.append(time.perf_counter() - began)
            return result

        def slow_learn(learner: Any, batch: Any, *arguments: Any, **named: Any) -> Any:
            result = learn(learner, batch, *arguments, **named)
            time.sleep(self._pace.learn_token * float(batch.mask_NT.sum()))
            return result

        self._set(loop._RunLoop, "_one_step", timed_step)
        self._set(remote.RemoteEngine, "_shipped", timed_publish)
        self._set(Learner, "learn", slow_learn)
        self._set(remote, "_SamplerActor", partial(PacedSampler, self._pace))
        return self

    def _set(self, owner: Any, name: str, value: Any) -> None:
        self._kept.append((owner, name, getattr(owner, name)))
        setattr(owner, name, value)

    def __exit__(self, *error: object) -> None:
        for owner, name, value in self._kept:
            setattr(owner, name, value)


def fit(found: Measured) -> Costs:
    """The rates of a run with one sampler and one scorer, whose parts follow each other."""
    steps = [step for job in found.jobs for step in job["steps"]]
    fixed, row, prompt = _fitted([(1.0, rows, prompts) for rows, prompts, _ in steps], [one for *_, one in steps])
    publish = float(np.median(found.publish))
    pulls = [job["pull"] for job in found.jobs if job["pull"]]
    jobs = [job["seconds"] - job["pull"] - sum(one for *_, one in job["steps"]) for job in found.jobs]
    job, pull = float(np.median(jobs)), float(np.median(pulls))
    count = len(_parts([len(group) for group in found.steps[0]], 1, found.max_rows))
    own = found.jobs[-count * len(found.steps) :]
    busy = [sum(job["seconds"] for job in own[first : first + count]) for first in range(0, len(own), count)]
    scores, learns = [], []
    for groups, parts, seconds in list(zip(found.steps, found.metrics, found.seconds, strict=False))[WARM:]:
        tokens = sum(map(sum, groups))
        scores.append((len(groups), tokens, parts["time/reward"]))
        learns.append((tokens, seconds - parts["time/rollout"] - parts["time/reward"]))
    score, score_token = _fitted([one[:2] for one in scores], [one[2] for one in scores])
    learn, learn_token = _fitted([(1.0, tokens) for tokens, _ in learns], [one for _, one in learns])
    waits = [row["time/rollout"] - publish - worked for row, worked in zip(found.metrics, busy, strict=True)]
    return Costs(
        DecodeRates(fixed=fixed, row=row, prompt=prompt),
        job=job,
        hop=max(0.0, float(np.median(waits)) / count),
        publish=publish,
        pull=pull,
        score=score,
        score_token=score_token,
        learn=learn,
        learn_token=learn_token,
    )


def _fitted(rows: Sequence[Sequence[float]], seconds: Sequence[float]) -> list[float]:
    """Least squares without negative factors: one that would be negative is 0."""
    table, factors = np.array(rows, dtype=float), np.zeros(len(rows[0]))
    used = list(range(len(factors)))
    while used:
        solved = np.linalg.lstsq(table[:, used], np.array(seconds), rcond=None)[0]
        if (solved >= 0).all():
            factors[used] = solved
            break
        used = [place for place, factor in zip(used, solved, strict=True) if factor >= 0]
    return [float(factor) for factor in factors]
