"""Decoding of models in Llama's form on the CPU: torch's matrix products, and compiled kernels for all else.

The weights are the model's own, read again in every call of the engine; for bfloat16 each call rounds them once.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from grouprl.models.kernels.functions import kernels, pointers
from grouprl.models.layouts import TreeLayout
from grouprl.models.llama_form import head_norm, llama_hidden_states
from grouprl.models.precision import padded_rows
from grouprl.rollout.cache import CacheShape, pack_prompts
from grouprl.rollout.rows import Rows

_TOGETHER = 8  # rows of a group that one thread processes


class CompiledCache:
    """A cache of keys in tiles [head size, tile] and values [tokens, head size], in the layout of kernels/decode.c.

    The memory of the rows' own tokens grows with the longest row. Used memory stays contiguous, which the processor
    reads faster than rows far apart, and short completions take little of it.
    """

    def __init__(self, shape: CacheShape, dtype: torch.dtype) -> None:
        self.shape, self.dtype = shape, dtype
        self.tile = kernels().width()  # keys that the kernels process at once
        self.prompt_tiles, self.own_tiles = -(-shape.prompt_tokens // self.tile), 0
        prompt = (2, shape.groups, shape.kv_heads, self.prompt_tiles * self.tile * shape.head_size)
        # Uninitialized, because the kernels never read what was not written.
        self.prompts = [torch.empty(prompt, dtype=dtype) for _ in range(shape.layers)]
        self.own: list[Tensor] = []

    def reserve(self, tokens: int, rows: int) -> bool:
        """Makes room for this many own tokens of each row and keeps the first `rows`; whether it allocated memory."""
        needed = -(-tokens // self.tile)
        if needed <= self.own_tiles:
            return False
        shape, before = self.shape, self.own_tiles * self.tile * self.shape.head_size
        grown = self.own_tiles + max(32 // self.tile, self.own_tiles // 4)
        self.own_tiles = min(max(needed, grown), -(-shape.own_tokens // self.tile))
        size = (shape.rows, shape.kv_heads, 2, self.own_tiles * self.tile * shape.head_size)
        for layer in range(shape.layers):
            larger = torch.empty(size, dtype=self.dtype)
            if before:
                larger[:rows, ..., :before] = self.own[layer][:rows]
                self.own[layer] = larger  # layer by layer, so that the old and the new memory do not add up
            else:
                self.own.append(larger)
        return True


class _DecodeStep(ctypes.Structure):
    """`DecodeStep` of kernels/decode.c."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("q", "k", "v", "out", "cosine", "sine")),
        *((name, ctypes.c_void_p) for name in ("prompt_keys", "prompt_values", "own")),
        *((name, ctypes.c_void_p) for name in ("order", "begin", "slot", "prompt", "length")),
        *((name, ctypes.c_int64) for name in ("heads", "kv_heads", "d", "prompt_tiles", "own_tiles")),
        ("scaling", ctypes.c_float),
        ("half", ctypes.c_int),
        ("cache_half", ctypes.c_int),
    ]


@dataclass(frozen=True)
class _PrefillLayout:
    """The layout of prompts, whose keys and values go to the given group slots."""

    tree: TreeLayout
    cache: CompiledCache
    slots: Tensor

    def attend_rotated(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, cosine: Tensor, sine: Tensor, scaling: float
    ) -> Tensor:
        """See `RotatingLayout.attend_rotated`."""
        starts, lengths = self.tree.tree
        kept = self.cache.prompts[layer]
        tensors = (key.contiguous(), value.contiguous(), cosine, sine, kept)
        places = (starts[:, 0].contiguous(), lengths[:, 0].contiguous(), self.slots)
        kernels().keep_prompts(
            *pointers(*tensors),
            kept[0].numel(),
            *pointers(*places),
            len(self.slots),
            *key.shape[1:],
            self.cache.prompt_tiles,
            key.dtype == torch.bfloat16,
            kept.dtype == torch.bfloat16,
        )
        return self.tree.attend_rotated(layer, query, key, value, cosine, sine, scaling)


