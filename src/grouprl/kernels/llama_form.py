"""The forward pass of decoders in Llama's form on the CPU, with compiled kernels for the per-token operations.

The modules and weights are the model's own; this file only repeats their order of calls. `verify` compares it with
the model's own forward pass when a model is loaded.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from grouprl.forward.attention import Rule
from grouprl.forward.layouts import TreeLayout
from grouprl.forward.precision import as_float32
from grouprl.forward.prefix import KeepingLayout
from grouprl.forward.products import padded_rows, product_sizes
from grouprl.kernels.calibration import Contest, Form, grid, uses_kernel, with_gradient
from grouprl.kernels.functions import add_norm, fits, swiglu, tree_attention

# Decoders of exactly these parts: attention with rotary positions, RMS norms before attention and MLP (and, in Qwen3,
# of each head's queries and keys), silu(gate) * up.
_DECODERS = ("LlamaModel", "MistralModel", "Qwen2Model", "Qwen3Model")
_KNOWN = (
    *(f"transformers.models.{family}." for family in ("llama", "mistral", "qwen2", "qwen3")),
    "transformers.activations",
    "torch.nn.modules.",
    "peft.tuners.lora.",
)
# Rotations that depend on the length of the longest sequence.
_CHANGING_ROTATIONS = ("dynamic", "longrope")


class AttentionInput(NamedTuple):
    """What a layer gives to its attention, without positions applied."""

    query: Tensor  # [S, heads, d]
    key: Tensor  # [S, kv_heads, d]
    value: Tensor  # [S, kv_heads, d]
    cosine: Tensor  # [S, d] float32, of the positions
    sine: Tensor
    scaling: float  # multiplies the scores
    window: int | None = None  # a token sees this many tokens, itself included; None = all before it


def has_llama_form(decoder: nn.Module) -> bool:
    """Whether `llama_hidden_states` computes this decoder's forward pass here."""
    if type(decoder).__name__ not in _DECODERS:
        return False
    for module in decoder.modules():  # of known classes, without hooks but the one of rounded embeddings
        hooks = {*module._forward_hooks.values(), *module._forward_pre_hooks.values()} - {as_float32}
        if hooks or not type(module).__module__.startswith(_KNOWN):
            return False
    config: Any = decoder.config
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return (
        decoder.embed_tokens.weight.device.type == "cpu"  # type: ignore[union-attr]
        and decoder.embed_tokens.weight.dtype in (torch.float32, torch.bfloat16)  # type: ignore[union-attr, operator]
        and config.hidden_act == "silu"
        and getattr(decoder.rotary_emb, "rope_type", "") not in _CHANGING_ROTATIONS
        and head <= 512
        and fits(config.hidden_size, config.intermediate_size, head)
    )


def llama_hidden_states(decoder: Any, input_ids_S: Tensor, position_ids_S: Tensor, layout: Any) -> Tensor:
    """Last hidden states [S, H] of packed tokens under a layout."""
    size = len(input_ids_S)
    if padding := padded_rows(size, _dtype(), product_sizes(decoder)) - size:
        # No token attends to the padding beyond the layout, and the padding attends to none.
        input_ids_S, position_ids_S = F.pad(input_ids_S, (0, padding)), F.pad(position_ids_S, (0, padding))
    x = decoder.embed_tokens(input_ids_S)
    cosine, sine = decoder.rotary_emb(x[None], position_ids_S[None])
    rotation = (cosine[0], sine[0])
    delta = None
    for index, layer in enumerate(decoder.layers):
        if layer.gradient_checkpointing and layer.training and torch.is_grad_enabled():  # see `recompute_activations`
            x, delta = checkpoint(_layer, layer, index, x, delta, rotation, layout, use_reentrant=False)
        else:
            x, delta = _layer(layer, index, x, delta, rotation, layout)
    _, normed = add_norm(x, delta, decoder.norm.weight, decoder.norm.variance_epsilon, torch.float32)
    return normed[:size]


