"""The forward passes of decoding: the prefill of prompts, and decode steps of one token for every live row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import astuple, replace
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call
from transformers import PreTrainedModel

from grouprl.forward.attention import Layout, packed_states
from grouprl.forward.head import output_head
from grouprl.forward.layouts import Prefix
from grouprl.forward.products import padded_call
from grouprl.forward.unpacked import picked_rows, read_on
from grouprl.leaves import leaf
from grouprl.rollout.cache import CacheShape, DecodeLayout, GroupCache, PrefillLayout, StepSize, pack_prompts
from grouprl.rollout.rows import Rows

_OWN, _PROMPT = 128, 64  # own and prompt tokens are rounded up to multiples of these, which align rows of scores
# Recording takes about as long as a few steps in Python, so it pays only for a size that comes more often.
_STEPS_BEFORE = 3


class Forward(Protocol):
    """A model with a cache of keys and values: group slots 0, 1, ... hold prompts, rows 0, 1, ... own tokens.

    Prompts are whole in its arguments, with the prefix that it knows.
    """

    shape: CacheShape  # the capacity of the cache

    def prefill(self, prompts: Sequence[tuple[int, ...]], first: int) -> Tensor:
        """Reads prompts into the slots first, first + 1, ...; gives the logits [P, V] after each prompt."""
        ...

    def decode_step(self, rows: Rows, members: int, prompts: Sequence[int]) -> Tensor:
        """Reads the newest token of every live row; gives the logits [n, V] after each of them.

        Args:
            rows: the live rows.
            members: most rows of a group.
            prompts: the number of prompt tokens in each live group slot.
        """
        ...

    def move_groups(self, moves: Sequence[tuple[int, int]]) -> None:
        """Copies the prompts of group slots (from, to)."""
        ...

    def move_rows(self, moves: Sequence[tuple[int, int]], used: int) -> None:
        """Copies the first `used` own tokens of rows (from, to)."""
        ...


class Recorder(Protocol):
    """Records the operations of a function, and replays them."""

    def warm_up(self, function: Callable[[], None]) -> None:
        """Calls the function in the same state in which it will be recorded."""
        ...

    def record(self, function: Callable[[], None]) -> Callable[[], None]:
        """Gives a replay, which reads the tensors' contents of its own time; recording may skip the operations."""
        ...


