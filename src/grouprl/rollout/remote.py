"""An engine whose groups are sampled by the actors of a Ray cluster, each with a copy of the policy."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import safetensors.torch
from transformers import PreTrainedModel

from grouprl.config.run import RunConfig
from grouprl.distributed.actors import ActorPool
from grouprl.distributed.cluster import Cluster
from grouprl.models.adapters import add_adapter, has_adapter
from grouprl.models.load import fingerprint, load_model, load_tokenizer
from grouprl.models.precision import resolve_device
from grouprl.models.progress import PROGRESS
from grouprl.models.save import plain_tensors
from grouprl.rollout.engine import Request
from grouprl.rollout.native import NativeEngine
from grouprl.types import Group, Sampling, UserError


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


@contextmanager
def open_samplers(cluster: Cluster, config: RunConfig) -> Iterator[Samplers]:
    """Starts the samplers of a run, which load its model while the learner does; they end with the block."""
    model, rows = config.model, config.rollout.max_rows
    build = partial(_Sampler, model.path, model.dtype, model.lora, config.seed, rows)
    settings = cluster.settings
    with Samplers(cluster, "sampler", build, count=settings.samplers, seconds=settings.seconds) as pool:
        yield pool


class RemoteEngine:
    """An `Engine` on sampler actors. Completions do not depend on which actor samples them, nor how often."""

    def __init__(self, samplers: Samplers, policy: PreTrainedModel, start: str, max_rows: int) -> None:
        """`policy` is the learner's, `start` the fingerprint of its first weights."""
        self._samplers, self._policy, self._start, self._max_rows = samplers, policy, start, max_rows
        self._weights: ShippedWeights | None = None
        self._version = 0

    def load_weights(self, version: int) -> None:
        """See `Engine.load_weights`; the samplers pull the weights before they sample the next group."""
        self._version, self._weights = version, None

    def generate(
        self,
        requests: Sequence[Request],
        sampling: Sampling,
        *,
        on_finished: Callable[[int], None] | None = None,
        on_group: Callable[[int, Group], None] | None = None,
    ) -> list[Group]:
        """See `Engine.generate`."""
        self._weights = self._weights or self._shipped()
        parts = _parts([request.completions for request in requests], self._samplers.count, self._max_rows)
        jobs = {
            self._samplers.submit(SamplerJob(self._weights, tuple(requests[n] for n in part), sampling)): part
            for part in parts
        }
        groups: dict[int, Group] = {}
        with PROGRESS.doing(lambda: f"waiting for samplers, {len(requests) - len(groups)} groups"):
            for done in as_completed(jobs):
                PROGRESS.mark()
                for place, group in zip(jobs[done], done.result(), strict=True):
                    groups[place] = group
                    if on_finished is not None:
                        on_finished(len(group.completions))
                    if on_group is not None:
                        on_group(place, group)
        return [groups[place] for place in range(len(requests))]

    def _shipped(self) -> ShippedWeights:
        data = safetensors.torch.save(plain_tensors(self._policy, learned_only=has_adapter(self._policy)))
        return ShippedWeights(
            self._version, hashlib.sha256(data).hexdigest(), self._samplers.ray.put(data), self._start
        )


def _parts(completions: Sequence[int], samplers: int, max_rows: int) -> list[list[int]]:
    """Divides requests among jobs: one for each sampler, or more where a sampler would hold more than its rows.

    >>> _parts([8, 8, 8, 8, 8], samplers=2, max_rows=16)
    [[0, 3], [1, 4], [2]]
    """
    count = min(len(completions), max(samplers, math.ceil(sum(completions) / max_rows)))
    return [list(range(first, len(completions), count)) for first in range(count)]


class _Sampler:
    """In an actor: the policy and an engine."""

    def __init__(self, path: str, dtype: str, lora: Any, seed: int, max_rows: int) -> None:
        import ray

        self._ray, self._path = ray, path
        model = load_model(path, device=resolve_device("auto"))
        self._start = fingerprint(model)
        self._model = model if lora is None else add_adapter(model, lora, seed=seed)
        self._engine = NativeEngine(self._model, load_tokenizer(path), seed=seed, max_rows=max_rows, dtype=dtype)
        self._digest = ""

    def __call__(self, job: SamplerJob) -> list[Group]:
        if job.weights.digest != self._digest:
            self._pull(job.weights)
        self._engine.load_weights(job.weights.version)
        return self._engine.generate(job.requests, job.sampling)

    def _pull(self, weights: ShippedWeights) -> None:
        if self._start != weights.start:
            raise UserError(
                f"a sampler's {self._path}: expected the model that the run started with ({weights.start}), "
                f"got another ({self._start}): give every machine of the cluster the same one"
            )
        data = self._ray.get(weights.bytes)
        if (digest := hashlib.sha256(data).hexdigest()) != weights.digest:
            raise UserError(
                f"weights of version {weights.version}: expected the bytes with SHA-256 {weights.digest}, got "
                f"{digest}: check the cluster's memory and disks"
            )
        lacking, unknown = self._model.load_state_dict(safetensors.torch.load(data), strict=False)
        learned = {name for name, weight in self._model.named_parameters() if weight.requires_grad}
        if unknown or learned & set(lacking):
            raise UserError(f"weights of version {weights.version}: expected those of {self._path}, got others")
        self._digest = weights.digest
