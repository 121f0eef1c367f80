"""An engine whose groups are sampled by the actors of a Ray cluster, each with a copy of the policy."""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import safetensors.torch
from transformers import PreTrainedModel

from grouprl.config.run import PolicyConfig, RunConfig
from grouprl.engines.ray_actors import ActorPool
from grouprl.engines.ray_cluster import Cluster
from grouprl.forward.devices import resolve_device
from grouprl.forward.progress import PROGRESS
from grouprl.models.adapters import add_adapter, has_adapter
from grouprl.models.load import fingerprint, load_model, load_tokenizer
from grouprl.models.save import plain_tensors
from grouprl.rollout.engine import Request
from grouprl.rollout.native import NativeEngine
from grouprl.types import Group, Sampling, UserError, counted


@dataclass(frozen=True)
class ShippedWeights:
    """A version of the policy's weights in the store of the cluster, from which each sampler pulls it once."""

    version: int  # updates made before
    digest: str  # SHA-256 of the bytes
    bytes: Any  # reference to the bytes of a safetensors file: of the whole policy, or of its adapter
    start: str  # fingerprint of the weights that the run started from


@dataclass(frozen=True)
class SamplerJob:
    """Groups to sample from one version of the weights."""

    weights: ShippedWeights
    requests: tuple[Request, ...]
    sampling: Sampling


Samplers = ActorPool[SamplerJob, list[Group]]
_Key = tuple[str, str, int, Sampling]


def _key(request: Request, sampling: Sampling) -> _Key:
    """What determines a group, but for the weights."""
    return request.problem.id, request.stream, request.completions, sampling


@contextmanager
def open_samplers(cluster: Cluster, config: RunConfig) -> Iterator[Samplers]:
    """Starts the samplers of a run, which load its model while the learner does; they end with the block."""
    model, rows = config.model, config.rollout.max_rows
    settings = cluster.settings
    device = "auto" if settings.gpus else "cpu"
    build = partial(_SamplerActor, model, device, config.seed, rows)
    with Samplers(
        cluster, "sampler", build, count=settings.samplers, seconds=settings.seconds, gpus=settings.gpus
    ) as pool:
        yield pool


class RemoteEngine:
    """An `Engine` on sampler actors. Completions do not depend on which actor samples them, nor how often."""

    def __init__(self, samplers: Samplers, policy: PreTrainedModel, start: str, max_rows: int) -> None:
        """`policy` is the learner's, `start` the fingerprint of its first weights."""
        self._samplers, self._policy, self._start, self._max_rows = samplers, policy, start, max_rows
        self._weights: ShippedWeights | None = None
        self._version = 0
        self._begun: dict[_Key, tuple[Future[list[Group]], int]] = {}  # with the group's place in the result

    def load_weights(self, version: int) -> None:
        """Offers the new weights, which samplers pull for their next job; groups in work keep the old ones."""
        self._version, self._weights = version, None

    def begin(self, requests: Sequence[Request], sampling: Sampling, *, now: bool = False) -> None:
        """Begins groups that `generate` will ask for; with `now`, before all that are in work."""
        fresh = [request for request in requests if _key(request, sampling) not in self._begun]
        if not fresh:
            return
        if self._weights is None:
            data = safetensors.torch.save(plain_tensors(self._policy, learned_only=has_adapter(self._policy)))
            digest = hashlib.sha256(data).hexdigest()
            self._weights = ShippedWeights(self._version, digest, self._samplers.ray.put(data), self._start)
        for part in _parts([request.completions for request in fresh], self._samplers.count, self._max_rows):
            job = SamplerJob(self._weights, tuple(fresh[index] for index in part), sampling)
            future = self._samplers.submit(job, now=now)
            self._begun |= {_key(request, sampling): (future, index) for index, request in enumerate(job.requests)}

    def restore(self, requests: Sequence[Request], sampling: Sampling, groups: Sequence[Group]) -> None:
        """Takes groups that an earlier process sampled, as a checkpoint holds them."""
        done = Future[list[Group]]()
        done.set_result(list(groups))
        self._begun |= {_key(request, sampling): (done, index) for index, request in enumerate(requests)}

    def generate(
        self,
        requests: Sequence[Request],
        sampling: Sampling,
        *,
        on_finished: Callable[[int], None] | None = None,
        on_group: Callable[[int, Group], None] | None = None,
    ) -> list[Group]:
        """Samples the completions of each request, in the order of the requests."""
        self.begin(requests, sampling, now=True)
        keys = [_key(request, sampling) for request in requests]
        wanted = defaultdict[Future[list[Group]], list[tuple[int, int]]](list)
        for index, key in enumerate(keys):
            future, inside = self._begun[key]
            wanted[future].append((index, inside))
        groups: dict[int, Group] = {}
        with PROGRESS.doing(lambda: f"waiting for samplers, {counted(len(requests) - len(groups), 'group')}"):
            for done in as_completed(wanted):
                PROGRESS.mark()
                for index, inside in wanted[done]:
                    groups[index] = done.result()[inside]
                    if on_finished is not None:
                        on_finished(len(groups[index].completions))
                    if on_group is not None:
                        on_group(index, groups[index])
        for key in keys:
            self._begun.pop(key, None)
        return [groups[index] for index in range(len(requests))]


def _parts(completions: Sequence[int], samplers: int, max_rows: int) -> list[list[int]]:
    """Divides requests among jobs: one for each sampler, or more where a sampler would hold more than its rows.

    >>> _parts([8, 8, 8, 8, 8], samplers=2, max_rows=16)
    [[0, 3], [1, 4], [2]]
    """
    count = min(len(completions), max(samplers, math.ceil(sum(completions) / max_rows)))
    return [list(range(first, len(completions), count)) for first in range(count)]


class _SamplerActor:
    """In an actor: the policy and an engine."""

    def __init__(self, config: PolicyConfig, device: str, seed: int, max_rows: int) -> None:
        import ray

        path, lora, dtype = config.path, config.lora, config.dtype
        self._ray, self._path = ray, path
        model = load_model(config, device=resolve_device(device), weights=config.weights)
        self._start = fingerprint(model)
        self._model = model if lora is None else add_adapter(model, lora, seed=seed)
        self._engine = NativeEngine(self._model, load_tokenizer(config), seed=seed, max_rows=max_rows, dtype=dtype)
        self._digest = ""

    def __call__(self, job: SamplerJob) -> list[Group]:
        if job.weights.digest != self._digest:
            if self._start != job.weights.start:
                raise UserError(
                    f"a sampler's {self._path}: expected the model that the run started with ({job.weights.start}), "
                    f"got another ({self._start}): give every machine of the cluster the same one"
                )
            data = self._ray.get(job.weights.bytes)
            if (digest := hashlib.sha256(data).hexdigest()) != job.weights.digest:
                raise UserError(
                    f"weights of version {job.weights.version}: expected the bytes with SHA-256 {job.weights.digest}, "
                    f"got {digest}: check the cluster's memory and disks"
                )
            lacking, unknown = self._model.load_state_dict(safetensors.torch.load(data), strict=False)
            learned = {name for name, weight in self._model.named_parameters() if weight.requires_grad}
            if unknown or learned & set(lacking):
                raise UserError(f"weights of version {job.weights.version}: expected those of {self._path}, got others")
            self._digest = job.weights.digest
        self._engine.load_weights(job.weights.version)
        return self._engine.generate(job.requests, job.sampling)
