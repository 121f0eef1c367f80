"""Decoding on a GPU: every decode step works on tensors of fixed addresses and shapes, so that it can be a CUDA graph.

A decode step of a small model launches over a thousand kernels of microseconds each; Python launches them slower than
they run. Here the operations of a step do not depend on the contents of tensors: lengths become masks, and rows and own
tokens are rounded up to a few sizes. Each size is recorded once as a graph and then replayed.

No GPU has run this yet: tests record and replay the same steps on a CPU, and benchmarks/gpu.py needs a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from transformers import PreTrainedModel

from grouprl.models.attention import Layout
from grouprl.rollout.cache import CacheShape, GroupCache, PrefillLayout, pack_prompts
from grouprl.rollout.recorders import CudaGraphs, HostReads, NoRecorder, Recorder
from grouprl.rollout.rows import Rows

_OWN, _PROMPT = 128, 64  # own and prompt tokens are rounded up to multiples of these, which align rows of scores
# Recording takes about as long as a few steps in Python, so it pays only for a size that comes more often.
_STEPS_BEFORE = 3


@dataclass(frozen=True)
class Size:
    """The numbers that determine all shapes within a decode step."""

    rows: int
    own_tokens: int
    groups: int
    members: int
    longest: int  # tokens of the longest prompt with its completion, for models with a window; 0 = no window


class StaticForward:
    """A `Forward` that records decode steps; a model whose step reads tensors on the host runs in Python instead.

    In bfloat16 it keeps copies of the weights of matrix products, half the size of the float32 weights. Casting them in
    every step would triple the memory traffic of the weights. Embeddings, norms and the sums between the layers stay
    float32, as under autocast, so that sampler and learner agree.
    """

    def __init__(
        self, model: PreTrainedModel, shape: CacheShape, dtype: torch.dtype, recorder: Recorder | None = None
    ) -> None:
        """`recorder` records the steps; None = CUDA graphs on a GPU, no recording elsewhere."""
        self._model, self._decoder = model, model.get_decoder()
        self._head: nn.Module = model.get_output_embeddings()
        self._device: torch.device = model.get_input_embeddings().weight.device
        self._recorder = recorder or (CudaGraphs(self._device) if self._device.type == "cuda" else NoRecorder())
        self._dtype, self._shape = dtype, shape
        self._has_window = getattr(model.config, "sliding_window", None) is not None
        self._room = _round_up(shape)
        self._cache = GroupCache(self._room, self._device, dtype)
        self._addresses = _addresses(model)
        self._copies = {
            part: _bfloat16_copies(part) if dtype == torch.bfloat16 else {} for part in (self._decoder, self._head)
        }
        self._columns = torch.zeros(4, self._room.rows, dtype=torch.long, device=self._device)
        vocabulary = int(self._head.weight.shape[0])
        self._logits = torch.empty(self._room.rows, vocabulary, device=self._device, dtype=dtype)
        self._replays: dict[Size, Callable[[], None]] = {}
        self._step_counts: dict[Size, int] = {}  # steps so far of each size
        self._stale = True  # rows were added or removed since the columns were written
        self._longest = 0  # own tokens of the longest row

    @property
    def shape(self) -> CacheShape:
        """See `Forward.shape`."""
        return self._shape

    def renew(self, shape: CacheShape) -> bool:
        """Updates the copies from the model's present weights for another call of the engine; recordings stay valid.

        Returns:
            False if the cache is too small for the call, or the model's weights are other tensors than before.
        """
        if replace(_round_up(shape), **_largest_sizes(self._room, shape)) != self._room:
            return False
        if _addresses(self._model) != self._addresses:
            return False
        self._shape, self._stale = shape, True
        for part, copies in self._copies.items():
            for name, copy in copies.items():
                copy.copy_(part.get_parameter(name))
        return True

    def prefill(self, prompts: Sequence[tuple[int, ...]], first: int) -> Tensor:
        """See `Forward.prefill`."""
        ids_S, tree, last_P = pack_prompts(prompts, self._device)
        with self._precision():
            hidden_SH = self._hidden(ids_S, tree.position_ids_S, PrefillLayout(tree, self._cache, first))
            return self._logits_of(hidden_SH[last_P])

    def decode_step(self, rows: Rows, members: int, prompts: Sequence[int]) -> Tensor:
        """See `Forward.decode_step`."""
        live = slice(0, rows.count)
        newest, place, prompt, length = self._columns
        if self._stale:
            # Padding rows are in a group of their own, attend to no prompt and only to their own token.
            for column, padding in zip(self._columns, (0, self._room.groups * members, 0, 1), strict=True):
                column[rows.count :] = padding
            place[live], prompt[live] = rows.place[live], rows.prompt[live]
            self._longest, self._stale = int(rows.length[live].max()), False
        newest[live], length[live] = rows.newest[live], rows.length[live]
        size = Size(
            rows=_padded_rows(rows.count),
            own_tokens=min(_round_up_to(self._longest, _OWN), self._room.own_tokens),
            # A live group has a live row, so no more groups are live than rows.
            groups=min(self._room.groups, _padded_rows(rows.count)),
            members=members,
            longest=self._shape.prompt_tokens + self._shape.own_tokens if self._has_window else 0,
        )
        self._longest += 1
        self._run_step(size)
        return self._logits[live]

    def changed(self) -> None:
        """See `Forward.changed`."""
        self._stale = True

    def move_groups(self, moves: Sequence[tuple[int, int]]) -> None:
        """See `Forward.move_groups`."""
        self._cache.move_groups(moves)

    def move_rows(self, moves: Sequence[tuple[int, int]], used: int) -> None:
        """See `Forward.move_rows`."""
        self._cache.move_rows(moves, used)

    def _run_step(self, size: Size) -> None:
        if size in self._replays:
            self._replays[size]()
            return
        step = partial(self._step, size)
        if not self._step_counts and not self._replays:
            with HostReads() as reads:
                self._recorder.warm_up(step)
            if reads.found:
                self._recorder = NoRecorder()
        else:
            self._recorder.warm_up(step)
        self._step_counts[size] = self._step_counts.get(size, 0) + 1
        if self._step_counts[size] == _STEPS_BEFORE:
            self._replays[size] = self._recorder.record(step)

    def _step(self, size: Size) -> None:
        """Computes logits from columns and cache, padding rows included; this is the recorded function."""
        newest_n, place_n, prompt_n, length_n = self._columns[:, : size.rows]
        layout = StaticLayout.of(self._cache, size, place_n, prompt_n, length_n)
        with self._precision():
            hidden_nH = self._hidden(newest_n, prompt_n + length_n - 1, layout)
            self._logits[: size.rows].copy_(self._logits_of(hidden_nH))

    def _precision(self) -> AbstractContextManager[object]:
        if self._dtype != torch.bfloat16:
            return nullcontext()
        # Without autocast's cache, which would keep tensors in the graphs' memory after the recording.
        return torch.autocast(self._device.type, torch.bfloat16, cache_enabled=False)

    def _hidden(self, input_ids_S: Tensor, position_ids_S: Tensor, layout: Layout) -> Tensor:
        arguments = {
            "input_ids": input_ids_S[None],
            "position_ids": position_ids_S[None],
            "use_cache": False,
            "layout": layout,
        }
        made: Any = functional_call(self._decoder, self._copies[self._decoder], kwargs=arguments)
        hidden_SH: Tensor = made.last_hidden_state[0]
        return hidden_SH

    def _logits_of(self, hidden_nH: Tensor) -> Tensor:
        logits: Tensor = functional_call(self._head, self._copies[self._head], (hidden_nH,))
        return logits


@dataclass(frozen=True)
class StaticLayout:
    """One new token for each of n rows, in shapes that do not depend on the lengths.

    The softmax runs over one float32 array with the masked scores of prompt and own tokens: merging two softmaxes by
    their log-sum-exp would take two more passes. One product per group reads its prompt once for all its rows.
    """

    cache: GroupCache
    size: Size
    rows_n: Tensor
    slot_n: Tensor  # group slot of each row; size.groups = padding
    member_n: Tensor  # place of each row in its group
    position_n: Tensor  # position of the new token within its completion
    bias: Tensor  # [n, 1, 1, prompt_tokens + own_tokens]: 0 for visible tokens, -inf for masked ones

    @staticmethod
    def of(cache: GroupCache, size: Size, place_n: Tensor, prompt_n: Tensor, length_n: Tensor) -> StaticLayout:
        """The layout of rows with these places and numbers of prompt tokens and own tokens, including the new one."""
        device = place_n.device
        seen = torch.cat(
            [
                torch.arange(cache.shape.prompt_tokens, device=device) < prompt_n[:, None],
                torch.arange(size.own_tokens, device=device) < length_n[:, None],
            ],
            dim=1,
        )
        return StaticLayout(
            cache=cache,
            size=size,
            rows_n=torch.arange(size.rows, device=device),
            slot_n=(place_n // size.members).clamp(max=size.groups),
            member_n=place_n % size.members,
            position_n=length_n - 1,
            bias=torch.zeros(seen.shape, device=device).masked_fill_(~seen, -torch.inf)[:, None, None],
        )

    @property
    def longest(self) -> int:
        """See `Size.longest`."""
        return self.size.longest

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """See `Layout.attend`."""
        cache, (n, heads, d), kv = self.cache, query.shape, key.shape[1]
        L, K, groups = cache.shape.prompt_tokens, self.size.own_tokens, self.size.groups
        dtype = cache.own_keys.dtype
        cache.own_keys[layer, self.rows_n, :, self.position_n] = key.to(dtype)
        cache.own_values[layer, self.rows_n, :, self.position_n] = value.to(dtype)
        query = (query * scaling).to(dtype).view(n, kv, heads // kv, d)
        on_prompt = self._with_prompts(query, cache.prompt_keys[layer, :groups].transpose(-1, -2))
        on_own = query @ cache.own_keys[layer, :n, :, :K].transpose(-1, -2)
        scores = torch.empty(n, kv, heads // kv, L + K, device=query.device)
        torch.add(on_prompt, self.bias[..., :L], out=scores[..., :L])
        torch.add(on_own, self.bias[..., L:], out=scores[..., L:])
        weights = F.softmax(scores, dim=-1)
        attended: Tensor = weights[..., L:].to(dtype) @ cache.own_values[layer, :n, :, :K]
        attended = attended + self._with_prompts(weights[..., :L].to(dtype), cache.prompt_values[layer, :groups])
        return attended.reshape(n, heads, d)

    def _with_prompts(self, left: Tensor, right: Tensor) -> Tensor:
        """Multiplies every row's [r, a] by its group's [a, b], group by group, so that each prompt is read once.

        left: [n, kv_heads, r, a]; right: [groups, kv_heads, a, b]; result: [n, kv_heads, r, b].
        """
        (_, kv, r, a), (groups, members) = left.shape, (self.size.groups, self.size.members)
        grid = left.new_zeros(groups + 1, kv, members, r, a)  # padding rows go to the last slot
        grid[self.slot_n, :, self.member_n] = left
        product = (grid[:groups].view(groups, kv, members * r, a) @ right).view(groups, kv, members, r, -1)
        return product[self.slot_n.clamp(max=groups - 1), :, self.member_n]


def _round_up(shape: CacheShape) -> CacheShape:
    return replace(
        shape,
        rows=_padded_rows(shape.rows),
        prompt_tokens=_round_up_to(shape.prompt_tokens, _PROMPT),
        own_tokens=_round_up_to(shape.own_tokens, _OWN),
    )


def _largest_sizes(room: CacheShape, shape: CacheShape) -> dict[str, int]:
    needed = _round_up(shape)
    names = ("groups", "rows", "prompt_tokens", "own_tokens")
    return {name: max(getattr(room, name), getattr(needed, name)) for name in names}


def _round_up_to(count: int, of: int) -> int:
    return -(-count // of) * of


def _padded_rows(count: int) -> int:
    """Rounds up to one of 8, 16, 24, ..., 64, 80, 96, 112, 128, 160, ...: few sizes, at most 25 % more above 64."""
    return _round_up_to(count, max(8, 1 << max(0, (count - 1).bit_length() - 3)))


def _bfloat16_copies(part: nn.Module) -> dict[str, Tensor]:
    """Copies in bfloat16 of the weights and biases of its linear layers, by name."""
    return {
        f"{prefix}.{name}" if prefix else name: weight.detach().to(torch.bfloat16)
        for prefix, module in part.named_modules()
        if type(module) is nn.Linear
        for name, weight in module.named_parameters(recurse=False)
    }


def _addresses(model: Any) -> tuple[int, ...]:
    return tuple(weight.data_ptr() for weight in model.parameters())
