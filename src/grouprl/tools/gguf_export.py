"""Writes a model as a GGUF file, which llama.cpp, Ollama and vLLM read (docs/models.md)."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from grouprl.models.adapters import is_adapter, merge_adapter
from grouprl.models.load import load_model, load_tokenizer
from grouprl.types import UserError, import_extra

ARCHITECTURES = ("llama", "qwen2", "qwen3")  # those whose weights are stored as they are, or in another order of rows
KINDS = ("f16", "q8_0", "f32")
_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
# How a text is split into words before the merges, by llama.cpp's name (its file llama-vocab.cpp).
_SPLITS = {
    "gpt-2": [("ByteLevel", True)],
    "smollm": [("Digits", True), ("ByteLevel", True)],
    "qwen2": [("Split", _WORDS + _REST), ("ByteLevel", False)],
    "llama-bpe": [("Split", f"{_WORDS}{{1,3}}{_REST}"), ("ByteLevel", False)],
}


def export_gguf(model: str, out: Path, kind: str = "q8_0") -> Path:
    """Writes the model of a folder or hub id, with its tokenizer and chat template; returns `out`.

    Args:
        model: a LoRA adapter is merged into its base model.
        out: a new file that ends in .gguf. It appears when it is complete, or not at all.
        kind: of the matrices: "f16" (11 bits of mantissa), "q8_0" (8 bits a weight, a scale for each 32) or "f32".
            Vectors, and matrices whose rows are not whole blocks of 32, stay in float32.

    Raises:
        UserError: the file exists or cannot be written; the architecture or the tokenizer is none of those above.
    """
    if kind not in KINDS:
        raise UserError(f"--type {kind}: expected one of {', '.join(KINDS)}: choose one")
    if out.suffix != ".gguf":
        raise UserError(f"{out}: expected a file name that ends in .gguf, got {out.name!r}: give such a name")
    if out.exists():
        raise UserError(f"{out}: expected a new file, but it exists: remove it, or give another name")
    library = import_extra("gguf", "gguf", f"model {model!r}")
    network, tokenizer = load_model(model, device=torch.device("cpu")), load_tokenizer(model)
    if is_adapter(model):
        merge_adapter(network)
    config = network.config
    with_bias = config.model_type == "llama" and (config.attention_bias or config.mlp_bias)
    if config.model_type not in ARCHITECTURES or with_bias:
        raise UserError(
            f"model {model!r}: expected an architecture of {', '.join(ARCHITECTURES)}, got {config.model_type}"
            f"{' with biases' if with_bias else ''}: convert it with convert_hf_to_gguf.py of llama.cpp"
        )
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=out.parent) as folder:
            unfinished = Path(folder) / out.name
            writer = library.GGUFWriter(unfinished, config.model_type)
            _add_settings(writer, config, Path(model).name, library.LlamaFileType[_file_type(kind)])
            _add_tokenizer(writer, tokenizer, config, library.TokenType)
            _add_weights(writer, network, library, library.GGMLQuantizationType[kind.upper()])
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_tensors_to_file()
            writer.close()
            unfinished.rename(out)
    except OSError as error:
        raise UserError(f"{out}: cannot be written ({error}): make room, or give another name") from None
    return out


def _file_type(kind: str) -> str:
    return "ALL_F32" if kind == "f32" else f"MOSTLY_{kind.upper()}"


def _add_settings(writer: Any, config: Any, name: str, file_type: int) -> None:
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    if (rope := config.rope_parameters)["rope_type"] != "default":
        raise UserError(
            f"model {name!r}: expected plain rotary embeddings, got rope_type {rope['rope_type']!r}: convert it with "
            "convert_hf_to_gguf.py of llama.cpp"
        )
    writer.add_name(name)
    writer.add_file_type(int(file_type))
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(head)
    writer.add_value_length(head)
    writer.add_rope_dimension_count(head)
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)


def _add_tokenizer(writer: Any, tokenizer: PreTrainedTokenizerBase, config: Any, types: Any) -> None:
    tree = json.loads(tokenizer.backend_tokenizer.to_str())
    split = _split(tree)
    if tree["model"]["type"] != "BPE" or tree["model"].get("byte_fallback") or split is None:
        raise UserError(
            f"model {tokenizer.name_or_path!r}: expected a byte-level BPE tokenizer that splits words as one of "
            f"{', '.join(_SPLITS)}, got another: llama.cpp would read other tokens; convert the model with "
            "convert_hf_to_gguf.py of llama.cpp"
        )
    tokens = {index: token for token, index in tree["model"]["vocab"].items()}
    kinds = dict.fromkeys(tokens, types.NORMAL)
    for added in tree["added_tokens"]:
        tokens[added["id"]] = added["content"]
        kinds[added["id"]] = types.CONTROL if added["special"] else types.USER_DEFINED
    rows = range(config.vocab_size)  # the embedding may have rows without a token
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(split)
    writer.add_token_list([tokens.get(row, f"[PAD{row}]") for row in rows])
    writer.add_token_types([int(kinds.get(row, types.UNUSED)) for row in rows])
    merges = tree["model"]["merges"]
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in merges])
    for name in ("bos", "eos", "pad"):
        if (index := getattr(tokenizer, f"{name}_token_id")) is not None:
            getattr(writer, f"add_{name}_token_id")(index)
    first = tokenizer("a").input_ids[:1]
    writer.add_add_bos_token(tokenizer.bos_token_id is not None and first == [tokenizer.bos_token_id])
    if isinstance(tokenizer.chat_template, str):
        writer.add_chat_template(tokenizer.chat_template)


def _split(tree: Mapping[str, Any]) -> str | None:
    """llama.cpp's name of how a tokenizer splits words; None = it has none."""
    first = tree["pre_tokenizer"] or {}
    parts = first.get("pretokenizers", [first])
    fields = {"Digits": "individual_digits", "ByteLevel": "use_regex"}
    steps = []
    for part in parts:
        kind = part.get("type")
        steps.append((kind, part["pattern"].get("Regex") if kind == "Split" else part.get(fields.get(kind, ""))))
    return next(
        (name for name, split in _SPLITS.items() if split == steps and tree["normalizer"] in (None, _NFC)), None
    )


_NFC = {"type": "NFC"}  # of Qwen; llama.cpp leaves texts as they are


def _add_weights(writer: Any, network: PreTrainedModel, library: Any, kind: Any) -> None:
    config, blocks = network.config, network.config.num_hidden_layers
    names = library.get_tensor_name_map(library.MODEL_ARCH[config.model_type.upper()], blocks)
    block = library.GGML_QUANT_SIZES[kind][0]
    for name, weight in network.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        values = weight.float().numpy()
        heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}.get(name.split(".")[-2])
        if heads is not None and config.model_type == "llama":
            # llama.cpp rotates pairs of neighbors, transformers halves of a head.
            values = values.reshape(heads, 2, -1, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)
        values = np.ascontiguousarray(values)
        form = kind if values.ndim > 1 and values.shape[-1] % block == 0 else library.GGMLQuantizationType.F32
        theirs = names.get_name(name, try_suffixes=(".weight", ".bias"))
        writer.add_tensor(theirs, library.quantize(values, form), raw_dtype=form)
