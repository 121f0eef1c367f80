"""Sizes, models and clocks of `gpu.py`: shapes of Qwen2.5 with random weights, so that nothing is downloaded."""

from __future__ import annotations

import argparse
import gc
import json
import random
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from grouprl.models.attention import NAME

END = 1


@dataclass(frozen=True)
class Size:
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    intermediate: int
    vocabulary: int = 151936

    @property
    def head_size(self) -> int:
        return self.hidden // self.heads

    @property
    def products(self) -> int:
        """Weights that every token is multiplied with, the output embedding apart."""
        attention = 2 * self.hidden * self.hidden + 2 * self.hidden * self.kv_heads * self.head_size
        return self.layers * (attention + 3 * self.hidden * self.intermediate)

    @property
    def embedding(self) -> int:
        return self.vocabulary * self.hidden


@dataclass(frozen=True)
class Work:
    problems: int = 64
    group_size: int = 8
    prompt_tokens: int = 256
    max_tokens: int = 1024
    short_tokens: int = 256  # for those that would take too long
    learned_groups: int = 16

    @property
    def rows(self) -> int:
        return self.problems * self.group_size


SIZES = {
    "0.5B": Size(hidden=896, layers=24, heads=14, kv_heads=2, intermediate=4864),
    "1.5B": Size(hidden=1536, layers=28, heads=12, kv_heads=2, intermediate=8960),
}
TINY = Size(hidden=64, layers=2, heads=4, kv_heads=2, intermediate=128, vocabulary=512)
TINY_WORK = Work(problems=3, group_size=2, prompt_tokens=16, max_tokens=24, short_tokens=8, learned_groups=2)


@dataclass
class Bench:
    """What was found so far, written after every part."""

    arguments: argparse.Namespace
    device: torch.device
    found: dict[str, Any] = field(default_factory=dict)
    began: float = field(default_factory=time.perf_counter)

    def part(self, name: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Runs a part and keeps what it returns; None where it failed or there was no time left."""
        spent = time.perf_counter() - self.began
        if spent > self.arguments.seconds:
            self.found[name] = {"left out after": round(spent)}
            return None
        result = None
        try:
            result = function(self, *arguments)
            kept = {key: value for key, value in result.items() if isinstance(value, float | int | str)}
        except (RuntimeError, ImportError, LookupError, OSError, ValueError, TypeError, AttributeError) as error:
            traceback.print_exc()
            kept = {"failed": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}
        self.found[name] = kept
        if self.arguments.json:
            self.arguments.json.write_text(json.dumps(self.found, indent=1))
        words = "".join(f"{key:>26} {shown(value)}\n" for key, value in kept.items())
        print(f"{name} (at {time.perf_counter() - self.began:.0f} s)\n{words}", end="", flush=True)
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        return result

    def seconds(self, function: Callable[[], Any]) -> float:
        wait(self.device)
        began = time.perf_counter()
        function()
        wait(self.device)
        return time.perf_counter() - began


def shown(value: float | str) -> str:
    if isinstance(value, str):
        return value
    return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def build(size: Size, device: torch.device) -> Qwen2ForCausalLM:
    """Random weights, float32, on GroupRL's attention."""
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=size.vocabulary,
        hidden_size=size.hidden,
        intermediate_size=size.intermediate,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.kv_heads,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        eos_token_id=END,
        pad_token_id=0,
        bos_token_id=None,
    )
    with torch.device(device):
        model = Qwen2ForCausalLM(config).float().eval()
    model.set_attn_implementation(NAME)
    # A model that somebody watches is run by its own modules on a CPU too, as on a GPU.
    model.get_decoder().register_forward_hook(lambda *_: None)
    return model


def prompts(work: Work, size: Size) -> list[tuple[int, ...]]:
    draws = random.Random(0)
    words = min(512, size.vocabulary)  # those that the tokenizer knows
    return [tuple(draws.randrange(2, words) for _ in range(work.prompt_tokens)) for _ in range(work.problems)]


def peak(device: torch.device) -> Callable[[], float]:
    """What gives the most memory held since now, in GiB."""
    if device.type != "cuda":
        return lambda: 0.0
    torch.cuda.reset_peak_memory_stats(device)
    return lambda: torch.cuda.max_memory_allocated(device) / (1 << 30)