class _Layer:
    """The matrix products of a layer, and the weight pointers and epsilons of its norms."""

    def __init__(self, layer: Any, dtype: torch.dtype) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self.before, self.after = _norm(layer.input_layernorm), _norm(layer.post_attention_layernorm)
        self.queries = _with_head_norm(_product(attention.q_proj, dtype), getattr(attention, "q_norm", None))
        self.keys = _with_head_norm(_product(attention.k_proj, dtype), getattr(attention, "k_norm", None))
        self.values, self.out = _product(attention.v_proj, dtype), _product(attention.o_proj, dtype)
        self.gate, self.up, self.down = (_product(part, dtype) for part in (mlp.gate_proj, mlp.up_proj, mlp.down_proj))


class CompiledForward:
    """A `Forward` for models that `llama_form.has_llama_form` accepts."""

    def __init__(self, model: PreTrainedModel, shape: CacheShape, dtype: torch.dtype) -> None:
        decoder: Any = model.get_decoder()
        self.shape, self._decoder, self._dtype = shape, decoder, dtype
        self._cache = CompiledCache(shape, dtype)
        self._embeddings: Tensor = decoder.embed_tokens.weight
        self._layers = [_Layer(layer, dtype) for layer in decoder.layers]
        self._norm = _norm(decoder.norm)
        self._head = _product(model.get_output_embeddings(), dtype)
        attention = decoder.layers[0].self_attn
        positions = torch.arange(shape.prompt_tokens + shape.own_tokens)
        rotation = decoder.rotary_emb(self._embeddings[None, :1], positions[None])
        self._rotation = [angles[0].contiguous() for angles in rotation]
        cosine, sine = pointers(*self._rotation)
        self._step = _DecodeStep(
            cosine=cosine,
            sine=sine,
            heads=model.config.num_attention_heads,
            kv_heads=shape.kv_heads,
            d=attention.head_dim,
            prompt_tiles=self._cache.prompt_tiles,
            scaling=attention.scaling,
            half=dtype == torch.bfloat16,
            cache_half=dtype == torch.bfloat16,
        )
        self._parts: tuple[Tensor, ...] = ()  # parts of the live rows
        self._version = -1  # `Rows.version` of the parts
        self._longest = 0  # own tokens of the longest row

    def prefill(self, prompts: Sequence[tuple[int, ...]], first: int) -> Tensor:
        """See `Forward.prefill`."""
        ids_S, tree, last_P = pack_prompts(prompts, torch.device("cpu"))
        layout = _PrefillLayout(tree, self._cache, torch.arange(first, first + len(prompts)))
        hidden_SH = llama_hidden_states(self._decoder, ids_S, tree.position_ids_S, layout)
        return self._head(hidden_SH[last_P].to(self._dtype))

    def decode_step(self, rows: Rows, members: int, prompts: Sequence[int]) -> Tensor:
        """See `Forward.decode_step`."""
        compiled, half, step = kernels(), self._dtype == torch.bfloat16, self._step
        if self._version != rows.version:
            self._divide(rows, members, prompts)
        if self._cache.reserve(self._longest, rows.count):
            step.own_tiles = self._cache.own_tiles
        self._longest += 1
        parts = len(self._parts[0]) - 1
        x_nH = F.embedding(rows.newest[: rows.count], self._embeddings)
        products = padded_rows(rows.count, decoding=True) if half else rows.count
        normed_nH = torch.empty(products, x_nH.shape[1], dtype=self._dtype)
        inverse_n = torch.empty(rows.count)
        x, normed, inverse, sizes = x_nH.data_ptr(), normed_nH.data_ptr(), inverse_n.data_ptr(), x_nH.shape

        def add_norm(delta: Tensor | None, weight: int, eps: float) -> None:
            compiled.add_norm(x, *pointers(delta), weight, x, normed, inverse, *sizes, eps, half, half)

        delta: Tensor | None = None
        for index, layer in enumerate(self._layers):
            add_norm(delta, *layer.before)
            q, k, v = layer.queries(normed_nH), layer.keys(normed_nH), layer.values(normed_nH)
            attended = torch.empty_like(q)
            step.q, step.k, step.v, step.out = q.data_ptr(), k.data_ptr(), v.data_ptr(), attended.data_ptr()
            kept = self._cache.prompts[index]
            step.prompt_keys, step.own = kept.data_ptr(), self._cache.own[index].data_ptr()
            step.prompt_values = step.prompt_keys + kept[0].nbytes
            compiled.decode_attention(ctypes.addressof(step), parts)
            add_norm(layer.out(attended), *layer.after)
            gate, up = layer.gate(normed_nH), layer.up(normed_nH)
            compiled.swiglu(gate.data_ptr(), up.data_ptr(), gate.data_ptr(), gate.numel(), half)
            delta = layer.down(gate)
        add_norm(delta, *self._norm)
        return self._head(normed_nH)[: rows.count]

    def _divide(self, rows: Rows, members: int, prompts: Sequence[int]) -> None:
        """Divides the live rows into parts of one group each; valid until rows are added or removed."""
        place_n = rows.place[: rows.count]
        order_n = place_n.argsort()
        part_n = (place_n[order_n] // members) * members + place_n[order_n] % members // _TOGETHER
        parts, counts = part_n.unique_consecutive(return_counts=True)
        slots = parts // members
        begin = torch.cat([torch.zeros(1, dtype=torch.long), counts.cumsum(0)])
        self._parts = (begin, order_n, slots, torch.tensor(prompts)[slots])
        step = self._step
        step.begin, step.order, step.slot, step.prompt = pointers(*self._parts)
        step.length = rows.length.data_ptr()
        self._longest, self._version = int(rows.length[: rows.count].max()), rows.version

    def move_groups(self, moves: Sequence[tuple[int, int]]) -> None:
        """See `Forward.move_groups`."""
        for source, target in moves:
            for kept in self._cache.prompts:
                kept[:, target] = kept[:, source]

    def move_rows(self, moves: Sequence[tuple[int, int]], used: int) -> None:
        """See `Forward.move_rows`."""
        tile = self._cache.tile
        filled = -(-used // tile) * tile * self.shape.head_size
        for source, target in moves if self._cache.own else ():
            for own in self._cache.own:
                own[target, :, :, :filled] = own[source, :, :, :filled]


def _norm(module: Any) -> tuple[int, float]:
    return module.weight.data_ptr(), module.variance_epsilon


def _product(module: nn.Module, dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    """The module as a function of contiguous rows; a plain linear layer skips the overhead of a module's call."""
    if hasattr(module, "lora_A"):
        return _with_adapter(module, dtype)
    if type(module) is not nn.Linear:
        return lambda x: module(x)
    weight, bias = module.weight.to(dtype), None if module.bias is None else module.bias.to(dtype)
    return partial(F.linear, weight=weight, bias=bias)


def _with_adapter(module: Any, dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    """W x + scaling B A x of PEFT's layer, whose own call has more overhead than its two small products take."""
    if module.disable_adapters or module.merged or len(module.active_adapters) != 1:
        return lambda x: module(x)
    (name,) = module.active_adapters
    base, scaling = _product(module.base_layer, dtype), module.scaling[name]
    down, up = (part[name].weight.to(dtype) for part in (module.lora_A, module.lora_B))
    return lambda x: torch.addmm(base(x), F.linear(x, down), up.T, alpha=scaling)


def _with_head_norm(project: Callable[[Tensor], Tensor], norm: Any) -> Callable[[Tensor], Tensor]:
    if norm is None:
        return project
    return lambda x: head_norm(project(x).view(len(x), -1, len(norm.weight)), norm).flatten(1)
