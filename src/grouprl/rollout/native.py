"""The native engine samples groups with the learner's own modules and weights, many completions at once.

It reads a group's prompt once. Finished rows leave at once, the last rows fill their places, and waiting groups enter
when enough rows are free, so that matrix products cover only live completions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from typing import cast

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from grouprl.forward.attention import attention_layers, hidden_states, is_packed
from grouprl.forward.compiled import kernels
from grouprl.forward.devices import traits_of
from grouprl.forward.layouts import Prefix
from grouprl.forward.precision import autocast
from grouprl.forward.prefix import Read, read_prefix
from grouprl.forward.progress import PROGRESS
from grouprl.forward.workers import interleaved, one_thread, worker_count
from grouprl.leaves import leaf
from grouprl.models.load import end_token_ids
from grouprl.models.shard import is_sharded
from grouprl.rollout.cache import CacheShape
from grouprl.rollout.decoding import Decoding, Finished, Unit, UnitQueue
from grouprl.rollout.engine import Request
from grouprl.rollout.episodes import Conversation, EpisodeQueue
from grouprl.rollout.forward import Forward, ModuleForward, UnpackedForward
from grouprl.rollout.sampler import row_key
from grouprl.rollout.tree import PrefixTree
from grouprl.types import Completion, Group, Sampling, counted

# Fewest rows of a part that a thread of its own decodes: products of fewer take as long as products of these.
_LANE_ROWS = 16


class NativeEngine:
    """An `Engine` on the policy's modules in memory, without a second copy or a transfer of the weights."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        seed: int,
        max_rows: int,
        dtype: str = "float32",
        conversation: Conversation | None = None,
    ) -> None:
        """`max_rows`: completions decoded at once; `seed`: of the run; `dtype`: of the computation.

        With a conversation every completion is an episode, whose turns it answers.
        """
        self._model, self._tokenizer = model, tokenizer
        self._seed, self._max_rows, self._dtype = seed, max_rows, dtype
        self._conversation = conversation
        self._ends = end_token_ids(model, tokenizer)
        self._device: torch.device = model.get_input_embeddings().weight.device
        self._version = 0
        self.tokens_read = 0  # tokens of prompts and observations that the last call read for its episodes
        self._recorded: ModuleForward | None = None

    def load_weights(self, version: int) -> None:
        """Sets the version alone: the engine samples from the learner's own weights in memory."""
        self._version = version

    @torch.no_grad()
    def generate(
        self,
        requests: Sequence[Request],
        sampling: Sampling,
        *,
        on_finished: Callable[[int], None] | None = None,
        on_group: Callable[[int, Group], None] | None = None,
    ) -> list[Group]:
        """Samples one group per request, in the order of the requests: an `Engine.generate`."""
        if not requests:
            return []
        compiled = kernels()
        if compiled is None or not compiled.decodes(self._model, getattr(torch, self._dtype)):
            workers = worker_count(self._model, 1)  # modules take turns in Python
        else:
            live_rows = min(self._max_rows, sum(request.completions for request in requests))
            workers = worker_count(self._model, live_rows // _LANE_ROWS, sampling=True)
        lanes = max(1, workers)
        rows = self._max_rows // lanes
        units = []
        for index, request in enumerate(requests):
            numbers = range(request.completions)
            keys = tuple(row_key(self._seed, request.stream, request.problem.id, number) for number in numbers)
            for first in range(0, request.completions, rows):
                units.append(Unit(index, request.prompt_ids, keys[first : first + rows], first))
        if self._conversation is None:
            waiting = UnitQueue(units)
        else:
            waiting = EpisodeQueue(units, requests, self._conversation, self._seed)
        share = -(-sum(request.completions for request in requests) // lanes)
        rows = min(rows, -(-share // waiting.members) * waiting.members)
        with one_thread() if workers else nullcontext():
            forwards = self._forwards(units, sampling, rows, lanes, common_tokens(requests))
        tree: PrefixTree | None = None
        if self._conversation is not None and is_packed(self._model):
            # What episodes read is shared by them: as many tokens as the caches have room for.
            forward, shape = cast(ModuleForward, forwards[0]), forwards[0].shape
            room = len(forwards) * (shape.rows * shape.own_tokens + shape.groups * shape.prompt_tokens)
            dtype = torch.bfloat16 if self._dtype == "bfloat16" else torch.float32
            tree = PrefixTree(units[0].prompt_ids[: shape.before], forward.prefix, room, dtype)
        completions: list[list[Completion]] = [[] for _ in requests]
        groups: dict[int, Group] = {}

        def unfinished_groups() -> str:
            names = [request.problem.id for index, request in enumerate(requests) if index not in groups]
            return f"sampling groups of {counted(len(names), 'problem')}, among them {', '.join(names[:3])}"

        decodings = [partial(self._decode, forward, waiting, sampling, tree) for forward in forwards]
        with PROGRESS.doing(unfinished_groups):
            for finished in interleaved(decodings, workers):
                if on_finished is not None:
                    on_finished(len(finished))
                for index, completion in finished:
                    completions[index].append(completion)
                for index in dict.fromkeys(index for index, _ in finished):
                    request = requests[index]
                    if len(completions[index]) == request.completions:
                        group = tuple(sorted(completions[index], key=lambda completion: completion.index))
                        groups[index] = Group(request.problem, request.prompt_ids, group)
                        if on_group is not None:
                            on_group(index, groups[index])
        self.tokens_read = 0 if tree is None else tree.computed
        return [groups[index] for index in range(len(requests))]

    def _decode(
        self, forward: Forward, waiting: UnitQueue, sampling: Sampling, tree: PrefixTree | None
    ) -> Iterator[Finished]:
        """Decodes waiting units in the rows of one forward pass; yields the completions that each decode step ends."""
        device = self._device
        with torch.no_grad(), autocast(device, self._dtype):
            decoding = Decoding(forward, self._tokenizer, waiting, sampling, self._ends, device, self._version, tree)
            while decoding.going:
                yield decoding.advance()

    def _forwards(self, units: Sequence[Unit], sampling: Sampling, rows: int, count: int, shared: int) -> list[Forward]:
        """The model with large enough caches; on a CPU for one call only, so that the learner gets their memory."""
        packed = is_packed(self._model)
        layers = attention_layers(self._model) if packed else []
        conversation = self._conversation
        forks = conversation is not None and conversation.forks  # prompts may be cut anywhere, each a slot of its own
        before = shared if packed and not forks else 0
        groups = prompt_slots(
            len(units), rows, min(len(unit.keys) for unit in units), episodes=conversation is not None
        )
        if conversation is not None and not (packed and not forks):
            groups = rows  # without a tree each row has its own slot
        shape = CacheShape(
            layers=len(layers),
            kv_heads=layers[0].kv_heads if packed else 0,
            head_size=layers[0].key_size if packed else 0,
            groups=groups,
            rows=rows,
            prompt_tokens=max(len(unit.prompt_ids) for unit in units) - before,
            own_tokens=sampling.max_tokens if conversation is None else conversation.most_tokens,
            before=before,
        )
        if not packed:
            return [UnpackedForward(self._model, shape)]
        dtype = torch.bfloat16 if self._dtype == "bfloat16" else torch.float32

        def prefix_of(read: Read) -> Prefix | None:
            with autocast(self._device, self._dtype):
                return read_prefix(read, units[0].prompt_ids[:before], self._device) if before else None

        compiled = kernels()
        if compiled is not None and compiled.decodes(self._model, dtype):
            return compiled.forwards(self._model, dtype, shape, count, prefix_of)
        prefix = prefix_of(partial(hidden_states, self._model))
        # FSDP2's hooks make other streams wait in each forward pass, which no recording can hold.
        if not traits_of(self._device.type).has_graphs or is_sharded(self._model):
            exact = conversation is not None and self._device.type == "cpu"
            return [ModuleForward(self._model, shape, dtype, prefix=prefix, exact=exact)]
        # Recordings contain the addresses of cache and weights and take seconds to make, so they stay between calls.
        if self._recorded is None or not self._recorded.renew(shape, prefix):
            self._recorded = None  # frees its memory first
            self._recorded = ModuleForward(self._model, shape, dtype, leaf("graphs").CudaGraphs(self._device), prefix)
        return [self._recorded]


def prompt_slots(units: int, rows: int, members: int, *, episodes: bool) -> int:
    """The prompts in the cache at once, of parts of groups with at least `members` completions.

    Factor 4 on what full groups need: the last completions of a group occupy a slot but few rows. The rows of episodes
    may be of any groups.
    """
    return min(units, rows if episodes else 4 * max(1, rows // members))


def common_tokens(requests: Sequence[Request]) -> int:
    """The number of tokens that all prompts share, as the requests say: no division of a step changes it."""
    before = min(request.before for request in requests)
    return before if len({request.prompt_ids[:before] for request in requests}) == 1 else 0