def _layer(
    layer: Any, index: int, x: Tensor, delta: Tensor | None, rotation: tuple[Tensor, Tensor], layout: Any
) -> tuple[Tensor, Tensor]:
    """Runs one layer on the sum x + delta; gives such a pair, because the next norm computes the sum."""
    dtype, attention, mlp = _dtype(), layer.self_attn, layer.mlp
    x, normed = add_norm(x, delta, layer.input_layernorm.weight, layer.input_layernorm.variance_epsilon, dtype)
    q, k, v = (
        project(normed).view(len(x), -1, attention.head_dim)
        for project in (attention.q_proj, attention.k_proj, attention.v_proj)
    )
    if hasattr(attention, "q_norm"):
        q, k = head_norm(q, attention.q_norm), head_norm(k, attention.k_norm)
    attended = attend_rotated(
        layout, index, AttentionInput(q, k, v, *rotation, attention.scaling, window_of(attention))
    )
    after = layer.post_attention_layernorm
    x, normed = add_norm(x, attention.o_proj(attended.flatten(1)), after.weight, after.variance_epsilon, dtype)
    return x, mlp.down_proj(swiglu(mlp.gate_proj(normed), mlp.up_proj(normed)))


def window_of(attention: Any) -> int | None:
    """How many tokens a token of this layer sees, itself included; None = all before it."""
    mistral = type(attention).__name__ == "MistralAttention"  # which reads it from its configuration
    window: int | None = getattr(attention.config if mistral else attention, "sliding_window", None)
    return window


def _dtype() -> torch.dtype:
    return torch.bfloat16 if torch.is_autocast_enabled("cpu") else torch.float32


def head_norm(x: Tensor, norm: Any) -> Tensor:
    """RMS norm over each head of [S, heads, d]."""
    _, normed = add_norm(x.float().flatten(0, 1), None, norm.weight, norm.variance_epsilon, x.dtype)
    return normed.view_as(x)


def attend_rotated(layout: Any, layer: int, inputs: AttentionInput) -> Tensor:
    """Applies the rotations, then attends as `Layout.attend`: [S, heads, d]. A layout around a tree keeps its part."""
    if isinstance(layout, TreeLayout):
        return _attend(layout, layer, inputs)
    if isinstance(layout, KeepingLayout):
        key = rotate(inputs.key.double(), inputs.cosine.double(), inputs.sine.double())  # as the kernels rotate
        size, rule = layout.size, inputs[5:]
        layout.keep(layer, key[:size].float(), inputs.value[:size])  # without the padding of the products
        attended = layout.by_tree(
            lambda tree, *part: _attend(tree, layer, AttentionInput._make((*part, *rule)), layout.exact), *inputs[:5]
        )
        return F.pad(attended, (0, 0, 0, 0, 0, len(inputs.query) - size))
    layout.keep(layer, inputs)
    return _attend(layout.tree, layer, inputs)


def _attend(tree: TreeLayout, layer: int, inputs: AttentionInput, exact: bool = False) -> Tensor:
    # exact: as the compiled decode steps, which alone read by such layouts here
    query, key, value, cosine, sine, scaling, window = inputs
    window = None if window is None or window >= tree.longest else window
    if exact or uses_kernel(TREE_ATTENTION, query.shape[-1], query.dtype):
        before = None if tree.prefix is None else (tree.prefix.keys[layer], tree.prefix.values[layer])
        return tree_attention(query, key, value, cosine, sine, tree.tree, scaling, window or tree.longest, before)
    rotated = (rotate(query, cosine, sine), rotate(key, cosine, sine))
    attended = tree.attend(layer, *rotated, value, Rule(scaling, window))
    return F.pad(attended, (0, 0, 0, 0, 0, len(query) - tree.size))  # the padding of a pack sees nothing


def rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Applies rotary positions (RoPE, arXiv:2104.09864) with halves of a head as pairs."""
    first, second = x.chunk(2, -1)
    return (x * cosine[:, None] + torch.cat([-second, first], -1) * sine[:, None]).to(x.dtype)


def _attention_forms(width: int, dtype: torch.dtype) -> tuple[Form, Form]:
    layout = TreeLayout((48, 32), ((24, 16, 32, 20), (12, 32, 8)), torch.device("cpu"))
    inputs = [grid(layout.size, heads, width, dtype=dtype) for heads in (4, 2, 2)]
    rotation = [grid(layout.size, width).detach() for _ in range(2)]

    def in_torch(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return layout.attend(0, rotate(query, *rotation), rotate(key, *rotation), value, Rule(0.1))

    kernel = with_gradient(tree_attention, *inputs, *rotation, layout.tree, 0.1, layout.longest)
    return kernel, with_gradient(in_torch, *inputs)


TREE_ATTENTION = Contest("attention", "head size", (32, 64, 128), _attention_forms)
