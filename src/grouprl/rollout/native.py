"""The native engine samples groups with the learner's own modules and weights, many completions at once.

It reads a group's prompt once. Finished rows leave at once, the last rows fill their places, and waiting groups enter
when enough rows are free, so that matrix products cover only live completions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from grouprl.models.llama_form import has_llama_form
from grouprl.models.load import end_token_ids
from grouprl.models.precision import autocast
from grouprl.rollout.cache import CacheShape
from grouprl.rollout.compiled_forward import CompiledForward
from grouprl.rollout.decoding import Decoding, Unit
from grouprl.rollout.engine import Request
from grouprl.rollout.forward import Forward, ModuleForward
from grouprl.rollout.recorders import CudaGraphs
from grouprl.rollout.sampler import row_key
from grouprl.types import Completion, Group, Sampling

# Factor on the group slots that full groups need: the last completions of a group occupy a slot but few rows.
_SLOTS = 4


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
    ) -> None:
        """`max_rows`: completions decoded at once; `seed`: of the run; `dtype`: of the computation."""
        self._model, self._tokenizer = model, tokenizer
        self._seed, self._max_rows, self._dtype = seed, max_rows, dtype
        self._ends = end_token_ids(model, tokenizer)
        self._version = 0
        self._recorded: ModuleForward | None = None

    def load_weights(self, version: int) -> None:
        """See `Engine.load_weights`; the weights are shared with the learner, so only the version changes."""
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
        """See `Engine.generate`."""
        if not requests:
            return []
        device: torch.device = self._model.get_input_embeddings().weight.device
        units = [
            self._unit(index, request, first)
            for index, request in enumerate(requests)
            for first in range(0, request.completions, self._max_rows)
        ]
        completions: list[list[Completion]] = [[] for _ in requests]
        groups: dict[int, Group] = {}
        with autocast(device, self._dtype):
            forward = self._forward(units, sampling)
            decoding = Decoding(forward, self._tokenizer, units, sampling, self._ends, device, self._version)
            while decoding.going:
                finished = decoding.advance()
                if on_finished is not None and finished:
                    on_finished(len(finished))
                for index, completion in finished:
                    completions[index].append(completion)
                for index in dict.fromkeys(index for index, _ in finished):
                    request, made = requests[index], completions[index]
                    if len(made) == request.completions:
                        ordered = tuple(sorted(made, key=lambda one: one.index))
                        groups[index] = Group(request.problem, request.prompt_ids, ordered)
                        if on_group is not None:
                            on_group(index, groups[index])
        return [groups[index] for index in range(len(requests))]

    def _unit(self, index: int, request: Request, first: int) -> Unit:
        """At most `max_rows` completions of a request, from `first` on."""
        last = min(first + self._max_rows, request.completions)
        keys = (row_key(self._seed, request.stream, request.problem.id, number) for number in range(first, last))
        return Unit(index, request.prompt_ids, tuple(keys), first)

    def _forward(self, units: Sequence[Unit], sampling: Sampling) -> Forward:
        """The model with a large enough cache; on a CPU for one call only, so that the learner gets its memory."""
        config = self._model.config
        heads = config.num_attention_heads
        shape = CacheShape(
            layers=config.num_hidden_layers,
            kv_heads=getattr(config, "num_key_value_heads", None) or heads,
            head_size=getattr(config, "head_dim", None) or config.hidden_size // heads,
            groups=min(len(units), _SLOTS * max(1, self._max_rows // min(len(unit.keys) for unit in units))),
            rows=min(self._max_rows, sum(len(unit.keys) for unit in units)),
            prompt_tokens=max(len(unit.prompt_ids) for unit in units),
            own_tokens=sampling.max_tokens,
        )
        dtype = torch.bfloat16 if self._dtype == "bfloat16" else torch.float32
        if has_llama_form(self._model.get_decoder()):
            return CompiledForward(self._model, shape, dtype)
        device = self._model.get_input_embeddings().weight.device
        if device.type != "cuda":
            return ModuleForward(self._model, shape, dtype)
        # Recordings contain the addresses of cache and weights and take seconds to make, so they stay between calls.
        if self._recorded is None or not self._recorded.renew(shape):
            self._recorded = None  # frees its memory first
            self._recorded = ModuleForward(self._model, shape, dtype, CudaGraphs(device))
        return self._recorded
