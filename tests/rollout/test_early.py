"""Groups that replace dropped ones are begun early on a cluster's samplers, and the step stays that of one process."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from grouprl.config.run import RunConfig
from grouprl.engines.ray_samplers import RemoteEngine, SamplerJob
from grouprl.models.load import load_model, load_tokenizer
from grouprl.rewards.configured import configured_scorer
from grouprl.rewards.functions import WeightedReward
from grouprl.rollout import NativeEngine
from grouprl.run.assemble import assemble
from grouprl.step import grpo_step
from grouprl.tasks import task_from_list
from grouprl.tasks.curriculum import EdgeOrder, PassRates, ProblemOrder, UniformOrder, rounds, update
from grouprl.types import Group, Problem, StepRecord
from small_runs import ROWS, small_config
from variants import variant

CPU = torch.device("cpu")
SECONDS = 20.0


def waits_for(path: Path) -> bool:
    until = time.monotonic() + SECONDS
    while not path.exists() and time.monotonic() < until:
        time.sleep(0.01)
    return path.exists()


@dataclass
class Threads:
    """In the place of a Ray cluster: samplers that are threads of this process, with engines of their own."""

    folder: Path
    count: int = 2
    jobs: list[SamplerJob] = field(default_factory=list)
    before: Callable[[SamplerJob], None] = lambda job: None

    def __post_init__(self) -> None:
        self.pool = ThreadPoolExecutor(self.count)
        self.engines: SimpleQueue[NativeEngine] = SimpleQueue()
        for _ in range(self.count):  # not in the threads: transformers loads one model at a time
            model, tokenizer = load_model(str(self.folder), device=CPU), load_tokenizer(str(self.folder))
            self.engines.put(NativeEngine(model, tokenizer, seed=0, max_rows=256))
        self.ray = SimpleNamespace(put=lambda data: data)

    def submit(self, job: SamplerJob, *, now: bool = False) -> Future[list[Group]]:
        self.jobs.append(job)
        return self.pool.submit(self._sample, job)

    def _sample(self, job: SamplerJob) -> list[Group]:
        self.before(job)
        engine = self.engines.get()
        try:
            return engine.generate(job.requests, job.sampling)
        finally:
            self.engines.put(engine)


def config_of(runs: Path, tiny: Path, **options: Any) -> RunConfig:
    algorithm = variant("dapo", **{"overlong_buffer": 0.0, "refills": 20, **options})
    rollout = {"problems_per_step": 4, "group_size": 2, "max_tokens": 8}
    return small_config(runs, model={"path": str(tiny)}, algorithm=algorithm, rollout=rollout)


class Chosen:
    """Equal rewards for the groups of some problems; the group of another is scored when a file is there."""

    def __init__(self, dropped: Sequence[int], slow: int, flag: Path) -> None:
        self.dropped, self.slow, self.flag = dropped, slow, flag

    def __call__(self, prompts: Any, completions: Any, completion_ids: Any, number: list[int], **columns: Any) -> Any:
        if number[0] == self.slow and not waits_for(self.flag):
            return [None] * len(completions)
        return [0.5 if one in self.dropped else float(place % 2) for place, one in enumerate(number)]


def made(config: RunConfig, reward: Any, samplers: Threads | None) -> StepRecord:
    """The first step of a run."""
    task = task_from_list(ROWS)
    with configured_scorer(config, task, [WeightedReward("chosen", reward)]) as scorer:
        parts = assemble(config, task, scorer, samplers=samplers).step_parts  # type: ignore[arg-type]
        record = grpo_step(parts, 1, PassRates())
        if samplers is not None:
            assert isinstance(parts.engine, RemoteEngine)
            assert parts.engine._begun == {}  # what was begun was used
    return record


def without_times(record: StepRecord) -> dict[str, Any]:
    return {key: one for key, one in record.metrics.items() if not key.startswith(("time/", "tokens_per_second"))}


def test_dropped_groups_are_replaced_while_others_are_sampled_and_scored(tiny: Path, tmp_path: Path):
    config = config_of(tmp_path, tiny)
    visits = UniformOrder(4, config.seed).visits(task_from_list(ROWS).problems("train"), step=1, rates=PassRates())
    first, second, _, last = [int(problem.columns["number"]) for problem, _ in visits]
    flag = tmp_path / "two replacements are under way"
    samplers, waited = Threads(tiny), list[bool]()

    def before(job: SamplerJob) -> None:
        replacing = [one for other in samplers.jobs for one in other.requests if one.stream.startswith("refill")]
        if len(replacing) == 2:
            flag.touch()
        if any(request.problem.columns["number"] == second for request in job.requests) and not replacing:
            until = time.monotonic() + SECONDS
            while len(samplers.jobs) < 3 and time.monotonic() < until:
                time.sleep(0.01)
            waited.append(len(samplers.jobs) == 3)  # the first sampler's group is being replaced meanwhile

    samplers.before = before
    reward = Chosen([first, second], last, flag)  # of the first sampler, of the second, and slow to score
    many = made(config, reward, samplers)
    assert waited == [True]
    assert flag.exists()

    alone = made(config, reward, None)
    assert alone.kept.count(False) >= 2
    assert (many.groups, many.outcomes, many.kept) == (alone.groups, alone.outcomes, alone.kept)
    assert without_times(many) == without_times(alone)
    asked = [(request.problem.id, request.stream) for job in samplers.jobs for request in job.requests]
    assert len(asked) == len(set(asked)) == len(alone.groups)  # each group was asked for once, and all are used


@pytest.mark.parametrize("order", [UniformOrder(4, 3), EdgeOrder(4, 3, 8)], ids=["uniform", "edge"])
def test_what_is_begun_early_begins_the_next_round(order: ProblemOrder):
    train = [Problem(f"p{number}", "?", {}) for number in range(9)]
    rates = update(PassRates(), [], half_life=8.0)
    kept = list[bool]()
    taken = rounds(order, train, step=1, rates=rates, refills=3, kept=kept)
    visits, further = next(taken)
    for dropped in (3, 2, 2):
        assert further is not None
        early = [further(count) for count in range(1, dropped + 1)]
        kept += [False] * dropped + [True] * (len(visits) - dropped)
        visits, further = next(taken)
        assert len(visits) == dropped
        assert early == [visits[:count] for count in range(1, dropped + 1)]
    assert further is None  # the last round: nothing may be begun
