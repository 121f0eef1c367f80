"""Decoding of models in Llama's form on the CPU with compiled kernels; products of small models are torch's.

The weights are the model's own, read again in every call of the engine; for bfloat16 each call rounds them once.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from grouprl.forward.attention import NAME, is_packed
from grouprl.forward.layouts import Prefix, TreeLayout
from grouprl.forward.products import padded_rows, product_sizes
from grouprl.kernels.calibration import Contest, Form, uses_kernel
from grouprl.kernels.compiled_weights import CompiledWeights, Norm, Product, has_plain_products
from grouprl.kernels.functions import kernels, pointers
from grouprl.kernels.llama_form import AttentionInput, has_llama_form, llama_hidden_states
from grouprl.rollout.cache import CacheShape, pack_prompts
from grouprl.rollout.forward import Forward, ModuleForward
from grouprl.rollout.rows import Rows
from grouprl.types import Sampling

_TOGETHER = 8  # rows of a group that one thread processes
# Room for the activations of one layer, in float32 and in the dtype of the products.
_FLOATS = ("x", "inverse")
_VALUES = ("normed", "query", "key", "value", "attended", "delta", "gate", "up")


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

    def keep(
        self,
        layer: int,
        pair: tuple[Tensor, Tensor],
        rotation: tuple[Tensor, Tensor],
        places: Sequence[Tensor],
        *,
        of_rows: bool = False,
    ) -> None:
        """Keeps keys, to which it applies positions, and values; places: starts, lengths and slots of the prompts.

        With `of_rows` the slots are rows.
        """
        cache, (key, value) = (self.own if of_rows else self.prompts)[layer], (tensor.contiguous() for tensor in pair)
        kernels().keep_prompts(
            *pointers(key, value, *rotation, cache),
            cache[0, 0, 0].numel() if of_rows else cache[0].numel(),  # between keys and values
            *pointers(*places),
            len(places[0]),
            *key.shape[1:],
            2 * self.own_tiles if of_rows else self.prompt_tiles,
            key.dtype == torch.bfloat16,
            cache.dtype == torch.bfloat16,
        )

    def load_prompt(self, slot: int, pairs: Tensor, *, of_rows: bool = False) -> None:
        """Loads keys, which have their positions, and values of a prompt into a slot.

        Args:
            slot: the group's slot; with `of_rows` the row.
            pairs: keys and values, [layers, 2, tokens, heads, head size].
        """
        tokens, d = pairs.shape[2], self.shape.head_size
        places = [torch.tensor([number]) for number in (0, tokens, slot)]
        for layer, (key, value) in enumerate(pairs.float()):
            self.keep(layer, (key, value), (torch.ones(tokens, d), torch.zeros(tokens, d)), places, of_rows=of_rows)

    def load_row(self, row: int, pairs: Tensor) -> None:
        """Loads a row's own keys and values, as `load_prompt`."""
        self.reserve(pairs.shape[2], row)
        self.load_prompt(row, pairs, of_rows=True)

    def read_row(self, row: int, begin: int, end: int) -> Tensor:
        """The own keys and values of a row from one token to another, in the form of `load_row`."""
        heads, d, first, last = self.shape.kv_heads, self.shape.head_size, begin // self.tile, -(-end // self.tile)
        word, layers = kernels().cache_word(self.dtype == torch.bfloat16), []
        for cache in self.own:
            keys, values = cache[row].view(heads, 2, self.own_tiles, -1)[:, :, first:last].unbind(1)
            pair = (
                keys.view(heads, -1, d // word, self.tile, word).permute(1, 3, 0, 2, 4),
                values.view(heads, -1, d, word).permute(1, 3, 0, 2),
            )
            layers.append(torch.stack([part.reshape(-1, heads, d) for part in pair]))
        return torch.stack(layers)[:, :, begin - first * self.tile : end - first * self.tile]

    def reserve(self, tokens: int, rows: int) -> None:
        """Makes room for this many own tokens of each row and keeps the first `rows`."""
        needed = -(-tokens // self.tile)
        if needed <= self.own_tiles:
            return
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


class _DecodeStep(ctypes.Structure):
    """`DecodeStep` of kernels/decode.c."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("q", "k", "v", "out", "cosine", "sine")),
        *((name, ctypes.c_void_p) for name in ("prompt_keys", "prompt_values", "own", "prefix_keys", "prefix_values")),
        *((name, ctypes.c_void_p) for name in ("order", "begin", "slot", "prompt", "length")),
        *((name, ctypes.c_int64) for name in ("heads", "kv_heads", "d", "prompt_tiles")),
        *((name, ctypes.c_int64) for name in ("own_tiles", "before", "window")),
        ("scaling", ctypes.c_float),
        ("half", ctypes.c_int),
        ("cache_half", ctypes.c_int),
    ]


@dataclass(frozen=True)
class _KernelPrefill:
    """The layout of prompts, whose keys and values go to the given group slots."""

    tree: TreeLayout
    cache: CompiledCache
    slots: Tensor

    def keep(self, layer: int, inputs: AttentionInput) -> None:
        """Keeps what a layer gives to its attention."""
        starts, lengths = self.tree.tree
        places = (starts[:, 0].contiguous(), lengths[:, 0].contiguous(), self.slots)
        self.cache.keep(layer, (inputs.key, inputs.value), (inputs.cosine, inputs.sine), places)


class _Step(ctypes.Structure):
    """`Step` of kernels/step.c."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("torch", "attention", "layers")),
        *((name, ctypes.c_int64) for name in ("layer_count", "hidden")),
        *((name, ctypes.c_void_p) for name in ("prompt_keys", "own")),
        ("prompt_bytes", ctypes.c_int64),
        ("prefix_keys", ctypes.c_void_p),
        ("prefix_bytes", ctypes.c_int64),
        ("embeddings", ctypes.c_void_p),
        ("embeddings_half", ctypes.c_int64),
        ("newest", ctypes.c_void_p),
        ("norm", Norm),
        ("head", Product),
        *((name, ctypes.c_int64) for name in ("rows", "padded", "direct")),
        *((name, ctypes.c_void_p) for name in (*_FLOATS, *_VALUES, "head_rows", "adapted", "logits")),
    )


class CompiledForward:
    """A `Forward` for models that `llama_form.has_llama_form` accepts."""

    def __init__(self, weights: CompiledWeights, shape: CacheShape, prefix: Prefix | None = None) -> None:
        dtype = weights.dtype
        self.prefix = prefix
        self._kept_prefix: CompiledCache | None = None
        if prefix is not None:  # as a cache of one prompt
            self._kept_prefix = CompiledCache(replace(shape, groups=1, prompt_tokens=shape.before), dtype)
            pairs = zip(prefix.keys, prefix.values, strict=True)
            self._kept_prefix.load_prompt(0, torch.stack([torch.stack(pair) for pair in pairs]))
        self.shape, self._weights, self._dtype = shape, weights, dtype
        self._sizes = product_sizes(weights.decoder, weights.output)
        self.cache = CompiledCache(shape, dtype)
        attention = weights.decoder.layers[0].self_attn
        positions = torch.arange(shape.before + shape.prompt_tokens + shape.own_tokens)
        rotation = weights.decoder.rotary_emb(weights.embeddings[None, :1].float(), positions[None])
        self._rotation = [angles[0].contiguous() for angles in rotation]
        cosine, sine = pointers(*self._rotation)
        self._attention = _DecodeStep(
            cosine=cosine,
            sine=sine,
            heads=weights.heads,
            kv_heads=shape.kv_heads,
            d=attention.head_dim,
            prompt_tiles=self.cache.prompt_tiles,
            before=shape.before,
            scaling=attention.scaling,
            half=dtype == torch.bfloat16,
            cache_half=dtype == torch.bfloat16,
        )
        self._step, self._room = self._new_step()
        self._parts: tuple[Tensor, ...] = ()  # parts of the live rows
        self._length = torch.empty(shape.rows, dtype=torch.long)  # own tokens in the cache, of each row
        self._version = -1  # `Rows.version` of the parts

    def _new_step(self) -> tuple[_Step, dict[str, Tensor]]:
        """The arguments of a decode step that stay the same, and the memory for its activations."""
        weights, shape, (_, hidden) = self._weights, self.shape, self._weights.embeddings.shape
        rows = self._padded(shape.rows)
        query_width, shared = weights.heads * shape.head_size, shape.kv_heads * shape.head_size
        widths = (hidden, query_width, shared, shared, query_width, hidden, weights.intermediate, weights.intermediate)
        # Zeros, because rows of padding are multiplied before anything is written to them.
        room = {name: torch.zeros(rows, width, dtype=self._dtype) for name, width in zip(_VALUES, widths, strict=True)}
        room |= {"x": torch.zeros(rows, hidden), "inverse": torch.zeros(rows, weights.heads)}
        adapted = torch.zeros(rows, weights.rank and weights.rank + max(widths), dtype=self._dtype)
        room |= {"head_rows": torch.zeros(rows, query_width), "adapted": adapted}
        prompts = self.cache.prompts
        self._prompt_keys = (ctypes.c_void_p * len(prompts))(*pointers(*prompts))
        first = [] if self._kept_prefix is None else self._kept_prefix.prompts
        self._prefix_keys = (ctypes.c_void_p * len(first))(*pointers(*first))
        step = _Step(
            torch=ctypes.addressof(weights.torch),
            attention=ctypes.addressof(self._attention),
            layers=ctypes.addressof(weights.layers),
            layer_count=len(prompts),
            hidden=hidden,
            prompt_keys=ctypes.addressof(self._prompt_keys),
            prompt_bytes=prompts[0][0].nbytes,
            prefix_keys=ctypes.addressof(self._prefix_keys),
            prefix_bytes=first[0][0].nbytes if first else 0,
            embeddings=weights.embeddings.data_ptr(),
            embeddings_half=weights.embeddings.dtype == torch.bfloat16,
            norm=weights.norm,
            head=weights.head,
            direct=weights.direct,
            **{name: tensor.data_ptr() for name, tensor in room.items()},
        )
        return step, room

    def _padded(self, rows: int) -> int:
        return padded_rows(rows, self._dtype, self._sizes, decoding=True)

    def prefill(self, prompts: Sequence[tuple[int, ...]], first: int) -> Tensor:
        """Logits [P, V] behind prompts, whose keys and values go to group slots from `first` on."""
        ids_S, tree, last_P = pack_prompts(prompts, torch.device("cpu"), self.shape.before, self.prefix)
        layout = _KernelPrefill(tree, self.cache, torch.arange(first, first + len(prompts)))
        return self.output(self.read(ids_S, tree.position_ids_S, layout)[last_P])

    def read(self, input_ids_S: Tensor, position_ids_S: Tensor, layout: Any) -> Tensor:
        """Last hidden states [S, H] of packed tokens under a layout."""
        return llama_hidden_states(self._weights.decoder, input_ids_S, position_ids_S, layout)

    def output(self, hidden_PH: Tensor) -> Tensor:
        """Logits [P, V] of hidden states."""
        count = len(hidden_PH)
        logits_PV: Tensor = self._weights.output(F.pad(hidden_PH, (0, 0, 0, self._padded(count) - count)))
        return logits_PV[:count].to(self._dtype)

    def decode_step(self, rows: Rows, members: int, prompts: Sequence[int]) -> Tensor:
        """Logits [n, V] after the newest token of each live row, which joins the cache."""
        if self._version != rows.version:
            self._divide(rows, members, prompts)
        self.cache.reserve(max(rows.written), rows.count)
        if self._attention.own_tiles != self.cache.own_tiles:
            self._own = (ctypes.c_void_p * len(self.cache.own))(*pointers(*self.cache.own))
            self._step.own, self._attention.own_tiles = ctypes.addressof(self._own), self.cache.own_tiles
        torch.add(rows.history[: rows.count], rows.length[: rows.count], out=self._length[: rows.count])
        step, padded = self._step, self._padded(rows.count)
        logits_nV = torch.empty(padded, self._weights.head.outer, dtype=self._dtype)
        step.rows, step.padded, step.newest, step.logits = rows.count, padded, *pointers(rows.newest, logits_nV)
        if failed := kernels().decode_step(ctypes.addressof(step), len(self._parts[0]) - 1):
            raise RuntimeError(f"expected torch's products to succeed, got error {failed} of its C interface")
        return logits_nV[: rows.count]

    def _divide(self, rows: Rows, members: int, prompts: Sequence[int]) -> None:
        """Divides the live rows into parts of one group each; valid until rows are added or removed.

        The sums of a row depend on the rows of its part. First turns of a group are decoded together; a later turn is
        in a part of its own, because it meets others by the time that tools took.
        """
        place_n = rows.place[: rows.count]
        part_n = (place_n // members) * members + place_n % members // _TOGETHER
        part_n = torch.where(rows.history[: rows.count] > 0, len(prompts) * members + place_n, part_n)
        order_n = (part_n * 2 * len(prompts) * members + place_n).argsort()
        _, counts = torch.unique_consecutive(part_n[order_n], return_counts=True)
        begin = torch.cat([torch.zeros(1, dtype=torch.long), counts.cumsum(0)])
        slots = place_n[order_n[begin[:-1]]] // members
        self._parts = (begin, order_n, slots, torch.tensor(prompts)[slots] - self.shape.before)
        step = self._attention
        step.begin, step.order, step.slot, step.prompt = pointers(*self._parts)
        step.length = self._length.data_ptr()
        self._version = rows.version

    def move_groups(self, moves: Sequence[tuple[int, int]]) -> None:
        """Copies the prompts of group slots (from, to)."""
        for source, target in moves:
            for cache in self.cache.prompts:
                cache[:, target] = cache[:, source]

    def move_rows(self, moves: Sequence[tuple[int, int]], used: int) -> None:
        """Copies the first `used` own tokens of rows (from, to)."""
        tile = self.cache.tile
        filled = -(-used // tile) * tile * self.shape.head_size
        for source, target in moves if self.cache.own else ():
            for cache in self.cache.own:
                cache[target, :, :, :filled] = cache[source, :, :, :filled]


def is_faster(model: PreTrainedModel, dtype: torch.dtype) -> bool:
    """Whether `CompiledForward` decodes sequences of this model on this machine, and no slower than its modules."""
    decoder: Any = model.get_decoder()
    possible = is_packed(model) and has_llama_form(decoder) and has_plain_products(model)
    return possible and uses_kernel(DECODE_STEP, decoder.layers[0].self_attn.head_dim, dtype)


def _decode_forms(width: int, dtype: torch.dtype) -> tuple[Form, Form]:
    """Whole decode steps: a run has either all of a step's kernels, or the model's own modules."""
    members, shape = 16, CacheShape(1, 2, width, groups=4, rows=64, prompt_tokens=96, own_tokens=64)
    sizes = {"hidden_size": 128, "intermediate_size": 256, "head_dim": width, "vocab_size": 64, "num_hidden_layers": 1}
    model = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2))
    model.set_attn_implementation(NAME)
    prompts = [shape.prompt_tokens] * shape.groups
    rows = Rows(shape.rows, Sampling(max_tokens=shape.own_tokens), (0,), torch.device("cpu"))
    rows.add([(0, row, shape.prompt_tokens, 0) for row in range(shape.rows)])
    rows.length[:] = rows.written[0] = shape.own_tokens // 2

    def form(forward: Forward) -> Form:
        @torch.no_grad()
        def step() -> None:
            rows.keep((), shape.rows)  # begins anew, because every step makes the rows longer
            forward.decode_step(rows, members, prompts)

        return step

    compiled = CompiledForward(CompiledWeights(model, dtype), shape)
    kernel, modules = form(compiled), form(ModuleForward(model, shape, dtype))
    kernel()  # allocates all of the cache
    for memory in (*compiled.cache.prompts, *compiled.cache.own):
        memory.zero_()  # whatever was there may be denormal numbers, which are slow
    return kernel, modules


DECODE_STEP = Contest("decode step", "head size", (32, 64, 128), _decode_forms)
