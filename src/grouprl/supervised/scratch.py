"""Makes a new small model and its tokenizer, for work without a download."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from tokenizers import Regex, Tokenizer, decoders, pre_tokenizers
from tokenizers import models as tokenizer_models
from tokenizers.trainers import BpeTrainer
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from grouprl.forward.attention import NAME
from grouprl.supervised.settings import NewModelConfig

# Each digit is a token, so that the model reads a number by place value. An operator with its spaces is one token, so
# that a reasoning step is short. The order of the alternatives matters.
_PIECES = r"\d| [-+*/=] |\\boxed\{|[.,?!] ?| ?[A-Za-z']+|\s+|[^\sA-Za-z\d]"
_TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] }}"
    "{% if message['role'] == 'assistant' %}{{ '<|end|>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
_SPECIAL = ("<|pad|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>")


def new_tokenizer(texts: Iterable[str], vocabulary: int) -> PreTrainedTokenizerBase:
    """A byte-level BPE tokenizer of at most `vocabulary` tokens with a chat template; it can encode any text."""
    tokenizer = Tokenizer(tokenizer_models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(_SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|end|>",
        pad_token="<|pad|>",
        additional_special_tokens=list(_SPECIAL[2:]),
        chat_template=_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def new_model(config: NewModelConfig, tokenizer: PreTrainedTokenizerBase, *, seed: int) -> PreTrainedModel:
    """A Llama model with random weights, tied embeddings and GroupRL's attention, in eval mode.

    Not Qwen2: transformers loads Qwen2's own tokenizer for every folder of that type, whatever its tokenizer.json says.
    """
    torch.manual_seed(seed)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            num_key_value_heads=config.heads,
            max_position_embeddings=config.context,
            tie_word_embeddings=True,
            attention_bias=True,
            rms_norm_eps=1e-6,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
            bos_token_id=None,
        )
    )
    model.set_attn_implementation(NAME)
    return model.eval()
