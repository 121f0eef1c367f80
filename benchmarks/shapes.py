"""The models and prompts that the speed benchmarks share: random weights, so that nothing is downloaded.

`small` is 4.5 million parameters (biases on query, key and value, as in Qwen2), `grouped` as many with two key/value
heads, `wide` 23.6 million. `REAL` are the sizes of models that people train. The end token is drawn with a probability
of about 3 / 512, whatever the vocabulary, so that completions of up to 96 tokens end at all lengths, after 74 tokens in
the mean (of up to 64: 53).
"""

from __future__ import annotations

import argparse
import math
import random
from dataclasses import dataclass, replace
from functools import cache
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
    shared_tokens: int = 0  # tokens of the prompts that are the same in all of them, at their begin
    vocabulary: int = VOCABULARY


SHAPES = {
    "small": Shape(hidden=256, layers=6, heads=4, kv_heads=4, intermediate=608),
    "grouped": Shape(hidden=256, layers=6, heads=4, kv_heads=2, intermediate=688),
    "wide": Shape(hidden=512, layers=8, heads=8, kv_heads=8, intermediate=1216),
}
REAL = {
    "smollm2-135m": Shape(576, 30, 9, 3, 1536, 8, 8, 60, 64, vocabulary=49_152),
    "smollm2-360m": Shape(960, 32, 15, 5, 2560, 8, 8, 60, 64, vocabulary=49_152),
    "qwen2.5-0.5b": Shape(896, 24, 14, 2, 4864, 8, 8, 60, 64, vocabulary=151_936),
}
# Of --smoke: whether a benchmark runs, not how fast.
TINY = Shape(
    hidden=32, layers=2, heads=2, kv_heads=1, intermediate=32, problems=2, group_size=2, prompt_tokens=8, max_tokens=8
)
# Options that give a shape another batch.
SIZES = ("problems", "prompt_tokens", "shared_tokens", "max_tokens")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the choice of a shape, its sizes, and --smoke."""
    parser.add_argument("--shape", choices=(*SHAPES, *REAL), default="small")
    for name in SIZES:
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, help="in the place of the shape's own")
    parser.add_argument("--brief-warm-up", action="store_true", help="short prompts and completions in the first step")
    parser.add_argument("--smoke", action="store_true", help="a tiny shape: whether it runs, not how fast")


def shape_of(arguments: argparse.Namespace) -> Shape:
    """The shape that these options choose."""
    given = {name: value for name in SIZES if (value := getattr(arguments, name)) is not None}
    return replace(TINY if arguments.smoke else (SHAPES | REAL)[arguments.shape], **given)


def brief(shape: Shape) -> Shape:
    """The same with short prompts and completions, to warm up what takes minutes."""
    return replace(shape, prompt_tokens=min(8, shape.prompt_tokens), shared_tokens=0, max_tokens=4)


def architecture(shape: Shape) -> Shape:
    """The same for all batches of a model."""
    return replace(shape, problems=1, group_size=1, prompt_tokens=1, max_tokens=1, shared_tokens=0)


def build(shape: Shape, *, seed: int = 0) -> LlamaForCausalLM:
    """The model of a shape, float32, in eval mode."""
    torch.manual_seed(seed)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=shape.vocabulary,
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
    _end_often(model)
    model.generation_config.do_sample = True
    return model.eval()


@torch.no_grad()
def _end_often(model: LlamaForCausalLM) -> None:
    """Gives every last hidden state the same first component, which only the end token's embedding sees."""
    embeddings = model.get_input_embeddings().weight
    embeddings[:, 0] = 0.0
    for layer in model.model.layers:  # many layers would add much to it
        layer.self_attn.o_proj.weight[0] = 0.0
        layer.mlp.down_proj.weight[0] = 0.0
    bias: torch.Tensor = model.model.layers[-1].self_attn.o_proj.bias
    bias[0] = 1.0
    first = model.model(torch.arange(2, VOCABULARY)[None]).last_hidden_state[..., 0].mean()
    embeddings[END] = 0.0
    embeddings[END, 0] = math.log(3.0 * len(embeddings) / VOCABULARY) / first


@cache
def tokenizer(vocabulary: int = VOCABULARY) -> PreTrainedTokenizerFast:
    """Words w2, w3, ... are the tokens 2, 3, ..."""
    words = {"<pad>": PAD, "<end>": END} | {f"w{number}": number for number in range(2, vocabulary)}
    inner = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<end>", pad_token="<pad>")


def prompts(shape: Shape, *, seed: int = 0) -> list[tuple[int, ...]]:
    """Prompts of `shape.prompt_tokens` random tokens, one for each problem; the first tokens may be shared."""
    draws = random.Random(seed)

    def some(count: int) -> tuple[int, ...]:
        return tuple(draws.randrange(2, shape.vocabulary) for _ in range(count))

    shared = some(shape.shared_tokens)
    return [shared + some(shape.prompt_tokens - len(shared)) for _ in range(shape.problems)]


def text(prompt: tuple[int, ...]) -> str:
    """A prompt as the text that the tokenizer turns into it."""
    return " ".join(f"w{number}" for number in prompt)


def save(shape: Shape, folder: Path) -> Path:
    """Writes model and tokenizer in Hugging Face layout; an existing folder is left as it is."""
    if not (folder / "config.json").exists():
        build(shape).save_pretrained(folder)
        tokenizer(shape.vocabulary).save_pretrained(folder)
    return folder
