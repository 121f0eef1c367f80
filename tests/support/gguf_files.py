"""Writes a tiny Llama as a GGUF file, as llama.cpp's converter does: names, permuted queries and keys, tokenizer."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from transformers import LlamaConfig, LlamaForCausalLM

from grouprl.supervised.scratch import new_tokenizer
from tiny import TEXTS

HIDDEN, HEADS, KV_HEADS, LAYERS = 64, 4, 2, 2
NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def tiny_llama() -> LlamaForCausalLM:
    """A random Llama whose vocabulary is that of `write_gguf`."""
    vocabulary = len(new_tokenizer(TEXTS * 3, 320))
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocabulary, hidden_size=HIDDEN, intermediate_size=96, num_hidden_layers=LAYERS,
            num_attention_heads=HEADS, num_key_value_heads=KV_HEADS, max_position_embeddings=128,
            rms_norm_eps=1e-5, tie_word_embeddings=True, bos_token_id=None, eos_token_id=1, pad_token_id=0,
        )
    )  # fmt: skip


def write_gguf(
    file: Path,
    model: LlamaForCausalLM,
    *,
    architecture: str = "llama",
    kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    tokenizer: bool = True,
    more: Mapping[str, int] | None = None,
) -> Path:
    """Writes the file; `kind` is the form of its matrices."""
    writer, config = gguf.GGUFWriter(file, architecture), model.config
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_vocab_size(config.vocab_size)
    for name, value in (more or {}).items():
        writer.add_uint16(name, value)
    if tokenizer:
        _add_tokenizer(writer)
    for name, weight in model.state_dict().items():
        if name != "lm_head.weight":  # tied
            _add_tensor(writer, name, weight.numpy(), kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def _add_tokenizer(writer: gguf.GGUFWriter) -> None:
    made = new_tokenizer(TEXTS * 3, 320)
    read: dict[str, Any] = json.loads(made.backend_tokenizer.to_str())["model"]
    tokens = sorted(read["vocab"], key=read["vocab"].__getitem__)
    special = {token.content for token in made.added_tokens_decoder.values()}
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    control, normal = int(gguf.TokenType.CONTROL), int(gguf.TokenType.NORMAL)
    writer.add_token_types([control if token in special else normal for token in tokens])
    writer.add_token_merges([" ".join(pair) for pair in read["merges"]])
    writer.add_eos_token_id(1)
    writer.add_pad_token_id(0)
    writer.add_chat_template(str(made.chat_template))


def _add_tensor(
    writer: gguf.GGUFWriter, name: str, weight: "np.ndarray[Any, Any]", kind: gguf.GGMLQuantizationType
) -> None:
    theirs = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}.get(name)
    if theirs is None:
        _, _, layer, inner = name.removesuffix(".weight").split(".", 3)
        theirs = f"blk.{layer}.{NAMES[inner]}.weight"
        heads = {"self_attn.q_proj": HEADS, "self_attn.k_proj": KV_HEADS}.get(inner)
        if heads is not None:  # llama.cpp rotates pairs of neighbors, transformers halves of a head
            weight = weight.reshape(heads, 2, -1, HIDDEN).swapaxes(1, 2).reshape(weight.shape)
    if weight.ndim == 1 or kind == gguf.GGMLQuantizationType.F32:
        writer.add_tensor(theirs, np.ascontiguousarray(weight))
    else:
        writer.add_tensor(theirs, gguf.quantize(np.ascontiguousarray(weight), kind), raw_dtype=kind)
