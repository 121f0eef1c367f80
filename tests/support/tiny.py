"""Tiny random checkpoints in Hugging Face layout: real architectures, a real tokenizer, no download."""

from pathlib import Path
from typing import Literal

import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from grouprl.models.save import save_model
from grouprl.supervised.scratch import new_tokenizer

Kind = Literal["qwen2", "llama", "qwen3"]

TEXTS = (
    "John has 15 apples, gives 3 to Mary, and then gives 5 to Kevin. How many are left?",
    "There are 4 boxes with 6 pens each. 4 * 6 = 24, so there are 24 pens. \\boxed{24}",
    "I think there are 7 left. \\boxed{7}",
)
HIDDEN, LAYERS, HEADS = 64, 2, 4


def tiny_model_folder(
    tmp: Path, *, kv_heads: int = 2, kind: Kind = "qwen2", chat_template: bool = True, context: int = 256
) -> Path:
    """A checkpoint folder under `tmp`; the same arguments give the same bytes."""
    folder = tmp / f"{kind}-{kv_heads}-{chat_template}-{context}"
    tokenizer = new_tokenizer(TEXTS * 3, 320)
    if not chat_template:
        tokenizer.chat_template = None
    save_model(_model(kind, kv_heads, context, tokenizer), tokenizer, folder)
    return folder


def _model(kind: Kind, kv_heads: int, context: int, tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    shape = {
        "vocab_size": len(tokenizer),
        "hidden_size": HIDDEN,
        "intermediate_size": 2 * HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": kv_heads,
        "max_position_embeddings": context,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": None,
    }
    match kind:
        case "qwen2":
            model = Qwen2ForCausalLM(Qwen2Config(**shape, tie_word_embeddings=True))
        case "llama":
            model = LlamaForCausalLM(LlamaConfig(**shape, tie_word_embeddings=False))
        case "qwen3":  # its heads need not add up to the hidden size
            model = Qwen3ForCausalLM(Qwen3Config(**shape, tie_word_embeddings=True, head_dim=16))
    _fill(model)
    return model.eval()


@torch.no_grad()
def _fill(model: PreTrainedModel) -> None:
    # The usual 0.02 leaves a model this narrow nearly uniform, and its attention nearly without effect: wrong
    # positions or masks would then pass any test.
    generator = torch.Generator().manual_seed(7)
    for name, weight in sorted(model.named_parameters()):
        noise = torch.randn(weight.shape, generator=generator)
        weight.copy_(1 + 0.1 * noise if "norm" in name else 0.2 * noise)