class ModuleForward:
    """A `Forward` that runs the model's own modules: any architecture, any device.

    With a recorder every decode step works on tensors of fixed addresses and shapes, so that it can be a CUDA graph. A
    step of a small model launches over a thousand kernels of microseconds each; Python launches them slower than they
    run. Rows and own tokens are rounded up to a few sizes; each size is recorded once and then replayed. A model whose
    step reads tensors on the host runs in Python instead.

    In bfloat16 a recording keeps copies of the weights of matrix products, half the size of the float32 weights.
    Casting them in every step would triple the memory traffic of the weights. Embeddings, norms and the sums between
    the layers stay float32, as under autocast, so that sampler and learner agree.

    No GPU has run the recordings yet: tests record and replay the same steps on a CPU, and benchmarks/gpu.py needs one.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        shape: CacheShape,
        dtype: torch.dtype,
        recorder: Recorder | None = None,
        prefix: Prefix | None = None,
        *,
        exact: bool = False,
    ) -> None:
        """`recorder` records the decode steps; None = every step runs in Python, in the sizes of its rows.

        `exact`: on a CPU, a row's bits depend on its tokens alone, for rows that meet others by time.
        """
        self.shape, self.prefix, self._exact = shape, prefix, exact
        self._model, self._decoder = model, model.get_decoder()
        self._head = output_head(model)
        self._device: torch.device = model.get_input_embeddings().weight.device
        self._recorder, self._dtype = recorder, dtype
        self._room = shape
        if recorder is not None:
            self._room = replace(
                shape,
                rows=_padded_rows(shape.rows),
                prompt_tokens=_round_up_to(shape.prompt_tokens, _PROMPT),
                own_tokens=_round_up_to(shape.own_tokens, _OWN),
            )
        self.cache = GroupCache(self._room, self._device, dtype)
        if prefix is not None:
            self.cache.keep_prefix(prefix)
        self._addresses = _addresses(model)
        copied = recorder is not None and dtype == torch.bfloat16
        self._copies = {
            part: {
                f"{prefix}.{name}" if prefix else name: weight.detach().to(torch.bfloat16)
                for prefix, module in part.named_modules()
                if type(module) is nn.Linear
                for name, weight in module.named_parameters(recurse=False)
                if weight.dtype != torch.bfloat16
            }
            if copied
            else {}
            for part in (self._decoder, self._head)
        }
        # Of each row: newest token, place, prompt tokens and own tokens, see `Rows`.
        self._columns = torch.zeros(4, self._room.rows, dtype=torch.long, device=self._device)
        recorded_rows = 0 if recorder is None else self._room.rows
        vocabulary = int(self._head.weight.shape[0])  # type: ignore[index]
        self._logits = torch.empty(recorded_rows, vocabulary, device=self._device, dtype=dtype)  # of recorded steps
        self._replays: dict[StepSize, Callable[[], None]] = {}
        self._step_counts: dict[StepSize, int] = {}  # steps so far of each size
        self._version = -1  # `Rows.version` of the columns

    def renew(self, shape: CacheShape, prefix: Prefix | None = None) -> bool:
        """Updates the copies from the model's present weights for another call of the engine; recordings stay valid.

        Returns:
            False if the cache is too small for the call, or the model's weights are other tensors than before.
        """
        fits = all(needed <= room for needed, room in zip(astuple(shape), astuple(self._room), strict=True))
        if not fits or shape.before != self._room.before or _addresses(self._model) != self._addresses:
            return False
        self.shape, self.prefix = shape, prefix
        if prefix is not None:
            self.cache.keep_prefix(prefix)
        for part, copies in self._copies.items():
            for name, copy in copies.items():
                copy.copy_(part.get_parameter(name))
        return True

    def prefill(self, prompts: Sequence[tuple[int, ...]], first: int) -> Tensor:
        """Reads prompts into the slots first, first + 1, ...; logits [P, V] after each prompt."""
        ids_S, tree, last_P = pack_prompts(prompts, self._device, self.shape.before, self.prefix)
        return self.output(self.read(ids_S, tree.position_ids_S, PrefillLayout(tree, self.cache, first))[last_P])

    def read(self, input_ids_S: Tensor, position_ids_S: Tensor, layout: Layout) -> Tensor:
        """Hidden states [S, H] of packed tokens."""
        with self._precision():
            return packed_states(self._decoder, partial(self._call, self._decoder), input_ids_S, position_ids_S, layout)

    def output(self, hidden_PH: Tensor) -> Tensor:
        """Logits [P, V]."""
        with self._precision():
            return padded_call(self._head, hidden_PH, partial(self._call, self._head))

    def decode_step(self, rows: Rows, members: int, prompts: Sequence[int]) -> Tensor:
        """Reads the newest token of every live row; logits [n, V] after each of them."""
        live = slice(0, rows.count)
        newest, row_place, prompt, length = self._columns
        if self._version != rows.version:
            # Padding rows are in a group of their own, attend to no prompt and only to their own token.
            for column, padding in zip(self._columns, (0, self._room.groups * members, 0, 1), strict=True):
                column[rows.count :] = padding
            row_place[live], prompt[live] = rows.place[live], rows.prompt[live]
            self._version = rows.version
        newest[live], length[live] = rows.newest[live], rows.history[live] + rows.length[live]
        size = self._size(rows, members, prompts)
        if self._recorder is None:
            return self._step(size)
        self._replay(size, self._recorder)
        return self._logits[live]

    def move_groups(self, moves: Sequence[tuple[int, int]]) -> None:
        """Copies the prompts of group slots (from, to)."""
        self.cache.move_groups(moves)

    def move_rows(self, moves: Sequence[tuple[int, int]], used: int) -> None:
        """Copies the first `used` own tokens of rows (from, to)."""
        self.cache.move_rows(moves, used)

    def _size(self, live: Rows, members: int, prompts: Sequence[int]) -> StepSize:
        own_tokens = min(max(live.written), self._room.own_tokens)  # which may be more than was written
        if self._recorder is None:
            longest = max(prompts)
            return StepSize(
                live.count, len(prompts), members, longest - self.shape.before, own_tokens, longest + own_tokens
            )
        room, rows = self._room, _padded_rows(live.count)
        return StepSize(
            rows=rows,
            groups=min(room.groups, rows),  # a live group has a live row, so no more groups are live than rows
            members=members,
            prompt_tokens=room.prompt_tokens,
            own_tokens=min(_round_up_to(own_tokens, _OWN), room.own_tokens),
            longest=room.before + room.prompt_tokens + room.own_tokens,
        )

    def _replay(self, size: StepSize, recorder: Recorder) -> None:
        """Computes `_logits` by the recording of this size; the first steps of a size run in Python."""
        if size in self._replays:
            self._replays[size]()
            return

        def step() -> None:
            self._logits[: size.rows].copy_(self._step(size))

        if self._step_counts:
            recorder.warm_up(step)
        else:
            with leaf("graphs").HostReads() as reads:
                recorder.warm_up(step)
            if reads.found:
                self._recorder = None
        self._step_counts[size] = self._step_counts.get(size, 0) + 1
        if self._step_counts[size] == _STEPS_BEFORE:
            self._replays[size] = recorder.record(step)

    def _step(self, size: StepSize) -> Tensor:
        """Logits [rows, V] from columns and cache alone, padding rows included; this is the recorded function."""
        newest_n, place_n, prompt_n, length_n = self._columns[:, : size.rows]
        layout = DecodeLayout(self.cache, size, place_n, prompt_n, length_n, exact=self._exact)
        return self.output(self.read(newest_n, prompt_n + length_n - 1, layout))

    def _precision(self) -> AbstractContextManager[object]:
        if self._recorder is None or self._dtype != torch.bfloat16:
            return nullcontext()
        # Without autocast's cache, which would keep tensors in the graphs' memory after the recording.
        return torch.autocast(self._device.type, torch.bfloat16, cache_enabled=False)

    def _call(self, part: nn.Module, *arguments: Tensor, **named: Any) -> Any:
        copies = self._copies[part]
        return functional_call(part, copies, arguments, named) if copies else part(*arguments, **named)


def _round_up_to(count: int, of: int) -> int:
    return -(-count // of) * of


def _padded_rows(count: int) -> int:
    """Rounds up to one of 8, 16, 24, ..., 64, 80, 96, 112, 128, 160, ...: few sizes, at most 25 % more above 64."""
    return _round_up_to(count, max(8, 1 << max(0, (count - 1).bit_length() - 3)))


def _addresses(model: Any) -> tuple[int, ...]:
    return tuple(weight.data_ptr() for weight in model.parameters())


# Models whose layers do not attend by layouts


class UnpackedForward:
    """A `Forward` that keeps one state of transformers for each group."""

    def __init__(self, model: PreTrainedModel, shape: CacheShape) -> None:
        """Only the rows and groups of `shape` matter."""
        self.shape = shape
        self._decoder: Any = model.get_decoder()
        self._head = output_head(model)
        self._device: torch.device = model.get_input_embeddings().weight.device
        self._groups: dict[int, tuple[Any, Tensor | None]] = {}  # state, and members of its rows; None = the prompt

    def prefill(self, prompts: Sequence[tuple[int, ...]], first: int) -> Tensor:
        """Reads prompts into the slots first, first + 1, ...; logits [P, V] after each prompt."""
        logits = []
        for slot, prompt in enumerate(prompts, first):
            logits_1V, state = self._read(torch.tensor([prompt], device=self._device), None)
            self._groups[slot] = (state, None)
            logits.append(logits_1V)
        return torch.cat(logits)

    def decode_step(self, rows: Rows, members: int, prompts: Sequence[int]) -> Tensor:
        """Reads the newest token of every live row; logits [n, V] after each of them."""
        place_n, newest_n = (column[: rows.count].to(self._device) for column in (rows.place, rows.newest))
        parts, order = [], []
        for slot in range(len(prompts)):
            live = (place_n // members == slot).nonzero()[:, 0]
            live = live[place_n[live].argsort()]
            member_r = place_n[live] % members  # sorted
            state, held_r = self._groups[slot]
            if held_r is None:
                state = picked_rows(state, torch.zeros_like(member_r))
            elif len(held_r) != len(member_r):
                state = picked_rows(state, torch.searchsorted(held_r, member_r))
            logits_rV, state = self._read(newest_n[live][:, None], state)
            self._groups[slot] = (state, member_r)
            parts.append(logits_rV)
            order.append(live)
        return torch.cat(parts)[torch.cat(order).argsort()]

    def move_groups(self, moves: Sequence[tuple[int, int]]) -> None:
        """Copies the prompts of group slots (from, to)."""
        self._groups |= {target: self._groups[source] for source, target in moves}

    def move_rows(self, moves: Sequence[tuple[int, int]], used: int) -> None:
        """Does nothing: states belong to groups, and their rows stay."""

    def _read(self, ids_NT: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Logits [N, V] after the last tokens, and the state after them."""
        hidden_NH, state = read_on(self._decoder, ids_NT, state)
        return padded_call(self._head, hidden_NH), state
