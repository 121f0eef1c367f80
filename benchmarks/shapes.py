"""The models and prompts that the speed benchmarks share: random weights, so that nothing is downloaded.

`small` is 4.5 million parameters (biases on query, key and value, as in Qwen2), `grouped` as many with two key/value
heads, `wide` 23.6 million. The end token is drawn with a probability of about 3 / 512, so that completions of up to 96
tokens end at all lengths, after 74 tokens in the mean.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

VOCABULARY = 512
PAD, END = 0, 1


@dataclass(frozen=True)
class Shape:
    """Of a model and of the batch that it is timed on."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    intermediate: int
    problems: int = 16
    group_size: int = 8
    prompt_tokens: int = 48
    max_tokens: int = 96


SHAPES = {
    "small": Shape(hidden=256, layers=6, heads=4, kv_heads=4, intermediate=608),
    "grouped": Shape(hidden=256, layers=6, heads=4, kv_heads=2, intermediate=688),
    "wide": Shape(hidden=512, layers=8, heads=8, kv_heads=8, intermediate=1216),
}
# Of --smoke: whether a benchmark runs, not how fast.
TINY = Shape(
    hidden=32, layers=2, heads=2, kv_heads=1, intermediate=32, problems=2, group_size=2, prompt_tokens=8, max_tokens=8
)


def build(shape: Shape, *, seed: int = 0) -> LlamaForCausalLM:
    """The model of a shape, float32, in eval mode."""
    torch.manual_seed(seed)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=shape.hidden,
            intermediate_size=shape.intermediate,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            num_key_value_heads=shape.kv_heads,
            max_position_embeddings=4096,
            tie_word_embeddings=True,
            attention_bias=True,
            eos_token_id=END,
            pad_token_id=PAD,
            bos_token_id=None,
        )
    )
    _end_three_times_as_often(model)
    model.generation_config.do_sample = True
    return model.eval()


@torch.no_grad()
def _end_three_times_as_often(model: LlamaForCausalLM) -> None:
    """Gives every last hidden state a first component that only the end token's embedding sees."""
    embeddings = model.get_input_embeddings().weight
    embeddings[:, 0] = 0.0
    bias: torch.Tensor = model.model.layers[-1].self_attn.o_proj.bias
    bias[0] = 1.0
    first = model.model(torch.arange(2, VOCABULARY)[None]).last_hidden_state[..., 0].mean()
    embeddings[END] = 0.0
    embeddings[END, 0] = math.log(3.0) / first


def tokenizer() -> PreTrainedTokenizerFast:
    """Words w2 ... w511 are the tokens 2 ... 511."""
    words = {"<pad>": PAD, "<end>": END} | {f"w{number}": number for number in range(2, VOCABULARY)}
    inner = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<end>", pad_token="<pad>")


def prompts(shape: Shape, *, seed: int = 0) -> list[tuple[int, ...]]:
    """Prompts of `shape.prompt_tokens` random tokens, one for each problem."""
    draws = random.Random(seed)
    return [tuple(draws.randrange(2, VOCABULARY) for _ in range(shape.prompt_tokens)) for _ in range(shape.problems)]


def text(prompt: tuple[int, ...]) -> str:
    """A prompt as the text that the tokenizer turns into it."""
    return " ".join(f"w{number}" for number in prompt)


def save(shape: Shape, folder: Path) -> Path:
    """Writes model and tokenizer in Hugging Face layout; an existing folder is left as it is."""
    if not (folder / "config.json").exists():
        build(shape).save_pretrained(folder)
        tokenizer().save_pretrained(folder)
    return folder
