"""An engine that samples from a vLLM server: token ids in, token ids and log-probs out, new weights once a step."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from grouprl.config.run import EngineConfig
from grouprl.engines.publish import publish, publish_base
from grouprl.engines.published import PublishedWeights, shape_difference, shape_of
from grouprl.engines.vllm_client import Connection, NotFoundError, VllmClient
from grouprl.engines.vllm_reply import ReplyForm, StaleReplyError, completions_of
from grouprl.forward.progress import PROGRESS
from grouprl.models.adapters import has_adapter
from grouprl.models.load import end_token_ids
from grouprl.models.save import plain_tensors
from grouprl.models.shard import is_sharded
from grouprl.models.templates import hidden_tags
from grouprl.ranks import Ranks
from grouprl.rewards.calls import run_in_thread, started_in_thread
from grouprl.rollout.engine import Request
from grouprl.rollout.sampler import row_key
from grouprl.types import Completion, Group, Sampling, UserError, counted

_SEEDS = (1 << 62) - 1  # vLLM adds a completion's place to the seed, and takes -1 for none
_FRESH = "default"  # the version of a vLLM server that has loaded no other weights since its start
_RELOADS = 3  # restarts of the server while one group is sampled
_START = "start it with the command in docs/scale.md"
_TESTED = "0.32"  # the vLLM whose replies and worker this engine was tested with


@dataclass(frozen=True)
class _ServerUnit:
    """Completions of one request that are sampled by one call."""

    request: int
    first: int  # index of the first completion within its request
    count: int


_Found = tuple[int, list[Completion]] | None


class VllmEngine:
    """An `Engine` on a vLLM server that this run has for itself; each rank samples its groups on its server."""

    def __init__(
        self,
        settings: EngineConfig,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        seed: int,
        max_rows: int,
        folder: Path,
        ranks: Ranks | None = None,
    ) -> None:
        """`max_rows`: completions under way at once; `seed`: of the run; `folder`: where weights are published.

        Raises:
            UserError: the variable that the configuration names holds no token, or there are more servers than ranks.
        """
        self._ranks, servers = ranks or Ranks(), settings.addresses or (settings.address or "",)
        if len(servers) > self._ranks.world:
            raise UserError(
                f"rollout.engine.addresses: expected at most {self._ranks.world}, one for each rank, got "
                f"{len(servers)}: start as many ranks with torchrun, or name fewer"
            )
        self._updates_server = self._ranks.rank < len(servers)  # the first rank of a server updates its weights
        self._client = VllmClient(settings, servers[self._ranks.rank % len(servers)])
        self._policy, self._tokenizer, self._folder = model, tokenizer, folder
        self._seed, self._max_rows, self._version = seed, max_rows, 0
        self._ends = end_token_ids(model, tokenizer)
        self._published: PublishedWeights | None = None  # of `_version`; None = to be published
        self._served = ""  # label of the weights that the server confirmed
        self._base: PublishedWeights | None = None  # of a policy with an adapter
        self._name, self._adapter = "", ""  # the server's names of the model, and of the adapter that it has
        self._adapters: list[Any] = []  # of each worker, the numbers of the adapters that it holds
        self._context = self._rows = 0  # the server's limits: tokens of a row, rows of a request
        self._vllm: str | None = None  # the version of the server's program; None = it was not asked yet

    def load_weights(self, version: int) -> None:
        """Names the weights' version; they are published and sent before the next completion is sampled."""
        self._version, self._published = version, None

    def check_server(self) -> None:
        """Checks the server's model, tokenizer and settings.

        Raises:
            UserError: it cannot be reached, or it does not fit this run.
        """
        run_in_thread(self._check())

    def generate(
        self,
        requests: Sequence[Request],
        sampling: Sampling,
        *,
        on_finished: Callable[[int], None] | None = None,
        on_group: Callable[[int, Group], None] | None = None,
    ) -> list[Group]:
        """Samples the completions of each request, in the order of the requests."""
        if self._published is None and (requests or self._ranks.world > 1):
            # Rank 0 alone writes the weights; with several ranks each server has them before any samples.
            ranks, policy = self._ranks, self._policy
            tensors = plain_tensors(policy, keep=ranks.leads) if is_sharded(policy) else None

            def write() -> list[tuple[str, int, str]]:
                published = [publish(policy, self._tokenizer, self._folder, self._version, tensors)]
                if published[0].is_adapter and self._base is None:
                    published.append(publish_base(policy, self._folder, tensors))
                return [(str(weights.folder), weights.version, weights.digest) for weights in published]

            published = [
                PublishedWeights(Path(path), *rest) for path, *rest in ranks.decided(write, "published weights")
            ]
            self._published, self._base = published[0], published[1] if len(published) > 1 else self._base
            if ranks.world > 1:
                if self._updates_server:
                    run_in_thread(self._bring())
                ranks.gather(None, "weights on the servers")
                self._served = self._published.label
        if not requests:
            return []
        completions_by_request: list[list[Completion]] = [[] for _ in requests]
        groups: dict[int, Group] = {}
        sampled = SimpleQueue[_Found]()  # to this thread, in which the callbacks run
        with (
            PROGRESS.doing(
                lambda: (
                    f"sampling groups of {counted(len(requests) - len(groups), 'problem')} on {self._client.address}"
                )
            ),
            started_in_thread(self._sample(requests, sampling, sampled.put), name="vllm") as running,
        ):
            while (item := sampled.get()) is not None:
                PROGRESS.mark()
                index, completions = item
                completions_by_request[index] += completions
                if on_finished is not None:
                    on_finished(len(completions))
                if len(completions_by_request[index]) == requests[index].completions:
                    ordered = tuple(sorted(completions_by_request[index], key=lambda completion: completion.index))
                    groups[index] = Group(requests[index].problem, requests[index].prompt_ids, ordered)
                    if on_group is not None:
                        on_group(index, groups[index])
            running.result()
        return [groups[index] for index in range(len(requests))]

    async def _bring(self) -> None:
        async with self._client.connected() as server:
            await self._restore(server, asyncio.Lock())

    async def _sample(self, requests: Sequence[Request], sampling: Sampling, put: Callable[[_Found], None]) -> None:
        """Samples all requests; gives the completions of each call, and None at the end."""
        try:
            async with self._client.connected() as server:
                restore = partial(self._restore, server, asyncio.Lock())
                await restore()
                longest = max(len(request.prompt_ids) for request in requests)
                if longest + sampling.max_tokens > self._context:
                    raise self._client.wrong(
                        f"a context of {longest} prompt tokens and {sampling.max_tokens} completion tokens",
                        f"one of {self._context}",
                        "start it with a larger --max-model-len, or lower rollout.max_tokens",
                    )
                rows = min(self._max_rows, self._rows)
                units = [
                    _ServerUnit(index, first, min(rows, request.completions - first))
                    for index, request in enumerate(requests)
                    for first in range(0, request.completions, rows)
                ]
                waiting = iter(units)

                async def work() -> None:
                    for unit in waiting:
                        completions = await self._completions(server, restore, requests[unit.request], unit, sampling)
                        put((unit.request, completions))

                try:
                    async with asyncio.TaskGroup() as group:
                        for _ in range(min(len(units), max(1, rows // max(unit.count for unit in units)))):
                            group.create_task(work())
                except BaseExceptionGroup as errors:
                    raise errors.exceptions[0] from None
        finally:
            put(None)

    async def _completions(
        self, server: Connection, restore: Callable[[], Any], request: Request, unit: _ServerUnit, sampling: Sampling
    ) -> list[Completion]:
        """Samples the completions of one unit; sends it again after the server was restarted."""
        assert self._published is not None
        adapter = _adapter_name(self._published)
        seed = (row_key(self._seed, request.stream, request.problem.id, 0) & _SEEDS) + unit.first
        what = f"{counted(unit.count, 'completion')} of problem {request.problem.id!r}"
        stale = ""
        for _ in range(_RELOADS):
            # Everything that decides the completions, so that a repeated call is the same call.
            parameters = {
                "n": unit.count,
                "seed": seed,
                "max_tokens": sampling.max_tokens,
                "temperature": sampling.temperature,
                "top_p": sampling.top_p,
                "top_k": sampling.top_k,
                "min_p": sampling.min_p,
                "stop": list(sampling.stop),
                "stop_token_ids": list(self._ends),
                "ignore_eos": True,  # the end tokens are those of this run, whatever the server's model folder says
                "detokenize": bool(sampling.stop),
                "logprobs": 0,  # of the sampled token alone
            }
            if sampling.stop and hidden_tags(self._tokenizer):  # a stop string may be one of them
                parameters["skip_special_tokens"] = False
            if sampling.penalizes:
                parameters["repetition_penalty"] = sampling.repetition_penalty
            body = {"token_ids": list(request.prompt_ids), "sampling_params": parameters}
            body |= {"model": adapter} if adapter else {}
            try:
                reply = await server.call("POST", "/inference/v1/generate", body, what=what, before_retry=restore)
            except NotFoundError:
                if not adapter:
                    raise
                stale = _FRESH  # a server that was started again has no adapter
                await restore()
                continue
            expected = ReplyForm(
                count=unit.count,
                first=unit.first,
                model=adapter or self._name,
                label=self._published.label,
                version=self._version,
                vocabulary=self._policy.config.vocab_size,
                sampling=sampling,
                ends=frozenset(self._ends),
            )
            try:
                return completions_of(reply, expected, self._tokenizer, self._client.wrong)
            except StaleReplyError as error:
                stale = str(error)
            if stale not in (_FRESH, "abort"):
                break
            await restore()
        raise self._client.wrong(
            f"{what} from the weights {self._published.label}",
            f"some from {stale}",
            "give every run a server of its own, of vLLM 0.32 or newer, and look at its output",
        )

    # The server's model and weights

    async def _restore(self, server: Connection, lock: asyncio.Lock) -> None:
        """Makes sure that the server has the newest published weights: at first, and after it was restarted."""
        async with lock:
            assert self._published is not None
            label = str(
                (await server.call("GET", "/weight_info", what="the version of its weights")).get("weight_version")
            )
            if label == self._published.label == self._served:
                return
            if label != self._served:
                self._adapter = ""
                await self._check_model(server)
                if self._base is not None:  # an earlier run may have left other weights below the adapter
                    await self._update(server, self._base)
            await self._update(server, self._published)

    async def _check(self) -> None:
        async with self._client.connected() as server:
            await self._check_model(server)

    @property
    def doubt(self) -> str:
        """A sentence about a server whose program is another version than the tested one, or says none; else ''."""
        if self._vllm is None or self._vllm.startswith(f"{_TESTED}."):
            return ""
        return f"the server runs vLLM {self._vllm or 'of an unknown version'}; GroupRL is tested with {_TESTED}."

    async def _check_model(self, server: Connection) -> None:
        wrong, tokenizer = self._client.wrong, self._tokenizer
        match await server.call("GET", "/v1/models", what="its models"):
            case {"data": [{"id": str(name)}, *_]}:
                self._name = name
            case other:
                raise wrong("the name of its model", repr(other), _START)
        try:
            version = str((await server.call("GET", "/version", what="its version")).get("version"))
        except NotFoundError:
            version = ""
        number = re.match(r"(\d+)\.(\d+)", version)
        if version and (number is None or (int(number[1]), int(number[2])) < tuple(map(int, _TESTED.split(".")))):
            raise self._client.wrong(f"vLLM {_TESTED} or newer", f"version {version!r:.40}", _START)
        if self._vllm not in (None, version):
            raise self._client.wrong(f"vLLM {self._vllm}, as before", f"version {version!r:.40}", _START)
        self._vllm = version
        (description, *_) = await self._rpc(server, "grouprl_describe", what="a description of its model")
        if difference := shape_difference(shape_of(self._policy.config), description["shape"]):
            raise wrong(f"the model {self._policy.name_or_path}", f"{description['model']}, with {difference}", _START)
        if description["logprobs_mode"] != "processed_logprobs":
            raise wrong("--logprobs-mode processed_logprobs", description["logprobs_mode"], _START)
        if has_adapter(self._policy) and not description["lora"]:
            raise wrong("--enable-lora for a run with model.lora", "a server without it", _START)
        if description["replicas"] != 1:  # /collective_rpc returns what the first of them answered, and no other
            raise wrong(
                "--data-parallel-size 1, because vLLM does not say whether every replica has the weights",
                str(description["replicas"]),
                "start a server for each, and name them in rollout.engine.addresses",
            )
        ids = list(range(len(tokenizer)))
        reply = await server.call("POST", "/detokenize", {"tokens": ids}, what="the text of every token")
        if reply.get("prompt") != tokenizer.decode(ids):
            raise wrong(
                f"the tokenizer of {self._policy.name_or_path}", "another one", f"{_START}, and its --tokenizer"
            )
        self._context, self._rows = int(description["context"]), int(description["rows"])

    async def _update(self, server: Connection, weights: PublishedWeights) -> None:
        """Replaces the server's weights while it is paused; a server whose update failed stays paused."""
        wrong = self._client.wrong
        await server.call("POST", "/pause?mode=abort", what="a pause")
        arguments = [str(weights.folder), str(weights.version), weights.digest]
        await self._rpc(server, "grouprl_load", arguments, what="the published weights loaded")
        if weights.is_adapter:
            old, self._adapter = self._adapter, _adapter_name(weights)
            body = {"lora_name": self._adapter, "lora_path": str(weights.folder), "load_inplace": True}
            await server.call("POST", "/v1/load_lora_adapter", body, what="the adapter loaded", is_json=False)
            if old not in ("", self._adapter):
                body = {"lora_name": old}
                await server.call("POST", "/v1/unload_lora_adapter", body, what="the adapter unloaded", is_json=False)
        reset = await server.call("POST", "/reset_prefix_cache", what="an empty prefix cache")
        if reset.get("success") is not True:
            raise wrong("an empty prefix cache", repr(reset), "look at the server's output")
        await server.call("POST", "/update_weight_version", {"new_version": weights.label}, what="a new version")
        # Asked last: a server that was started again meanwhile has the version, but not the weights.
        descriptions = await self._rpc(server, "grouprl_describe", what="a description of its model")
        for description in descriptions:
            if description.get("label") != weights.label:
                raise wrong(
                    f"the weights {weights.label}", repr(description.get("label")), "look at the server's output"
                )
        if weights.is_adapter:
            # vLLM gives an adapter of another name another number.
            earlier = self._adapters if old not in ("", self._adapter) else []
            self._adapters = [description.get("adapters") for description in descriptions]
            if not all(self._adapters) or any(numbers in earlier for numbers in self._adapters):
                got = f"the adapters {self._adapters}{f' after {earlier}' if earlier else ''}"
                raise wrong(f"the adapter {weights.label} in every worker", got, "look at the server's output")
        await server.call("POST", "/resume", what="sampling resumed")
        self._served = weights.label

    async def _rpc(self, server: Connection, method: str, arguments: Sequence[str] = (), *, what: str) -> list[Any]:
        """Calls a method of `PublishedWeightsWorker` on every worker."""
        reply = await server.call("POST", "/collective_rpc", {"method": method, "args": list(arguments)}, what=what)
        results: Any = reply.get("results")
        if not isinstance(results, list) or not results or not all(isinstance(result, dict) for result in results):
            raise self._client.wrong(what, repr(results), _START)
        if errors := [str(result["error"]) for result in results if "error" in result]:
            remedy = "start it with the model of this run, where it sees the run's folder (docs/scale.md)"
            raise self._client.wrong(what, errors[0], remedy)
        return list(results)


def _adapter_name(weights: PublishedWeights) -> str:
    """The name of published weights on the server; '' = they are a whole model."""
    return f"grouprl-{weights.label}" if weights.is_adapter else ""
